// The interpreter's opcodes of control: jumps, iteration, calls, exceptions and context managers.
#include <torch/csrc/Device.h>

#include <bit>
#include <optional>

#include "capture/calls/calls.h"
#include "capture/interpreter/errors.h"
#include "capture/interpreter/frames.h"
#include "capture/interpreter/interpreter.h"
#include "capture/interpreter/object_protocol.h"
#include "capture/interpreter/operations.h"
#include "capture/torch/mask_loops.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/world.h"
#include "python/abi/errors.h"
#include "python/abi/functions.h"
#include "python/abi/private.h"
#include "python/bytecode/callable.h"
#include "python/errors.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

/// A straight line from there to a `raise` that nothing in this function waits for: the branch is a check.
bool only_raises(const CodeInfo& info, int32_t index) {
  constexpr int32_t kLongest = 200;
  for (int32_t count = 0; count < kLongest; ++count) {
    const Instr& instr = info.instrs[index];
    if (instr.op == Op::RAISE_VARARGS) return instr.arg > 0 && !info.handler_of(index);
    if (instr.target >= 0 || instr.op == Op::RETURN_VALUE || instr.op == Op::RETURN_CONST ||
        instr.op == Op::YIELD_VALUE || instr.op == Op::RERAISE) {
      return false;
    }
    index = instr.next;
    if (index < 0 || index >= static_cast<int32_t>(info.instrs.size())) return false;
  }
  return false;
}

/// Only the run knows it.
bool is_of_data(Capture& capture, PyObject* value) {
  if (!is_fake_tensor(value) || unpack_tensor(value).numel() != 1) return false;
  PyObject* const operands[] = {value};
  return !fake::known_value(unpack_tensor(value)) && !capture.torch.is_overridden(operands);
}

/// `if value: raise`, or the opposite. Which way the program goes, if `value` is such a check: where it does not
/// hold, the run is undone, and CPython raises.
std::optional<bool> checked_by_run(Capture& capture, InterpFrame& f, const Instr& in, bool on_true) {
  if (!is_of_data(capture, f.top())) return std::nullopt;
  const bool falls_to_raise = only_raises(*f.info, in.next), jumps_to_raise = only_raises(*f.info, in.target);
  if (falls_to_raise == jumps_to_raise) return std::nullopt;
  const bool wanted = on_true == falls_to_raise;
  static constinit Imported logical_not("torch", "logical_not");
  const Ref holds = wanted ? Ref::borrow(f.top()) : capture.calls.call(logical_not.get(), {f.top()});
  capture.protocol.assume_true(holds.get());
  return wanted;
}

/// The comparison at `index` decides nothing but whether the program raises.
bool is_check(const CodeInfo& info, int32_t index) {
  const Instr* jump = &info.instrs[info.instrs[index].next];
  if (info.instrs[index].op != Op::COMPARE_OP) return false;
  if (jump->op == Op::TO_BOOL) jump = &info.instrs[jump->next];
  if (jump->op != Op::POP_JUMP_IF_TRUE && jump->op != Op::POP_JUMP_IF_FALSE) return false;
  return only_raises(info, jump->next) != only_raises(info, jump->target);
}

/// Compares with a tensor of an int64 as with its number.
bool is_integer(PyObject* value) {
  if (!value || is_unknown_number(value)) return value && size_of_number(value);
  int overflow = 0;
  return PyLong_CheckExact(value) && (PyLong_AsLongLongAndOverflow(value, &overflow), overflow == 0);
}

/// `t.item()` in front of a comparison with an integer that is a check, as in `assert t.max().item() <= n`: the tensor
/// stands for its number there, and each run checks what comes of it. Null: something else.
Ref number_to_check(Capture& c, InterpFrame& f, const Instr& in, const Callable& callable) {
  if (in.arg != 0 || !callable.self || c_function_name(callable.function) != "item" || !is_of_data(c, callable.self) ||
      c.session->takes.numbers || transform_depth() > 0) {
    return {};
  }
  const at::Tensor& tensor = unpack_tensor(callable.self);
  if (tensor.dim() != 0 || tensor.scalar_type() != c10::kLong) return {};
  const Instr& load = f.info->instrs[in.next];
  PyObject* other = f.depth > 2 ? f.top(2) : nullptr;
  int32_t compared = in.next;
  if (load.op == Op::LOAD_FAST || load.op == Op::LOAD_CONST) {
    if (load.op == Op::LOAD_FAST && &f == &c.frames.root) c.frames.read_raw(load.arg);
    other = load.op == Op::LOAD_CONST ? PyTuple_GET_ITEM(f.info->consts.get(), load.arg) : f.slots[load.arg];
    compared = load.next;
  }
  return is_check(*f.info, compared) && is_integer(other) ? Ref::borrow(callable.self) : Ref();
}

}  // namespace

int32_t Interpreter::step_control(const Instr& in) {
  switch (in.op) {
    // -- jumps -----------------------------------------------------------------------------------------------------
    case Op::JUMP:
      return in.target;
    case Op::POP_JUMP_IF_TRUE:
    case Op::POP_JUMP_IF_FALSE: {
      const bool on_true = in.op == Op::POP_JUMP_IF_TRUE;
      if (const std::optional<bool> value = checked_by_run(c, f, in, on_true)) {
        f.drop(1);
        return *value == on_true ? in.target : in.next;
      }
      if (const auto body = is_of_data(c, f.top()) ? c.mask_loops.begin_branch(f, on_true) : std::nullopt) {
        f.drop(1);
        return *body;
      }
      const bool value = on_true && f.info->instrs[in.next].op == Op::LOAD_ASSERTION_ERROR
                             ? c.protocol.assume_true(f.top())
                             : c.protocol.truth(f.top());
      f.drop(1);
      return value == on_true ? in.target : in.next;
    }
    case Op::POP_JUMP_IF_NONE:
    case Op::POP_JUMP_IF_NOT_NONE: {
      const bool none = f.top() == Py_None;
      f.drop(1);
      return none == (in.op == Op::POP_JUMP_IF_NONE) ? in.target : in.next;
    }
    case Op::JUMP_IF_TRUE_OR_POP:
    case Op::JUMP_IF_FALSE_OR_POP:
      if (c.protocol.truth(f.top()) == (in.op == Op::JUMP_IF_TRUE_OR_POP)) return in.target;
      f.drop(1);
      break;

    // -- iteration -------------------------------------------------------------------------------------------------
    case Op::GET_ITER:
      cuttable(1);
      if (Ref loop = c.mask_loops.begin(f)) {
        replace(1, std::move(loop));
        break;
      }
      deliver(1, c.protocol.iterate(f.top()));
      break;
    case Op::FOR_ITER:
      return op_for_iter(in);

    // -- calls -----------------------------------------------------------------------------------------------------
    case Op::CALL:
      op_call(in);
      break;
    case Op::CALL_FUNCTION_EX:
      op_call_function_ex(in);
      break;
    case Op::MAKE_FUNCTION:
      op_make_function(in);
      break;
    case Op::SET_FUNCTION_ATTRIBUTE:
      op_set_function_attribute(in);
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
      f.push(import_from(name(in.arg)));
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
      f.push(c.errors.handled_exception());
      PyErr_SetHandledException(raised.get());
      f.push(std::move(raised));
      break;
    }
    case Op::POP_EXCEPT: {
      c.errors.set_handled_exception(f.pop().get());
      break;
    }
    case Op::CHECK_EXC_MATCH: {
      Ref classes = c.containers.resolve_deep(f.top());
      const int match = PyErr_GivenExceptionMatches(f.top(1), classes.get());
      replace(1, Ref::borrow(match ? Py_True : Py_False));
      break;
    }
    case Op::CLEANUP_THROW: {  // the iterator, what was sent to it last, what was raised: its end, or an exception
      if (!PyErr_GivenExceptionMatches(f.top(), PyExc_StopIteration)) {
        Ref raised = f.pop();
        raise_again(raised.get());
        throw PythonError{};
      }
      Ref value = c.attributes.load_attr(f.top(), MAGNETO_STR("value"));
      f.drop(3);
      f.push(Ref::borrow(Py_None));
      f.push(std::move(value));
      break;
    }
    case Op::RERAISE: {
      Ref raised = f.pop();
      raise_again(raised.get());
      throw PythonError{};
    }
    case Op::BEFORE_WITH:
      op_before_with();
      break;
    case Op::WITH_EXCEPT_START:
      op_with_except_start();
      break;

    case Op::GET_YIELD_FROM_ITER:
      if (!PyGen_CheckExact(f.top())) replace(1, c.protocol.iterate(f.top()));
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
      c.side_exit(BreakReason::Generator, "a generator that was made outside the segment yields");
    case Op::LOAD_BUILD_CLASS: {
      static PyObject* const build_class = PyDict_GetItemString(PyEval_GetBuiltins(), "__build_class__");
      f.push(Ref::borrow(build_class));
      break;
    }
    default:
      return step_match(in);
  }
  return in.next;
}

void Interpreter::op_call(const Instr& in) {
  const int32_t count = in.arg;
  PyObject** base = f.stack() + f.depth - count;
  CallArgs args;
  if (in.second >= 0) args.kwnames = constant(in.second);
  const Callable callable = callable_of(base[-2], base[-1]);
  if (Ref number = number_to_check(c, f, in, callable)) return replace(count + 2, std::move(number));
  args.values.reserve(count + 2);
  if (callable.self) args.values.push_back(callable.self);
  args.values.insert(args.values.end(), base, base + count);
  cuttable(count + 2);
  deliver(count + 2, c.calls.call(callable.function, std::move(args)));
}

/// The items of `f(*value)`.
static Ref starred(Capture& c, PyObject* callable, PyObject* value) {
  if (PyTuple_CheckExact(value)) return c.containers.resolve(value);
  try {
    return c.protocol.list_of(value);
  } catch (const PythonError&) {
    reword_starred(callable, value);
    throw;
  }
}

void Interpreter::op_call_function_ex(const Instr& in) {
  const bool has_entry = in.arg & 1;  // for keywords
  const bool has_keywords = has_entry && f.top();
  const int32_t pops = pops_of(in);  // the callable, args, kwargs
  PyObject* callable = callable_of(f.top(has_entry + 2), f.top(has_entry + 1)).function;
  Ref positional = starred(c, callable, f.top(has_entry));
  CallArgs args;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(positional.get()); ++i) {
    args.values.push_back(PySequence_Fast_GET_ITEM(positional.get(), i));
  }
  Ref names, mapping;
  if (has_keywords) {
    mapping = c.containers.resolve(f.top());
    if (c.world.is_outside(mapping.get()) && mapping.get() == f.top() && !c.containers.is_shadow(mapping.get())) {
      mapping = c.containers.contents_of(f.top());
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
  deliver(pops, c.calls.call(callable, std::move(args)));
}

/// The attribute that a flag of MAKE_FUNCTION stands for.
static PyObject*& function_attribute(PyFunctionObject* function, int flag) {
  return *function_parts(function)[std::countr_zero(static_cast<unsigned>(flag))];
}

void Interpreter::op_make_function(const Instr& in) {
  PyObject* code = f.top();
  Ref function = checked(PyFunction_New(code, f.globals));
  auto* made = reinterpret_cast<PyFunctionObject*>(function.get());
  int32_t below = 1;
  for (int flag : {0x08, 0x04, 0x02, 0x01}) {
    if (in.arg & flag) function_attribute(made, flag) = c.containers.resolve(f.top(below++)).release();
  }
  replace(below, std::move(function));
}

void Interpreter::op_set_function_attribute(const Instr& in) {
  Ref function = f.pop();  // made in front of this instruction, by MAKE_FUNCTION
  Ref value = c.containers.resolve(f.top());
  function_attribute(reinterpret_cast<PyFunctionObject*>(function.get()), in.arg) = value.release();
  replace(1, std::move(function));
}

/// One step of `yield from`: the value on top goes to the iterator below it.
int32_t Interpreter::op_send(const Instr& in) {
  PyObject* iterator = f.top(1);
  if (c.world.is_outside(iterator)) c.side_exit(BreakReason::OpaqueIterator, "yield from an iterator from outside");
  PySendResult status = PYGEN_ERROR;
  Ref value = c.calls.call_native([&] {
    PyObject* sent = nullptr;
    status = PyIter_Send(iterator, f.top(), &sent);
    return sent;
  });
  f.pop();
  if (status == PYGEN_NEXT) {
    f.push(std::move(value));
    return in.next;
  }
  if (!dialect.send_leaves_iterator) f.pop();  // else END_SEND does
  f.push(std::move(value));
  return in.target;
}

int32_t Interpreter::op_for_iter(const Instr& in) {
  PyObject* iterator = f.top();
  if (c.world.is_outside(iterator))
    c.side_exit(BreakReason::OpaqueIterator, "a loop over an iterator from outside goes on");
  if (MaskLoops::is_iterator(iterator)) {
    if (Ref row = c.mask_loops.next(f)) {
      f.push(std::move(row));
      return in.next;
    }
    f.drop(1);
    return in.target;
  }
  bool end = false;
  Ref item = c.calls.call_native([&]() -> PyObject* {
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
  return in.target;
}

void Interpreter::op_raise(const Instr& in) {
  if (in.arg == 0) {
    Ref handled = Ref::steal(PyErr_GetHandledException());
    if (!handled || handled.get() == Py_None) {
      PyErr_SetString(PyExc_RuntimeError, "No active exception to reraise");
    } else {
      raise_again(handled.get());
    }
    throw PythonError{};
  }
  Ref cause = in.arg == 2 ? Ref::borrow(f.top()) : Ref();
  Ref raised = Ref::borrow(f.top(in.arg - 1));
  if (PyExceptionInstance_Check(raised.get()) && c.world.is_outside(raised.get())) {  // raising it changes it
    c.side_exit(BreakReason::Exception, "an exception from outside is raised");
  }
  if (PyExceptionClass_Check(raised.get())) raised = c.calls.call(raised.get(), CallArgs{});
  if (!PyExceptionInstance_Check(raised.get())) {
    PyErr_SetString(PyExc_TypeError, "exceptions must derive from BaseException");
    throw PythonError{};
  }
  if (cause) {
    if (PyExceptionClass_Check(cause.get())) cause = c.calls.call(cause.get(), CallArgs{});
    PyException_SetCause(raised.get(), cause.get() == Py_None ? nullptr : cause.release());
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.get())), raised.get());
  throw PythonError{};
}
Ref Interpreter::import_from(PyObject* attribute) {
  try {
    if (Ref value = c.attributes.lookup_attr(f.top(), attribute)) return value;
  } catch (const PythonError&) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw;
    PyErr_Clear();
  }
  // What a package lacks may be a submodule whose import is under way; otherwise CPython words the error.
  c.side_exit(BreakReason::Exception, "a name is imported that the module does not have");
}

/// The module is where the statement found it: `import a.b` gives a, `from a.b import c` a.b.
void Interpreter::guard_import(PyObject* name, PyObject* names, PyObject* module) {
  PyObject* const modules = PyImport_GetModuleDict();
  Ref parts = checked(PyUnicode_Partition(name, MAGNETO_STR(".")));
  PyObject* const key = names == Py_None ? PyTuple_GET_ITEM(parts.get(), 0) : name;
  if (PyDict_GetItemWithError(modules, key) != module) return;  // of a relative import, by another name
  c.guards.identity(c.sources.dict_item(c.sources.constant(modules), key), module);
}

void Interpreter::op_import_name(const Instr& in) {
  const long level = PyLong_AsLong(f.top(1));
  Ref names = c.containers.resolve(f.top());
  Ref module = Ref::steal(PyImport_ImportModuleLevelObject(name(in.arg), f.globals, nullptr, names.get(), level));
  if (!module) throw PythonError{};
  guard_import(name(in.arg), names.get(), module.get());
  replace(2, c.world.wrap(module.get(), c.sources.constant(module.get())));
}

/// What a `with` block calls at its end.
void Interpreter::push_exit(Ref bound) {
  if (dialect.exit_is_callable) {
    push_callable(std::move(bound));
  } else {
    f.push(std::move(bound));
  }
}

/// [exit (one entry or two), lasti, previous, exception] -> the same and exit's result.
void Interpreter::op_with_except_start() {
  PyObject* raised = f.top();
  if (c.world.is_outside(raised))
    c.side_exit(BreakReason::Exception, "an exception from outside leaves a `with` block");
  Ref traceback = Ref::steal(PyException_GetTraceback(raised));
  cuttable(0);
  const Callable exit = dialect.exit_is_callable ? callable_of(f.top(4), f.top(3)) : Callable{f.top(3), nullptr};
  CallArgs args;
  if (exit.self) args.values.push_back(exit.self);
  args.values.insert(args.values.end(),
                     {reinterpret_cast<PyObject*>(Py_TYPE(raised)), raised, traceback ? traceback.get() : Py_None});
  f.push(c.calls.call(exit.function, std::move(args)));
}

void Interpreter::op_before_with() {
  PyObject* manager = f.top();
  PyTypeObject* type = Py_TYPE(manager);
  PyObject* enter = c.attributes.type_lookup(type, MAGNETO_STR("__enter__"));
  PyObject* leave = c.attributes.type_lookup(type, MAGNETO_STR("__exit__"));
  if (!enter || !leave) {
    set_no_manager_error(manager, enter, leave);
    throw PythonError{};
  }
  static constinit Imported all("torch._C", "DisableTorchFunction"),
      classes("torch._C", "DisableTorchFunctionSubclass");
  if (THPDevice_Check(manager) || type == all.type() || type == classes.type()) {
    Ref bound_exit = checked(Py_TYPE(leave)->tp_descr_get(leave, manager, reinterpret_cast<PyObject*>(type)));
    Ref entered = c.calls.call(enter, {manager});
    f.drop(1);
    push_exit(std::move(bound_exit));
    f.push(std::move(entered));
    return;
  }
  if (!PyFunction_Check(enter) || !PyFunction_Check(leave)) {
    c.side_exit(BreakReason::OpaqueObject, std::string("a context manager of type ") + type->tp_name + " is entered");
  }
  Ref leave_value = c.world.wrap(leave, c.sources.constant(leave));
  Ref enter_value = c.world.wrap(enter, c.sources.constant(enter));
  Ref bound_exit = checked(PyMethod_New(leave_value.get(), manager));
  Ref entered = c.calls.call(enter_value.get(), {manager});
  f.drop(1);
  push_exit(std::move(bound_exit));
  f.push(std::move(entered));
}

}  // namespace magneto::capture
