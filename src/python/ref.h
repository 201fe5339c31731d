// Owning references to Python objects.
//
// Ownership is in the type, not in a comment: a `Ref` owns one reference, a bare `PyObject*` is borrowed.
// All members need the GIL.
#pragma once

#include <Python.h>

#include <utility>

namespace magneto {

class Ref {
 public:
  Ref() = default;
  /// Takes over a reference that the caller owns (the result of most C API calls). Null is allowed.
  static Ref steal(PyObject* object) {
    Ref ref;
    ref.object_ = object;
    return ref;
  }
  /// Adds a reference to an object that somebody else owns. Null is allowed.
  static Ref borrow(PyObject* object) {
    Py_XINCREF(object);
    return steal(object);
  }
  Ref(const Ref& other) : object_(other.object_) { Py_XINCREF(object_); }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(const Ref& other) { return *this = Ref(other); }
  Ref& operator=(Ref&& other) noexcept {
    Ref taken(std::move(other));
    std::swap(object_, taken.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }

  PyObject* get() const { return object_; }
  /// Gives the reference to the caller.
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

/// Thrown by C++ code when the Python error indicator is set; the boundary returns NULL on catching it.
struct PythonError {};

/// Turns a C API result into an owned reference; throws PythonError on NULL.
inline Ref checked(PyObject* owned) {
  if (!owned) throw PythonError{};
  return Ref::steal(owned);
}

/// Saves the Python error indicator and restores it at the end of the scope.
class SavedError {
 public:
  SavedError() { PyErr_Fetch(&type_, &value_, &traceback_); }
  ~SavedError() { PyErr_Restore(type_, value_, traceback_); }
  SavedError(const SavedError&) = delete;
  SavedError& operator=(const SavedError&) = delete;

 private:
  PyObject *type_, *value_, *traceback_;
};

/// The current error as a normalized exception object, without its traceback; clears it.
inline Ref take_error() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return Ref::steal(value);
}

}  // namespace magneto
