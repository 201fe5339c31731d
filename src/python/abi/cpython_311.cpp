// CPython 3.11.
//
// The caller of an eval hook (_PyEval_Vector, or the generator's send) clears and pops the frame when the hook has
// returned, and `_PyEval_EvalFrameDefault` links it into the thread's chain of frames. `prev_instr` is the code unit
// before the one to run next; while an instruction runs, it is that instruction.
#include <Python.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030C0000
#error "cpython_311.cpp is for CPython 3.11"
#endif

#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

#include "python/abi/cpython_common.h"
#include "python/abi/errors.h"
#include "python/abi/plain_frames.h"
#include "python/abi/types.h"

namespace magneto {

namespace {

ThreadPosition::ThreadPosition(PyThreadState* thread)
    : evaluator(thread->cframe),
      current(thread->cframe->current_frame),
      exceptions(thread->exc_info),
      recursion(thread->recursion_remaining),
      c_recursion(0) {}

void ThreadPosition::restore(PyThreadState* thread) const {
  thread->cframe = static_cast<_PyCFrame*>(evaluator);
  thread->cframe->current_frame = current;
  thread->exc_info = exceptions;
  thread->recursion_remaining = recursion;
}

PyObject* evaluate(PyThreadState* thread, Frame* frame, int throwflag) {
  return _PyEval_EvalFrameDefault(thread, frame, throwflag);
}

Frame*& innermost(PyThreadState* thread) { return thread->cframe->current_frame; }

int32_t next_unit(Frame* frame) { return static_cast<int32_t>(frame->prev_instr - _PyCode_CODE(frame->f_code)) + 1; }
void set_next_unit(Frame* frame, int32_t unit) { frame->prev_instr = _PyCode_CODE(frame->f_code) + unit - 1; }
void set_running_unit(Frame* frame, int32_t unit) { frame->prev_instr = _PyCode_CODE(frame->f_code) + unit; }

bool is_suspended(const PyGenObject* generator) { return generator->gi_frame_state == FRAME_SUSPENDED; }
Frame* frame_in(PyGenObject* generator) { return reinterpret_cast<Frame*>(generator->gi_iframe); }

}  // namespace

bool is_traced(PyThreadState* thread) { return thread->cframe->use_tracing != 0; }

const bool typing_variables_in_c = false;

PyObject* type_dict(PyTypeObject* type) { return type->tp_dict; }

void set_empty_slot_error(PyObject* object, PyObject* name) {
  PyErr_Format(PyExc_AttributeError, "'%.200s' object has no attribute '%U'", Py_TYPE(object)->tp_name, name);
}

PyCodeObject* frame_code(Frame* frame) { return frame->f_code; }
PyObject* frame_function(Frame* frame) { return reinterpret_cast<PyObject*>(frame->f_func); }

CurrentFrame::CurrentFrame(PyThreadState* thread, Frame* frame, bool locals_are_left)
    : thread_(thread), previous_(thread->cframe->current_frame) {
  hide_slots(frame, locals_are_left);
  frame->previous = previous_;
  frame->is_entry = true;
  thread->cframe->current_frame = frame;
  --thread->recursion_remaining;
}

CurrentFrame::~CurrentFrame() {
  end_hiding();
  thread_->cframe->current_frame = previous_;
  ++thread_->recursion_remaining;
}

PyObject* frame_raise(PyThreadState* thread, Frame* frame) { return frame_throw(thread, frame); }

PyObject* frame_return(PyThreadState* thread, Frame* frame, const CodeInfo& info, PyObject* value) {
  // This is all that RETURN_VALUE does in a frame that was entered from C: the caller clears and pops it, or ends the
  // generator.
  unlink_if_current(thread, frame);
  frame->previous = thread->cframe->current_frame;
  clear_stack(frame);
  return value;
}

}  // namespace magneto
