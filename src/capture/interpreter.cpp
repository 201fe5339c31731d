// The interpreter loop: one case per opcode.
//
// Handlers look at their operands in place and pop them only when the instruction is done, so that a side exit finds
// the stack as it was in front of the instruction. An instruction that calls Python code sets `result_is_pushed` and
// `pops` first: then a side exit inside the callee knows how this frame goes on.
#include <frameobject.h>

#include <stdexcept>

#include "capture/capture.h"
#include "capture/operations.h"
#include "python/c_stack.h"

namespace magneto::capture {

using guards::Source;

InterpFrame::~InterpFrame() {
  if (real) return;
  for (PyObject* slot : storage) Py_XDECREF(slot);
}

namespace {

constexpr int32_t kReturned = -1;

[[noreturn]] void raise_unbound(const InterpFrame& f, int32_t slot, const char* format) {
  PyErr_Format(PyExc_UnboundLocalError, format, PyTuple_GET_ITEM(f.info->localsplus_names.get(), slot));
  throw PythonError{};
}

}  // namespace

/// Reads a slot of the root frame for the first time: what is there is the user's own object.
Ref Capture::read_raw(int32_t slot) {
  if (root_.raw.empty() || !root_.raw[slot]) return Ref::borrow(root_.slots[slot]);
  root_.raw[slot] = 0;
  PyObject* value = root_.slots[slot];
  if (!value) return {};
  PyObject* name = PyTuple_GET_ITEM(root_.info->localsplus_names.get(), slot);
  Ref wrapped = wrap(value, sources.local(slot, name));
  root_.set_local(slot, wrapped);
  return wrapped;
}

namespace {

/// Restores the caller as the innermost frame, exceptions included.
class FrameScope {
 public:
  FrameScope(Capture& capture, InterpFrame& f) : capture_(capture) {
    f.caller = capture.frame;
    capture.frame = &f;
  }
  ~FrameScope() { capture_.frame = capture_.frame->caller; }

 private:
  Capture& capture_;
};

}  // namespace

/// Runs one instruction; gives the index of the next one, or kReturned with the value in `result`.
class Interpreter {
 public:
  Interpreter(Capture& capture, InterpFrame& frame) : c(capture), f(frame) {}

  Ref run(bool raise_first);

 private:
  int32_t step(const Instr& in);
  void handle_error();
  void op_call(const Instr& in);
  void op_call_function_ex(const Instr& in);
  void op_load_attr(PyObject* name, bool method);
  void op_load_super_attr(const Instr& in);
  void op_load_global(const Instr& in);
  Ref load_cell(int32_t slot);
  void store_cell(int32_t slot, PyObject* value);
  void op_make_function(const Instr& in);
  void op_unpack(PyObject* sequence, int32_t before, int32_t after, bool star);
  int32_t op_for_iter(const Instr& in);
  int32_t op_send(const Instr& in);
  void op_raise(const Instr& in);
  void op_format(const Instr& in);
  void op_import_name(const Instr& in);
  void op_before_with();
  PyObject* name(int32_t index) { return PyTuple_GET_ITEM(f.info->names.get(), index); }
  PyObject* constant(int32_t index) { return PyTuple_GET_ITEM(f.info->consts.get(), index); }
  /// The instruction's calls end in "pop `pops`, push the result".
  void cuttable(int32_t pops) {
    f.result_is_pushed = true;
    f.pops = pops;
  }
  void replace(int32_t pops, Ref value) {
    f.drop(pops);
    f.push(std::move(value));
  }

  Capture& c;
  InterpFrame& f;
  Ref result;
};

Ref Capture::run_frame(InterpFrame& callee, bool raise_first) {
  int depth = 0;
  for (InterpFrame* outer = frame; outer; outer = outer->caller) ++depth;
  if (depth > Py_GetRecursionLimit() || depth > 2000 || c_stack_is_low()) {
    // CPython runs the outermost call, and raises RecursionError where it does so in eager.
    restart_site_ = {root_.info->code, root_.pc};
    throw Restart{};
  }
  FrameScope scope(*this, callee);
  return Interpreter(*this, callee).run(raise_first);
}

Ref Interpreter::run(bool raise_first) {
  if (raise_first) handle_error();
  while (true) {
    f.result_is_pushed = false;
    f.pops = 0;
    if (!c.known_breaks_.empty() && c.known_breaks_.count({f.info->code, f.pc})) {
      c.side_exit(BreakReason::Callback, "a break inside a Python function that C code calls from here");
    }
    try {
      const int32_t next = step(f.instr());
      if (next == kReturned) return std::move(result);
      f.pc = next;
    } catch (const PythonError&) {
      handle_error();
    }
  }
}

namespace {

/// The current error as a normalized exception object; clears it.
Ref take_error() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return Ref::steal(value);
}

}  // namespace

/// Adds the frame to the traceback of the current error, as CPython does while it unwinds. The frame objects are our
/// own and hold no values: what the exception drags along has no fakes in it, and serves all runs.
void Capture::add_traceback(const InterpFrame& f) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  Ref held_type = Ref::steal(type), raised = Ref::steal(value), previous = Ref::steal(traceback);
  const bool reraised = f.instr().op == Op::RERAISE || (f.instr().op == Op::RAISE_VARARGS && f.instr().arg == 0);
  if (!is_outside(raised.get()) && raised.get() != start_handled()) {
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
      keep(previous);
    }
    PyException_SetTraceback(raised.get(), previous ? previous.get() : Py_None);
  }
  PyErr_Restore(held_type.release(), raised.release(), previous.release());
}

Ref Capture::handled_exception() {
  Ref handled = Ref::steal(PyErr_GetHandledException());
  if (!frame->real && handled.get() == start_handled()) return handled_at_start_;
  return handled ? handled : Ref::borrow(Py_None);
}

void Capture::set_handled_exception(PyObject* exception) {
  if (exception == handled_at_start_.get()) exception = start_handled();
  PyErr_SetHandledException(exception == Py_None ? nullptr : exception);
}

/// Goes to the handler of the current instruction, or leaves the frame.
void Interpreter::handle_error() {
  f.kw_names = nullptr;
  f.result_override = Ref();
  const Handler* handler = f.info->handler_of(f.pc);
  if (!handler) {
    if (c.raise_site_.empty()) {
      for (const InterpFrame* at = &f; at; at = at->caller) {
        c.raise_site_ = std::string(PyUnicode_AsUTF8(at->info->code->co_filename)) + ":" +
                        std::to_string(at->instr().line) + " in " + PyUnicode_AsUTF8(at->info->code->co_qualname) +
                        "\n" + c.raise_site_;
      }
    }
    c.add_traceback(f);
    throw PythonError{};
  }
  c.raise_site_.clear();
  c.add_traceback(f);
  Ref raised = take_error();
  f.drop(f.depth - handler->depth);
  if (handler->lasti) f.push(checked(PyLong_FromLong(f.instr().offset)));
  f.push(std::move(raised));
  f.pc = handler->target;
}

int32_t Interpreter::step(const Instr& in) {
  switch (in.op) {
    case Op::NOP:
    case Op::RESUME:
    case Op::PRECALL:
    case Op::CACHE:
      break;

    // -- stack -----------------------------------------------------------------------------------------------------
    case Op::POP_TOP:
      f.drop(1);
      break;
    case Op::PUSH_NULL:
      f.push(Ref());
      break;
    case Op::COPY:
      f.push(Ref::borrow(f.top(in.arg - 1)));
      break;
    case Op::SWAP:
      std::swap(f.stack()[f.depth - 1], f.stack()[f.depth - in.arg]);
      break;
    case Op::END_FOR:
      f.drop(2);
      break;

    // -- locals, cells, globals, constants -------------------------------------------------------------------------
    case Op::LOAD_CONST:
      f.push(Ref::borrow(constant(in.arg)));
      break;
    case Op::LOAD_FAST:
    case Op::LOAD_FAST_CHECK:
    case Op::LOAD_CLOSURE: {
      if (&f == &c.root_) c.read_raw(in.arg);
      if (!f.slots[in.arg]) {
        raise_unbound(f, in.arg, "cannot access local variable '%U' where it is not associated with a value");
      }
      f.push(Ref::borrow(f.slots[in.arg]));
      break;
    }
    case Op::LOAD_FAST_AND_CLEAR:
      if (&f == &c.root_) c.read_raw(in.arg);
      f.push(Ref::steal(std::exchange(f.slots[in.arg], nullptr)));
      break;
    case Op::STORE_FAST:
    case Op::STORE_FAST_MAYBE_NULL:
      if (&f == &c.root_ && !f.raw.empty()) f.raw[in.arg] = 0;
      f.set_local(in.arg, f.pop());
      break;
    case Op::DELETE_FAST:
      if (&f == &c.root_ && !f.raw.empty()) f.raw[in.arg] = 0;
      if (!f.slots[in.arg]) {
        raise_unbound(f, in.arg, "cannot access local variable '%U' where it is not associated with a value");
      }
      f.set_local(in.arg, Ref());
      break;
    case Op::MAKE_CELL: {
      Ref initial = &f == &c.root_ ? c.read_raw(in.arg) : Ref::borrow(f.slots[in.arg]);
      f.set_local(in.arg, checked(PyCell_New(initial.get())));
      break;
    }
    case Op::COPY_FREE_VARS: {
      PyObject* closure = PyFunction_GET_CLOSURE(f.function.get());
      for (int32_t i = 0; i < in.arg; ++i) {
        f.set_local(f.info->first_free + i, Ref::borrow(PyTuple_GET_ITEM(closure, i)));
        if (&f == &c.root_ && !f.raw.empty()) f.raw[f.info->first_free + i] = 0;
      }
      break;
    }
    case Op::LOAD_DEREF:
      f.push(load_cell(in.arg));
      break;
    case Op::STORE_DEREF:
      store_cell(in.arg, f.top());
      f.drop(1);
      break;
    case Op::DELETE_DEREF:
      load_cell(in.arg);
      store_cell(in.arg, nullptr);
      break;
    case Op::LOAD_GLOBAL:
      op_load_global(in);
      break;
    case Op::STORE_GLOBAL:
    case Op::DELETE_GLOBAL: {
      PyObject* key = name(in.arg);
      c.wrap(f.globals, c.sources.constant(f.globals));
      if (in.op == Op::STORE_GLOBAL) {
        c.store_entry(f.globals, key, f.top());
        f.drop(1);
      } else {
        c.store_entry(f.globals, key, nullptr);
      }
      break;
    }

    // -- attributes and items --------------------------------------------------------------------------------------
    case Op::LOAD_ATTR:
      // Before 3.12 methods have an opcode of their own.
      if (PY_VERSION_HEX >= 0x030C0000) {
        op_load_attr(name(in.arg >> 1), in.arg & 1);
      } else {
        op_load_attr(name(in.arg), false);
      }
      break;
    case Op::LOAD_METHOD:
      op_load_attr(name(in.arg), true);
      break;
    case Op::LOAD_SUPER_ATTR:
      op_load_super_attr(in);
      break;
    case Op::STORE_ATTR:
      c.store_attr(f.top(), name(in.arg), f.top(1));
      f.drop(2);
      break;
    case Op::DELETE_ATTR:
      c.store_attr(f.top(), name(in.arg), nullptr);
      f.drop(1);
      break;
    case Op::BINARY_SUBSCR:
      cuttable(2);
      replace(2, c.subscript(f.top(1), f.top()));
      break;
    case Op::BINARY_SLICE: {
      Ref slice = checked(PySlice_New(f.top(1), f.top(), nullptr));
      replace(3, c.subscript(f.top(2), slice.get()));
      break;
    }
    case Op::STORE_SUBSCR:
      c.store_subscript(f.top(1), f.top(), f.top(2));
      f.drop(3);
      break;
    case Op::STORE_SLICE: {
      Ref slice = checked(PySlice_New(f.top(1), f.top(), nullptr));
      c.store_subscript(f.top(2), slice.get(), f.top(3));
      f.drop(4);
      break;
    }
    case Op::DELETE_SUBSCR:
      c.store_subscript(f.top(1), f.top(), nullptr);
      f.drop(2);
      break;

    // -- operators -------------------------------------------------------------------------------------------------
    case Op::BINARY_OP:
      replace(2, binary_operator(c, in.arg, f.top(1), f.top()));
      break;
    case Op::UNARY_NEGATIVE:
      replace(1, unary_operator(c, UnaryOperator::Negative, f.top()));
      break;
    case Op::UNARY_POSITIVE:
      replace(1, unary_operator(c, UnaryOperator::Positive, f.top()));
      break;
    case Op::UNARY_INVERT:
      replace(1, unary_operator(c, UnaryOperator::Invert, f.top()));
      break;
    case Op::UNARY_NOT: {
      const bool value = c.truth(f.top());
      replace(1, Ref::borrow(value ? Py_False : Py_True));
      break;
    }
    case Op::COMPARE_OP: {
      const int op = PY_VERSION_HEX >= 0x030C0000 ? in.arg >> 4 : in.arg;
      replace(2, compare(c, op, f.top(1), f.top()));
      break;
    }
    case Op::IS_OP: {
      const bool same = c.is_identical(f.top(1), f.top());
      replace(2, Ref::borrow((same != (in.arg != 0)) ? Py_True : Py_False));
      break;
    }
    case Op::CONTAINS_OP: {
      const bool found = c.contains(f.top(), f.top(1));
      replace(2, Ref::borrow((found != (in.arg != 0)) ? Py_True : Py_False));
      break;
    }

    // -- jumps -----------------------------------------------------------------------------------------------------
    case Op::JUMP_FORWARD:
    case Op::JUMP_BACKWARD:
    case Op::JUMP_BACKWARD_NO_INTERRUPT:
      return in.target;
    case Op::POP_JUMP_FORWARD_IF_TRUE:
    case Op::POP_JUMP_BACKWARD_IF_TRUE:
    case Op::POP_JUMP_IF_TRUE:
    case Op::POP_JUMP_FORWARD_IF_FALSE:
    case Op::POP_JUMP_BACKWARD_IF_FALSE:
    case Op::POP_JUMP_IF_FALSE: {
      const bool on_true = in.op == Op::POP_JUMP_FORWARD_IF_TRUE || in.op == Op::POP_JUMP_BACKWARD_IF_TRUE ||
                           in.op == Op::POP_JUMP_IF_TRUE;
      const bool value = c.truth(f.top());
      f.drop(1);
      return value == on_true ? in.target : in.next;
    }
    case Op::POP_JUMP_FORWARD_IF_NONE:
    case Op::POP_JUMP_BACKWARD_IF_NONE:
    case Op::POP_JUMP_IF_NONE:
    case Op::POP_JUMP_FORWARD_IF_NOT_NONE:
    case Op::POP_JUMP_BACKWARD_IF_NOT_NONE:
    case Op::POP_JUMP_IF_NOT_NONE: {
      const bool on_none = in.op == Op::POP_JUMP_FORWARD_IF_NONE || in.op == Op::POP_JUMP_BACKWARD_IF_NONE ||
                           in.op == Op::POP_JUMP_IF_NONE;
      const bool none = f.top() == Py_None;
      f.drop(1);
      return none == on_none ? in.target : in.next;
    }
    case Op::JUMP_IF_TRUE_OR_POP:
    case Op::JUMP_IF_FALSE_OR_POP:
      if (c.truth(f.top()) == (in.op == Op::JUMP_IF_TRUE_OR_POP)) return in.target;
      f.drop(1);
      break;

    // -- iteration -------------------------------------------------------------------------------------------------
    case Op::GET_ITER:
      cuttable(1);
      replace(1, c.iterate(f.top()));
      break;
    case Op::FOR_ITER:
      return op_for_iter(in);
    case Op::GET_LEN: {
      static PyObject* const len = PyDict_GetItemString(PyEval_GetBuiltins(), "len");
      f.push(c.call(len, {f.top()}));
      break;
    }
    case Op::UNPACK_SEQUENCE:
      op_unpack(f.top(), in.arg, 0, false);
      break;
    case Op::UNPACK_EX:
      op_unpack(f.top(), in.arg & 0xFF, in.arg >> 8, true);
      break;

    // -- building --------------------------------------------------------------------------------------------------
    case Op::BUILD_TUPLE:
    case Op::BUILD_LIST: {
      const bool tuple = in.op == Op::BUILD_TUPLE;
      Ref made = checked(tuple ? PyTuple_New(in.arg) : PyList_New(in.arg));
      for (int32_t i = in.arg - 1; i >= 0; --i) {
        PyObject* item = f.pop().release();
        if (tuple) {
          PyTuple_SET_ITEM(made.get(), i, item);
        } else {
          PyList_SET_ITEM(made.get(), i, item);
        }
      }
      f.push(std::move(made));
      break;
    }
    case Op::BUILD_SET: {
      Ref made = checked(PySet_New(nullptr));
      for (int32_t i = in.arg - 1; i >= 0; --i) {
        PyObject* item = f.top(i);
        c.call_native([&]() -> PyObject* { return PySet_Add(made.get(), item) < 0 ? nullptr : Py_NewRef(Py_None); });
      }
      replace(in.arg, std::move(made));
      break;
    }
    case Op::BUILD_MAP: {
      Ref made = checked(PyDict_New());
      for (int32_t i = in.arg - 1; i >= 0; --i) c.store_subscript(made.get(), f.top(2 * i + 1), f.top(2 * i));
      replace(2 * in.arg, std::move(made));
      break;
    }
    case Op::BUILD_CONST_KEY_MAP: {
      Ref made = checked(PyDict_New());
      for (int32_t i = 0; i < in.arg; ++i) {
        c.store_subscript(made.get(), PyTuple_GET_ITEM(f.top(), i), f.top(in.arg - i));
      }
      replace(in.arg + 1, std::move(made));
      break;
    }
    case Op::BUILD_SLICE: {
      PyObject* step = in.arg == 3 ? f.top() : nullptr;
      PyObject* stop = f.top(in.arg - 2);
      PyObject* start = f.top(in.arg - 1);
      replace(in.arg, checked(PySlice_New(start, stop, step)));
      break;
    }
    case Op::BUILD_STRING: {
      Ref empty = checked(PyUnicode_New(0, 0));
      Ref joined = checked(_PyUnicode_JoinArray(empty.get(), &f.stack()[f.depth - in.arg], in.arg));
      replace(in.arg, std::move(joined));
      break;
    }
    case Op::FORMAT_VALUE:
      op_format(in);
      break;
    case Op::LIST_TO_TUPLE:
      replace(1, checked(PyList_AsTuple(f.top())));
      break;
    case Op::LIST_APPEND:
      // The container of a comprehension is fresh, unless the frame was entered in the middle of it.
      if (PyList_Append(c.resolve(f.top(in.arg), true).get(), f.top()) < 0) throw PythonError{};
      f.drop(1);
      break;
    case Op::SET_ADD: {
      Ref set = c.resolve(f.top(in.arg), true);
      PyObject* item = f.top();
      c.call_native([&]() -> PyObject* { return PySet_Add(set.get(), item) < 0 ? nullptr : Py_NewRef(Py_None); });
      f.drop(1);
      break;
    }
    case Op::MAP_ADD:
      c.store_subscript(f.top(in.arg + 1), f.top(1), f.top());
      f.drop(2);
      break;
    case Op::LIST_EXTEND: {
      Ref items = c.list_of(f.top());
      Ref list = c.resolve(f.top(in.arg), true);
      if (!checked(_PyList_Extend(reinterpret_cast<PyListObject*>(list.get()), items.get()))) throw PythonError{};
      f.drop(1);
      break;
    }
    case Op::SET_UPDATE: {
      Ref items = c.list_of(f.top());
      Ref set = c.resolve(f.top(in.arg), true);
      c.call_native(
          [&]() -> PyObject* { return _PySet_Update(set.get(), items.get()) < 0 ? nullptr : Py_NewRef(Py_None); });
      f.drop(1);
      break;
    }
    case Op::DICT_UPDATE:
    case Op::DICT_MERGE: {
      Ref target = c.resolve(f.top(in.arg), true);
      Ref other = c.resolve(f.top());
      if (c.is_outside(other.get()) && other.get() == f.top() && !c.is_shadow(other.get()))
        other = c.contents_of(f.top());
      c.call_native([&]() -> PyObject* {
        const int failed = in.op == Op::DICT_UPDATE ? PyDict_Update(target.get(), other.get())
                                                    : _PyDict_MergeEx(target.get(), other.get(), 2);
        return failed < 0 ? nullptr : Py_NewRef(Py_None);
      });
      f.drop(1);
      break;
    }
    case Op::CALL_INTRINSIC_1:
      if (in.arg == 5) {  // INTRINSIC_UNARY_POSITIVE
        replace(1, unary_operator(c, UnaryOperator::Positive, f.top()));
      } else if (in.arg == 6) {  // INTRINSIC_LIST_TO_TUPLE
        replace(1, checked(PyList_AsTuple(f.top())));
      } else if (in.arg == 3) {  // INTRINSIC_STOPITERATION_ERROR: an exception that leaves a generator
        if (PyErr_GivenExceptionMatches(f.top(), PyExc_StopIteration)) {
          Ref error = checked(PyObject_CallFunction(PyExc_RuntimeError, "s", "generator raised StopIteration"));
          PyException_SetCause(error.get(), Py_NewRef(f.top()));
          PyException_SetContext(error.get(), Py_NewRef(f.top()));
          replace(1, std::move(error));
        }
      } else {
        c.side_exit(BreakReason::Opcode, "CALL_INTRINSIC_1 " + std::to_string(in.arg));
      }
      break;

    // -- calls -----------------------------------------------------------------------------------------------------
    case Op::KW_NAMES:
      f.kw_names = constant(in.arg);
      break;
    case Op::CALL:
      op_call(in);
      break;
    case Op::CALL_FUNCTION_EX:
      op_call_function_ex(in);
      break;
    case Op::MAKE_FUNCTION:
      op_make_function(in);
      break;
    case Op::RETURN_VALUE:
      result = f.pop();
      return kReturned;
    case Op::RETURN_CONST:
      result = Ref::borrow(constant(in.arg));
      return kReturned;
    case Op::IMPORT_NAME:
      op_import_name(in);
      break;
    case Op::IMPORT_FROM: {
      Ref value = c.lookup_attr(f.top(), name(in.arg));
      if (!value) {
        PyErr_Format(PyExc_ImportError, "cannot import name %R", name(in.arg));
        throw PythonError{};
      }
      f.push(std::move(value));
      break;
    }

    // -- exceptions and context managers ---------------------------------------------------------------------------
    case Op::LOAD_ASSERTION_ERROR:
      f.push(Ref::borrow(PyExc_AssertionError));
      break;
    case Op::RAISE_VARARGS:
      op_raise(in);
      break;
    case Op::PUSH_EXC_INFO: {
      Ref raised = f.pop();
      f.push(c.handled_exception());
      PyErr_SetHandledException(raised.get());
      f.push(std::move(raised));
      break;
    }
    case Op::POP_EXCEPT: {
      c.set_handled_exception(f.pop().get());
      break;
    }
    case Op::CHECK_EXC_MATCH: {
      Ref classes = c.resolve_deep(f.top());
      const int match = PyErr_GivenExceptionMatches(f.top(1), classes.get());
      replace(1, Ref::borrow(match ? Py_True : Py_False));
      break;
    }
    case Op::RERAISE: {
      Ref raised = f.pop();
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.get())), raised.get());
      throw PythonError{};
    }
    case Op::BEFORE_WITH:
      op_before_with();
      break;
    case Op::WITH_EXCEPT_START: {
      // [exit, lasti, previous, exception] -> the same and exit's result.
      PyObject* raised = f.top();
      if (c.is_outside(raised)) c.side_exit(BreakReason::Exception, "an exception from outside leaves a `with` block");
      Ref traceback = Ref::steal(PyException_GetTraceback(raised));
      cuttable(0);
      f.push(c.call(f.top(3),
                    {reinterpret_cast<PyObject*>(Py_TYPE(raised)), raised, traceback ? traceback.get() : Py_None}));
      break;
    }

    case Op::GET_YIELD_FROM_ITER:
      if (!PyGen_CheckExact(f.top())) replace(1, c.iterate(f.top()));
      break;
    case Op::SEND:
      return op_send(in);
    case Op::END_SEND: {
      Ref value = f.pop();
      replace(1, std::move(value));
      break;
    }
    case Op::YIELD_VALUE:
      if (f.callback) {
        result = f.pop();
        return kReturned;
      }
      [[fallthrough]];
    default:
      c.side_exit(BreakReason::Opcode, std::string("the instruction ") + op_name(in.op) + " is not interpreted");
  }
  return in.next;
}

void Interpreter::op_load_global(const Instr& in) {
  PyObject* key = name(in.arg >> 1);
  Ref globals = c.wrap(f.globals, c.sources.constant(f.globals));
  Ref value = c.dict_lookup(globals.get(), key);
  if (!value) {
    Ref builtins = c.wrap(f.builtins, c.sources.constant(f.builtins));
    value = c.dict_lookup(builtins.get(), key);
  }
  if (!value) {
    PyErr_Format(PyExc_NameError, "name '%U' is not defined", key);
    throw PythonError{};
  }
  if (in.arg & 1) f.push(Ref());
  f.push(std::move(value));
}

Ref Interpreter::load_cell(int32_t slot) {
  if (&f == &c.root_) c.read_raw(slot);
  PyObject* cell = f.slots[slot];
  PyObject* variable = PyTuple_GET_ITEM(f.info->localsplus_names.get(), slot);
  Ref value;
  if (Overlay* written = c.find_overlay(cell, false)) {
    value = written->entries.front().second;
  } else {
    value = Ref::borrow(PyCell_GET(cell));
    auto outside = c.cell_contents_.find(cell);
    if (outside != c.cell_contents_.end()) {
      if (value) {
        value = c.wrap(value.get(), outside->second);
      } else {
        c.guards.absent(outside->second);
      }
    }
  }
  if (value) return value;
  if (slot < f.info->first_free) {
    raise_unbound(f, slot, "cannot access local variable '%U' where it is not associated with a value");
  }
  PyErr_Format(PyExc_NameError,
               "cannot access free variable '%U' where it is not associated with a value in enclosing scope", variable);
  throw PythonError{};
}

void Interpreter::store_cell(int32_t slot, PyObject* value) {
  if (&f == &c.root_) c.read_raw(slot);
  PyObject* cell = f.slots[slot];
  if (!c.cell_contents_.count(cell)) {
    PyCell_Set(cell, value);
    return;
  }
  if (!c.is_outside(cell)) c.side_exit(BreakReason::Mutation, "a variable of an enclosing function is set");
  c.overlay(cell, false).set(Py_None, value);
}

void Interpreter::op_load_attr(PyObject* attribute, bool method) {
  PyObject* owner = f.top();
  if (!method) {
    cuttable(1);
    replace(1, c.load_attr(owner, attribute));
    return;
  }
  bool unbound = false;
  Ref value = c.load_attr(owner, attribute, &unbound);
  if (unbound) {
    Ref self = f.pop();
    f.push(std::move(value));
    f.push(std::move(self));
  } else {
    f.drop(1);
    f.push(Ref());
    f.push(std::move(value));
  }
}

void Interpreter::op_load_super_attr(const Instr& in) {
  PyObject* attribute = name(in.arg >> 2);
  CallArgs args;
  args.values = {f.top(1), f.top()};
  Ref proxy = c.call(f.top(2), std::move(args));
  bool unbound = false;
  Ref value = c.load_attr(proxy.get(), attribute, in.arg & 1 ? &unbound : nullptr);
  Ref self = Ref::borrow(f.top());
  f.drop(3);
  if (!(in.arg & 1)) {
    f.push(std::move(value));
  } else if (unbound) {
    f.push(std::move(value));
    f.push(std::move(self));
  } else {
    f.push(Ref());
    f.push(std::move(value));
  }
}

void Interpreter::op_call(const Instr& in) {
  const int32_t count = in.arg;
  PyObject** base = f.stack() + f.depth - count;
  CallArgs args;
  args.kwnames = std::exchange(f.kw_names, nullptr);
  PyObject* callable = base[-2];
  args.values.reserve(count + 2);
  if (callable) {
    args.values.push_back(base[-1]);
  } else {
    callable = base[-1];
  }
  args.values.insert(args.values.end(), base, base + count);
  cuttable(count + 2);
  replace(count + 2, c.call(callable, std::move(args)));
}

void Interpreter::op_call_function_ex(const Instr& in) {
  const bool has_keywords = in.arg & 1;
  const int32_t pops = has_keywords ? 4 : 3;  // NULL, callable, args, kwargs
  PyObject* callable = f.top(has_keywords ? 2 : 1);
  Ref positional =
      PyTuple_CheckExact(f.top(has_keywords)) ? c.resolve(f.top(has_keywords)) : c.list_of(f.top(has_keywords));
  CallArgs args;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(positional.get()); ++i) {
    args.values.push_back(PySequence_Fast_GET_ITEM(positional.get(), i));
  }
  Ref names, mapping;
  if (has_keywords) {
    mapping = c.resolve(f.top());
    if (c.is_outside(mapping.get()) && mapping.get() == f.top() && !c.is_shadow(mapping.get())) {
      mapping = c.contents_of(f.top());
    }
    if (!PyDict_Check(mapping.get())) {
      c.side_exit(BreakReason::OpaqueObject, "** of an object that is not a dict");
    }
    names = checked(PySequence_Tuple(mapping.get()));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names.get()); ++i) {
      args.values.push_back(PyDict_GetItem(mapping.get(), PyTuple_GET_ITEM(names.get(), i)));
    }
    if (PyTuple_GET_SIZE(names.get())) args.kwnames = names.get();
  }
  cuttable(pops);
  replace(pops, c.call(callable, std::move(args)));
}

void Interpreter::op_make_function(const Instr& in) {
  PyObject* code = f.top();
  Ref function = checked(PyFunction_New(code, f.globals));
  auto* made = reinterpret_cast<PyFunctionObject*>(function.get());
  int32_t below = 1;
  auto take = [&](int flag, PyObject*& place) {
    if (!(in.arg & flag)) return;
    place = Py_NewRef(f.top(below++));
  };
  take(0x08, made->func_closure);
  take(0x04, made->func_annotations);
  take(0x02, made->func_kwdefaults);
  take(0x01, made->func_defaults);
  replace(below, std::move(function));
}

void Interpreter::op_unpack(PyObject* sequence, int32_t before, int32_t after, bool star) {
  Ref items = PyTuple_CheckExact(sequence) && !c.is_outside(sequence) ? Ref::borrow(sequence) : c.list_of(sequence);
  const auto size = static_cast<int32_t>(PySequence_Fast_GET_SIZE(items.get()));
  if (size < before + after || (!star && size > before)) {
    if (!star && size > before) {
      PyErr_Format(PyExc_ValueError, "too many values to unpack (expected %d)", before);
    } else if (star) {
      PyErr_Format(PyExc_ValueError, "not enough values to unpack (expected at least %d, got %d)", before + after,
                   size);
    } else {
      PyErr_Format(PyExc_ValueError, "not enough values to unpack (expected %d, got %d)", before, size);
    }
    throw PythonError{};
  }
  f.drop(1);
  auto item = [&](int32_t i) { return Ref::borrow(PySequence_Fast_GET_ITEM(items.get(), i)); };
  for (int32_t i = size - 1; i >= size - after; --i) f.push(item(i));
  if (star) {
    Ref middle = checked(PyList_New(size - before - after));
    for (int32_t i = before; i < size - after; ++i) PyList_SET_ITEM(middle.get(), i - before, item(i).release());
    f.push(std::move(middle));
  }
  for (int32_t i = before - 1; i >= 0; --i) f.push(item(i));
}

/// One step of `yield from`: the value on top goes to the iterator below it.
int32_t Interpreter::op_send(const Instr& in) {
  PyObject* iterator = f.top(1);
  if (c.is_outside(iterator)) c.side_exit(BreakReason::OpaqueIterator, "yield from an iterator from outside");
  PySendResult status = PYGEN_ERROR;
  Ref value = c.call_native([&] {
    PyObject* sent = nullptr;
    status = PyIter_Send(iterator, f.top(), &sent);
    return sent;
  });
  f.pop();
  if (status == PYGEN_NEXT) {
    f.push(std::move(value));
    return in.next;
  }
#if PY_VERSION_HEX < 0x030C0000
  f.pop();  // later versions leave the iterator to END_SEND
#endif
  f.push(std::move(value));
  return in.target;
}

int32_t Interpreter::op_for_iter(const Instr& in) {
  PyObject* iterator = f.top();
  if (c.is_outside(iterator)) c.side_exit(BreakReason::OpaqueIterator, "a loop over an iterator from outside goes on");
  bool end = false;
  Ref item = c.call_native([&]() -> PyObject* {
    PyObject* next = Py_TYPE(iterator)->tp_iternext(iterator);
    if (next) return next;
    if (PyErr_Occurred()) {
      if (!PyErr_ExceptionMatches(PyExc_StopIteration)) return nullptr;
      PyErr_Clear();
    }
    end = true;
    return Py_NewRef(Py_None);
  });
  if (!end) {
    f.push(std::move(item));
    return in.next;
  }
  f.drop(1);
  const bool end_for = f.info->instrs[in.target].op == Op::END_FOR;
  return end_for ? f.info->instrs[in.target].next : in.target;
}

void Interpreter::op_raise(const Instr& in) {
  if (in.arg == 0) {
    Ref handled = Ref::steal(PyErr_GetHandledException());
    if (!handled || handled.get() == Py_None) {
      PyErr_SetString(PyExc_RuntimeError, "No active exception to reraise");
    } else {
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(handled.get())), handled.get());
    }
    throw PythonError{};
  }
  Ref cause = in.arg == 2 ? Ref::borrow(f.top()) : Ref();
  Ref raised = Ref::borrow(f.top(in.arg - 1));
  if (PyExceptionInstance_Check(raised.get()) && c.is_outside(raised.get())) {  // raising it changes it
    c.side_exit(BreakReason::Exception, "an exception from outside is raised");
  }
  if (PyExceptionClass_Check(raised.get())) raised = c.call(raised.get(), CallArgs{});
  if (!PyExceptionInstance_Check(raised.get())) {
    PyErr_SetString(PyExc_TypeError, "exceptions must derive from BaseException");
    throw PythonError{};
  }
  if (cause) {
    if (PyExceptionClass_Check(cause.get())) cause = c.call(cause.get(), CallArgs{});
    PyException_SetCause(raised.get(), cause.get() == Py_None ? nullptr : cause.release());
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.get())), raised.get());
  throw PythonError{};
}

void Interpreter::op_format(const Instr& in) {
  const bool has_spec = (in.arg & 0x04) != 0;
  PyObject* value = f.top(has_spec);
  static PyObject* const functions[] = {nullptr, reinterpret_cast<PyObject*>(&PyUnicode_Type),
                                        PyDict_GetItemString(PyEval_GetBuiltins(), "repr"),
                                        PyDict_GetItemString(PyEval_GetBuiltins(), "ascii")};
  Ref text = Ref::borrow(value);
  if (PyObject* convert = functions[in.arg & 0x03]) text = c.call(convert, {value});
  if (!PyUnicode_CheckExact(text.get()) || has_spec) {
    static PyObject* const format = PyDict_GetItemString(PyEval_GetBuiltins(), "format");
    if (!has_spec && !is_scalar(text.get())) {
      text = c.call(reinterpret_cast<PyObject*>(&PyUnicode_Type), {text.get()});
    } else {
      text = has_spec ? c.call(format, {text.get(), f.top()}) : c.call(format, {text.get()});
    }
  }
  replace(has_spec ? 2 : 1, std::move(text));
}

void Interpreter::op_import_name(const Instr& in) {
  const long level = PyLong_AsLong(f.top(1));
  Ref names = c.resolve(f.top());
  Ref module = Ref::steal(PyImport_ImportModuleLevelObject(name(in.arg), f.globals, nullptr, names.get(), level));
  if (!module) throw PythonError{};
  replace(2, c.wrap(module.get(), c.sources.constant(module.get())));
}

void Interpreter::op_before_with() {
  PyObject* manager = f.top();
  PyTypeObject* type = Py_TYPE(manager);
  PyObject* enter = c.type_lookup(type, MAGNETO_STR("__enter__"));
  PyObject* leave = c.type_lookup(type, MAGNETO_STR("__exit__"));
  if (!enter || !leave) {
    PyErr_Format(PyExc_TypeError, "'%.200s' object does not support the context manager protocol", type->tp_name);
    throw PythonError{};
  }
  if (!PyFunction_Check(enter) || !PyFunction_Check(leave)) {
    c.side_exit(BreakReason::OpaqueObject, std::string("a context manager of type ") + type->tp_name + " is entered");
  }
  Ref leave_value = c.wrap(leave, c.sources.constant(leave));
  Ref enter_value = c.wrap(enter, c.sources.constant(enter));
  Ref bound_exit = checked(PyMethod_New(leave_value.get(), manager));
  Ref entered = c.call(enter_value.get(), {manager});
  f.drop(1);
  f.push(std::move(bound_exit));
  f.push(std::move(entered));
}

}  // namespace magneto::capture
