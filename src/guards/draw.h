// The numbers that a random.Random will give, known before they are drawn.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>
#include <vector>

#include "python/ref.h"

namespace magneto::guards {

/// An instance of random.Random whose state is where this CPython has it.
bool is_random(PyObject* object);

/// What is drawn: 0: random(); n > 0: an int below n, as randrange does it; -k: getrandbits(k).
using Draw = int64_t;

/// A draw and all those in front of it: numbered for the process's life. `before`: -1, or such a number.
Py_ssize_t draw_behind(Py_ssize_t before, Draw draw);
/// Those draws, the first one first.
std::vector<Draw> draws_until(Py_ssize_t last);
/// "random()[1]": what the last of them is.
std::string draw_text(Py_ssize_t last);

/// What the last of them would give from here. The state stays as it is. Null: Python's error is set.
Ref peek_random(PyObject* random, Py_ssize_t last);

}  // namespace magneto::guards
