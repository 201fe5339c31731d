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

Ref compute(Arithmetic operation, PyObject* left, PyObject* right) {
  return Ref::steal(kRows[static_cast<int>(operation)].run(left, right));
}

const char* symbol_of(Arithmetic operation) { return kRows[static_cast<int>(operation)].symbol; }

}  // namespace magneto::guards
