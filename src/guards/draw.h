// The numbers that a random.Random will give, known before they are drawn.
#pragma once

#include <Python.h>

#include "python/ref.h"

namespace magneto::guards {

/// An instance of random.Random whose state is where this CPython has it.
bool is_random(PyObject* object);

/// What its `index`-th call of random() from here would give. The state stays as it is. Null: Python's error is set.
Ref peek_random(PyObject* random, Py_ssize_t index);

}  // namespace magneto::guards
