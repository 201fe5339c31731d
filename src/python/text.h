// Python's text and ours, which is UTF-8.
#pragma once

#include <Python.h>

#include <string_view>

#include "python/ref.h"

namespace magneto {

/// A new reference to a str, or null with an error set. Bytes that are no UTF-8 (of the user's source) are replaced.
inline PyObject* text_result(std::string_view text) {
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
}

/// The same. Throws PythonError.
inline Ref text_object(std::string_view text) { return checked(text_result(text)); }

/// What a str holds, as long as it lives. Throws PythonError for other objects.
inline std::string_view text_argument(PyObject* text) {
  Py_ssize_t size = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(text, &size);
  if (!utf8) throw PythonError{};
  return {utf8, static_cast<size_t>(size)};
}

}  // namespace magneto
