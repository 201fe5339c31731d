// What native code that runs now may do: call Python functions back, call torch operators, run as it likes.
//
// Invariant: a mode is set for a scope, and is what it was behind it, however the scope is left.
#pragma once

#include <Python.h>

#include <span>

namespace magneto::capture {

struct InterpFrame;

struct NativeMode {
  bool callbacks_allowed = false;
  const InterpFrame* native_from = nullptr;       // C code runs that this frame's instruction calls
  const InterpFrame* called_back_from = nullptr;  // C code called from there has called back: it can't be cut
  bool plain = false;                             // Python code runs that is no part of the program (an import)
  std::span<PyObject* const> native_args;         // of the Native function that runs
  bool recording = false;                         // a torch call runs
  bool trusted = false;                           // ...and is in Python code that may call whatever it likes
  bool backwards_run = false;                     // user's code is interpreted for gradients: nothing can be cut
  bool engine_runs = false;                       // ...but for autograd's engine, which calls the user's code back
  bool torch_runs = false;                        // PyTorch's code that is called back is not interpreted
};

/// Puts the mode back at its end.
class NativeScope {
 public:
  explicit NativeScope(NativeMode& mode) : mode_(mode), saved_(mode) {}
  ~NativeScope() { mode_ = saved_; }
  NativeScope(const NativeScope&) = delete;

  /// What the mode was in front of the scope.
  const NativeMode& outside() const { return saved_; }

 private:
  NativeMode& mode_;
  const NativeMode saved_;
};

/// C code calls Python code back, which is interpreted on stand-ins, as long as this lives: its torch calls are none
/// that C code makes.
class CalledBack {
 public:
  explicit CalledBack(NativeMode& mode) : scope_(mode) {
    mode.callbacks_allowed = true;
    mode.recording = mode.trusted = mode.torch_runs = false;
  }

 private:
  NativeScope scope_;
};

}  // namespace magneto::capture
