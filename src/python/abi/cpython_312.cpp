// CPython 3.12.
//
// An eval hook clears and pops its frame itself, with functions that are not exported; `_PyEval_EvalFrameDefault` does
// it for every frame that it ends, so it ends ours as well. `prev_instr` is the code unit before the one to run next;
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

#include <algorithm>

#include "python/abi/cpython_common.h"
#include "python/abi/types.h"

namespace magneto {

namespace {

ThreadPosition::ThreadPosition(PyThreadState* thread)
    : cframe(thread->cframe),
      current(thread->cframe->current_frame),
      exceptions(thread->exc_info),
      recursion(thread->py_recursion_remaining),
      c_recursion(thread->c_recursion_remaining) {}

void ThreadPosition::restore(PyThreadState* thread) const {
  thread->cframe = cframe;
  thread->cframe->current_frame = current;
  thread->exc_info = exceptions;
  thread->py_recursion_remaining = recursion;
  thread->c_recursion_remaining = c_recursion;
}

/// Up to this sys.getrecursionlimit() the C stack holds all frames, each with a hook and an evaluator of its own.
constexpr int safe_recursion_limit = 2000;
/// What one evaluator takes of a thread's C recursion (PY_EVAL_C_STACK_UNITS of Python/ceval.c).
constexpr int evaluator_c_units = 2;

/// Without a hook, most calls of Python functions share one evaluator; with it each has its own, and the fixed C limit
/// (1,500 units in 3.12.1) would stop a program at a depth of 750 that may go to 1,000. So an evaluator that a hook
/// enters is not counted, unless the program has set a limit that the C stack would not bear.
PyObject* evaluate(PyThreadState* thread, Frame* frame, int throwflag) {
  const int credit = thread->py_recursion_limit <= safe_recursion_limit ? evaluator_c_units : 0;
  thread->c_recursion_remaining += credit;
  PyObject* result = _PyEval_EvalFrameDefault(thread, frame, throwflag);
  thread->c_recursion_remaining -= credit;
  return result;
}

}  // namespace

/// Tools of sys.monitoring (cProfile is one) see all threads; sys.settrace and sys.setprofile, which have the two
/// highest of its ids, one.
bool is_traced(PyThreadState* thread) {
  if (thread->c_tracefunc || thread->c_profilefunc) return true;
  constexpr int thread_tools = 1 << PY_MONITORING_SYS_PROFILE_ID | 1 << PY_MONITORING_SYS_TRACE_ID;
  return std::ranges::any_of(thread->interp->monitors.tools,
                             [](uint8_t tools) { return (tools & ~thread_tools) != 0; });
}

void normalise(Instr& instr) {
  if (instr.op == Op::LOAD_ATTR) {
    if (instr.arg & 1) instr.op = Op::LOAD_METHOD;
    instr.arg >>= 1;
  } else if (instr.op == Op::COMPARE_OP) {
    instr.arg >>= 4;
  }
}

const bool send_leaves_iterator = true;

const bool typing_variables_in_c = true;

PyObject* type_dict(PyTypeObject* type) {
  PyObject* dict = PyType_GetDict(type);
  Py_XDECREF(dict);  // the type keeps it
  return dict;
}

PyObject* frame_function(Frame* frame) { return frame->f_funcobj; }

CurrentFrame::CurrentFrame(PyThreadState* thread, Frame* frame)
    : thread_(thread), previous_(thread->cframe->current_frame) {
  frame->previous = previous_;
  thread->cframe->current_frame = frame;
  --thread->py_recursion_remaining;
}

CurrentFrame::~CurrentFrame() {
  thread_->cframe->current_frame = previous_;
  ++thread_->py_recursion_remaining;
}

PyObject* frame_return(PyThreadState* thread, Frame* frame, const CodeInfo& info, PyObject* value) {
  // A function need not have a RETURN_VALUE (RETURN_CONST took its place, or it never returns), but the evaluator runs
  // whatever prev_instr points at, so it is given one of ours.
  static _Py_CODEUNIT return_value[2] = {{}, {.op = {opcode_number(Op::RETURN_VALUE), 0}}};
  unlink_if_current(thread, frame);
  clear_stack(frame);
  push(frame, value);
  // A frame object that outlives the frame takes over its contents, and must not keep a pointer to our code units.
  Ref object;
  if (frame->frame_obj && Py_REFCNT(frame->frame_obj) > 1) {
    object = Ref::borrow(reinterpret_cast<PyObject*>(frame->frame_obj));
  }
  _Py_CODEUNIT* last = frame->prev_instr;
  frame->prev_instr = return_value;
  PyObject* result = evaluate(thread, frame, 0);
  if (object) reinterpret_cast<PyFrameObject*>(object.get())->f_frame->prev_instr = last;
  return result;
}

}  // namespace magneto
