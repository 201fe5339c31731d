// The part of frame.h and types.h that CPython 3.12 and later have alike. Included once, by the version's
// cpython_3xx.cpp, after cpython_common.h.
//
// An eval hook clears and pops its frame itself, with functions that are not exported; `_PyEval_EvalFrameDefault` does
// it for every frame that it ends, so it ends ours as well.
#pragma once

#include <algorithm>

#include "python/abi/cpython_common.h"
#include "python/abi/types.h"

namespace magneto {

namespace {

/// The frame's instruction pointer, and what it holds when `unit` is to run next.
_Py_CODEUNIT*& instruction_pointer(Frame* frame);
_Py_CODEUNIT* pointer_to_run(_Py_CODEUNIT* unit);

}  // namespace

/// Tools of sys.monitoring (cProfile is one) see all threads; sys.settrace and sys.setprofile, which have the two
/// highest of its ids, one.
bool is_traced(PyThreadState* thread) {
  if (thread->c_tracefunc || thread->c_profilefunc) return true;
  constexpr int thread_tools = 1 << PY_MONITORING_SYS_PROFILE_ID | 1 << PY_MONITORING_SYS_TRACE_ID;
  return std::ranges::any_of(thread->interp->monitors.tools,
                             [](uint8_t tools) { return (tools & ~thread_tools) != 0; });
}

const bool typing_variables_in_c = true;

PyObject* type_dict(PyTypeObject* type) {
  PyObject* dict = PyType_GetDict(type);
  Py_XDECREF(dict);  // the type keeps it
  return dict;
}

CurrentFrame::CurrentFrame(PyThreadState* thread, Frame* frame, bool locals_are_left)
    : thread_(thread), previous_(innermost(thread)) {
  hide_slots(frame, locals_are_left);
  frame->previous = previous_;
  innermost(thread) = frame;
  --thread->py_recursion_remaining;
}

CurrentFrame::~CurrentFrame() {
  end_hiding();
  innermost(thread_) = previous_;
  ++thread_->py_recursion_remaining;
}

namespace {

/// The frame's object, if it has one that outlives the frame.
Ref outliving_object(Frame* frame) {
  auto* object = reinterpret_cast<PyObject*>(frame->frame_obj);
  return object && Py_REFCNT(object) > 1 ? Ref::borrow(object) : Ref();
}

}  // namespace

PyObject* frame_return(PyThreadState* thread, Frame* frame, const CodeInfo& info, PyObject* value) {
  // A function need not have a RETURN_VALUE (RETURN_CONST took its place, or it never returns), but the evaluator runs
  // whatever the instruction pointer points at, so it is given one of ours.
  static _Py_CODEUNIT return_value[2] = {{}, {.op = {opcode_number("RETURN_VALUE"), 0}}};
  unlink_if_current(thread, frame);
  clear_stack(frame);
  push(frame, value);
  // A frame object that outlives the frame takes over its contents, and must not keep a pointer to our code units.
  const Ref object = outliving_object(frame);
  _Py_CODEUNIT* last = instruction_pointer(frame);
  instruction_pointer(frame) = pointer_to_run(&return_value[1]);
  PyObject* result = evaluate(thread, frame, 0);
  if (object) instruction_pointer(frame_of_object(object.get())) = last;
  return result;
}

}  // namespace magneto
