// The numbers that a random.Random will give, or a generator of NumPy, known before they are drawn.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>
#include <vector>

#include "python/ref.h"

namespace magneto::guards {

/// An instance of random.Random whose state is where this CPython has it.
bool is_random(PyObject* object);

/// A RandomState or Generator of NumPy.
bool is_numpy_random(PyObject* object);

/// What is drawn: 0: random(); n > 0: an int below n, as randrange does it; -k: getrandbits(k), for k up to 62; below
/// that, calls of methods of NumPy's, and of Python's that seed.
using Draw = int64_t;
/// The state itself, as getstate() of a _random.Random gives it, or get_state() of a RandomState.
constexpr Draw kStateDraw = -900;

/// `name(*args, **{kwnames: ...})`, of constants; `values` as vectorcalls have them. `seed` has one.
Draw draw_of_call(PyObject* name, const std::vector<PyObject*>& values, PyObject* kwnames);
/// An operator.methodcaller, which draws from what it is called with; null: it is no such call. Borrowed.
PyObject* caller_of(Draw draw);
/// What such a call seeds the generator with; null: it draws. Borrowed.
PyObject* seed_of(Draw draw);
/// A RandomState that may be seeded.
bool has_own_twister(PyObject* random);

/// A draw and all those in front of it: numbered for the process's life. `before`: -1, or such a number.
Py_ssize_t draw_behind(Py_ssize_t before, Draw draw);
/// The number of all those in front of it; -1: none.
Py_ssize_t draw_in_front(Py_ssize_t last);
/// Those draws, the first one first.
std::vector<Draw> draws_until(Py_ssize_t last);
/// "random()[1]": what the last of them is.
std::string draw_text(Py_ssize_t last);

/// What the last of them would give from here. The state stays as it is. `random` may be a state: what a generator
/// would give that is in it. Null: it can't be told now; an error may be set.
Ref peek_random(PyObject* random, Py_ssize_t last);

}  // namespace magneto::guards
