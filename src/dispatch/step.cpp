#include "dispatch/step.h"

#include <utility>
#include <vector>

#include "python/abi/errors.h"
#include "python/abi/private.h"
#include "python/bytecode/callable.h"

namespace magneto::dispatch {

namespace {

/// The value stack of a real frame.
struct Stack {
  PyObject** base;
  int32_t* depth;

  PyObject* top(int32_t below = 0) { return base[*depth - 1 - below]; }
  void drop(int32_t count) {
    while (count-- > 0) {
      PyObject* value = std::exchange(base[--*depth], nullptr);
      Py_XDECREF(value);
    }
  }
  void push(PyObject* value) { base[(*depth)++] = value; }
  /// The two entries of a callable without a self.
  void push_callable(PyObject* function) {
    const auto [lower, upper] = entries_of(function);
    push(lower);
    push(upper);
  }
  /// What a `with` block calls at its end.
  void push_exit(PyObject* bound) {
    if (dialect.exit_is_callable) return push_callable(bound);
    push(bound);
  }
  /// Pops, then pushes a new reference. False for null (an error).
  bool replace(int32_t pops, PyObject* value) {
    if (!value) return false;
    drop(pops);
    push(value);
    return true;
  }
};

PyObject* binary(int op, PyObject* a, PyObject* b) {
  using Function = PyObject* (*)(PyObject*, PyObject*);
  static const Function functions[] = {PyNumber_Add,
                                       PyNumber_And,
                                       PyNumber_FloorDivide,
                                       PyNumber_Lshift,
                                       PyNumber_MatrixMultiply,
                                       PyNumber_Multiply,
                                       PyNumber_Remainder,
                                       PyNumber_Or,
                                       nullptr,
                                       PyNumber_Rshift,
                                       PyNumber_Subtract,
                                       PyNumber_TrueDivide,
                                       PyNumber_Xor,
                                       PyNumber_InPlaceAdd,
                                       PyNumber_InPlaceAnd,
                                       PyNumber_InPlaceFloorDivide,
                                       PyNumber_InPlaceLshift,
                                       PyNumber_InPlaceMatrixMultiply,
                                       PyNumber_InPlaceMultiply,
                                       PyNumber_InPlaceRemainder,
                                       PyNumber_InPlaceOr,
                                       nullptr,
                                       PyNumber_InPlaceRshift,
                                       PyNumber_InPlaceSubtract,
                                       PyNumber_InPlaceTrueDivide,
                                       PyNumber_InPlaceXor};
  if (op == 8) return PyNumber_Power(a, b, Py_None);
  if (op == 21) return PyNumber_InPlacePower(a, b, Py_None);
  return functions[op](a, b);
}

PyObject* call(Stack& stack, int32_t count, PyObject* kw_names) {
  PyObject** base = stack.base + *stack.depth - count;
  const Callable callable = callable_of(base[-2], base[-1]);
  const int32_t positional = count - (kw_names ? static_cast<int32_t>(PyTuple_GET_SIZE(kw_names)) : 0);
  if (callable.self) return PyObject_Vectorcall(callable.function, base - 1, positional + 1, kw_names);
  return PyObject_Vectorcall(callable.function, base, positional, kw_names);
}

PyObject* call_ex(Stack& stack, bool has_keywords) {
  PyObject* keywords = has_keywords ? stack.top() : nullptr;
  PyObject* positional = stack.top(has_keywords);
  PyObject* callable = callable_of(stack.top(has_keywords + 2), stack.top(has_keywords + 1)).function;
  Ref args = Ref::steal(PySequence_Tuple(positional));
  if (!args) {
    reword_starred(callable, positional);
    return nullptr;
  }
  Ref kwargs;
  if (keywords) {
    kwargs = Ref::steal(PyDict_New());
    if (!kwargs || PyDict_Update(kwargs.get(), keywords) < 0) return nullptr;
  }
  return PyObject_Call(callable, args.get(), kwargs.get());
}

/// `!s`, `!r`, `!a` (CONVERT_VALUE's argument; 0: none). New reference.
PyObject* converted(PyObject* value, int32_t conversion) {
  using Convert = PyObject* (*)(PyObject*);
  static const Convert converts[] = {Py_NewRef, PyObject_Str, PyObject_Repr, PyObject_ASCII};
  return converts[conversion](value);
}

/// What the class of `owner` has by that name; borrowed, null: nothing.
PyObject* of_class(PyObject* owner, const char* name) {
  Ref text = Ref::steal(PyUnicode_InternFromString(name));
  return lookup_in_type(Py_TYPE(owner), text.get());
}

PyObject* bound(PyObject* found, PyObject* owner) {
  descrgetfunc get = Py_TYPE(found)->tp_descr_get;
  return get ? get(found, owner, reinterpret_cast<PyObject*>(Py_TYPE(owner))) : Py_NewRef(found);
}

bool before_with(Stack& stack) {
  PyObject* manager = stack.top();
  PyObject* const enters = of_class(manager, "__enter__");
  PyObject* const leaves = of_class(manager, "__exit__");
  if (!enters || !leaves) {
    set_no_manager_error(manager, enters, leaves);
    return false;
  }
  Ref enter = Ref::steal(bound(enters, manager));
  Ref leave = enter ? Ref::steal(bound(leaves, manager)) : Ref();
  PyObject* entered = leave ? PyObject_CallNoArgs(enter.get()) : nullptr;
  if (!entered) return false;
  stack.drop(1);
  stack.push_exit(leave.release());
  stack.push(entered);
  return true;
}

PyObject* interpolation(Stack& stack, const Instr& in) {
  const bool has_format = in.arg & 1;
  Ref empty = Ref::steal(PyUnicode_New(0, 0));
  PyObject* format = has_format ? stack.top() : empty.get();
  return make_interpolation(stack.top(1 + has_format), stack.top(has_format), in.arg >> 2, format);
}

}  // namespace

namespace {

StepResult finished(bool ok) { return ok ? StepResult::Done : StepResult::Raised; }

/// Instructions that make, fill and take apart containers.
StepResult step_containers(const Instr& in, Stack& stack) {
  switch (in.op) {
    case Op::BUILD_TUPLE:
    case Op::BUILD_LIST: {
      const bool tuple = in.op == Op::BUILD_TUPLE;
      PyObject* made = tuple ? PyTuple_New(in.arg) : PyList_New(in.arg);
      if (!made) return StepResult::Raised;
      for (int32_t i = in.arg - 1; i >= 0; --i) {
        PyObject* item = std::exchange(stack.base[--*stack.depth], nullptr);
        if (tuple) {
          PyTuple_SET_ITEM(made, i, item);
        } else {
          PyList_SET_ITEM(made, i, item);
        }
      }
      stack.push(made);
      return StepResult::Done;
    }
    case Op::BUILD_SET: {
      Ref made = Ref::steal(PySet_New(nullptr));
      for (int32_t i = in.arg - 1; made && i >= 0; --i) {
        if (PySet_Add(made.get(), stack.top(i)) < 0) return StepResult::Raised;
      }
      return finished(stack.replace(in.arg, made.release()));
    }
    case Op::BUILD_MAP: {
      Ref made = Ref::steal(PyDict_New());
      for (int32_t i = in.arg - 1; made && i >= 0; --i) {
        if (PyDict_SetItem(made.get(), stack.top(2 * i + 1), stack.top(2 * i)) < 0) return StepResult::Raised;
      }
      return finished(stack.replace(2 * in.arg, made.release()));
    }
    case Op::BUILD_CONST_KEY_MAP: {
      Ref made = Ref::steal(PyDict_New());
      for (int32_t i = 0; made && i < in.arg; ++i) {
        if (PyDict_SetItem(made.get(), PyTuple_GET_ITEM(stack.top(), i), stack.top(in.arg - i)) < 0)
          return StepResult::Raised;
      }
      return finished(stack.replace(in.arg + 1, made.release()));
    }
    case Op::BUILD_SLICE:
      return finished(stack.replace(
          in.arg, PySlice_New(stack.top(in.arg - 1), stack.top(in.arg - 2), in.arg == 3 ? stack.top() : nullptr)));
    case Op::BINARY_SLICE: {
      Ref slice = Ref::steal(PySlice_New(stack.top(1), stack.top(), nullptr));
      return finished(stack.replace(3, slice ? PyObject_GetItem(stack.top(2), slice.get()) : nullptr));
    }
    case Op::STORE_SLICE: {
      Ref slice = Ref::steal(PySlice_New(stack.top(1), stack.top(), nullptr));
      if (!slice || PyObject_SetItem(stack.top(2), slice.get(), stack.top(3)) < 0) return StepResult::Raised;
      stack.drop(4);
      return StepResult::Done;
    }
    case Op::BUILD_STRING: {
      Ref empty = Ref::steal(PyUnicode_New(0, 0));
      return finished(stack.replace(in.arg, join_strings(empty.get(), &stack.base[*stack.depth - in.arg], in.arg)));
    }
    case Op::BUILD_INTERPOLATION:
      return finished(stack.replace(pops_of(in), interpolation(stack, in)));
    case Op::BUILD_TEMPLATE:
      return finished(stack.replace(2, make_template(stack.top(1), stack.top())));
    case Op::LIST_TO_TUPLE:
      return finished(stack.replace(1, PyList_AsTuple(stack.top())));
    case Op::LIST_EXTEND: {
      // CPython words the error about a value that can't be iterated.
      if (!Py_TYPE(stack.top())->tp_iter && !PySequence_Check(stack.top())) return StepResult::NotOurs;
      Ref none = Ref::steal(extend_list(stack.top(in.arg), stack.top()));
      if (!none) return StepResult::Raised;
      stack.drop(1);
      return StepResult::Done;
    }
    case Op::SET_ADD:
      if (PySet_Add(stack.top(in.arg), stack.top()) < 0) return StepResult::Raised;
      stack.drop(1);
      return StepResult::Done;
    case Op::SET_UPDATE:
      if (update_set(stack.top(in.arg), stack.top()) < 0) return StepResult::Raised;
      stack.drop(1);
      return StepResult::Done;
    case Op::MAP_ADD:
      if (PyDict_SetItem(stack.top(in.arg + 1), stack.top(1), stack.top()) < 0) return StepResult::Raised;
      stack.drop(2);
      return StepResult::Done;
    case Op::UNPACK_SEQUENCE: {
      PyObject* sequence = stack.top();
      if ((!PyTuple_CheckExact(sequence) && !PyList_CheckExact(sequence)) ||
          PySequence_Fast_GET_SIZE(sequence) != in.arg) {
        return StepResult::NotOurs;
      }
      Ref held = Ref::borrow(sequence);
      stack.drop(1);
      for (int32_t i = in.arg - 1; i >= 0; --i) stack.push(Py_NewRef(PySequence_Fast_GET_ITEM(held.get(), i)));
      return StepResult::Done;
    }
    default:
      return StepResult::NotOurs;
  }
}

/// Instructions that need no exit of their own, where an exit was forced or something else of theirs was opaque. What
/// is left to CPython (NotOurs) ends the frame's capture: returns, yields, exception handling.
StepResult step_plain(Frame* frame, const CodeInfo& info, const Instr& in, Stack& stack, int32_t* next) {
  PyObject** slots = frame_localsplus(frame);
  auto name = [&](int32_t index) { return PyTuple_GET_ITEM(info.names.get(), index); };
  switch (in.op) {
    case Op::NOP:
    case Op::RESUME:
      return StepResult::Done;
    case Op::POP_TOP:
      stack.drop(1);
      return StepResult::Done;
    case Op::PUSH_NULL:
      stack.push(nullptr);
      return StepResult::Done;
    case Op::COPY:
      stack.push(Py_XNewRef(stack.top(in.arg - 1)));
      return StepResult::Done;
    case Op::SWAP:
      std::swap(stack.base[*stack.depth - 1], stack.base[*stack.depth - in.arg]);
      return StepResult::Done;
    case Op::LOAD_CONST:
      stack.push(Py_NewRef(PyTuple_GET_ITEM(info.consts.get(), in.arg)));
      return StepResult::Done;
    case Op::LOAD_FAST:
    case Op::LOAD_FAST_LOAD_FAST:
      if (!slots[in.arg] || (in.op == Op::LOAD_FAST_LOAD_FAST && !slots[in.second])) return StepResult::NotOurs;
      stack.push(Py_NewRef(slots[in.arg]));
      if (in.op == Op::LOAD_FAST_LOAD_FAST) stack.push(Py_NewRef(slots[in.second]));
      return StepResult::Done;
    case Op::STORE_FAST:
    case Op::STORE_FAST_STORE_FAST:
    case Op::STORE_FAST_LOAD_FAST: {
      const auto store = [&](int32_t slot) {
        // The slot changes first: a finaliser may look at the frame.
        PyObject* old = std::exchange(slots[slot], std::exchange(stack.base[--*stack.depth], nullptr));
        Py_XDECREF(old);
      };
      store(in.arg);
      if (in.op == Op::STORE_FAST_STORE_FAST) store(in.second);
      if (in.op == Op::STORE_FAST_LOAD_FAST) stack.push(Py_NewRef(slots[in.second]));
      return StepResult::Done;
    }
    case Op::DELETE_FAST:
      if (!slots[in.arg]) return StepResult::NotOurs;
      Py_CLEAR(slots[in.arg]);
      return StepResult::Done;
    case Op::LOAD_DEREF: {
      PyObject* value = PyCell_GET(slots[in.arg]);
      if (!value) return StepResult::NotOurs;
      stack.push(Py_NewRef(value));
      return StepResult::Done;
    }
    case Op::STORE_DEREF:
      PyCell_Set(slots[in.arg], stack.top());
      stack.drop(1);
      return StepResult::Done;
    case Op::LOAD_GLOBAL: {
      PyObject* value = PyDict_GetItemWithError(frame_globals(frame), name(in.arg >> 1));
      if (!value && !PyErr_Occurred()) value = PyDict_GetItemWithError(frame_builtins(frame), name(in.arg >> 1));
      if (!value) {
        PyErr_Clear();
        return StepResult::NotOurs;
      }
      if (in.arg & 1) {
        stack.push_callable(Py_NewRef(value));
      } else {
        stack.push(Py_NewRef(value));
      }
      return StepResult::Done;
    }
    case Op::STORE_GLOBAL:
      if (PyDict_SetItem(frame_globals(frame), name(in.arg), stack.top()) < 0) return StepResult::Raised;
      stack.drop(1);
      return StepResult::Done;
    case Op::IS_OP: {
      const bool same = stack.top(1) == stack.top();
      return finished(stack.replace(2, PyBool_FromLong(same != (in.arg != 0))));
    }
    case Op::JUMP:
      *next = in.target;
      return StepResult::Done;
    case Op::POP_JUMP_IF_NONE:
    case Op::POP_JUMP_IF_NOT_NONE:
      if ((stack.top() == Py_None) == (in.op == Op::POP_JUMP_IF_NONE)) *next = in.target;
      stack.drop(1);
      return StepResult::Done;
    case Op::UNARY_POSITIVE:
      return finished(stack.replace(1, PyNumber_Positive(stack.top())));
    case Op::GET_LEN: {
      const Py_ssize_t size = PyObject_Size(stack.top());
      if (size < 0) return StepResult::Raised;
      stack.push(PyLong_FromSsize_t(size));
      return StepResult::Done;
    }
    default:
      return step_containers(in, stack);
  }
}

}  // namespace

StepResult step(Frame* frame, const CodeInfo& info, int32_t instr, int32_t* next, int32_t* depth) {
  Stack stack{frame_localsplus(frame) + info.nlocals, depth};
  PyObject* kw_names = nullptr;
  auto done = [&](bool ok) { return ok ? StepResult::Done : StepResult::Raised; };
  auto name = [&](int32_t index) { return PyTuple_GET_ITEM(info.names.get(), index); };
  while (true) {
    const Instr& in = info.instrs[instr];
    *next = in.next;
    switch (in.op) {
      case Op::CALL:
        return done(stack.replace(
            in.arg + 2, call(stack, in.arg, in.second < 0 ? nullptr : PyTuple_GET_ITEM(info.consts.get(), in.second))));
      case Op::CALL_FUNCTION_EX:
        return done(stack.replace(in.arg & 1 ? 4 : 3, call_ex(stack, in.arg & 1)));
      case Op::LOAD_ATTR:
      case Op::LOAD_METHOD: {
        PyObject* value = PyObject_GetAttr(stack.top(), name(in.arg));
        if (!value) return StepResult::Raised;
        stack.drop(1);
        if (in.op == Op::LOAD_METHOD) {
          stack.push_callable(value);
        } else {
          stack.push(value);
        }
        return StepResult::Done;
      }
      case Op::STORE_ATTR:
        if (PyObject_SetAttr(stack.top(), name(in.arg), stack.top(1)) < 0) return StepResult::Raised;
        stack.drop(2);
        return StepResult::Done;
      case Op::DELETE_ATTR:
        if (PyObject_SetAttr(stack.top(), name(in.arg), nullptr) < 0) return StepResult::Raised;
        stack.drop(1);
        return StepResult::Done;
      case Op::BINARY_SUBSCR:
        return done(stack.replace(2, PyObject_GetItem(stack.top(1), stack.top())));
      case Op::STORE_SUBSCR:
        if (PyObject_SetItem(stack.top(1), stack.top(), stack.top(2)) < 0) return StepResult::Raised;
        stack.drop(3);
        return StepResult::Done;
      case Op::DELETE_SUBSCR:
        if (PyObject_DelItem(stack.top(1), stack.top()) < 0) return StepResult::Raised;
        stack.drop(2);
        return StepResult::Done;
      case Op::BINARY_OP:
        return done(stack.replace(2, binary(in.arg, stack.top(1), stack.top())));
      case Op::COMPARE_OP:
        if (!stack.replace(2, PyObject_RichCompare(stack.top(1), stack.top(), in.arg & ~kThenToBool)))
          return StepResult::Raised;
        if (!(in.arg & kThenToBool)) return StepResult::Done;
        [[fallthrough]];
      case Op::TO_BOOL: {
        const int truth = PyObject_IsTrue(stack.top());
        if (truth < 0) return StepResult::Raised;
        return done(stack.replace(1, PyBool_FromLong(truth)));
      }
      case Op::CONTAINS_OP: {
        const int found = PySequence_Contains(stack.top(), stack.top(1));
        if (found < 0) return StepResult::Raised;
        return done(stack.replace(2, PyBool_FromLong(found != in.arg)));
      }
      case Op::UNARY_NOT: {
        const int truth = PyObject_IsTrue(stack.top());
        if (truth < 0) return StepResult::Raised;
        return done(stack.replace(1, PyBool_FromLong(!truth)));
      }
      case Op::UNARY_NEGATIVE:
        return done(stack.replace(1, PyNumber_Negative(stack.top())));
      case Op::UNARY_INVERT:
        return done(stack.replace(1, PyNumber_Invert(stack.top())));
      case Op::POP_JUMP_IF_TRUE:
      case Op::POP_JUMP_IF_FALSE: {
        const bool on_true = in.op == Op::POP_JUMP_IF_TRUE;
        const int truth = PyObject_IsTrue(stack.top());
        if (truth < 0) return StepResult::Raised;
        stack.drop(1);
        if ((truth != 0) == on_true) *next = in.target;
        return StepResult::Done;
      }
      case Op::JUMP_IF_TRUE_OR_POP:
      case Op::JUMP_IF_FALSE_OR_POP: {
        const int truth = PyObject_IsTrue(stack.top());
        if (truth < 0) return StepResult::Raised;
        if ((truth != 0) == (in.op == Op::JUMP_IF_TRUE_OR_POP)) {
          *next = in.target;
        } else {
          stack.drop(1);
        }
        return StepResult::Done;
      }
      case Op::GET_ITER:
        return done(stack.replace(1, PyObject_GetIter(stack.top())));
      case Op::FOR_ITER: {
        PyObject* iterator = stack.top();
        PyObject* item = Py_TYPE(iterator)->tp_iternext(iterator);
        if (item) {
          stack.push(item);
          return StepResult::Done;
        }
        if (PyErr_Occurred()) {
          if (!PyErr_ExceptionMatches(PyExc_StopIteration)) return StepResult::Raised;
          PyErr_Clear();
        }
        stack.drop(1);
        *next = in.target;
        return StepResult::Done;
      }
      case Op::BEFORE_WITH:
        return done(before_with(stack));
      case Op::CONVERT_VALUE:
        return done(stack.replace(1, converted(stack.top(), in.arg)));
      case Op::FORMAT_VALUE: {
        const bool has_spec = (in.arg & 0x04) != 0;
        PyObject* value = stack.top(has_spec);
        Ref text = Ref::steal(converted(value, in.arg & 0x03));
        if (!text) return StepResult::Raised;
        return done(stack.replace(1 + has_spec, PyObject_Format(text.get(), has_spec ? stack.top() : nullptr)));
      }
      case Op::LIST_APPEND:
        if (PyList_Append(stack.top(in.arg), stack.top()) < 0) return StepResult::Raised;
        stack.drop(1);
        return StepResult::Done;
      default:
        return step_plain(frame, info, in, stack, next);
    }
  }
}

}  // namespace magneto::dispatch
