// What methods of NumPy's generators that draw are called with.
#pragma once

#include <Python.h>

#include <string_view>

#include "python/ref.h"

namespace magneto::capture {

class Capture;

/// A method that gives numbers, or arrays of them, and does nothing else.
bool only_draws(std::string_view method);
/// One that a run's guards may hand to NumPy again: a number or a name, a class of NumPy's, or a tuple of such (in
/// place of a list, too: methods that draw don't tell them apart). Null: it is none, or differs from call to call.
Ref constant_argument(Capture& capture, PyObject* value);

}  // namespace magneto::capture
