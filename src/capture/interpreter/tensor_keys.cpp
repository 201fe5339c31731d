#include "capture/interpreter/tensor_keys.h"

#include <ATen/ops/full.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/select.h>

#include <algorithm>

#include "capture/calls/calls.h"
#include "capture/capture.h"
#include "capture/kinds.h"
#include "capture/numpy/arrays.h"
#include "capture/numpy/numpy_capture.h"
#include "capture/torch/torch_calls.h"
#include "python/imported.h"
#include "runtime/plan/torch_errors.h"
#include "support/tensor_object.h"

namespace magneto::capture {
bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  const auto memory = [](const at::Tensor& tensor) {
    return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  };
  return memory(a) == memory(b);
}

namespace {

/// A tangent of forward-mode AD, for which our operator has no rule.
bool has_tangent(const at::Tensor& tensor) { return tensor._fw_grad(/*level=*/0).defined(); }

/// A tensor of one integer that only the run knows.
bool is_unknown_place(PyObject* index) {
  if (!is_fake_tensor(index)) return false;
  const at::Tensor& tensor = unpack_tensor(index);
  return tensor.dim() == 0 && c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false) &&
         tensor.scalar_type() != c10::kByte && !fake::known_value(tensor);
}

/// Whole numbers, each of which takes one dimension.
bool is_list_of_places(PyObject* item) {
  if (!is_fake_tensor(item)) return false;
  const c10::ScalarType dtype = unpack_tensor(item).scalar_type();
  return dtype == c10::kLong || dtype == c10::kInt;
}

/// It indexes as `torch.tensor(sequence)` does: a tensor of int64 on the device of the tensor.
bool is_sequence_of_places(const at::Tensor& tensor, PyObject* item) {
  if (!PyTuple_CheckExact(item) && !PyList_CheckExact(item)) return false;
  const std::span parts(PySequence_Fast_ITEMS(item), static_cast<size_t>(PySequence_Fast_GET_SIZE(item)));
  const auto is_place = [&](PyObject* part) {
    if (!is_fake_tensor(part)) return false;
    const at::Tensor& place = unpack_tensor(part);
    return place.dim() == 0 && place.scalar_type() == c10::kLong && place.device() == tensor.device();
  };
  return std::ranges::all_of(parts, is_place) && std::ranges::any_of(parts, is_unknown_place);
}

}  // namespace

namespace {

/// The tensor that such an array indexes as; null: it is another object, or a short one of several dimensions, which
/// alone is read as a tuple of its rows.
Ref tensor_for_array(Capture& capture, PyObject* item, bool alone) {
  constexpr int64_t long_enough = 32;
  if (!is_array(item)) return {};
  const Ref contents = capture.numpy.contents_of(item);
  PyObject* const tensor = contents.get();
  const at::Tensor& places = unpack_tensor(tensor);
  const c10::ScalarType dtype = places.scalar_type();
  const bool whole = dtype == c10::kLong || dtype == c10::kInt || dtype == c10::kShort || dtype == c10::kBool;
  if (!whole || places.dim() == 0 || (alone && places.dim() > 1 && places.size(0) < long_enough)) return {};
  if (dtype == c10::kLong || dtype == c10::kBool) return Ref::borrow(tensor);
  static constinit Imported to("torch._C", "TensorBase.to"), type("torch", "int64");
  return capture.torch.call_torch(to.get(), {{tensor, type.get()}});
}

}  // namespace

Ref with_tensors_for_arrays(Capture& capture, PyObject* tensor, PyObject* key) {
  if (!is_fake_tensor(tensor) || !unpack_tensor(tensor).device().is_cpu()) return Ref::borrow(key);
  if (Ref alone = tensor_for_array(capture, key, /*alone=*/true)) return alone;
  if (!PyTuple_CheckExact(key) || std::ranges::none_of(key_items(key), is_array)) return Ref::borrow(key);
  Ref made = checked(PyTuple_New(PyTuple_GET_SIZE(key)));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); ++i) {
    Ref item = tensor_for_array(capture, PyTuple_GET_ITEM(key, i), /*alone=*/false);
    if (!item) item = Ref::borrow(PyTuple_GET_ITEM(key, i));
    PyTuple_SET_ITEM(made.get(), i, item.release());
  }
  return made;
}

Ref with_stacked_places(Capture& capture, PyObject* tensor, Ref key) {
  if (!is_fake_tensor(tensor) || !PyTuple_CheckExact(key.get())) return key;  // a list alone may be read as a tuple
  const std::span<PyObject* const> items = key_items(key.get());
  const auto is_sequence = [&](PyObject* item) { return is_sequence_of_places(unpack_tensor(tensor), item); };
  if (std::ranges::none_of(items, is_sequence)) return key;
  static constinit Imported stack("torch", "stack");
  Ref stacked = checked(PyTuple_New(static_cast<Py_ssize_t>(items.size())));
  for (size_t i = 0; i < items.size(); ++i) {
    Ref item = is_sequence(items[i]) ? capture.calls.call(stack.get(), {items[i]}) : Ref::borrow(items[i]);
    PyTuple_SET_ITEM(stacked.get(), static_cast<Py_ssize_t>(i), item.release());
  }
  return stacked;
}

std::optional<UnknownPlaces> unknown_places(PyObject* tensor, PyObject* key) {
  if (!is_fake_tensor(tensor)) return std::nullopt;
  const std::span<PyObject* const> items = key_items(key);
  const auto is_place = [&](PyObject* item) {
    return symint_value(item) || (is_unknown_place(item) && !has_tangent(unpack_tensor(tensor)));
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

bool is_put_at_place(PyObject* tensor, PyObject* key, PyObject* value) {
  const std::span<PyObject* const> items = key_items(key);
  if (!is_fake_tensor(tensor) || items.empty() || !std::ranges::all_of(items, is_unknown_place)) return false;
  const at::Tensor& target = unpack_tensor(tensor);
  const int64_t left = target.dim() - static_cast<int64_t>(items.size());
  if (left < 0 || has_tangent(target)) return false;
  if (is_fake_tensor(value)) return unpack_tensor(value).dim() <= left && !has_tangent(unpack_tensor(value));
  if (PyFloat_CheckExact(value)) return target.is_floating_point();
  int overflow = 0;
  if (PyLong_CheckExact(value)) PyLong_AsLongLongAndOverflow(value, &overflow);
  return PyLong_CheckExact(value) && overflow == 0 && !target.is_complex() && target.scalar_type() != c10::kBool;
}

PyObject* put_at_place(PyObject* tensor, PyObject* key, PyObject* value) {
  const bool done = runtime::with_torch_errors([&] {
    at::Tensor target = unpack_tensor(tensor);
    c10::List<std::optional<at::Tensor>> places;
    for (PyObject* item : key_items(key)) places.push_back(unpack_tensor(item));
    if (is_fake_tensor(value)) {
      at::Tensor items = unpack_tensor(value).to(target.scalar_type());
      if (share_memory(items, target)) items = items.clone();  // `t[i] += 1` gives the place back what it holds
      target.index_put_(places, items);
    } else {
      const at::Scalar number =
          PyFloat_CheckExact(value) ? at::Scalar(PyFloat_AS_DOUBLE(value)) : at::Scalar(PyLong_AsLongLong(value));
      target.index_put_(places, at::full({}, number, target.options()));
    }
  });
  return done ? Py_NewRef(Py_None) : nullptr;
}

}  // namespace magneto::capture
