// CPython 3.13.
#include <Python.h>

#if PY_VERSION_HEX < 0x030D0000 || PY_VERSION_HEX >= 0x030E0000
#error "cpython_313.cpp is for CPython 3.13"
#endif
#ifdef Py_GIL_DISABLED
#error "Magneto needs the GIL"
#endif

#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>
#undef Py_BUILD_CORE

#include "python/abi/c_recursion.h"
#include "python/abi/cpython_312_on.h"
#include "python/abi/cpython_313_on.h"
#include "python/abi/cpython_common.h"
#include "python/abi/plain_frames.h"

namespace magneto {

namespace {

ThreadPosition::ThreadPosition(PyThreadState* thread)
    : evaluator(nullptr),
      current(thread->current_frame),
      exceptions(thread->exc_info),
      recursion(thread->py_recursion_remaining),
      c_recursion(thread->c_recursion_remaining) {}

void ThreadPosition::restore(PyThreadState* thread) const {
  thread->current_frame = current;
  thread->exc_info = exceptions;
  thread->py_recursion_remaining = recursion;
  thread->c_recursion_remaining = c_recursion;
}

Frame* frame_in(PyGenObject* generator) { return reinterpret_cast<Frame*>(generator->gi_iframe); }

}  // namespace

PyCodeObject* frame_code(Frame* frame) { return reinterpret_cast<PyCodeObject*>(frame->f_executable); }
PyObject* frame_function(Frame* frame) { return frame->f_funcobj; }

}  // namespace magneto
