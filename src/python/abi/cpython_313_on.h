// The part of frame.h and errors.h that CPython 3.13 and later have alike. Included once, by the version's
// cpython_3xx.cpp, after cpython_312_on.h.
//
// `instr_ptr` is the code unit that runs, or that runs next. An evaluator that is entered to raise takes it for the
// unit behind the one that raised when it looks for a handler, and for that unit itself in the traceback: see
// frame_raise.
#pragma once

#include "python/abi/cpython_312_on.h"
#include "python/abi/errors.h"

namespace magneto {

namespace {

Frame*& innermost(PyThreadState* thread) { return thread->current_frame; }

int32_t next_unit(Frame* frame) { return static_cast<int32_t>(frame->instr_ptr - _PyCode_CODE(frame_code(frame))); }
void set_next_unit(Frame* frame, int32_t unit) { frame->instr_ptr = _PyCode_CODE(frame_code(frame)) + unit; }
void set_running_unit(Frame* frame, int32_t unit) { set_next_unit(frame, unit); }

bool is_suspended(const PyGenObject* generator) { return FRAME_STATE_SUSPENDED(generator->gi_frame_state); }

_Py_CODEUNIT*& instruction_pointer(Frame* frame) { return frame->instr_ptr; }
_Py_CODEUNIT* pointer_to_run(_Py_CODEUNIT* unit) { return unit; }

}  // namespace

void set_empty_slot_error(PyObject* object, PyObject* name) {
  PyErr_Format(PyExc_AttributeError, "'%T' object has no attribute '%U'", object, name);
}

PyObject* frame_raise(PyThreadState* thread, Frame* frame) {
  unlink_if_current(thread, frame);
  const CodeInfo& info = decode(frame_code(frame));
  const int32_t unit = next_unit(frame);
  int32_t instr = info.index_of[unit], depth = frame_stack_depth(frame);
  if (frame_enter_handler(thread, frame, info, &instr, &depth)) {
    frame_set(frame, info, instr, depth);
    return evaluate_contained(thread, frame, 0);
  }
  // None waits for what this unit raises, so the evaluator is told the unit behind it, and the traceback is put right.
  const Ref object = outliving_object(frame);
  set_next_unit(frame, unit + 1);
  PyObject* result = evaluate_contained(thread, frame, 1);
  if (object) frame_of_object(object.get())->instr_ptr = _PyCode_CODE(info.code) + unit;
  if (!result) {
    Ref raised = Ref::steal(PyErr_GetRaisedException());
    Ref traceback = Ref::steal(PyException_GetTraceback(raised.get()));
    if (traceback && PyTraceBack_Check(traceback.get())) {
      auto* entry = reinterpret_cast<PyTracebackObject*>(traceback.get());
      Frame* shown = entry->tb_frame->f_frame;
      if (frame_code(shown) == info.code && entry->tb_lasti == (unit + 1) * static_cast<int>(sizeof(_Py_CODEUNIT))) {
        entry->tb_lasti = unit * static_cast<int>(sizeof(_Py_CODEUNIT));
        shown->instr_ptr = _PyCode_CODE(info.code) + unit;
      }
    }
    PyErr_SetRaisedException(raised.release());
  }
  return result;
}

}  // namespace magneto
