// The interpreter's opcodes of data: operators, items, building containers and text.
#include "capture/calls/calls.h"
#include "capture/calls/special_methods.h"
#include "capture/interpreter/frames.h"
#include "capture/interpreter/interpreter.h"
#include "capture/interpreter/object_protocol.h"
#include "capture/interpreter/operations.h"
#include "capture/numbers/strings.h"
#include "capture/numbers/symbols.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/world.h"
#include "python/abi/private.h"
#include "python/bytecode/callable.h"

namespace magneto::capture {

namespace {

void add_member(Capture& c, PyObject* set, PyObject* item) {
  c.containers.refuse_opaque(item, 1);
  guard_classes(c, item, Question::Hash, 8);
  c.calls.call_native([&]() -> PyObject* { return PySet_Add(set, item) < 0 ? nullptr : Py_NewRef(Py_None); });
}

/// The errors of `callable(**target, **other)`, in CPython's words.
void check_merge(PyObject* target, PyObject* other, PyObject* lower, PyObject* upper) {
  if (!PyDict_Check(other)) return;
  PyObject* key;
  Py_ssize_t position = 0;
  while (PyDict_Next(other, &position, &key, nullptr)) {
    const int known = PyDict_Contains(target, key);
    if (known < 0) throw PythonError{};
    if (!known) continue;
    Ref name = checked(function_text(callable_of(lower, upper).function));
    PyErr_Format(PyExc_TypeError, "%U got multiple values for keyword argument '%S'", name.get(), key);
    throw PythonError{};
  }
}

/// A dict of what `keys` and `__getitem__` of an instance give, where these are the program's own, as `**` asks for
/// them. Null: something else.
Ref mapping_items(Capture& capture, PyObject* mapping) {
  PyTypeObject* type = Py_TYPE(mapping);
  if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) || is_tensor(mapping)) return {};
  PyObject* reader = capture.attributes.type_lookup(type, PyDict_Check(mapping) ? "__iter__" : "__getitem__");
  if (!reader || !PyFunction_Check(reader)) return {};  // a dict that iterates as dicts do is read as one
  const NonResumable scope(capture);
  Ref method = capture.attributes.lookup_attr(mapping, MAGNETO_STR("keys"));
  if (!method) return {};
  Ref keys = capture.protocol.list_of(capture.calls.call(method.get(), {}).get());
  Ref items = checked(PyDict_New());
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(keys.get()); ++i) {
    PyObject* key = PyList_GET_ITEM(keys.get(), i);
    Ref value = capture.protocol.subscript(mapping, key);
    capture.protocol.check_hashable(key);
    if (PyDict_SetItem(items.get(), key, value.get()) < 0) throw PythonError{};
  }
  return items;
}

}  // namespace

int32_t Interpreter::step_data(const Instr& in) {
  switch (in.op) {
    // -- items and operators ---------------------------------------------------------------------------------------
    case Op::BINARY_SUBSCR:
      cuttable(2);
      if (const int32_t behind = op_assign_selected(in); behind >= 0) return behind;
      deliver(2, c.protocol.subscript(f.top(1), f.top()));
      break;
    case Op::BINARY_SLICE: {
      Ref slice = checked(PySlice_New(f.top(1), f.top(), nullptr));
      replace(3, c.protocol.subscript(f.top(2), slice.get()));
      break;
    }
    case Op::STORE_SUBSCR:
      c.protocol.store_subscript(f.top(1), f.top(), f.top(2));
      f.drop(3);
      break;
    case Op::STORE_SLICE: {
      Ref slice = checked(PySlice_New(f.top(1), f.top(), nullptr));
      c.protocol.store_subscript(f.top(2), slice.get(), f.top(3));
      f.drop(4);
      break;
    }
    case Op::DELETE_SUBSCR:
      c.protocol.store_subscript(f.top(1), f.top(), nullptr);
      f.drop(2);
      break;
    case Op::BINARY_OP:
      deliver(2, binary_operator(c, in.arg, f.top(1), f.top()));
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
      const bool value = c.protocol.truth(f.top());
      replace(1, Ref::borrow(value ? Py_False : Py_True));
      break;
    }
    case Op::COMPARE_OP:
      replace(2, compare(c, in.arg & ~kThenToBool, f.top(1), f.top()));
      break;
    case Op::IS_OP:
      replace(2, Ref::borrow((c.world.is_identical(f.top(1), f.top()) != (in.arg != 0)) ? Py_True : Py_False));
      break;
    case Op::CONTAINS_OP: {
      const bool found = c.protocol.contains(f.top(), f.top(1));
      replace(2, Ref::borrow((found != (in.arg != 0)) ? Py_True : Py_False));
      break;
    }

    // -- building --------------------------------------------------------------------------------------------------
    case Op::GET_LEN: {
      static PyObject* const len = PyDict_GetItemString(PyEval_GetBuiltins(), "len");
      f.push(c.calls.call(len, {f.top()}));
      break;
    }
    case Op::UNPACK_SEQUENCE:
      op_unpack(f.top(), in.arg, 0, false);
      break;
    case Op::UNPACK_EX:
      op_unpack(f.top(), in.arg & 0xFF, in.arg >> 8, true);
      break;
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
        add_member(c, made.get(), f.top(i));
      }
      replace(in.arg, std::move(made));
      break;
    }
    case Op::BUILD_MAP: {
      Ref made = checked(PyDict_New());
      for (int32_t i = in.arg - 1; i >= 0; --i) c.protocol.store_subscript(made.get(), f.top(2 * i + 1), f.top(2 * i));
      replace(2 * in.arg, std::move(made));
      break;
    }
    case Op::BUILD_CONST_KEY_MAP: {
      Ref made = checked(PyDict_New());
      for (int32_t i = 0; i < in.arg; ++i) {
        c.protocol.store_subscript(made.get(), PyTuple_GET_ITEM(f.top(), i), f.top(in.arg - i));
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
      Ref joined = c.strings.join_texts({&f.stack()[f.depth - in.arg], static_cast<size_t>(in.arg)});
      replace(in.arg, std::move(joined));
      break;
    }
    case Op::CONVERT_VALUE:
      replace(1, converted(f.top(), in.arg));
      break;
    case Op::FORMAT_VALUE:
      op_format(in);
      break;
    case Op::LIST_TO_TUPLE:
      replace(1, checked(PyList_AsTuple(c.containers.resolve(f.top()).get())));
      break;
    case Op::LIST_APPEND:
      // The container of a comprehension is fresh, unless the frame was entered in the middle of it.
      c.containers.append(f.top(in.arg), f.top());
      f.drop(1);
      break;
    case Op::SET_ADD: {
      Ref set = c.containers.resolve(f.top(in.arg), true);
      add_member(c, set.get(), f.top());
      f.drop(1);
      break;
    }
    case Op::MAP_ADD:
      c.protocol.store_subscript(f.top(in.arg + 1), f.top(1), f.top());
      f.drop(2);
      break;
    case Op::LIST_EXTEND: {
      Ref items = c.protocol.list_of(f.top());
      Ref list = c.containers.resolve(f.top(in.arg), true);
      if (!checked(extend_list(list.get(), items.get()))) throw PythonError{};
      f.drop(1);
      break;
    }
    case Op::SET_UPDATE: {
      // From a set or a dict the table is made in a way of its own, which decides the order.
      Ref items = c.containers.resolve(f.top());
      if (!PyAnySet_CheckExact(items.get()) && !PyDict_CheckExact(items.get())) items = c.protocol.list_of(f.top());
      Ref set = c.containers.resolve(f.top(in.arg), true);
      guard_classes(c, items.get(), Question::Hash, 8);
      c.calls.call_native(
          [&]() -> PyObject* { return update_set(set.get(), items.get()) < 0 ? nullptr : Py_NewRef(Py_None); });
      f.drop(1);
      break;
    }
    case Op::DICT_UPDATE:
    case Op::DICT_MERGE: {
      Ref target = c.containers.resolve(f.top(in.arg), true);
      Ref other = c.containers.resolve(f.top());
      if (Ref items = mapping_items(c, f.top())) {
        other = items;
      } else if (c.world.is_outside(other.get()) && other.get() == f.top() && !c.containers.is_shadow(other.get())) {
        other = c.containers.contents_of(f.top());
      }
      if (in.op == Op::DICT_MERGE) check_merge(target.get(), other.get(), f.top(3 + in.arg), f.top(2 + in.arg));
      c.calls.call_native([&]() -> PyObject* {
        const int failed = in.op == Op::DICT_UPDATE ? PyDict_Update(target.get(), other.get())
                                                    : merge_into_dict(target.get(), other.get());
        return failed < 0 ? nullptr : Py_NewRef(Py_None);
      });
      f.drop(1);
      break;
    }
    case Op::STOPITERATION_ERROR:  // an exception that leaves a generator
      if (PyErr_GivenExceptionMatches(f.top(), PyExc_StopIteration)) {
        const bool awaits = (f.info->code->co_flags & CO_COROUTINE) != 0;
        const char* text = awaits ? "coroutine raised StopIteration" : "generator raised StopIteration";
        Ref error = checked(PyObject_CallFunction(PyExc_RuntimeError, "s", text));
        PyException_SetCause(error.get(), Py_NewRef(f.top()));
        PyException_SetContext(error.get(), Py_NewRef(f.top()));
        replace(1, std::move(error));
      }
      break;

    default:
      return step_control(in);
  }
  return in.next;
}

void Interpreter::op_unpack(PyObject* sequence, int32_t before, int32_t after, bool star) {
  if (is_fake_tensor(sequence) && !star) c.symbols.require_length(sequence, before);
  Ref items = PyTuple_CheckExact(sequence) && !c.world.is_outside(sequence) ? Ref::borrow(sequence)
                                                                            : c.protocol.list_of(sequence);
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

int32_t Interpreter::op_assign_selected(const Instr& in) {
  if (!is_fake_tensor(f.top())) return -1;
  // The two locals that the next instruction, or the next two, load.
  const Instr& load = f.info->instrs[in.next];
  const bool both = load.op == Op::LOAD_FAST_LOAD_FAST;
  if (!both && load.op != Op::LOAD_FAST) return -1;  // a RETURN_VALUE may be the last
  const Instr& other = both ? load : f.info->instrs[load.next];
  if (!both && other.op != Op::LOAD_FAST) return -1;
  const int32_t target = load.arg, mask = both ? load.second : other.arg;
  const Instr& store = f.info->instrs[other.next];
  if (store.op != Op::STORE_SUBSCR) return -1;
  if (&f == &c.frames.root) {
    c.frames.read_raw(target);
    c.frames.read_raw(mask);
  }
  if (!f.slots[target] || f.slots[mask] != f.top()) return -1;
  if (!assign_selected(c, f.slots[target], f.top(), f.top(1))) return -1;
  f.drop(2);
  return store.next;
}

Ref Interpreter::converted(PyObject* value, int32_t conversion) {
  static PyObject* const functions[] = {nullptr, reinterpret_cast<PyObject*>(&PyUnicode_Type),
                                        PyDict_GetItemString(PyEval_GetBuiltins(), "repr"),
                                        PyDict_GetItemString(PyEval_GetBuiltins(), "ascii")};
  PyObject* function = functions[conversion];
  return function ? c.calls.call(function, {value}) : Ref::borrow(value);
}

void Interpreter::op_format(const Instr& in) {
  const bool has_spec = (in.arg & 0x04) != 0;
  PyObject* value = f.top(has_spec);
  Ref text = converted(value, in.arg & 0x03);
  if (Ref waiting = c.strings.text_of_data(text.get(), has_spec ? f.top() : nullptr)) {
    return replace(has_spec ? 2 : 1, std::move(waiting));
  }
  if (!PyUnicode_CheckExact(text.get()) || has_spec) {
    static PyObject* const format = PyDict_GetItemString(PyEval_GetBuiltins(), "format");
    text = has_spec ? c.calls.call(format, {text.get(), f.top()}) : c.calls.call(format, {text.get()});
  }
  replace(has_spec ? 2 : 1, std::move(text));
}

}  // namespace magneto::capture
