// Objects of Python modules that the core uses, imported on first use.
#pragma once

#include <Python.h>

namespace magneto {

/// `module.attribute` (dots allowed in both; no attribute: the module), kept for the process's life. Not a static with
/// an initialiser: that would hold a lock while it imports, and importing may let another thread run, which would wait
/// for the lock with the GIL in its hand. Declare it `static constinit`.
class Imported {
 public:
  explicit constexpr Imported(const char* module, const char* attribute = nullptr)
      : module_(module), attribute_(attribute) {}
  /// Borrowed. Throws PythonError.
  PyObject* get() { return object_ ? object_ : find(); }
  PyTypeObject* type() { return reinterpret_cast<PyTypeObject*>(get()); }

 private:
  PyObject* find();

  const char* module_;
  const char* attribute_;
  PyObject* object_ = nullptr;
};

}  // namespace magneto
