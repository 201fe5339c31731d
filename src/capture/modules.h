// Which module a function or a frame is of.
#pragma once

#include <Python.h>

#include <string_view>

namespace magneto::capture {

/// The `__name__` among a function's or a frame's globals, or nothing.
inline std::string_view module_of(PyObject* globals) {
  PyObject* name = PyDict_GetItemString(globals, "__name__");
  return name && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : "";
}

}  // namespace magneto::capture
