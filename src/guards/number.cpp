#include "guards/number.h"

namespace magneto::guards {

namespace {

template <int op>
PyObject* compare_numbers(PyObject* left, PyObject* right) {
  return PyObject_RichCompare(left, right, op);
}

/// min() or max() of both: the left one, unless the right one is less (greater).
template <int op>
PyObject* lesser_number(PyObject* left, PyObject* right) {
  const int less = PyObject_RichCompareBool(right, left, op);
  return less < 0 ? nullptr : Py_NewRef(less ? right : left);
}

PyObject* power(PyObject* left, PyObject* right) { return PyNumber_Power(left, right, Py_None); }

struct Row {
  const char* symbol;
  PyObject* (*run)(PyObject*, PyObject*);
};

constexpr Row kRows[] = {
#define X(name, symbol, function) {symbol, function},
    MAGNETO_ARITHMETIC(X)
#undef X
};

}  // namespace

Ref compute(Arithmetic operation, PyObject* left, PyObject* right, PyObject* function) {
  if (operation == Arithmetic::Call) {
    PyObject* args[] = {left, right};
    return Ref::steal(PyObject_Vectorcall(function, args, right ? 2 : 1, nullptr));
  }
  return Ref::steal(kRows[static_cast<int>(operation)].run(left, right));
}

const char* symbol_of(Arithmetic operation) { return kRows[static_cast<int>(operation)].symbol; }

}  // namespace magneto::guards
