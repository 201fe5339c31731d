// The interpreter loop, errors, and the opcodes of the stack, names and attributes.
#include "capture/interpreter/interpreter.h"

#include <frameobject.h>

#include <algorithm>
#include <stdexcept>

#include "capture/capture.h"
#include "observe/progress.h"
#include "python/abi/c_stack.h"
#include "python/bytecode/callable.h"

namespace magneto::capture {

void InterpFrame::clear() {
  for (PyObject*& slot : storage) Py_CLEAR(slot);
}

namespace {

[[noreturn]] void raise_unbound(const InterpFrame& f, int32_t slot, const char* format) {
  PyErr_Format(PyExc_UnboundLocalError, format, PyTuple_GET_ITEM(f.info->localsplus_names.get(), slot));
  throw PythonError{};
}

}  // namespace

/// Reads a slot of the root frame for the first time: what is there is the user's own object.
Ref Capture::read_raw(int32_t slot) {
  if (root_.raw.empty() || !root_.raw[slot]) return Ref::borrow(root_.slots[slot]);
  PyObject* value = root_.slots[slot];
  if (!value) {
    root_.raw[slot] = 0;
    return {};
  }
  PyObject* name = PyTuple_GET_ITEM(root_.info->localsplus_names.get(), slot);
  Ref wrapped = wrap(value, sources.local(slot, name));
  root_.raw[slot] = 0;  // now: an exit in `wrap` finds the slot as it was
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

Ref Capture::run_frame(InterpFrame& callee, bool raise_first) {
  int depth = 0;
  for (InterpFrame* outer = frame; outer; outer = outer->caller) ++depth;
  if (depth > Py_GetRecursionLimit() || depth > 2000 || c_stack_is_low()) {
    // CPython runs the outermost call, and raises RecursionError where it does so in eager.
    throw restart_before(root_, "the calls go deeper than a capture follows");
  }
  FrameScope scope(*this, callee);
  codes_.insert(callee.info);
  return Interpreter(*this, callee).run(raise_first);
}

/// Something leaves the segment: keeps the user's stack for who tells of it.
void Capture::note_site() {
  if (!site_.empty()) return;
  for (const InterpFrame* at = frame; at; at = at->caller) site_.push_back({at->info, at->pc});
  std::ranges::reverse(site_);
}

/// Tests ask for exits at instructions that have no need of one.
void Capture::force_exit() {
  if (frame->pc <= frame->info->entry) return;  // the frame is still being made
  if (++executed_ < exit_every) return;
  for (const InterpFrame* f = frame; f; f = f->caller) {
    if (f == called_back_from_ || f->callback || (f->caller && !f->caller->result_is_pushed))
      return;  // no frame can be cut here
  }
  side_exit(BreakReason::Forced, "an exit is forced");
}

namespace {

/// Sizes stay sizes in a slice, in what it cuts, and where they are looked for.
bool keeps_sizes(Op op) {
  return op == Op::BUILD_SLICE || op == Op::BINARY_SLICE || op == Op::STORE_SLICE || op == Op::BINARY_SUBSCR ||
         op == Op::CONTAINS_OP;
}

}  // namespace

void Interpreter::know_operands(const Instr& in) {
  for (int32_t i = 0; i < operands_looked_at(in); ++i) {
    const bool index = in.op == Op::STORE_SUBSCR && i == 0 && is_tensor(f.top(1));
    if (!is_unknown_number(f.top(i)) || ((index || keeps_sizes(in.op)) && size_of_number(f.top(i)))) continue;
    Ref value = c.known(f.top(i));
    Py_SETREF(f.stack()[f.depth - 1 - i], value.release());
  }
}

Ref Interpreter::run(bool raise_first) {
  if (raise_first) handle_error();
  while (true) {
    f.result_is_pushed = false;
    f.pops = 0;
    if (!c.known_breaks_.empty()) {
      if (auto known = c.known_breaks_.find({f.info->code, f.pc}); known != c.known_breaks_.end()) {
        c.side_exit(BreakReason::Callback, known->second);
      }
    }
    if ((++c.steps_ & 0xfff) == 0) {
      runtime::Progress::tick(nullptr);
      c.handle_signals();
    }
    if (c.exit_every) c.force_exit();
    if (c.tracer) c.trace_instruction();
    try {
      if (c.has_unknown_numbers()) know_operands(f.instr());
      const int32_t next = step(f.instr());
      if (next == kReturned) {
        if (&f == &c.root_) f.clear();  // what dies with the frame may have last words
        c.check_sticky();
        return std::move(result);
      }
      c.check_sticky();
      f.pc = next;
    } catch (const PythonError&) {
      c.check_sticky();
      c.check_interrupt();
      handle_error();
    } catch (const Abandon&) {
      c.note_site();
      throw;
    } catch (const std::exception&) {
      c.note_site();
      throw;
    }
  }
}

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
  f.result_override = Ref();
  const Handler* handler = f.info->handler_of(f.pc);
  if (!handler) {
    c.note_site();
    c.add_traceback(f);
    throw PythonError{};
  }
  c.site_.clear();
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
    case Op::TO_BOOL:  // what asks for the truth value follows, and runs it if it has to be run
      break;

    // -- stack -----------------------------------------------------------------------------------------------------
    case Op::POP_TOP:
      if (&f == &c.root_) c.check_finalizer(f.top());
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
      f.push(load_fast(in.arg));
      break;
    case Op::LOAD_FAST_LOAD_FAST: {
      Ref first = load_fast(in.arg), second = load_fast(in.second);
      f.push(std::move(first));
      f.push(std::move(second));
      break;
    }
    case Op::LOAD_FAST_AND_CLEAR:
      if (&f == &c.root_) c.read_raw(in.arg);
      f.push(Ref::steal(std::exchange(f.slots[in.arg], nullptr)));
      break;
    case Op::STORE_FAST:
      may_drop(in.arg);
      store_fast(in.arg);
      break;
    case Op::STORE_FAST_STORE_FAST:
      may_drop(in.arg);
      may_drop(in.second);
      store_fast(in.arg);
      store_fast(in.second);
      break;
    case Op::STORE_FAST_LOAD_FAST:
      may_drop(in.arg);
      if (in.second != in.arg) load_fast(in.second);
      store_fast(in.arg);
      f.push(load_fast(in.second));
      break;
    case Op::DELETE_FAST:
      may_drop(in.arg);
      if (&f == &c.root_ && !f.raw.empty()) f.raw[in.arg] = 0;
      if (!f.slots[in.arg]) {
        raise_unbound(f, in.arg, "cannot access local variable '%U' where it is not associated with a value");
      }
      f.set_local(in.arg, Ref());
      break;
    case Op::MAKE_CELL:
      op_make_cell(in.arg);
      break;
    case Op::COPY_FREE_VARS:
      op_copy_free_vars(in.arg);
      break;
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
      op_load_attr(name(in.arg), false);
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

    default:
      return step_data(in);
  }
  return in.next;
}

void Interpreter::op_make_cell(int32_t slot) {
  Ref initial = &f == &c.root_ ? c.read_raw(slot) : Ref::borrow(f.slots[slot]);
  f.set_local(slot, checked(PyCell_New(initial.get())));
}

void Interpreter::op_copy_free_vars(int32_t count) {
  PyObject* closure = PyFunction_GET_CLOSURE(f.function.get());
  for (int32_t i = 0; i < count; ++i) {
    f.set_local(f.info->first_free + i, Ref::borrow(PyTuple_GET_ITEM(closure, i)));
    if (&f == &c.root_ && !f.raw.empty()) f.raw[f.info->first_free + i] = 0;
  }
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
  if (in.arg & 1) {
    push_callable(std::move(value));
  } else {
    f.push(std::move(value));
  }
}

Ref Interpreter::load_fast(int32_t slot) {
  if (&f == &c.root_) c.read_raw(slot);
  if (!f.slots[slot]) {
    raise_unbound(f, slot, "cannot access local variable '%U' where it is not associated with a value");
  }
  return Ref::borrow(f.slots[slot]);
}

void Interpreter::may_drop(int32_t slot) {
  if (&f == &c.root_) c.check_finalizer(f.slots[slot]);
}

void Interpreter::store_fast(int32_t slot) {
  if (&f == &c.root_ && !f.raw.empty()) f.raw[slot] = 0;
  c.name_result(f.top(), PyTuple_GET_ITEM(f.info->localsplus_names.get(), slot));
  f.set_local(slot, f.pop());
}

void Interpreter::push_callable(Ref function) {
  auto [lower, upper] = entries_of(std::move(function));
  f.push(std::move(lower));
  f.push(std::move(upper));
}

Ref Interpreter::load_cell(int32_t slot) {
  if (&f == &c.root_) c.read_raw(slot);
  PyObject* cell = f.slots[slot];
  PyObject* variable = PyTuple_GET_ITEM(f.info->localsplus_names.get(), slot);
  Ref value = c.read_cell(cell);
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
  c.adopt_cell(cell);
  c.overlay(cell, false).set(Py_None, value);
}

void Interpreter::op_load_attr(PyObject* attribute, bool method) {
  PyObject* owner = f.top();
  if (!method) {
    cuttable(1);
    deliver(1, c.load_attr(owner, attribute));
    return;
  }
  bool unbound = false;
  Ref value = c.load_attr(owner, attribute, &unbound);
  c.note_allocation_site(value.get());
  if (unbound) {
    Ref self = f.pop();
    f.push(std::move(value));
    f.push(std::move(self));
  } else {
    f.drop(1);
    push_callable(std::move(value));
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
    push_callable(std::move(value));
  }
}

}  // namespace magneto::capture
