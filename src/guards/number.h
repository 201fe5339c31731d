// Arithmetic on Python's own numbers, as far as sources may be made of it: what a capture computes from numbers whose
// values it does not know is computed again in front of each run.
#pragma once

#include <Python.h>

#include <cstdint>

#include "python/ref.h"

namespace magneto::guards {

/// X(name, symbol, function of CPython). Those that compare give a bool. Call: of a C function that a source names,
/// like math.sqrt, which takes one number or two.
#define MAGNETO_ARITHMETIC(X)                   \
  X(Add, "+", PyNumber_Add)                     \
  X(Subtract, "-", PyNumber_Subtract)           \
  X(Multiply, "*", PyNumber_Multiply)           \
  X(TrueDivide, "/", PyNumber_TrueDivide)       \
  X(FloorDivide, "//", PyNumber_FloorDivide)    \
  X(Remainder, "%", PyNumber_Remainder)         \
  X(Power, "**", power)                         \
  X(LeftShift, "<<", PyNumber_Lshift)           \
  X(RightShift, ">>", PyNumber_Rshift)          \
  X(And, "&", PyNumber_And)                     \
  X(Or, "|", PyNumber_Or)                       \
  X(Xor, "^", PyNumber_Xor)                     \
  X(Minimum, "min", lesser_number<Py_LT>)       \
  X(Maximum, "max", lesser_number<Py_GT>)       \
  X(Less, "<", compare_numbers<Py_LT>)          \
  X(LessEqual, "<=", compare_numbers<Py_LE>)    \
  X(Equal, "==", compare_numbers<Py_EQ>)        \
  X(NotEqual, "!=", compare_numbers<Py_NE>)     \
  X(Greater, ">", compare_numbers<Py_GT>)       \
  X(GreaterEqual, ">=", compare_numbers<Py_GE>) \
  X(Call, "", nullptr)

enum class Arithmetic : uint8_t {
#define X(name, symbol, function) name,
  MAGNETO_ARITHMETIC(X)
#undef X
};

/// An exact int or float; no bool.
inline bool is_number(PyObject* object) { return PyLong_CheckExact(object) || PyFloat_CheckExact(object); }

/// Of two such numbers; of a call, `right` may be null. Null: Python's error is set.
Ref compute(Arithmetic operation, PyObject* left, PyObject* right, PyObject* function = nullptr);

/// As it is written between its operands.
const char* symbol_of(Arithmetic operation);

}  // namespace magneto::guards
