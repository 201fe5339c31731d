// The part of frame.h that reads alike in every supported version, although the layout of frames differs. Included
// once, by the version's cpython_3xx.cpp, after that version's definition of _PyInterpreterFrame; that file defines
// what the first namespace below declares.
#pragma once

#include <pthread.h>

#include <exception>
#include <string>
#include <utility>

#include "python/abi/frame.h"
#include "python/abi/frame_slots.h"
#include "python/abi/functions.h"

namespace magneto {

namespace {

/// What an evaluator changes of its thread while it runs a frame, and puts back when that ends as it should.
struct ThreadPosition {
  explicit ThreadPosition(PyThreadState* thread);
  void restore(PyThreadState* thread) const;

  void* evaluator;  // the innermost one (up to 3.12)
  Frame* current;
  _PyErr_StackItem* exceptions;
  int recursion;    // remaining
  int c_recursion;  // remaining (from 3.12 on)
};

/// `_PyEval_EvalFrameDefault`, with what a version needs around it.
PyObject* evaluate(PyThreadState* thread, Frame* frame, int throwflag);

/// The thread's innermost frame.
Frame*& innermost(PyThreadState* thread);

/// The code unit that runs next.
int32_t next_unit(Frame* frame);
void set_next_unit(Frame* frame, int32_t unit);
/// The code unit that is running, for tracebacks and f_lineno.
void set_running_unit(Frame* frame, int32_t unit);

/// The generator waits at a `yield` or a `yield from`.
bool is_suspended(const PyGenObject* generator);

/// The frame's slots as plain pointers, for as long as the frame is ours.
PyObject** plain_slots(Frame* frame);
/// Puts the slots into the form that CPython wants, as the frame's instruction pointer has it: CPython goes on with it.
void give_back(Frame* frame);

/// Slots in use: local variables and the value stack.
/// While CPython may look at the frame, which stays ours (CurrentFrame): from hide_slots until end_hiding, unless the
/// frame itself ends before.
void hide_slots(Frame* frame, bool locals_are_left);
void show_slots(Frame* frame);
void end_hiding();

int32_t slot_count(const Frame* frame);
void set_slot_count(Frame* frame, int32_t count);

Frame* frame_in(PyGenObject* generator);

void push(Frame* frame, PyObject* value) {
  const int32_t count = slot_count(frame);
  plain_slots(frame)[count] = value;
  set_slot_count(frame, count + 1);
}

void clear_stack(Frame* frame) {
  PyObject** slots = plain_slots(frame);
  for (int32_t count = slot_count(frame); count > frame_code(frame)->co_nlocalsplus;) {
    // The slot goes first: a destructor may look at the frame.
    set_slot_count(frame, --count);
    Py_XDECREF(slots[count]);
  }
}

/// `_PyEval_EvalFrameDefault` links the frame itself; linked twice, the chain would be a circle.
void unlink_if_current(PyThreadState* thread, Frame* frame) {
  show_slots(frame);
  if (innermost(thread) == frame) innermost(thread) = frame->previous;
}

}  // namespace

namespace {

thread_local FrameHandler thread_handler = nullptr;
// Scopes alive in all threads, and what stood in CPython's slot before the first; both under the GIL.
int hook_scopes = 0;
FrameHandler replaced = nullptr;

PyObject* eval_hook(PyThreadState* thread, Frame* frame, int throwflag) {
  return (thread_handler ? thread_handler : replaced)(thread, frame, throwflag);
}

}  // namespace

namespace {

void uninstall_hook() {
  if (_PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) != eval_hook) return;
  _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), replaced);
}

/// The scopes of other threads do not exist in a forked child.
void forget_other_threads() {
  if (hook_scopes == 0 || thread_handler) return;
  hook_scopes = 0;
  uninstall_hook();
}

/// `evaluate`, for frames that a C++ exception may leave: a C function that does not catch its own (PyTorch has some)
/// would unwind CPython's evaluator, which knows nothing of it. The thread is put back as it was, the frame ends, and
/// the exception is a Python error. What lay on the frame's value stack is lost: its depth was in a register.
PyObject* evaluate_contained(PyThreadState* thread, Frame* frame, int throwflag) {
  const ThreadPosition before(thread);
  std::string message;
  try {
    return evaluate(thread, frame, throwflag);
  } catch (const std::exception& exception) {
    message = std::string("a C function threw a C++ exception: ") + exception.what();
  } catch (...) {
    message = "a C function threw a C++ exception";
  }
  before.restore(thread);
  PyErr_Clear();
  set_slot_count(frame, frame_code(frame)->co_nlocalsplus);
  PyObject* none = frame_return(thread, frame, decode(frame_code(frame)), Py_NewRef(Py_None));
  Py_XDECREF(none);
  PyErr_SetString(PyExc_RuntimeError, message.c_str());
  return nullptr;
}

}  // namespace

FrameHook::FrameHook(FrameHandler handler) : previous_(std::exchange(thread_handler, handler)) {
  static const int registered = pthread_atfork(nullptr, nullptr, forget_other_threads);
  (void)registered;
  if (hook_scopes++ > 0) return;
  replaced = _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
  _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), eval_hook);
}

void FrameHook::end() {
  if (!std::exchange(active_, false)) return;
  thread_handler = previous_;
  if (--hook_scopes == 0) uninstall_hook();
}

PyObject* frame_globals(Frame* frame) { return frame->f_globals; }
PyObject* frame_builtins(Frame* frame) { return frame->f_builtins; }
PyObject** frame_localsplus(Frame* frame) { return plain_slots(frame); }
bool frame_is_generator(Frame* frame) { return frame->owner == FRAME_OWNED_BY_GENERATOR; }

int32_t frame_next_instr(Frame* frame, const CodeInfo& info) {
  int32_t unit = next_unit(frame);
  // An instruction that was left in its middle is past, its inline caches may not be.
  while (info.index_of[unit] < 0) ++unit;
  return info.index_of[unit];
}

int32_t frame_stack_depth(Frame* frame) { return slot_count(frame) - frame_code(frame)->co_nlocalsplus; }

void frame_set(Frame* frame, const CodeInfo& info, int32_t next_instr, int32_t stack_depth) {
  set_next_unit(frame, info.instrs[next_instr].start);
  set_slot_count(frame, info.nlocals + stack_depth);
}

void frame_set_running(Frame* frame, const CodeInfo& info, int32_t instr, int32_t stack_depth) {
  set_running_unit(frame, info.instrs[instr].offset);
  set_slot_count(frame, info.nlocals + stack_depth);
}

void frame_init_cells(Frame* frame, const CodeInfo& info) {
  PyObject** slots = frame_localsplus(frame);
  for (int32_t i = 0; i < info.entry; ++i) {
    const Instr& instr = info.instrs[i];
    if (instr.op == Op::COPY_FREE_VARS) {
      PyObject* closure = reinterpret_cast<PyFunctionObject*>(frame_function(frame))->func_closure;
      for (int32_t k = 0; k < instr.arg; ++k) {
        slots[info.first_free + k] = Py_NewRef(PyTuple_GET_ITEM(closure, k));
      }
    } else if (instr.op == Op::MAKE_CELL) {
      Ref cell = checked(PyCell_New(slots[instr.arg]));
      Py_XSETREF(slots[instr.arg], cell.release());
    }
  }
}

PyObject* frame_continue(PyThreadState* thread, Frame* frame) {
  unlink_if_current(thread, frame);
  return evaluate_contained(thread, frame, 0);
}

PyObject* frame_throw(PyThreadState* thread, Frame* frame) {
  unlink_if_current(thread, frame);
  return evaluate_contained(thread, frame, 1);
}

bool frame_enter_handler(PyThreadState* thread, Frame* frame, const CodeInfo& info, int32_t* instr, int32_t* depth) {
  const Handler* handler = info.handler_of(*instr);
  if (!handler) return false;
  {
    CurrentFrame current(thread, frame);
    Ref object = Ref::steal(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(thread)));
    if (object && frame_of_object(object.get()) == frame)
      PyTraceBack_Here(reinterpret_cast<PyFrameObject*>(object.get()));
  }
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  PyException_SetTraceback(value, traceback ? traceback : Py_None);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  PyObject** stack = frame_localsplus(frame) + info.nlocals;
  while (*depth > handler->depth) {
    // The slot goes first: a destructor may look at the frame.
    PyObject* dropped = std::exchange(stack[--*depth], nullptr);
    Py_XDECREF(dropped);
  }
  if (handler->lasti) stack[(*depth)++] = PyLong_FromLong(info.instrs[*instr].offset);
  stack[(*depth)++] = value;
  *instr = handler->target;
  return true;
}

PyObject* frame_yield(PyThreadState* thread, Frame* frame, const CodeInfo& info, int32_t yield_instr, PyObject* value) {
  unlink_if_current(thread, frame);
  set_next_unit(frame, info.instrs[yield_instr].start);
  push(frame, value);
  return evaluate(thread, frame, 0);
}

Frame* frame_of_object(PyObject* frame_object) { return reinterpret_cast<PyFrameObject*>(frame_object)->f_frame; }

Frame* generator_frame(PyObject* object) {
  if (!PyGen_CheckExact(object) && !PyCoro_CheckExact(object) && !PyAsyncGen_CheckExact(object)) return nullptr;
  auto* generator = reinterpret_cast<PyGenObject*>(object);
  const bool resumable = generator->gi_frame_state == FRAME_CREATED || is_suspended(generator);
  return resumable ? frame_in(generator) : nullptr;
}

bool generator_is_started(PyObject* generator) {
  return reinterpret_cast<PyGenObject*>(generator)->gi_frame_state != FRAME_CREATED;
}

bool generator_handles_exception(PyObject* generator) {
  return reinterpret_cast<PyGenObject*>(generator)->gi_exc_state.exc_value != nullptr;
}

void generator_set(PyObject* generator, const CodeInfo& info, int32_t next_instr, int32_t stack_depth, bool started) {
  Frame* frame = generator_frame(generator);
  frame_set(frame, info, next_instr, stack_depth);
  give_back(frame);
  if (started) reinterpret_cast<PyGenObject*>(generator)->gi_frame_state = FRAME_SUSPENDED;
}

}  // namespace magneto
