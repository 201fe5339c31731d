// CPython 3.12.
//
// `prev_instr` is the code unit before the one to run next;
// while an instruction runs, it is that instruction.
#include <Python.h>

#if PY_VERSION_HEX < 0x030C0000 || PY_VERSION_HEX >= 0x030D0000
#error "cpython_312.cpp is for CPython 3.12"
#endif

// pycore_interp.h is written for C: its atomics are the compiler's built-in ones, and one macro of Python.h is in its
// way.
#undef HAVE_STD_ATOMIC
#undef _PyGC_FINALIZED
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>
#undef Py_BUILD_CORE

#include "python/abi/c_recursion.h"
#include "python/abi/cpython_312_on.h"
#include "python/abi/cpython_common.h"
#include "python/abi/errors.h"
#include "python/abi/plain_frames.h"

namespace magneto {

namespace {

ThreadPosition::ThreadPosition(PyThreadState* thread)
    : evaluator(thread->cframe),
      current(thread->cframe->current_frame),
      exceptions(thread->exc_info),
      recursion(thread->py_recursion_remaining),
      c_recursion(thread->c_recursion_remaining) {}

void ThreadPosition::restore(PyThreadState* thread) const {
  thread->cframe = static_cast<_PyCFrame*>(evaluator);
  thread->cframe->current_frame = current;
  thread->exc_info = exceptions;
  thread->py_recursion_remaining = recursion;
  thread->c_recursion_remaining = c_recursion;
}

Frame*& innermost(PyThreadState* thread) { return thread->cframe->current_frame; }

int32_t next_unit(Frame* frame) { return static_cast<int32_t>(frame->prev_instr - _PyCode_CODE(frame->f_code)) + 1; }
void set_next_unit(Frame* frame, int32_t unit) { frame->prev_instr = _PyCode_CODE(frame->f_code) + unit - 1; }
void set_running_unit(Frame* frame, int32_t unit) { frame->prev_instr = _PyCode_CODE(frame->f_code) + unit; }

bool is_suspended(const PyGenObject* generator) { return generator->gi_frame_state == FRAME_SUSPENDED; }
Frame* frame_in(PyGenObject* generator) { return reinterpret_cast<Frame*>(generator->gi_iframe); }

_Py_CODEUNIT*& instruction_pointer(Frame* frame) { return frame->prev_instr; }
_Py_CODEUNIT* pointer_to_run(_Py_CODEUNIT* unit) { return unit - 1; }

}  // namespace

void set_empty_slot_error(PyObject* object, PyObject* name) {
  PyErr_Format(PyExc_AttributeError, "'%.200s' object has no attribute '%U'", Py_TYPE(object)->tp_name, name);
}

PyCodeObject* frame_code(Frame* frame) { return frame->f_code; }
PyObject* frame_function(Frame* frame) { return frame->f_funcobj; }

PyObject* frame_raise(PyThreadState* thread, Frame* frame) { return frame_throw(thread, frame); }

}  // namespace magneto
