// Python functions that C code calls while a capture runs.
//
// Invariant: the program's own code is interpreted, or the segment ends in front of the C call; only code of PyTorch in
// a recorded call, and what no call back is awaited of, runs as it is. No C++ exception passes through C code.
#pragma once

#include <Python.h>

#include <vector>

#include "guards/source.h"
#include "python/abi/own_code.h"
#include "python/bytecode/code.h"
#include "python/ref.h"

namespace magneto::capture {

class Capture;

class Callbacks {
 public:
  explicit Callbacks(Capture& capture) : c(capture) {}
  Callbacks(const Callbacks&) = delete;

  /// The eval hook's entry for frames that C code calls back; null pointer result with `handled` false: not ours.
  PyObject* run(PyThreadState* thread, Frame* frame, int throwflag, bool* handled);
  /// What C code gets in place of `callable` to call back: a function that the capture runs, whatever it is.
  Ref callback(PyObject* callable);
  /// Such a function is called. Null: with the Python error set.
  PyObject* call_from_c(PyObject* callable, PyObject* const* args, Py_ssize_t count, PyObject* kwnames);
  void close_generators();

  std::vector<Ref> generators;  // weak references to those made during the capture

 private:
  /// What C code gets as the result of a function that it has called back: a stand-in for a container from outside.
  /// `yielded`: of a generator, whose values C code mostly only hands on.
  Ref returned_to_c(Ref value, bool yielded);
  bool is_last_word(Frame* real, int throwflag) const;
  void mute_last_word();
  PyObject* note_unawaited(PyThreadState* thread, Frame* real);
  PyObject* run_recorded(PyThreadState* thread, Frame* real, int throwflag);
  PyObject* run_torch_code(PyThreadState* thread, Frame* real, int throwflag);
  PyObject* run_uninterpreted(PyThreadState* thread, Frame* real, int throwflag);
  const guards::Source* method_found_by_c(PyObject* function, PyObject* self);
  static void end_frame(PyThreadState* thread, Frame* real, const CodeInfo& info, int32_t instr, int32_t depth);

  Capture& c;
};

}  // namespace magneto::capture
