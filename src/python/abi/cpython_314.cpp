// CPython 3.14.
//
// `instr_ptr` is as in 3.13. Slots, the code and the function are references with a tag, dicts have no versions, and
// what bounds the calls of C code is the C stack's size alone.
#include <Python.h>

#if PY_VERSION_HEX < 0x030E0000 || PY_VERSION_HEX >= 0x030F0000
#error "cpython_314.cpp is for CPython 3.14"
#endif
#ifdef Py_GIL_DISABLED
#error "Magneto needs the GIL"
#endif

#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_interpframe.h>
#include <internal/pycore_interpframe_structs.h>
#undef Py_BUILD_CORE

#include "python/abi/cpython_312_on.h"
#include "python/abi/cpython_313_on.h"
#include "python/abi/cpython_common.h"
#include "python/abi/tagged_slots.h"
#include "python/abi/watched_dicts.h"

namespace magneto {

namespace {

ThreadPosition::ThreadPosition(PyThreadState* thread)
    : evaluator(nullptr),
      current(thread->current_frame),
      exceptions(thread->exc_info),
      recursion(thread->py_recursion_remaining),
      c_recursion(0) {}

void ThreadPosition::restore(PyThreadState* thread) const {
  thread->current_frame = current;
  thread->exc_info = exceptions;
  thread->py_recursion_remaining = recursion;
}

PyObject* evaluate(PyThreadState* thread, Frame* frame, int throwflag) {
  give_back(frame);
  return _PyEval_EvalFrameDefault(thread, frame, throwflag);
}

Frame* frame_in(PyGenObject* generator) { return &generator->gi_iframe; }

}  // namespace

PyCodeObject* frame_code(Frame* frame) { return reinterpret_cast<PyCodeObject*>(object_of(frame->f_executable)); }
PyObject* frame_function(Frame* frame) { return object_of(frame->f_funcobj); }

PyObject** annotate_place(PyFunctionObject* function) { return &function->func_annotate; }

}  // namespace magneto
