// Items: subscripts, their writes, and `in`.
#include "capture/interpreter/object_protocol.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

#include "capture/calls/calls.h"
#include "capture/calls/handlers.h"
#include "capture/calls/special_methods.h"
#include "capture/interpreter/operations.h"
#include "capture/interpreter/tensor_keys.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/packed_batches.h"
#include "capture/numbers/symbols.h"
#include "capture/numbers/unknown_number.h"
#include "capture/numpy/numpy_capture.h"
#include "capture/torch/gradients.h"
#include "capture/torch/nested_ints.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "guards/array.h"
#include "python/abi/dicts.h"
#include "python/abi/private.h"
#include "python/imported.h"
#include "python/made_once.h"
#include "support/tensor_object.h"

namespace magneto::capture {

using guards::Source;

namespace {

/// The key in a tuple: a None would be no argument, a tuple several.
[[noreturn]] void raise_key_error(PyObject* key) {
  Ref arguments = checked(PyTuple_Pack(1, key));
  PyErr_SetObject(PyExc_KeyError, arguments.get());
  throw PythonError{};
}

/// The method that a class of the user has for this, in Python; null: none. Borrowed.
PyObject* python_method(Capture& c, PyTypeObject* type, PyObject* name) {
  if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) return nullptr;
  PyObject* method = c.attributes.type_lookup(type, name);
  return method && PyFunction_Check(method) ? method : nullptr;
}

/// The segment has made it, or has a stand-in for it.
bool is_here(Capture& c, PyObject* container) {
  return !c.world.is_outside(container) || c.containers.has_shadow(container) || c.containers.is_shadow(container);
}

bool is_of_default_dict(PyObject* method) {
  static constinit Imported default_dict("collections", "defaultdict");
  return Py_TYPE(method) == &PyMethodDescr_Type && PyDescr_TYPE(method) == default_dict.type();
}

/// What a subclass of defaultdict puts in for a key that it lacks.
Ref made_by_default(Capture& c, PyObject* container, PyObject* key) {
  const NonResumable scope(c);
  const Ref factory = c.attributes.load_attr(container, MAGNETO_STR("default_factory"));
  if (factory.get() == Py_None) raise_key_error(key);
  Ref value = c.calls.call(factory.get(), {});
  c.protocol.store_subscript(container, key, value.get());
  return value;
}

/// One comparison after the other: each is a question about sizes.
bool contains_size(Capture& capture, PyObject* container, PyObject* item) {
  const Ref members = checked(PySequence_Tuple(container));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(members.get()); ++i) {
    PyObject* member = PyTuple_GET_ITEM(members.get(), i);
    if (member == item || capture.protocol.truth(compare(capture, Py_EQ, member, item).get())) return true;
  }
  return false;
}

}  // namespace

/// In this order, for reading (x[k]), writing (x[k] = v, del x[k]) and asking (k in x); a kind that is no kind of the
/// container, or does not do this, leaves it to the next. Tensors and arrays take any key, so they come first; a
/// class's own method comes before what C code would do with its instances. Behind `refuse_key` keys are such that C
/// code may look at them. What the segment has made, or has a stand-in for, is there for C code as it is; of what is
/// outside, no more is read than the item.
constexpr ObjectProtocol::ItemKind ObjectProtocol::kItemKinds[] = {
    {"a tensor", &ObjectProtocol::read_tensor, &ObjectProtocol::write_tensor, &ObjectProtocol::ask_tensor},
    {"an array", &ObjectProtocol::read_array, &ObjectProtocol::write_array, nullptr},
    {"a torch.Size with unknown numbers", &ObjectProtocol::read_shape, nullptr, nullptr},
    {"an instance whose class has a method in Python", &ObjectProtocol::read_by_method,
     &ObjectProtocol::write_by_method, &ObjectProtocol::ask_by_method},
    {"any, by a key that nobody may look at", &ObjectProtocol::refuse_key, &ObjectProtocol::refuse_written_key,
     nullptr},
    {"a view of a dict", &ObjectProtocol::read_dict_view, nullptr, &ObjectProtocol::ask_dict_keys},
    {"what is here for C code", &ObjectProtocol::read_here, nullptr, nullptr},
    {"a class", &ObjectProtocol::read_class, nullptr, nullptr},
    {"a dict from outside", &ObjectProtocol::read_dict, &ObjectProtocol::write_dict, &ObjectProtocol::ask_dict},
    {"a list or tuple, by place", &ObjectProtocol::read_place, nullptr, nullptr},
    {"another list or tuple, or a built-in container", &ObjectProtocol::read_container, nullptr, nullptr},
    {"a constant", &ObjectProtocol::read_constant, nullptr, nullptr},
    {"any other object", &ObjectProtocol::read_other, &ObjectProtocol::write_other, &ObjectProtocol::ask_other},
};

Ref ObjectProtocol::subscript(PyObject* container, PyObject* key, bool past_override) {
  const Ref known_key =
      is_tensor(container) && size_of_number(key) ? c.symbols.with_symints(key) : c.numbers.known(key);
  const Item item{container, known_key.get(), past_override};
  for (const ItemKind& kind : kItemKinds) {
    if (Ref value = kind.read ? (this->*kind.read)(item) : Ref()) return value;
  }
  return {};  // not reached: the last one takes all
}

void ObjectProtocol::store_subscript(PyObject* container, PyObject* key, PyObject* value) {
  const Ref known_key =
      is_tensor(container) && size_of_number(key) ? c.symbols.with_symints(key) : c.numbers.known(key);
  const Item item{container, known_key.get()};
  for (const ItemKind& kind : kItemKinds) {
    if (kind.write && (this->*kind.write)(item, value)) return;
  }
}

bool ObjectProtocol::contains(PyObject* container, PyObject* key) {
  const bool scanned =
      PyTuple_CheckExact(container) || PyList_CheckExact(container) || PyFrozenSet_CheckExact(container);
  if ((size_of_number(key) || nested_int_of(key)) && scanned && !c.world.is_outside(container) &&
      !c.options.exits_on_change)
    return contains_size(c, container, key);
  const Ref known_key = c.numbers.known(key);
  const Item item{container, known_key.get()};
  for (const ItemKind& kind : kItemKinds) {
    if (const auto answer = kind.ask ? (this->*kind.ask)(item) : std::nullopt) return *answer;
  }
  return false;  // not reached
}

// -- tensors and arrays ----------------------------------------------------------------------------------------------

Ref ObjectProtocol::read_tensor(const Item& item) {
  if (!is_tensor(item.container)) return {};
  if (Ref number = packed_batch(c, item.container, item.key)) return number;
  const auto again = [&](const auto& put) { return subscript(put[0], item.key); };
  if (Ref result = c.gradients.with_data({&item.container, 1}, again)) return result;
  static constinit MadeOnce<PyObject> made;
  PyObject* const getitem = made.get([] { return operator_function("getitem"); });
  const Ref key = with_tensors_for_arrays(c, item.container, item.key);
  Ref deep = c.symbols.with_symints(c.containers.readable(key.get()).get());
  PyObject* args[] = {item.container, deep.get()};
  const bool overridden = c.torch.is_overridden(args);
  if (!overridden) args[1] = (deep = with_stacked_places(c, item.container, std::move(deep))).get();
  const auto places = overridden ? std::nullopt : unknown_places(item.container, deep.get());
  return c.torch.record(graph::TorchNode::Kind::CallFunction, getitem, args, nullptr, [&] {
    return places ? select_unknown(item.container, *places) : PyObject_GetItem(item.container, deep.get());
  });
}

/// What a data-dependent number is as an item of the tensor. Null: it is another value, or PyTorch might refuse it, as
/// too large for the dtype.
static Ref data_number_as_item(Capture& c, PyObject* target, PyObject* value) {
  const bool is_float = holder_of_float(value) != nullptr;
  if (!is_fake_tensor(target) || (!is_float && !is_data_number(value))) return {};
  const c10::ScalarType dtype = unpack_tensor(target).scalar_type();
  const bool holds = dtype == c10::kFloat || dtype == c10::kDouble || (!is_float && dtype == c10::kLong);
  if (!holds) return {};
  const Ref number = c.numbers.beside_tensor(value);
  if (!is_fake_tensor(number.get())) return {};
  PyObject* args[] = {number.get(), target};
  return c.torch.record(graph::TorchNode::Kind::CallMethod, MAGNETO_STR("type_as"), args, nullptr,
                        [&] { return PyObject_CallMethod(number.get(), "type_as", "O", target); });
}

bool ObjectProtocol::write_tensor(const Item& item, PyObject* value) {
  if (!is_tensor(item.container)) return false;
  Ref known_value = value ? data_number_as_item(c, item.container, value) : Ref();
  if (!known_value && value) known_value = c.containers.readable(c.numbers.known(value).get());
  value = known_value.get();
  if (!value) {
    PyErr_SetString(PyExc_TypeError, "Tensor does not support deleting items");
    throw PythonError{};
  }
  PyObject* const both[] = {item.container, value};
  const auto again = [&](const auto& put) {
    store_subscript(put[0], item.key, put[1]);
    return Ref::borrow(Py_None);
  };
  if (c.gradients.with_data(both, again)) return true;
  static constinit MadeOnce<PyObject> made;
  PyObject* const setitem = made.get([] { return operator_function("setitem"); });
  const Ref key = with_tensors_for_arrays(c, item.container, item.key);
  Ref deep = c.symbols.with_symints(c.containers.readable(key.get()).get());
  PyObject* args[] = {item.container, deep.get(), value};
  const bool overridden = c.torch.is_overridden(args);
  if (!overridden) args[1] = (deep = with_stacked_places(c, item.container, std::move(deep))).get();
  auto places = overridden ? std::nullopt : unknown_places(item.container, deep.get());
  // Where the place is data-dependent, what is written to it stays an operator of its own.
  if (places && std::ranges::any_of(places->places, [](const auto& place) { return is_fake_tensor(place.second); })) {
    places.reset();
  }
  PyObject* const written = deep.get();
  if (places && std::ranges::any_of(key_items(written), is_fake_tensor)) places.reset();
  c.torch.record(graph::TorchNode::Kind::CallFunction, setitem, args, nullptr, [&]() -> PyObject* {
    const Ref view = places ? Ref::steal(select_unknown(item.container, *places)) : Ref();
    if (places && !view) return nullptr;
    PyObject *target = places ? view.get() : item.container, *where = places ? Py_Ellipsis : deep.get();
    if (is_put_by_mask(target, where, value)) return put_by_mask(target, where, value);
    if (!overridden && is_put_at_place(target, where, value)) return put_at_place(target, where, value);
    return PyObject_SetItem(target, where, value) < 0 ? nullptr : Py_NewRef(Py_None);
  });
  return true;
}

std::optional<bool> ObjectProtocol::ask_tensor(const Item& item) {
  if (!is_tensor(item.container)) return std::nullopt;
  static constinit MadeOnce<PyObject> made;
  PyObject* const function = made.get([] { return operator_function("contains"); });
  PyObject* args[] = {item.container, item.key};
  const Ref found = c.torch.record(graph::TorchNode::Kind::CallFunction, function, args, nullptr, [&]() -> PyObject* {
    const int found = PySequence_Contains(item.container, item.key);
    return found < 0 ? nullptr : PyBool_FromLong(found);
  });
  return found.get() == Py_True;
}

Ref ObjectProtocol::read_array(const Item& item) {
  return is_array(item.container) ? c.numpy.item(item.container, item.key) : Ref();
}

bool ObjectProtocol::write_array(const Item& item, PyObject* value) {
  if (!is_array(item.container)) return false;
  if (!value) c.side_exit(BreakReason::Mutation, "an item of an array of NumPy is deleted");
  c.numpy.write_item(item.container, item.key, value);
  return true;
}

Ref ObjectProtocol::read_shape(const Item& item) {
  const bool is_slice = PySlice_Check(item.key) && holds_unknown_size(item.container);
  return is_slice ? slice_of_shape(item.container, item.key) : Ref();
}

// -- methods in Python, keys -----------------------------------------------------------------------------------------

Ref ObjectProtocol::read_by_method(const Item& item) {
  if (item.past_override) return {};
  PyObject* method = python_method(c, Py_TYPE(item.container), MAGNETO_STR("__getitem__"));
  if (!method) return {};
  return c.calls.call(c.world.wrap(method, c.sources.constant(method)).get(), {item.container, item.key});
}

bool ObjectProtocol::write_by_method(const Item& item, PyObject* value) {
  PyObject* name = value ? MAGNETO_STR("__setitem__") : MAGNETO_STR("__delitem__");
  PyObject* method = python_method(c, Py_TYPE(item.container), name);
  if (!method) return false;
  NonResumable scope(c);
  Ref function = c.world.wrap(method, c.sources.constant(method));
  value ? c.calls.call(function.get(), {item.container, item.key, value})
        : c.calls.call(function.get(), {item.container, item.key});
  return true;
}

std::optional<bool> ObjectProtocol::ask_by_method(const Item& item) {
  PyObject* method = python_method(c, Py_TYPE(item.container), MAGNETO_STR("__contains__"));
  if (!method) return std::nullopt;
  NonResumable scope(c);
  Ref result = c.calls.call(c.world.wrap(method, c.sources.constant(method)).get(), {item.container, item.key});
  return truth(result.get());
}

Ref ObjectProtocol::refuse_key(const Item& item) {
  c.containers.refuse_opaque(item.key, 1);
  return {};
}

bool ObjectProtocol::refuse_written_key(const Item& item, PyObject*) {
  c.containers.refuse_opaque(item.key, 1);
  return false;
}

// -- containers ------------------------------------------------------------------------------------------------------

Ref ObjectProtocol::read_dict_view(const Item& item) {
  if (!is_dict_view(item.container) || !c.world.is_outside(item.container)) return {};
  const Ref view = c.containers.resolve(item.container);
  if (!c.containers.is_shadow(view.get())) return {};
  return c.calls.call_native([&] { return PyObject_GetItem(view.get(), item.key); });
}

/// Of a dict made here: whatever the values are.
std::optional<bool> ObjectProtocol::ask_dict_keys(const Item& item) {
  if (!PyDictKeys_Check(item.container) || c.world.is_outside(item.container)) return std::nullopt;
  return contains(reinterpret_cast<DictView*>(item.container)->dict, item.key);
}

Ref ObjectProtocol::read_here(const Item& item) {
  if (!is_here(c, item.container)) return {};
  const bool of_subclass = c.world.is_outside(item.container) && is_derived_container(item.container);
  Ref object = of_subclass ? c.containers.contents_of(item.container) : c.containers.resolve(item.container);
  if ((item.past_override || of_subclass) && PyDict_Check(object.get())) {
    check_hashable(item.key);
    PyObject* value = PyDict_GetItemWithError(object.get(), item.key);
    if (value) return Ref::borrow(value);
    if (PyErr_Occurred()) throw PythonError{};
    return missing(item, PyDict_CheckExact(item.container));
  }
  Ref resolved_key = c.containers.resolve(item.key);
  if (PyDict_Check(object.get())) guard_classes(c, item.key, Question::Hash, 8);
  return c.calls.call_native([&] { return PyObject_GetItem(object.get(), resolved_key.get()); });
}

/// What a dict gives for a key that it lacks.
Ref ObjectProtocol::missing(const Item& item, bool is_plain) {
  PyTypeObject* type = Py_TYPE(item.container);
  PyObject* method = is_plain ? nullptr : c.attributes.type_lookup(type, MAGNETO_STR("__missing__"));
  if (!method) raise_key_error(item.key);
  if (PyFunction_Check(method)) {
    return c.calls.call(c.world.wrap(method, c.sources.constant(method)).get(), {item.container, item.key});
  }
  const bool of_subclass = !is_builtin_container(item.container) && c.world.is_outside(item.container);
  if (of_subclass && is_of_default_dict(method)) return made_by_default(c, item.container, item.key);
  if (is_here(c, item.container) && !of_subclass) {
    return c.calls.call_native([&] { return PyObject_CallFunctionObjArgs(method, item.container, item.key, nullptr); });
  }
  if (is_builtin_container(item.container)) {  // a defaultdict: the key is made
    Ref object = c.containers.resolve(item.container, /*will_mutate=*/true);
    return c.calls.call_native([&] { return PyObject_GetItem(object.get(), item.key); });
  }
  c.side_exit(BreakReason::OpaqueObject, std::string("a missing key of a ") + type->tp_name);
}

Ref ObjectProtocol::read_class(const Item& item) {
  if (!PyType_Check(item.container)) return {};
  c.attributes.type_lookup(reinterpret_cast<PyTypeObject*>(item.container), MAGNETO_STR("__class_getitem__"));
  Ref resolved_key = c.containers.resolve_deep(item.key);
  return c.calls.call_native([&] { return PyObject_GetItem(item.container, resolved_key.get()); });
}

Ref ObjectProtocol::read_dict(const Item& item) {
  if (!PyDict_Check(item.container)) return {};
  check_hashable(item.key);
  if (Ref value = c.overlays.dict_lookup(item.container, item.key)) return value;
  PyTypeObject* type = Py_TYPE(item.container);
  return missing(item, type == &PyDict_Type || type == &PyODict_Type);
}

/// Subclasses too, but those that keep an order of their own.
bool ObjectProtocol::write_dict(const Item& item, PyObject* value) {
  if (!c.world.is_outside(item.container) || !PyDict_Check(item.container) || PyODict_Check(item.container)) {
    return false;
  }
  PyObject* const original = c.world.original_key(item.key);
  if (!original) return false;
  PyObject* const key = PyTuple_Check(item.key) ? original : item.key;
  if (!value && !c.overlays.dict_lookup(item.container, key)) raise_key_error(key);
  c.overlays.store_entry(item.container, key, value);
  return true;
}

std::optional<bool> ObjectProtocol::ask_dict(const Item& item) {
  if (!PyDict_Check(item.container) || is_here(c, item.container)) return std::nullopt;
  check_hashable(item.key);
  return static_cast<bool>(c.overlays.dict_lookup(item.container, item.key));
}

Ref ObjectProtocol::read_place(const Item& item) {
  const bool is_list = PyList_Check(item.container);
  if ((!is_list && !PyTuple_Check(item.container)) || !PyIndex_Check(item.key) || is_tensor(item.key)) return {};
  const Source* source = c.world.source_of(item.container);
  Ref number = c.calls.call_native([&] { return PyNumber_Index(item.key); });
  Py_ssize_t index = PyNumber_AsSsize_t(number.get(), PyExc_IndexError);
  if (index == -1 && PyErr_Occurred()) throw PythonError{};
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(item.container);
  if (index < 0 || index >= size) c.numbers.guard_length(source, Py_TYPE(item.container), size);
  if (index < 0) index += size;
  if (index < 0 || index >= size) {
    PyErr_Format(PyExc_IndexError, "%s index out of range", is_list ? "list" : "tuple");
    throw PythonError{};
  }
  return c.world.wrap(PySequence_Fast_GET_ITEM(item.container, index), c.sources.seq_item(source, index));
}

Ref ObjectProtocol::read_container(const Item& item) {
  const bool is_builtin = is_builtin_container(item.container);
  if (!is_builtin && !PyList_Check(item.container) && !PyTuple_Check(item.container)) return {};
  Ref object = is_builtin ? c.containers.resolve(item.container) : c.containers.contents_of(item.container);
  return c.calls.call_native([&] { return PyObject_GetItem(object.get(), item.key); });
}

// -- all else --------------------------------------------------------------------------------------------------------

Ref ObjectProtocol::read_constant(const Item& item) {
  if (!is_identity_constant(item.container) && !is_value(item.container)) return {};
  return c.calls.call_native([&] { return PyObject_GetItem(item.container, item.key); });
}

Ref ObjectProtocol::read_other(const Item& item) {
  c.side_exit(BreakReason::OpaqueObject, c.world.source_of(item.container)->name() + " of type " +
                                             Py_TYPE(item.container)->tp_name + " is indexed");
}

bool ObjectProtocol::write_other(const Item& item, PyObject* value) {
  const bool known =
      is_builtin_container(item.container) || PyDict_Check(item.container) || PyList_Check(item.container);
  if (c.world.is_outside(item.container) && !known) {
    c.side_exit(BreakReason::Mutation, c.world.source_of(item.container)->name() + " of type " +
                                           Py_TYPE(item.container)->tp_name + " is changed");
  }
  Ref object = c.containers.resolve(item.container, /*will_mutate=*/true);
  if (PyDict_Check(object.get())) guard_classes(c, item.key, Question::Hash, 8);
  Ref items = value && PySlice_Check(item.key) ? c.containers.resolve(value) : Ref::borrow(value);
  if (value && PySlice_Check(item.key)) c.containers.refuse_opaque_iterable(value);
  c.calls.call_native([&]() -> PyObject* {
    const int failed =
        value ? PyObject_SetItem(object.get(), item.key, items.get()) : PyObject_DelItem(object.get(), item.key);
    return failed < 0 ? nullptr : Py_NewRef(Py_None);
  });
  return true;
}

std::optional<bool> ObjectProtocol::ask_other(const Item& item) {
  const bool is_dict = PyDict_Check(item.container);
  if (!is_dict) c.containers.guard_contents(item.container);  // of a dict, the keys
  c.containers.guard_contents(item.key);
  const Question question = PyAnySet_Check(item.container) || is_dict ? Question::Hash : Question::Equality;
  for (PyObject* value : {item.container, item.key}) guard_classes(c, value, question, 8);
  if (!is_builtin_container(item.key)) c.containers.refuse_opaque(item.key);
  Ref object = operand(c, item.container, "contains");
  Ref needle = c.containers.resolve(item.key);
  const Ref found = c.calls.call_native([&]() -> PyObject* {
    const int found = PySequence_Contains(object.get(), needle.get());
    return found < 0 ? nullptr : PyBool_FromLong(found);
  });
  return found.get() == Py_True;
}

}  // namespace magneto::capture
