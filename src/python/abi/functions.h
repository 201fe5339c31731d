// What a function object keeps.
#pragma once

#include <Python.h>

#include <vector>

namespace magneto {

/// Where a function keeps the function that makes its annotations. Null: nowhere, up to 3.13. (cpython_3xx.cpp)
PyObject** annotate_place(PyFunctionObject* function);

/// Where a function keeps what its `def` gave it: a place for each flag of MAKE_FUNCTION and SET_FUNCTION_ATTRIBUTE,
/// the lowest flag's first.
inline std::vector<PyObject**> function_parts(PyFunctionObject* function) {
  std::vector<PyObject**> places = {&function->func_defaults, &function->func_kwdefaults, &function->func_annotations,
                                    &function->func_closure};
  if (PyObject** annotate = annotate_place(function)) places.push_back(annotate);
  return places;
}

}  // namespace magneto
