#include "dispatch/step.h"

#include <utility>
#include <vector>

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
  PyObject* callable = base[-2];
  if (callable)
    return PyObject_Vectorcall(callable, base - 1, count + 1 - (kw_names ? PyTuple_GET_SIZE(kw_names) : 0), kw_names);
  return PyObject_Vectorcall(base[-1], base, count - (kw_names ? PyTuple_GET_SIZE(kw_names) : 0), kw_names);
}

PyObject* call_ex(Stack& stack, bool has_keywords) {
  PyObject* keywords = has_keywords ? stack.top() : nullptr;
  PyObject* positional = stack.top(has_keywords);
  PyObject* callable = stack.top(has_keywords + 1);
  Ref args = Ref::steal(PySequence_Tuple(positional));
  if (!args) return nullptr;
  Ref kwargs;
  if (keywords) {
    kwargs = Ref::steal(PyDict_New());
    if (!kwargs || PyDict_Update(kwargs.get(), keywords) < 0) return nullptr;
  }
  return PyObject_Call(callable, args.get(), kwargs.get());
}

PyObject* special(PyObject* owner, const char* name) {
  Ref text = Ref::steal(PyUnicode_InternFromString(name));
  PyObject* found = _PyType_Lookup(Py_TYPE(owner), text.get());
  if (!found) {
    PyErr_Format(PyExc_TypeError, "'%.200s' object does not support the context manager protocol",
                 Py_TYPE(owner)->tp_name);
    return nullptr;
  }
  descrgetfunc get = Py_TYPE(found)->tp_descr_get;
  return get ? get(found, owner, reinterpret_cast<PyObject*>(Py_TYPE(owner))) : Py_NewRef(found);
}

}  // namespace

StepResult step(Frame* frame, const CodeInfo& info, int32_t instr, int32_t* next, int32_t* depth) {
  Stack stack{frame_localsplus(frame) + info.nlocals, depth};
  PyObject* kw_names = nullptr;
  auto done = [&](bool ok) { return ok ? StepResult::Done : StepResult::Raised; };
  auto name = [&](int32_t index) { return PyTuple_GET_ITEM(info.names.get(), index); };
  constexpr bool is_312 = PY_VERSION_HEX >= 0x030C0000;
  while (true) {
    const Instr& in = info.instrs[instr];
    *next = in.next;
    switch (in.op) {
      case Op::KW_NAMES:
        kw_names = PyTuple_GET_ITEM(info.consts.get(), in.arg);
        [[fallthrough]];
      case Op::PRECALL:
        instr = in.next;
        continue;
      case Op::CALL:
        return done(stack.replace(in.arg + 2, call(stack, in.arg, kw_names)));
      case Op::CALL_FUNCTION_EX:
        return done(stack.replace(in.arg & 1 ? 4 : 3, call_ex(stack, in.arg & 1)));
      case Op::LOAD_ATTR:
      case Op::LOAD_METHOD: {
        const bool method = in.op == Op::LOAD_METHOD || (is_312 && (in.arg & 1));
        PyObject* attribute = name(is_312 ? in.arg >> 1 : in.arg);
        PyObject* value = PyObject_GetAttr(stack.top(), attribute);
        if (!value) return StepResult::Raised;
        stack.drop(1);
        if (method) stack.push(nullptr);
        stack.push(value);
        return StepResult::Done;
      }
      case Op::STORE_FAST:
      case Op::DELETE_FAST: {
        PyObject** slot = frame_localsplus(frame) + in.arg;
        if (in.op == Op::DELETE_FAST && !*slot) return StepResult::NotOurs;
        // The slot changes first: a finaliser may look at the frame.
        PyObject* old = std::exchange(*slot, in.op == Op::STORE_FAST ? Py_NewRef(stack.top()) : nullptr);
        if (in.op == Op::STORE_FAST) stack.drop(1);
        Py_XDECREF(old);
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
        return done(stack.replace(2, PyObject_RichCompare(stack.top(1), stack.top(), is_312 ? in.arg >> 4 : in.arg)));
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
      case Op::POP_JUMP_FORWARD_IF_TRUE:
      case Op::POP_JUMP_BACKWARD_IF_TRUE:
      case Op::POP_JUMP_IF_TRUE:
      case Op::POP_JUMP_FORWARD_IF_FALSE:
      case Op::POP_JUMP_BACKWARD_IF_FALSE:
      case Op::POP_JUMP_IF_FALSE: {
        const bool on_true = in.op == Op::POP_JUMP_FORWARD_IF_TRUE || in.op == Op::POP_JUMP_BACKWARD_IF_TRUE ||
                             in.op == Op::POP_JUMP_IF_TRUE;
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
        *next = info.instrs[in.target].op == Op::END_FOR ? info.instrs[in.target].next : in.target;
        return StepResult::Done;
      }
      case Op::BEFORE_WITH: {
        PyObject* manager = stack.top();
        Ref enter = Ref::steal(special(manager, "__enter__"));
        Ref leave = enter ? Ref::steal(special(manager, "__exit__")) : Ref();
        PyObject* entered = leave ? PyObject_CallNoArgs(enter.get()) : nullptr;
        if (!entered) return StepResult::Raised;
        stack.drop(1);
        stack.push(leave.release());
        stack.push(entered);
        return StepResult::Done;
      }
      case Op::FORMAT_VALUE: {
        const bool has_spec = (in.arg & 0x04) != 0;
        PyObject* value = stack.top(has_spec);
        using Convert = PyObject* (*)(PyObject*);
        static const Convert converts[] = {nullptr, PyObject_Str, PyObject_Repr, PyObject_ASCII};
        const Convert convert = converts[in.arg & 0x03];
        Ref text = convert ? Ref::steal(convert(value)) : Ref::borrow(value);
        if (!text) return StepResult::Raised;
        return done(stack.replace(1 + has_spec, PyObject_Format(text.get(), has_spec ? stack.top() : nullptr)));
      }
      case Op::LIST_APPEND:
        if (PyList_Append(stack.top(in.arg), stack.top()) < 0) return StepResult::Raised;
        stack.drop(1);
        return StepResult::Done;
      default:
        return StepResult::NotOurs;
    }
  }
}

}  // namespace magneto::dispatch
