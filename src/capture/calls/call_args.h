// The arguments of a call that is captured.
#pragma once

#include <Python.h>

#include <cstddef>
#include <vector>

namespace magneto::capture {

/// Arguments in vectorcall layout: positional ones, then the values of `kwnames` (a tuple, or null). Borrowed.
struct CallArgs {
  std::vector<PyObject*> values;
  PyObject* kwnames = nullptr;
  size_t positional() const { return values.size() - keywords(); }
  size_t keywords() const { return kwnames ? static_cast<size_t>(PyTuple_GET_SIZE(kwnames)) : 0; }
  /// The name under which values[i] is given, borrowed; null: by position.
  PyObject* keyword(size_t i) const { return i < positional() ? nullptr : PyTuple_GET_ITEM(kwnames, i - positional()); }
};

}  // namespace magneto::capture
