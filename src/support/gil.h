// The GIL for a scope: taken by code that operators call, left by code that computes. (pybind11 has the same; including
// it costs a file eight seconds to compile.)
#pragma once

#include <Python.h>

namespace magneto {

/// Holds the GIL for the scope, whether or not the thread holds it already.
class WithGil {
 public:
  WithGil() : state_(PyGILState_Ensure()) {}
  ~WithGil() { PyGILState_Release(state_); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  PyGILState_STATE state_;
};

/// Lets other Python threads run for the scope, as eager's bindings do around each operator. The thread holds the GIL.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace magneto
