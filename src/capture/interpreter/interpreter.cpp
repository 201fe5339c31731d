// The interpreter loop, errors, and the opcodes of the stack, names and attributes.
#include "capture/interpreter/interpreter.h"

#include <frameobject.h>

#include <algorithm>
#include <stdexcept>

#include "capture/calls/calls.h"
#include "capture/calls/native_mode.h"
#include "capture/capture.h"
#include "capture/exits/exit_builder.h"
#include "capture/interpreter/errors.h"
#include "capture/interpreter/frames.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/tried_numbers.h"
#include "capture/torch/mask_loops.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/attributes.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
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
    if ((in.op == Op::LOAD_ATTR || in.op == Op::LOAD_METHOD) && is_storage(f.top(i))) continue;
    Ref value = c.numbers.known(f.top(i));
    Py_SETREF(f.stack()[f.depth - 1 - i], value.release());
  }
}

Ref Interpreter::run(bool raise_first) {
  if (raise_first) handle_error();
  while (true) {
    f.result_is_pushed = false;
    f.pops = 0;
    f.natives_before = c.calls.natives_run;
    if (!c.known_breaks.empty()) {
      if (auto known = c.known_breaks.find({f.info->code, f.pc}); known != c.known_breaks.end()) {
        c.side_exit(known->second.reason, known->second.message);
      }
    }
    if ((++c.frames.steps & 0xfff) == 0) {
      runtime::Progress::tick(nullptr);
      c.errors.handle_signals();
    }
    if (c.options.exit_every) c.frames.force_exit();
    if (c.options.tracer) c.frames.trace_instruction();
    try {
      if (c.numbers.has_unknown_numbers()) know_operands(f.instr());
      const int32_t next = step(f.instr());
      if (next == kReturned) {
        if (&f == &c.frames.root) f.clear();  // what dies with the frame may have last words
        c.errors.check_sticky();
        return std::move(result);
      }
      c.errors.check_sticky();
      f.pc = next;
      while (c.mask_loops.ends_at(f)) c.mask_loops.end_branch(f);
    } catch (const PythonError&) {
      c.errors.check_sticky();
      c.errors.check_interrupt();
      if (c.errors.may_be_of_data()) end_at_data_numbers(c);
      handle_error();
    } catch (const Abandon&) {
      c.frames.note_site();
      throw;
    } catch (const std::exception&) {
      c.frames.note_site();
      throw;
    }
  }
}

/// Goes to the handler of the current instruction, or leaves the frame.
void Interpreter::handle_error() {
  f.result_override = Ref();
  const Handler* handler = f.info->handler_of(f.pc);
  c.mask_loops.leave(f, handler);
  if (!handler) {
    c.frames.note_site();
    c.errors.add_traceback(f);
    throw PythonError{};
  }
  c.frames.site.clear();
  c.errors.add_traceback(f);
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
      if (&f == &c.frames.root) c.world.check_finalizer(f.top());
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
      if (&f == &c.frames.root) c.frames.read_raw(in.arg);
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
      if (&f == &c.frames.root && !f.raw.empty()) f.raw[in.arg] = 0;
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
      c.world.wrap(f.globals, c.sources.constant(f.globals));
      if (in.op == Op::STORE_GLOBAL) {
        c.overlays.store_entry(f.globals, key, f.top());
        f.drop(1);
      } else {
        c.overlays.store_entry(f.globals, key, nullptr);
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
      c.attributes.store_attr(f.top(), name(in.arg), f.top(1));
      f.drop(2);
      break;
    case Op::DELETE_ATTR:
      c.attributes.store_attr(f.top(), name(in.arg), nullptr);
      f.drop(1);
      break;

    default:
      return step_data(in);
  }
  return in.next;
}

void Interpreter::op_make_cell(int32_t slot) {
  Ref initial = &f == &c.frames.root ? c.frames.read_raw(slot) : Ref::borrow(f.slots[slot]);
  f.set_local(slot, checked(PyCell_New(initial.get())));
}

void Interpreter::op_copy_free_vars(int32_t count) {
  PyObject* closure = PyFunction_GET_CLOSURE(f.function.get());
  for (int32_t i = 0; i < count; ++i) {
    f.set_local(f.info->first_free + i, Ref::borrow(PyTuple_GET_ITEM(closure, i)));
    if (&f == &c.frames.root && !f.raw.empty()) f.raw[f.info->first_free + i] = 0;
  }
}

Ref Interpreter::load_global(PyObject* key) {
  Ref globals = c.world.wrap(f.globals, c.sources.constant(f.globals));
  Ref value = c.overlays.dict_lookup(globals.get(), key);
  if (!value) {
    Ref builtins = c.world.wrap(f.builtins, c.sources.constant(f.builtins));
    value = c.overlays.dict_lookup(builtins.get(), key);
  }
  if (!value) {
    PyErr_Format(PyExc_NameError, "name '%U' is not defined", key);
    throw PythonError{};
  }
  return value;
}

void Interpreter::op_load_global(const Instr& in) {
  Ref value = load_global(name(in.arg >> 1));
  if (in.arg & 1) {
    push_callable(std::move(value));
  } else {
    f.push(std::move(value));
  }
}

Ref Interpreter::load_fast(int32_t slot) {
  if (&f == &c.frames.root) c.frames.read_raw(slot);
  if (!f.slots[slot]) {
    raise_unbound(f, slot, "cannot access local variable '%U' where it is not associated with a value");
  }
  if (f.slots[slot] == MaskLoops::unknown()) c.mask_loops.read_unknown(f, slot);
  return Ref::borrow(f.slots[slot]);
}

void Interpreter::may_drop(int32_t slot) {
  if (&f == &c.frames.root) c.world.check_finalizer(f.slots[slot]);
}

void Interpreter::store_fast(int32_t slot) {
  if (&f == &c.frames.root && !f.raw.empty()) f.raw[slot] = 0;
  c.torch.name_result(f.top(), PyTuple_GET_ITEM(f.info->localsplus_names.get(), slot));
  f.set_local(slot, f.pop());
}

void Interpreter::push_callable(Ref function) {
  auto [lower, upper] = entries_of(std::move(function));
  f.push(std::move(lower));
  f.push(std::move(upper));
}

Ref Interpreter::load_cell(int32_t slot) {
  if (&f == &c.frames.root) c.frames.read_raw(slot);
  PyObject* cell = f.slots[slot];
  PyObject* variable = PyTuple_GET_ITEM(f.info->localsplus_names.get(), slot);
  Ref value = c.world.read_cell(cell);
  if (value) return value;
  if (slot < f.info->first_free) {
    raise_unbound(f, slot, "cannot access local variable '%U' where it is not associated with a value");
  }
  PyErr_Format(PyExc_NameError,
               "cannot access free variable '%U' where it is not associated with a value in enclosing scope", variable);
  throw PythonError{};
}

void Interpreter::store_cell(int32_t slot, PyObject* value) {
  if (&f == &c.frames.root) c.frames.read_raw(slot);
  PyObject* cell = f.slots[slot];
  if (!c.world.cell_contents.count(cell)) {
    PyCell_Set(cell, value);
    return;
  }
  c.world.adopt_cell(cell);
  c.overlays.of(cell, false).set(Py_None, value);
}

void Interpreter::op_load_attr(PyObject* attribute, bool method) {
  PyObject* owner = f.top();
  if (!method) {
    cuttable(1);
    deliver(1, c.attributes.load_attr(owner, attribute));
    return;
  }
  bool unbound = false;
  // What is made anew of an iterator may be of another type than the one that has this method.
  const bool steps = PyUnicode_CompareWithASCIIString(attribute, "__next__") == 0 && PyIter_Check(owner) &&
                     !PyGen_CheckExact(owner) && !is_python_class(Py_TYPE(owner));
  Ref value = c.attributes.load_attr(owner, attribute, steps ? nullptr : &unbound);
  c.exits.note_allocation_site(value.get());
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
  Ref proxy = c.calls.call(f.top(2), std::move(args));
  bool unbound = false;
  Ref value = c.attributes.load_attr(proxy.get(), attribute, in.arg & 1 ? &unbound : nullptr);
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
