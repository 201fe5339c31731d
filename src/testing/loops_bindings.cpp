// What tests reach of the loop IR: text in, text out.
#include <stdexcept>

#include "api/bindings.h"
#include "loops/ir.h"
#include "loops/sharing.h"
#include "python/text.h"

namespace magneto {
namespace {

PyObject* loops_roundtrip(PyObject*, PyObject* text) {
  return guarded([&] { return text_result(loops::print(loops::parse(text_argument(text)))); });
}

PyObject* loops_verify(PyObject*, PyObject* text) {
  return guarded([&] {
    const std::vector<std::string> violations = loops::verify(loops::parse(text_argument(text)));
    Ref list = checked(PyList_New(static_cast<Py_ssize_t>(violations.size())));
    for (size_t i = 0; i < violations.size(); ++i) {
      PyList_SET_ITEM(list.get(), i, checked(text_result(violations[i])).release());
    }
    return list.release();
  });
}

/// (kernel, operand, result), the buffers by number.
PyObject* loops_may_write_over(PyObject*, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject* text = nullptr;
    int operand = 0, result = 0;
    if (!PyArg_ParseTuple(args, "Uii", &text, &operand, &result)) return nullptr;
    return PyBool_FromLong(loops::may_write_over(loops::parse(text_argument(text)), operand, result));
  });
}

PyObject* expr_roundtrip(PyObject*, PyObject* text) {
  return guarded([&] {
    const std::string_view whole = text_argument(text);
    size_t position = 0;
    const shapes::Expr expr = shapes::parse_expr(whole, position);
    if (position != whole.size()) throw std::invalid_argument("text after the expression's end");
    return text_result(shapes::text(expr));
  });
}

/// (expression, {"i0": (low, high), ...}) -> the expression simplified within these ranges.
PyObject* expr_simplify(PyObject*, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject* text = nullptr;
    PyObject* ranges = nullptr;
    if (!PyArg_ParseTuple(args, "UO!", &text, &PyDict_Type, &ranges)) return nullptr;
    size_t position = 0;
    const shapes::Expr expr = shapes::parse_expr(text_argument(text), position);
    const shapes::Expr result = shapes::simplify(expr, [&](shapes::Expr leaf) -> shapes::Range {
      PyObject* pair = PyDict_GetItemString(ranges, shapes::text(leaf).c_str());
      shapes::Range range;
      if (pair) {
        long long low = 0, high = 0;
        if (!PyArg_ParseTuple(pair, "LL", &low, &high)) throw PythonError{};
        range = {low, high};
      }
      return range;
    });
    return text_result(shapes::text(result));
  });
}

}  // namespace

PyMethodDef loops_test_methods[] = {
    {"loops_roundtrip", loops_roundtrip, METH_O, "Parses a kernel's text form and prints it again."},
    {"loops_verify", loops_verify, METH_O, "The invariants that a kernel in text form breaks, one line each."},
    {"loops_may_write_over", loops_may_write_over, METH_VARARGS,
     "(kernel, operand, result): whether the result may lie in the operand's memory."},
    {"expr_roundtrip", expr_roundtrip, METH_O, "Parses an integer expression and prints its normal form."},
    {"expr_simplify", expr_simplify, METH_VARARGS,
     "(text, ranges): the expression simplified within the leaves' ranges."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace magneto
