// Comparisons as CPython numbers them.
#pragma once

#include "guards/number.h"

namespace magneto::capture {

/// By Py_LT, Py_LE, Py_EQ, Py_NE, Py_GT and Py_GE.
inline constexpr guards::Arithmetic kByCPython[] = {guards::Arithmetic::Less,    guards::Arithmetic::LessEqual,
                                                    guards::Arithmetic::Equal,   guards::Arithmetic::NotEqual,
                                                    guards::Arithmetic::Greater, guards::Arithmetic::GreaterEqual};

}  // namespace magneto::capture
