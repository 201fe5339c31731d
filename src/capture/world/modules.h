// Which module a function, a frame or a class is of.
#pragma once

#include <Python.h>

#include <string_view>

#include "capture/kinds.h"
#include "python/abi/private.h"

namespace magneto::capture {

/// The `__name__` among a function's or a frame's globals, or nothing.
inline std::string_view module_of(PyObject* globals) {
  PyObject* name = PyDict_GetItemString(globals, "__name__");
  return name && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : "";
}

/// The `__module__` of a class made by a class statement, or nothing.
inline std::string_view module_of(PyTypeObject* type) {
  PyObject* name = lookup_in_type(type, MAGNETO_STR("__module__"));
  return name && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : "";
}

/// A Python function of another module than `module`.
inline bool is_function_beside(PyObject* object, std::string_view module) {
  return PyFunction_Check(object) && module_of(PyFunction_GET_GLOBALS(object)) != module;
}

}  // namespace magneto::capture
