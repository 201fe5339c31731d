// Items: subscripts, their writes, and `in`.
#include "capture/interpreter/object_protocol.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/select.h>
#include <torch/csrc/Size.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

#include "capture/calls/calls.h"
#include "capture/calls/handlers.h"
#include "capture/calls/special_methods.h"
#include "capture/interpreter/operations.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/symbols.h"
#include "capture/numpy/numpy_capture.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "guards/array.h"
#include "python/abi/dicts.h"
#include "python/abi/private.h"
#include "python/imported.h"
#include "runtime/plan/torch_errors.h"
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

bool needs_grad(const at::Tensor& tensor) { return tensor.requires_grad() && at::GradMode::is_enabled(); }

/// A tensor of one integer that only the run knows.
bool is_unknown_place(PyObject* index) {
  if (!is_fake_tensor(index)) return false;
  const at::Tensor& tensor = unpack_tensor(index);
  return tensor.dim() == 0 && c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false) &&
         tensor.scalar_type() != c10::kByte && !fake::known_value(tensor);
}

/// A key with unknown places in it: eager gives a view.
struct UnknownPlaces {  // or numbers that follow from sizes, which PyTorch's indexing would fix
  std::vector<std::pair<int64_t, PyObject*>> places;  // by dimension of the tensor, ascending
  Ref rest;                                           // the key without them
};

std::span<PyObject* const> key_items(PyObject* const& key) {
  return PyTuple_CheckExact(key) ? std::span(&PyTuple_GET_ITEM(key, 0), static_cast<size_t>(PyTuple_GET_SIZE(key)))
                                 : std::span(&key, 1);
}

/// Whole numbers, each of which takes one dimension.
bool is_list_of_places(PyObject* item) {
  if (!is_fake_tensor(item)) return false;
  const c10::ScalarType dtype = unpack_tensor(item).scalar_type();
  return dtype == c10::kLong || dtype == c10::kInt;
}

/// Nothing for keys without one, and for those with masks or lists, or with other tensors beside one in a tensor.
std::optional<UnknownPlaces> unknown_places(PyObject* tensor, PyObject* key) {
  if (!is_fake_tensor(tensor)) return std::nullopt;
  const std::span<PyObject* const> items = key_items(key);
  const auto is_place = [&](PyObject* item) {
    return symint_value(item) || (is_unknown_place(item) && !needs_grad(unpack_tensor(tensor)));
  };
  if (std::ranges::none_of(items, is_place)) return std::nullopt;
  const auto consumes = [](PyObject* item) { return item != Py_None && item != Py_Ellipsis; };
  const int64_t left = unpack_tensor(tensor).dim() - std::ranges::count_if(items, consumes);
  if (left < 0 || std::ranges::count(items, Py_Ellipsis) > 1) return std::nullopt;  // an error
  UnknownPlaces found{{}, checked(PyList_New(0))};
  int64_t dim = 0;
  for (PyObject* item : items) {
    if (is_place(item)) {
      found.places.emplace_back(dim++, item);
      continue;
    }
    if (!PyLong_CheckExact(item) && !PySlice_Check(item) && consumes(item) && !is_list_of_places(item)) {
      return std::nullopt;
    }
    dim += item == Py_Ellipsis ? left : consumes(item);
    if (PyList_Append(found.rest.get(), item) < 0) throw PythonError{};
  }
  const auto holds_place = [](const auto& place) { return is_fake_tensor(place.second); };
  const auto is_other_tensor = [&](PyObject* item) { return is_fake_tensor(item) && !is_place(item); };
  if (std::ranges::any_of(found.places, holds_place) && std::ranges::any_of(items, is_other_tensor)) {
    return std::nullopt;
  }
  found.rest = checked(PyList_AsTuple(found.rest.get()));
  return found;
}

PyObject* select_unknown(PyObject* tensor, const UnknownPlaces& key) {
  static const auto select = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("magneto::select", "")
                                 .typed<at::Tensor(const at::Tensor&, int64_t, const at::Tensor&)>();
  at::Tensor view = unpack_tensor(tensor);
  const bool done = runtime::with_torch_errors([&] {
    for (size_t i = key.places.size(); i-- > 0;) {
      const auto& [dim, place] = key.places[i];
      if (const auto number = symint_value(place)) {
        view = at::select_symint(view, dim, fake::Session::current()->symint(*number));
      } else {
        view = select.call(view, dim, unpack_tensor(place));
      }
    }
  });
  if (!done) return nullptr;
  Ref selected = Ref::steal(tensor_object(view));
  if (PyTuple_GET_SIZE(key.rest.get()) == 0 || !selected) return selected.release();
  return PyObject_GetItem(selected.get(), key.rest.get());
}

}  // namespace

Ref ObjectProtocol::subscript(PyObject* container, PyObject* key, bool past_override) {
  const Ref known_key =
      is_tensor(container) && size_of_number(key) ? c.symbols.with_symints(key) : c.numbers.known(key);
  key = known_key.get();
  if (is_tensor(container)) {
    static PyObject* const getitem = operator_function("getitem");
    Ref deep = c.symbols.with_symints(c.containers.readable(key).get());
    PyObject* args[] = {container, deep.get()};
    const auto places = c.torch.is_overridden(args) ? std::nullopt : unknown_places(container, deep.get());
    return c.torch.record(graph::TorchNode::Kind::CallFunction, getitem, args, nullptr, [&] {
      return places ? select_unknown(container, *places) : PyObject_GetItem(container, deep.get());
    });
  }
  if (is_array(container)) return c.numpy.item(container, key);
  if (PySlice_Check(key) && holds_unknown_size(container)) return slice_of_shape(container, key);
  PyTypeObject* type = Py_TYPE(container);
  if (!past_override && PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
    PyObject* method = c.attributes.type_lookup(type, MAGNETO_STR("__getitem__"));
    if (method && PyFunction_Check(method)) {
      return c.calls.call(c.world.wrap(method, c.sources.constant(method)).get(), {container, key});
    }
  }
  c.containers.refuse_opaque(key, 1);
  if (is_dict_view(container) && c.world.is_outside(container)) {
    const Ref view = c.containers.resolve(container);
    if (c.containers.is_shadow(view.get()))
      return c.calls.call_native([&] { return PyObject_GetItem(view.get(), key); });
  }
  const Source* source = c.world.source_of(container);
  if (!source || c.containers.has_shadow(container) || c.containers.is_shadow(container)) {
    Ref object = c.containers.resolve(container);
    if (past_override && PyDict_Check(object.get())) {
      PyObject* value = PyDict_GetItemWithError(object.get(), key);
      if (value) return Ref::borrow(value);
      if (PyErr_Occurred()) throw PythonError{};
      PyObject* missing =
          PyDict_CheckExact(object.get()) ? nullptr : c.attributes.type_lookup(type, MAGNETO_STR("__missing__"));
      if (missing && PyFunction_Check(missing)) {
        return c.calls.call(c.world.wrap(missing, c.sources.constant(missing)).get(), {container, key});
      }
      if (missing)
        return c.calls.call_native([&] { return PyObject_CallFunctionObjArgs(missing, container, key, nullptr); });
      raise_key_error(key);
    }
    Ref resolved_key = c.containers.resolve(key);
    if (PyDict_Check(object.get())) guard_classes(c, key, Question::Hash, 8);
    return c.calls.call_native([&] { return PyObject_GetItem(object.get(), resolved_key.get()); });
  }
  if (PyType_Check(container)) {
    c.attributes.type_lookup(reinterpret_cast<PyTypeObject*>(container), MAGNETO_STR("__class_getitem__"));
    Ref resolved_key = c.containers.resolve_deep(key);
    return c.calls.call_native([&] { return PyObject_GetItem(container, resolved_key.get()); });
  }
  if (PyDict_Check(container)) {
    check_hashable(key);
    if (Ref value = c.overlays.dict_lookup(container, key)) return value;
    if (type == &PyDict_Type || type == &PyODict_Type) raise_key_error(key);
    PyObject* missing = c.attributes.type_lookup(type, MAGNETO_STR("__missing__"));
    if (missing && PyFunction_Check(missing)) {
      return c.calls.call(c.world.wrap(missing, c.sources.constant(missing)).get(), {container, key});
    }
    if (missing && is_builtin_container(container)) {  // a defaultdict: the key is made
      Ref object = c.containers.resolve(container, /*will_mutate=*/true);
      return c.calls.call_native([&] { return PyObject_GetItem(object.get(), key); });
    }
    if (missing) c.side_exit(BreakReason::OpaqueObject, std::string("a missing key of a ") + type->tp_name);
    raise_key_error(key);
  }
  if ((PyList_Check(container) || PyTuple_Check(container)) && PyIndex_Check(key) && !is_tensor(key)) {
    Ref number = c.calls.call_native([&] { return PyNumber_Index(key); });
    Py_ssize_t index = PyNumber_AsSsize_t(number.get(), PyExc_IndexError);
    if (index == -1 && PyErr_Occurred()) throw PythonError{};
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(container);
    if (index < 0 || index >= size) c.numbers.guard_length(source, type, size);
    if (index < 0) index += size;
    if (index < 0 || index >= size) {
      PyErr_Format(PyExc_IndexError, "%s index out of range", PyList_Check(container) ? "list" : "tuple");
      throw PythonError{};
    }
    return c.world.wrap(PySequence_Fast_GET_ITEM(container, index), c.sources.seq_item(source, index));
  }
  if (is_builtin_container(container) || PyList_Check(container) || PyTuple_Check(container)) {
    Ref object =
        is_builtin_container(container) ? c.containers.resolve(container) : c.containers.contents_of(container);
    return c.calls.call_native([&] { return PyObject_GetItem(object.get(), key); });
  }
  if (is_identity_constant(container) || is_value(container)) {
    return c.calls.call_native([&] { return PyObject_GetItem(container, key); });
  }
  c.side_exit(BreakReason::OpaqueObject, source->name() + " of type " + type->tp_name + " is indexed");
}

void ObjectProtocol::store_subscript(PyObject* container, PyObject* key, PyObject* value) {
  const Ref known_key =
      is_tensor(container) && size_of_number(key) ? c.symbols.with_symints(key) : c.numbers.known(key);
  key = known_key.get();
  if (is_tensor(container)) {
    const Ref known_value = value ? c.containers.readable(c.numbers.known(value).get()) : Ref();
    value = known_value.get();
    if (!value) {
      PyErr_SetString(PyExc_TypeError, "Tensor does not support deleting items");
      throw PythonError{};
    }
    static PyObject* const setitem = operator_function("setitem");
    Ref deep = c.symbols.with_symints(c.containers.readable(key).get());
    PyObject* args[] = {container, deep.get(), value};
    auto places = c.torch.is_overridden(args) ? std::nullopt : unknown_places(container, deep.get());
    // Where only the data says, what is written to such a place stays an operator of its own.
    if (places && std::ranges::any_of(places->places, [](const auto& place) { return is_fake_tensor(place.second); })) {
      places.reset();
    }
    PyObject* const written = deep.get();
    if (places && std::ranges::any_of(key_items(written), is_fake_tensor)) places.reset();
    c.torch.record(graph::TorchNode::Kind::CallFunction, setitem, args, nullptr, [&]() -> PyObject* {
      const Ref view = places ? Ref::steal(select_unknown(container, *places)) : Ref();
      if (places && !view) return nullptr;
      PyObject *target = places ? view.get() : container, *where = places ? Py_Ellipsis : deep.get();
      return PyObject_SetItem(target, where, value) < 0 ? nullptr : Py_NewRef(Py_None);
    });
    return;
  }
  if (is_array(container)) c.side_exit(BreakReason::Mutation, "an array of NumPy is changed");
  PyTypeObject* type = Py_TYPE(container);
  PyObject* name = value ? MAGNETO_STR("__setitem__") : MAGNETO_STR("__delitem__");
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
    PyObject* method = c.attributes.type_lookup(type, name);
    if (method && PyFunction_Check(method)) {
      NonResumable scope(c);
      Ref function = c.world.wrap(method, c.sources.constant(method));
      value ? c.calls.call(function.get(), {container, key, value}) : c.calls.call(function.get(), {container, key});
      return;
    }
  }
  c.containers.refuse_opaque(key, 1);
  // Subclasses too, but those that keep an order of their own.
  if (c.world.is_outside(container) && PyDict_Check(container) && !PyODict_Check(container) &&
      c.world.original_key(key)) {
    if (!value && !c.overlays.dict_lookup(container, key)) {
      raise_key_error(key);
    }
    c.overlays.store_entry(container, key, value);
    return;
  }
  if (c.world.is_outside(container) && !is_builtin_container(container)) {
    c.side_exit(BreakReason::Mutation,
                c.world.source_of(container)->name() + " of type " + type->tp_name + " is changed");
  }
  Ref object = c.containers.resolve(container, /*will_mutate=*/true);
  if (PyDict_Check(object.get())) guard_classes(c, key, Question::Hash, 8);
  Ref items = value && PySlice_Check(key) ? c.containers.resolve(value) : Ref::borrow(value);
  if (value && PySlice_Check(key)) c.containers.refuse_opaque_iterable(value);
  c.calls.call_native([&]() -> PyObject* {
    const int failed = value ? PyObject_SetItem(object.get(), key, items.get()) : PyObject_DelItem(object.get(), key);
    return failed < 0 ? nullptr : Py_NewRef(Py_None);
  });
}

/// One comparison after the other: each is a question about sizes.
static bool contains_size(Capture& capture, PyObject* container, PyObject* item) {
  const Ref members = checked(PySequence_Tuple(container));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(members.get()); ++i) {
    PyObject* member = PyTuple_GET_ITEM(members.get(), i);
    if (member == item || capture.protocol.truth(compare(capture, Py_EQ, member, item).get())) return true;
  }
  return false;
}

bool ObjectProtocol::contains(PyObject* container, PyObject* item) {
  const bool scanned =
      PyTuple_CheckExact(container) || PyList_CheckExact(container) || PyFrozenSet_CheckExact(container);
  if (size_of_number(item) && scanned && !c.world.is_outside(container) && !c.options.exits_on_change)
    return contains_size(c, container, item);
  const Ref known_item = c.numbers.known(item);
  item = known_item.get();
  if (is_tensor(container)) {
    static PyObject* const function = operator_function("contains");
    PyObject* args[] = {container, item};
    return c.torch
               .record(graph::TorchNode::Kind::CallFunction, function, args, nullptr,
                       [&]() -> PyObject* {
                         const int found = PySequence_Contains(container, item);
                         return found < 0 ? nullptr : PyBool_FromLong(found);
                       })
               .get() == Py_True;
  }
  PyTypeObject* type = Py_TYPE(container);
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
    PyObject* method = c.attributes.type_lookup(type, MAGNETO_STR("__contains__"));
    if (method && PyFunction_Check(method)) {
      NonResumable scope(c);
      Ref result = c.calls.call(c.world.wrap(method, c.sources.constant(method)).get(), {container, item});
      return truth(result.get());
    }
  }
  if (PyDictKeys_Check(container) && !c.world.is_outside(container)) {  // whatever the values are
    return contains(reinterpret_cast<DictView*>(container)->dict, item);
  }
  if (PyDict_Check(container) && c.world.is_outside(container) && !c.containers.has_shadow(container) &&
      !c.containers.is_shadow(container)) {
    check_hashable(item);
    return static_cast<bool>(c.overlays.dict_lookup(container, item));
  }
  if (!PyDict_Check(container)) c.containers.guard_contents(container);  // of a dict, the keys
  c.containers.guard_contents(item);
  const Question question = PyAnySet_Check(container) || PyDict_Check(container) ? Question::Hash : Question::Equality;
  for (PyObject* value : {container, item}) guard_classes(c, value, question, 8);
  if (!is_builtin_container(item)) c.containers.refuse_opaque(item);
  Ref object = operand(c, container, "contains");
  Ref needle = c.containers.resolve(item);
  return c.calls
             .call_native([&]() -> PyObject* {
               const int found = PySequence_Contains(object.get(), needle.get());
               return found < 0 ? nullptr : PyBool_FromLong(found);
             })
             .get() == Py_True;
}

}  // namespace magneto::capture
