// Functions of the modules `builtins` and `sys` that are interpreted.

#include <algorithm>
#include <cstring>

#include "capture/calls/callbacks.h"
#include "capture/calls/calls.h"
#include "capture/calls/handlers.h"
#include "capture/interpreter/errors.h"
#include "capture/interpreter/object_protocol.h"
#include "capture/interpreter/operations.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/symbols.h"
#include "capture/numpy/numpy_capture.h"
#include "capture/torch/branches.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/modules.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "support/tensor_object.h"
// Last: its macros have the names that our tables of opcodes have.
// clang-format off
#include <opcode.h>
// clang-format on

namespace magneto::capture {

using guards::Source;

void check_count(const CallArgs& args, size_t least, size_t most, const char* name) {
  if (args.keywords() == 0 && args.positional() >= least && args.positional() <= most) return;
  PyErr_Format(PyExc_TypeError, "%s expected %zu to %zu positional arguments, got %zu", name, least, most,
               args.values.size());
  throw PythonError{};
}

namespace {

Ref size_of(PyObject* object) {
  const Py_ssize_t size = PyObject_Size(object);
  if (size < 0) throw PythonError{};
  return checked(PyLong_FromSsize_t(size));
}

/// A set or dict of weak references.
bool holds_weakly(PyObject* container) {
  const auto is_weak = [](PyObject* item) { return item && PyWeakref_Check(item); };
  PyObject *key = nullptr, *value = nullptr;
  Py_ssize_t position = 0;
  if (PyDict_Check(container))
    return PyDict_Next(container, &position, &key, &value) && (is_weak(key) || is_weak(value));
  if (!PyAnySet_Check(container)) return false;
  const Ref iterator = checked(PyObject_GetIter(container));
  return is_weak(Ref::steal(PyIter_Next(iterator.get())).get());
}

Ref handle_len(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 1, "len");
  PyObject* value = args.values[0];
  if (is_tensor(value)) {
    if (Ref length = capture.calls.call_replaced_method(value, MAGNETO_STR("__len__"))) return length;
    if (Ref shape = capture.symbols.shape_of(unpack_tensor(value)))
      return Ref::borrow(PyTuple_GET_ITEM(shape.get(), 0));
    return size_of(value);
  }
  if (is_array(value)) return size_of(sample_of(capture.numpy.stand_in_for(value).get()));
  const Source* source = capture.world.source_of(value);
  if (source && !capture.containers.has_shadow(value) && !capture.containers.is_shadow(value) &&
      !capture.overlays.find(value, true)) {
    PyTypeObject* type = Py_TYPE(value);
    const bool plain = type == &PyList_Type || type == &PyTuple_Type || type == &PyDict_Type || type == &PySet_Type ||
                       type == &PyFrozenSet_Type || type == &PyODict_Type;
    if (plain) {
      if (holds_weakly(value) && has_let_go(capture)) {
        capture.side_exit(BreakReason::Finalizer,
                          "weak references are counted behind a write that may have dropped one");
      }
      const Py_ssize_t size = PyObject_Size(value);
      capture.numbers.guard_length(source, type, size);
      return checked(PyLong_FromSsize_t(size));
    }
  }
  Ref object = capture.containers.resolve(value);
  if (PyObject* method = PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HEAPTYPE)
                             ? capture.attributes.type_lookup(Py_TYPE(value), MAGNETO_STR("__len__"))
                             : nullptr) {
    if (PyFunction_Check(method))
      return capture.calls.call(capture.world.wrap(method, capture.sources.constant(method)).get(), {value});
  }
  if (capture.world.is_outside(object.get()) && object.get() == value && !is_value(value))
    object = capture.containers.contents_of(value);
  return capture.calls.call_native([&]() -> PyObject* {
    const Py_ssize_t size = PyObject_Size(object.get());
    return size < 0 ? nullptr : PyLong_FromSsize_t(size);
  });
}

Ref handle_getattr(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 3, "getattr");
  if (!PyUnicode_Check(args.values[1])) {
    PyErr_SetString(PyExc_TypeError, "attribute name must be string");
    throw PythonError{};
  }
  Ref name = Ref::borrow(args.values[1]);
  PyObject* interned = name.release();
  PyUnicode_InternInPlace(&interned);
  name = Ref::steal(interned);
  if (args.positional() == 2) return capture.attributes.load_attr(args.values[0], name.get());
  try {
    Ref value = capture.attributes.lookup_attr(args.values[0], name.get());
    return value ? value : Ref::borrow(args.values[2]);
  } catch (const PythonError&) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw;
    PyErr_Clear();
    return Ref::borrow(args.values[2]);
  }
}

Ref handle_hasattr(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "hasattr");
  CallArgs with_default = args;
  static PyObject* const missing = PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type));
  with_default.values.push_back(missing);
  return boolean(handle_getattr(capture, with_default).get() != missing);
}

Ref handle_setattr(Capture& capture, const CallArgs& args) {
  check_count(args, 3, 3, "setattr");
  capture.attributes.store_attr(args.values[0], args.values[1], args.values[2]);
  return Ref::borrow(Py_None);
}

Ref handle_delattr(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "delattr");
  capture.attributes.store_attr(args.values[0], args.values[1], nullptr);
  return Ref::borrow(Py_None);
}

/// Of an object from outside: under a guard on its identity. The module copy needs only that stand-ins differ.
Ref handle_id(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 1, "id");
  PyObject* value = args.values[0];
  // Keys of a memo, which are compared with each other alone.
  const std::string_view module = module_of(capture.frame->globals);
  const bool for_memo = module == "copy" || module == "magneto._copies" || module == "torch.nn.parameter";
  if (!for_memo && !is_scalar(value)) value = capture.world.pinned(value);
  return checked(PyLong_FromVoidPtr(value));
}

Ref handle_setitem(Capture& capture, const CallArgs& args) {
  check_count(args, 3, 3, "setitem");
  capture.protocol.store_subscript(args.values[0], args.values[1], args.values[2]);
  return Ref::borrow(Py_None);
}

Ref handle_delitem(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "delitem");
  capture.protocol.store_subscript(args.values[0], args.values[1], nullptr);
  return Ref::borrow(Py_None);
}

/// operator.iadd and its like: `a += b` as an expression. `index`: the argument of BINARY_OP.
template <int index>
Ref handle_in_place(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "operator");
  return binary_operator(capture, index, args.values[0], args.values[1]);
}

Ref handle_iter(Capture& capture, const CallArgs& args) {
  if (args.values.size() == 1) return capture.protocol.iterate(args.values[0]);
  Ref function = capture.callbacks.callback(args.values[0]);
  return capture.calls.call_native([&] { return PyCallIter_New(function.get(), args.values[1]); });
}

Ref handle_next(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 2, "next");
  PyObject* iterator = args.values[0];
  if (capture.world.is_outside(iterator))
    capture.side_exit(BreakReason::OpaqueIterator, "next() of an iterator from outside");
  return capture.calls.call_native([&]() -> PyObject* {
    if (!Py_TYPE(iterator)->tp_iternext) {
      PyErr_Format(PyExc_TypeError, "'%.200s' object is not an iterator", Py_TYPE(iterator)->tp_name);
      return nullptr;
    }
    PyObject* item = Py_TYPE(iterator)->tp_iternext(iterator);
    if (item) return item;
    if (args.values.size() == 2 && (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_StopIteration))) {
      PyErr_Clear();
      return Py_NewRef(args.values[1]);
    }
    if (!PyErr_Occurred()) PyErr_SetNone(PyExc_StopIteration);
    return nullptr;
  });
}

bool contains_tensor(PyObject* list) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    if (is_tensor(PyList_GET_ITEM(list, i))) return true;
  }
  return false;
}

/// The sum of items with arrays of NumPy among them, as sum() adds them up.
Ref sum_of_arrays(Capture& capture, PyObject* items, PyObject* start) {
  Ref sum = start ? Ref::borrow(start) : checked(PyLong_FromLong(0));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); ++i) {
    PyObject* const item = PyList_GET_ITEM(items, i);
    sum = is_array(sum.get()) || is_array(item)
              ? capture.numpy.operation({sum.get(), item}, "$ + $")
              : capture.calls.call_native([&] { return PyNumber_Add(sum.get(), item); });
  }
  return sum;
}

/// sum, min, max over one iterable: tensors among its items make it a torch call.
Ref reduce_with(Capture& capture, const char* name, const CallArgs& args) {
  PyObject* function = PyDict_GetItemString(PyEval_GetBuiltins(), name);
  CallArgs copy = args;
  std::vector<Ref> held;
  Ref items;
  // A generator and a key take turns: what they do to the program's objects is in that order.
  const bool turns = args.kwnames && PyGen_CheckExact(args.values[0]);
  if (!turns && (args.positional() == 1 || std::strcmp(name, "sum") == 0)) {
    items = capture.protocol.list_of(args.values[0]);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items.get()); ++i) {
      PyObject* item = capture.containers.resolve_deep(PyList_GET_ITEM(items.get(), i)).release();
      PyList_SetItem(items.get(), i, item);
    }
    copy.values[0] = items.get();
  }
  bool calls_back = false;  // a key is a callback, which the capture has to see
  for (size_t i = 0; i < copy.values.size(); ++i) {
    const bool key = copy.keyword(i) == MAGNETO_STR("key");
    calls_back |= key;
    held.push_back(key ? capture.callbacks.callback(copy.values[i]) : capture.containers.resolve_deep(copy.values[i]));
    copy.values[i] = held.back().get();
  }
  bool tensors = items && contains_tensor(items.get());
  for (PyObject* value : copy.values) tensors |= is_tensor(value);
  if (tensors && !calls_back) return capture.torch.call_torch(function, copy);
  const bool adds = items && std::strcmp(name, "sum") == 0;
  const auto is_summand = [](PyObject* item) { return is_array(item) || is_scalar(item); };
  const auto summands =
      adds ? std::span(&PyList_GET_ITEM(items.get(), 0), PyList_GET_SIZE(items.get())) : std::span<PyObject*>();
  if (std::ranges::any_of(summands, is_array) && std::ranges::all_of(summands, is_summand)) {
    return sum_of_arrays(capture, items.get(), copy.values.size() > 1 ? copy.values[1] : nullptr);
  }
  for (PyObject* value : copy.values) capture.containers.refuse_opaque(value, 8);
  return capture.calls.call_native(
      [&] { return PyObject_Vectorcall(function, copy.values.data(), copy.positional(), copy.kwnames); });
}

Ref handle_sum(Capture& capture, const CallArgs& args) { return reduce_with(capture, "sum", args); }

/// As an expression of them, whichever it is.
template <guards::Arithmetic operation>
Ref extremum_of(Capture& capture, std::span<PyObject* const> numbers) {
  Ref result = Ref::borrow(numbers[0]);
  for (PyObject* number : numbers.subspan(1)) {
    Ref next = capture.numbers.unknown_operation(operation, result.get(), number);
    result = next ? next : checked(guards::compute(operation, result.get(), number).release());
  }
  return result;
}

/// magneto._C.largest(numbers): sizes.
Ref handle_largest(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 1, "largest");
  const Ref numbers = capture.protocol.list_of(args.values[0]);
  return extremum_of<guards::Arithmetic::Maximum>(
      capture, {PySequence_Fast_ITEMS(numbers.get()), static_cast<size_t>(PyList_GET_SIZE(numbers.get()))});
}

/// Of numbers, one of which is a float that follows from sizes, or a data-dependent one: whichever it is.
template <guards::Arithmetic operation>
Ref extremum(Capture& capture, const char* name, const CallArgs& args) {
  CallArgs readable = args;
  Ref items;
  std::vector<PyObject*> numbers = args.values;
  if (args.positional() == 1 && args.values.size() == 1) {
    items = capture.protocol.list_of(args.values[0]);
    readable.values[0] = items.get();
    numbers.assign(PySequence_Fast_ITEMS(items.get()),
                   PySequence_Fast_ITEMS(items.get()) + PyList_GET_SIZE(items.get()));
  }
  const auto unknown = [&](PyObject* value) {
    return is_unknown_number(value) && !(size_of_number(value) && capture.world.is_outside(value));
  };
  const auto is_number = [](PyObject* value) { return guards::is_number(number_now(value)); };
  if (!args.kwnames && std::ranges::any_of(numbers, unknown) && std::ranges::all_of(numbers, is_number)) {
    return extremum_of<operation>(capture, numbers);
  }
  std::vector<Ref> held;
  for (PyObject*& value : readable.values) {
    if (!is_unknown_number(value) || answers_by_itself(value)) continue;
    held.push_back(capture.numbers.known(value));
    value = held.back().get();
  }
  return reduce_with(capture, name, readable);
}

Ref handle_min(Capture& capture, const CallArgs& args) {
  return extremum<guards::Arithmetic::Minimum>(capture, "min", args);
}
Ref handle_max(Capture& capture, const CallArgs& args) {
  return extremum<guards::Arithmetic::Maximum>(capture, "max", args);
}

/// any and all, item by item, so that a tensor's truth is seen by the capture.
Ref quantify(Capture& capture, const CallArgs& args, bool stop_at) {
  Ref iterator = capture.protocol.iterate(args.values.at(0));
  if (capture.world.is_outside(iterator.get())) {
    capture.side_exit(BreakReason::OpaqueIterator, "any() or all() over an iterator from outside");
  }
  while (true) {
    bool end = false;
    Ref item = capture.calls.call_native([&]() -> PyObject* {
      PyObject* next = Py_TYPE(iterator.get())->tp_iternext(iterator.get());
      if (next) return next;
      if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_StopIteration)) return nullptr;
        PyErr_Clear();
      }
      end = true;
      return Py_NewRef(Py_None);
    });
    if (end) break;
    if (capture.protocol.truth(item.get()) == stop_at) {
      // A generator left half way is closed by its destructor, which may run its `finally` blocks.
      capture.calls.call_native([&] {
        iterator = Ref();
        return Py_NewRef(Py_None);
      });
      return boolean(stop_at);
    }
  }
  return boolean(!stop_at);
}

Ref handle_any(Capture& capture, const CallArgs& args) { return quantify(capture, args, true); }
Ref handle_all(Capture& capture, const CallArgs& args) { return quantify(capture, args, false); }

Ref handle_globals(Capture& capture, const CallArgs& args) {
  return capture.world.wrap(capture.frame->globals, capture.sources.constant(capture.frame->globals));
}

Ref handle_vars(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 1, "vars");
  return capture.attributes.load_attr(args.values[0], MAGNETO_STR("__dict__"));
}

/// operator.call
Ref handle_call(Capture& capture, const CallArgs& args) {
  check_count(args, 1, SIZE_MAX, "call");
  CallArgs rest = args;
  rest.values.erase(rest.values.begin());
  return capture.calls.call(args.values[0], std::move(rest));
}

PyObject* is_handling(PyObject*, PyObject*) {
  return PyBool_FromLong(static_cast<bool>(Ref::steal(PyErr_GetHandledException())));
}

PyMethodDef is_handling_definition = {"handles_exception", is_handling, METH_NOARGS, "In an `except` or `finally`."};

/// Nothing has been handled since before the segment began, under a guard.
bool handles_nothing(Capture& capture) {
  if (Ref::steal(PyErr_GetHandledException()) || capture.start_handled()) return false;
  const Ref asks = checked(PyCFunction_NewEx(&is_handling_definition, nullptr, nullptr));
  capture.guards.state(asks.get(), {}, Py_False);
  return true;
}

/// sys.exception.
Ref handle_exception(Capture& capture, const CallArgs& args) {
  check_count(args, 0, 0, "exception");
  if (handles_nothing(capture)) return Ref::borrow(Py_None);
  Ref handled = Ref::steal(PyErr_GetHandledException());
  if (!handled || handled.get() == capture.start_handled()) {
    capture.side_exit(BreakReason::OpaqueCall, "sys.exception is asked for what was handled before");
  }
  return handled;
}

Ref handle_exc_info(Capture& capture, const CallArgs& args) {
  check_count(args, 0, 0, "exc_info");
  if (handles_nothing(capture)) return checked(PyTuple_Pack(3, Py_None, Py_None, Py_None));
  Ref handled = Ref::steal(PyErr_GetHandledException());
  if (!handled || handled.get() == capture.start_handled() || capture.world.is_outside(handled.get())) {
    capture.side_exit(BreakReason::OpaqueCall, "sys.exc_info is asked for what was handled before");
  }
  const Ref traceback = Ref::steal(PyException_GetTraceback(handled.get()));
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(handled.get()));
  return checked(PyTuple_Pack(3, type, handled.get(), traceback ? traceback.get() : Py_None));
}

}  // namespace

std::span<const HandlerRow> builtin_handlers() {
  static constexpr HandlerRow rows[] = {
      {"magneto._C.comptime", call_comptime},
      {"magneto._C.conditional", Branch::conditional},
      {"magneto._C.repeated", Branch::repeated},
      {"magneto._C.scanned", Branch::scanned},
      {"magneto._C.branch_taken", Branch::taken},
      {"magneto._C.largest", handle_largest},
      {"sys.exc_info", handle_exc_info},
      {"sys.exception", handle_exception},
      {"builtins.len", handle_len},
      {"builtins.getattr", handle_getattr},
      {"builtins.setattr", handle_setattr},
      {"builtins.hasattr", handle_hasattr},
      {"builtins.delattr", handle_delattr},
      {"_operator.setitem", handle_setitem},
      {"_operator.delitem", handle_delitem},
      {"_operator.iadd", handle_in_place<NB_INPLACE_ADD>},
      {"_operator.iconcat", handle_in_place<NB_INPLACE_ADD>},
      {"_operator.iand", handle_in_place<NB_INPLACE_AND>},
      {"_operator.ifloordiv", handle_in_place<NB_INPLACE_FLOOR_DIVIDE>},
      {"_operator.ilshift", handle_in_place<NB_INPLACE_LSHIFT>},
      {"_operator.imatmul", handle_in_place<NB_INPLACE_MATRIX_MULTIPLY>},
      {"_operator.imod", handle_in_place<NB_INPLACE_REMAINDER>},
      {"_operator.imul", handle_in_place<NB_INPLACE_MULTIPLY>},
      {"_operator.ior", handle_in_place<NB_INPLACE_OR>},
      {"_operator.ipow", handle_in_place<NB_INPLACE_POWER>},
      {"_operator.irshift", handle_in_place<NB_INPLACE_RSHIFT>},
      {"_operator.isub", handle_in_place<NB_INPLACE_SUBTRACT>},
      {"_operator.itruediv", handle_in_place<NB_INPLACE_TRUE_DIVIDE>},
      {"_operator.ixor", handle_in_place<NB_INPLACE_XOR>},
      {"builtins.id", handle_id},
      {"builtins.iter", handle_iter},
      {"builtins.next", handle_next},
      {"list_iterator.__next__", handle_next},
      {"list_reverseiterator.__next__", handle_next},
      {"tuple_iterator.__next__", handle_next},
      {"range_iterator.__next__", handle_next},
      {"set_iterator.__next__", handle_next},
      {"odict_iterator.__next__", handle_next},
      {"dict_keyiterator.__next__", handle_next},
      {"dict_valueiterator.__next__", handle_next},
      {"dict_itemiterator.__next__", handle_next},
      {"builtins.sum", handle_sum},
      {"builtins.min", handle_min},
      {"builtins.max", handle_max},
      {"builtins.any", handle_any},
      {"builtins.all", handle_all},
      {"_operator.call", handle_call},
      {"builtins.eval", handle_eval},
      {"builtins.globals", handle_globals},
      {"builtins.vars", handle_vars},
  };
  return rows;
}

}  // namespace magneto::capture
