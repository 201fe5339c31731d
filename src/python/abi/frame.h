// What we need of CPython's frames, behind one small file per minor version (cpython_311.cpp and so on).
//
// A frame under our control has an instruction pointer and a value stack that we may read and set, and is finished by
// CPython itself: we place the pointer on an instruction (a return, a yield, the instruction that raised) and enter
// `_PyEval_EvalFrameDefault` there, so that clearing, unwinding and tracebacks are always the interpreter's own.
#pragma once

#include <Python.h>

#include "python/bytecode/code.h"

struct _PyInterpreterFrame;

namespace magneto {

using Frame = _PyInterpreterFrame;

/// Takes the place of CPython's evaluator for one frame, as PEP 523 has it: consumes the frame, gives its result.
using FrameHandler = PyObject* (*)(PyThreadState*, Frame*, int throwflag);

/// While alive, new frames of this thread go to `handler`; scopes nest, and the innermost one gets the frame. CPython
/// has one evaluation function for all threads: ours is installed while any thread has a scope, lets the frames of
/// others pass, and puts back what stood there before.
class FrameHook {
 public:
  explicit FrameHook(FrameHandler handler);
  ~FrameHook() { end(); }
  FrameHook(const FrameHook&) = delete;
  /// Ends the scope early; it must be the innermost one.
  void end();

 private:
  FrameHandler previous_;
  bool active_ = true;
};

/// A tracer or profiler sees what this thread runs: sys.settrace or sys.setprofile was called (pdb, coverage,
/// cProfile), or, from 3.12 on, a tool of sys.monitoring asks for events.
bool is_traced(PyThreadState* thread);

PyCodeObject* frame_code(Frame* frame);     // borrowed
PyObject* frame_function(Frame* frame);     // borrowed; the PyFunctionObject
PyObject* frame_globals(Frame* frame);      // borrowed
PyObject* frame_builtins(Frame* frame);     // borrowed
PyObject** frame_localsplus(Frame* frame);  // locals, cells, free variables, then the value stack
bool frame_is_generator(Frame* frame);      // owned by a generator or coroutine object

/// Index in CodeInfo::instrs of the instruction to run next (a new frame: 0).
int32_t frame_next_instr(Frame* frame, const CodeInfo& info);
/// Entries on the value stack.
int32_t frame_stack_depth(Frame* frame);
/// Sets what runs next and the stack's depth (the caller has filled or cleared localsplus accordingly). To enter the
/// body of an `except`, the stack holds what PUSH_EXC_INFO put there (the exception that was handled before, or None)
/// and PyErr_SetHandledException has been told the exception handled now. An exception that lies on the stack needs a
/// __traceback__ (WITH_EXCEPT_START relies on it).
void frame_set(Frame* frame, const CodeInfo& info, int32_t next_instr, int32_t stack_depth);
/// Marks `instr` as the one that is running, for tracebacks, f_lineno and sys._getframe().
void frame_set_running(Frame* frame, const CodeInfo& info, int32_t instr, int32_t stack_depth);

/// Runs the skipped prologue of a new frame that will be entered past it: fills the free variable slots from the
/// function's __closure__ and turns the cell slots into cells (holding the argument bound there, if any).
/// Throws PythonError (no memory for a cell).
void frame_init_cells(Frame* frame, const CodeInfo& info);

/// While alive, `frame` is the thread's current frame (sys._getframe(), warnings, super() see it) and counts as one
/// level of recursion. For frames that the hook got and that CPython has not entered itself. CPython shows only frames
/// that are past their RESUME: call frame_set_running first. The frame may end (frame_continue...) while this is still
/// alive. `locals_are_left`: nobody here reads or writes the frame's local variables meanwhile, and what runs may, by
/// f_locals, also those without a value.
class CurrentFrame {
 public:
  CurrentFrame(PyThreadState* thread, Frame* frame, bool locals_are_left = false);
  ~CurrentFrame();
  CurrentFrame(const CurrentFrame&) = delete;

 private:
  PyThreadState* thread_;
  Frame* previous_;
};

/// Continues the frame under CPython, from the place that frame_set chose, to its end. Consumes the frame as an eval
/// hook must. New reference, or null with an exception.
PyObject* frame_continue(PyThreadState* thread, Frame* frame);
/// Raises the current exception at the instruction that frame_set_running chose: CPython runs the frame's handlers, or
/// unwinds it. The traceback names that instruction's line.
PyObject* frame_raise(PyThreadState* thread, Frame* frame);
/// Hands on a frame that the hook got with throwflag set (generator.throw), as it is.
PyObject* frame_throw(PyThreadState* thread, Frame* frame);
/// The instruction `*instr` raised the current exception: goes to its handler in this frame, as CPython's evaluator
/// does. `*instr` and `*depth` (of the value stack) are then the handler's. False: there is none, and nothing changed.
bool frame_enter_handler(PyThreadState* thread, Frame* frame, const CodeInfo& info, int32_t* instr, int32_t* depth);
/// Ends the frame with `value` (stolen) as its result; the stack may hold anything (it is cleared). For a generator
/// this is its end. A frame object that outlives the frame keeps the line that frame_set_running chose.
PyObject* frame_return(PyThreadState* thread, Frame* frame, const CodeInfo& info, PyObject* value);
/// Suspends a generator's frame at the YIELD_VALUE `yield_instr` with `value` (stolen) as the value yielded. The stack
/// holds what lies below that value. Returns what CPython's evaluator returns: the value.
PyObject* frame_yield(PyThreadState* thread, Frame* frame, const CodeInfo& info, int32_t yield_instr, PyObject* value);

/// The frame that a frame object (sys._getframe(), a traceback's) stands for. Its stack is readable only where CPython
/// has saved it: not while the frame itself runs, save in a trace function (3.12: called for a line).
Frame* frame_of_object(PyObject* frame_object);

/// The frame of a generator object that is suspended or not started; null if it runs or has ended.
Frame* generator_frame(PyObject* generator);
bool generator_is_started(PyObject* generator);
/// It is suspended where it handles an exception, which it keeps.
bool generator_handles_exception(PyObject* generator);
/// frame_set for the frame of a generator that is suspended or not started (`started`: it becomes suspended).
void generator_set(PyObject* generator, const CodeInfo& info, int32_t next_instr, int32_t stack_depth, bool started);

}  // namespace magneto
