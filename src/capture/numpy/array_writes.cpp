// Writes to arrays of NumPy: `a[0] = 1`, `a += 1`, `out=a`.
//
// NumPy itself does them, to a copy, so that casts, broadcasting, errors and warnings are its own. What comes of it is
// written over memory from outside or of a tensor, by an operator; an array that NumPy has made in the segment stands
// for the new values from there on.
#include <algorithm>

#include "capture/capture.h"
#include "capture/numpy/arrays.h"
#include "capture/numpy/numpy_capture.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/containers.h"
#include "capture/world/overlays.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

/// Selects a view.
bool is_basic_key(PyObject* key) {
  if (PyTuple_CheckExact(key)) {
    return std::all_of(&PyTuple_GET_ITEM(key, 0), &PyTuple_GET_ITEM(key, 0) + PyTuple_GET_SIZE(key),
                       [](PyObject* item) { return !PyTuple_CheckExact(item) && is_basic_key(item); });
  }
  return PyLong_CheckExact(key) || PySlice_Check(key) || key == Py_Ellipsis || key == Py_None;
}

/// The same, of one that would give a number, too.
Ref key_of_view(PyObject* key) {
  Ref items = PyTuple_CheckExact(key) ? checked(PySequence_List(key)) : checked(Py_BuildValue("[O]", key));
  const Py_ssize_t size = PyList_GET_SIZE(items.get());
  bool complete = false;
  for (Py_ssize_t i = 0; i < size; ++i) complete |= PyList_GET_ITEM(items.get(), i) == Py_Ellipsis;
  if (!complete && PyList_Append(items.get(), Py_Ellipsis) < 0) throw PythonError{};
  return checked(PyList_AsTuple(items.get()));
}

PyObject* parent_of(const ArrayStandIn& array) { return PyTuple_GET_ITEM(array.parents, 0); }

/// `tensor.numpy()`.
bool is_of_tensor(const ArrayStandIn& array) {
  static constinit Imported method("torch._C", "TensorBase.numpy");
  return array.maker == method.get();
}

}  // namespace

bool NumpyCapture::is_own(const ArrayStandIn& array) const {
  return array.maker && !is_of_tensor(array) && parent_of(array) == array.tensor;
}

void NumpyCapture::require_writable(PyObject* array) {
  const auto refuse = [&](const char* why) { c.side_exit(BreakReason::Mutation, why); };
  const Ref held = stand_in_for(array);
  const ArrayStandIn& target = stand_in_of(held.get());
  if (target.is_number || !is_writable(target.sample)) refuse("an array of NumPy is written that may not be");
  const ArrayStandIn* root = &target;
  while (is_array_stand_in(parent_of(*root))) root = &stand_in_of(parent_of(*root));
  if (!root->maker || is_of_tensor(*root)) {
    // NumPy's writes are none to autograd, which the operator's would be.
    const auto requires_grad = [](const graph::Value& value) { return value.meta.requires_grad; };
    if (std::ranges::any_of(c.graph.values, requires_grad)) refuse("an array is written beside gradients");
    return;
  }
  if (root != &target) refuse("a view of an array is written that NumPy has made in the segment");
  for (const auto& [tensor, of] : array_by_tensor) {
    if (of.get() == array) refuse("an array is written that a tensor lies over");
  }
  const auto is_alive = [](const Ref& view) { return Py_REFCNT(view.get()) > 1; };
  const auto views = views_.find(array);
  if (views != views_.end() && std::ranges::any_of(views->second, is_alive)) {
    refuse("an array with views is written that NumPy has made in the segment");
  }
}

void NumpyCapture::overwrite(PyObject* array, PyObject* fresh) {
  const Ref held = stand_in_for(array);
  ArrayStandIn& target = stand_in_of(held.get());
  const ArrayStandIn& source = stand_in_of(fresh);
  const at::Tensor &to = unpack_tensor(target.tensor), &from = unpack_tensor(source.tensor);
  const bool made_here = is_own(target);
  if (to.sizes() != from.sizes() || to.scalar_type() != from.scalar_type() ||
      (made_here && (target.maker != source.maker || to.strides() != from.strides()))) {
    c.side_exit(BreakReason::Mutation, "an array of NumPy is written");
  }
  if (!made_here) {
    static constinit Imported copy("torch._C", "TensorBase.copy_");
    c.torch.call_torch(copy.get(), {{target.tensor, source.tensor}});
    return;
  }
  ++c.overlays.writes;  // no branch may do so
  Py_SETREF(target.tensor, Py_NewRef(source.tensor));
  Py_SETREF(target.parents, Py_NewRef(source.parents));
}

void NumpyCapture::write_item(PyObject* array, PyObject* given, PyObject* value) {
  require_writable(array);
  // A tuple from outside, as one on the stack behind an exit is: what is in it is guarded.
  const Ref read = PyTuple_CheckExact(given) ? c.containers.resolve(given) : Ref::borrow(given);
  PyObject* const key = read.get();
  const Ref held = stand_in_for(array);
  if (is_basic_key(key) && !is_own(stand_in_of(held.get()))) {
    const Ref view = item(array, key_of_view(key).get());
    overwrite(view.get(), operation({value, view.get()}, "(lambda v: v.__setitem__(..., $) or v)($.copy('K'))").get());
    return;
  }
  overwrite(array, operation({key, value, array}, "(lambda v: v.__setitem__($, $) or v)($.copy('K'))").get());
}

void NumpyCapture::replace(PyObject* array, const std::function<Ref()>& compute) {
  require_writable(array);
  overwrite(array, compute().get());
}

Ref NumpyCapture::write_operator(PyObject* array, const std::string& method, PyObject* other) {
  require_writable(array);
  overwrite(array, operation({array, other}, "$.copy('K').__" + method + "__($)").get());
  return Ref::borrow(array);
}

bool NumpyCapture::is_written(const ArrayStandIn& array) const {
  const auto root_of = [](const ArrayStandIn* each) {
    while (is_array_stand_in(PyTuple_GET_ITEM(each->parents, 0))) {
      each = &stand_in_of(PyTuple_GET_ITEM(each->parents, 0));
    }
    return each;
  };
  return std::ranges::any_of(array_by_tensor, [&](const auto& made) {
    return is_array_stand_in(made.second.get()) && root_of(&stand_in_of(made.second.get())) == &array &&
           (unpack_tensor(made.first).is_inference() || unpack_tensor(made.first)._version() != 0);
  });
}

}  // namespace magneto::capture
