#include "capture/interpreter/errors.h"

#include <frameobject.h>

#include "capture/capture.h"
#include "capture/world/world.h"
#include "python/errors.h"

namespace magneto::capture {

void Errors::handle_signals() {
  c.run_suspended([this] {
    if (PyErr_CheckSignals() < 0) {
      // A handler raised: that reaches the program at some instruction, and it is not the program's own doing.
      interrupt = take_error();
      throw Interrupted{};
    }
  });
}

void Errors::check_interrupt() {
  if (!PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) return;
  Ref raised = take_error();
  const Op op = c.frame->instr().op;
  if (op == Op::RAISE_VARARGS) program_interrupt_ = raised;
  if (raised.get() != program_interrupt_.get()) {
    interrupt = std::move(raised);
    throw Interrupted{};
  }
  raise_again(raised.get());
}

bool Errors::may_be_of_data() {
  // No operator raises these.
  for (PyObject* type : {PyExc_KeyError, PyExc_StopIteration, PyExc_AttributeError}) {
    if (PyErr_ExceptionMatches(type)) return false;
  }
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  const Instr& at = c.frame->instr();
  if (at.op == Op::RAISE_VARARGS && at.arg > 0) of_statement_ = Ref::borrow(value);
  const bool of_statement = value == of_statement_.get();
  PyErr_Restore(type, value, traceback);
  return !of_statement;
}

PyObject* Errors::interrupt_c_code(std::exception_ptr thrown) {
  sticky = std::move(thrown);
  PyErr_SetString(PyExc_RuntimeError, "the capture was interrupted");
  return nullptr;
}

void Errors::check_sticky() {
  if (!sticky) return;
  PyErr_Clear();
  std::rethrow_exception(std::exchange(sticky, nullptr));
}

/// Adds the frame to the traceback of the current error, as CPython does while it unwinds. The frame objects are our
/// own and hold no values: what the exception drags along has no fakes in it, and serves all runs.
void Errors::add_traceback(const InterpFrame& f) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  Ref held_type = Ref::steal(type), raised = Ref::steal(value), previous = Ref::steal(traceback);
  const bool reraised = f.instr().op == Op::RERAISE || (f.instr().op == Op::RAISE_VARARGS && f.instr().arg == 0);
  if (!c.world.is_outside(raised.get()) && raised.get() != c.start_handled()) {
    if (!tracebacks_.count(previous.get())) previous = Ref();
    if (!reraised) {
      const Instr& at = f.instr();
      Ref frame_object =
          Ref::steal(reinterpret_cast<PyObject*>(PyFrame_New(PyThreadState_Get(), f.info->code, f.globals, nullptr)));
      if (!frame_object) throw PythonError{};
      frame_set_running(frame_of_object(frame_object.get()), *f.info, f.pc, 0);
      previous = checked(PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyTraceBack_Type), "OOii",
                                               previous ? previous.get() : Py_None, frame_object.get(), at.offset * 2,
                                               at.line));
      tracebacks_.insert(previous.get());
      c.world.keep(previous);
    }
    PyException_SetTraceback(raised.get(), previous ? previous.get() : Py_None);
  }
  PyErr_Restore(held_type.release(), raised.release(), previous.release());
}

Ref Errors::handled_exception() {
  Ref handled = Ref::steal(PyErr_GetHandledException());
  if (!c.frame->real && handled.get() == c.start_handled()) return handled_at_start;
  return handled ? handled : Ref::borrow(Py_None);
}

void Errors::set_handled_exception(PyObject* exception) {
  if (exception == handled_at_start.get()) exception = c.start_handled();
  PyErr_SetHandledException(exception == Py_None ? nullptr : exception);
}

}  // namespace magneto::capture
