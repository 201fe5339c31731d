// Keys of tensors that have places in them which only the run knows: `x[i]` with a tensor of one integer, or with a
// number that follows from sizes.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "python/ref.h"

namespace magneto::capture {

class Capture;

/// A key with unknown places in it: eager gives a view.
struct UnknownPlaces {  // or numbers that follow from sizes, which PyTorch's indexing would fix
  std::vector<std::pair<int64_t, PyObject*>> places;  // by dimension of the tensor, ascending
  Ref rest;                                           // the key without them
};

/// Stand-ins of one storage.
bool share_memory(const at::Tensor& a, const at::Tensor& b);

/// The items of a tuple, or the key itself.
inline std::span<PyObject* const> key_items(PyObject* const& key) {
  return PyTuple_CheckExact(key) ? std::span(&PyTuple_GET_ITEM(key, 0), static_cast<size_t>(PyTuple_GET_SIZE(key)))
                                 : std::span(&key, 1);
}

/// The key with tensors for arrays of NumPy in it, of whole numbers or bools, where PyTorch reads an array as one list.
Ref with_tensors_for_arrays(Capture& capture, PyObject* tensor, PyObject* key);

/// The key with a stacked tensor for each list or tuple of such tensors in it, whose data PyTorch's indexing would
/// read: `x[[i, j], :]`.
Ref with_stacked_places(Capture& capture, PyObject* tensor, Ref key);

/// Nothing for keys without one, and for those with masks or lists, or with other tensors beside one in a tensor.
std::optional<UnknownPlaces> unknown_places(PyObject* tensor, PyObject* key);
/// The view, a new reference; null: an error is set.
PyObject* select_unknown(PyObject* tensor, const UnknownPlaces& key);

/// `tensor[key] = value` where the key is one such tensor, or a tuple of them: nothing but the run knows the place, and
/// no view of it is needed.
bool is_put_at_place(PyObject* tensor, PyObject* key, PyObject* value);
/// None, a new reference; null: an error is set.
PyObject* put_at_place(PyObject* tensor, PyObject* key, PyObject* value);

}  // namespace magneto::capture
