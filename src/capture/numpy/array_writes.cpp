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

bool owns_memory(PyObject* array) {
  Ref flags = checked(PyObject_GetAttrString(array, "flags"));
  return checked(PyObject_GetAttrString(flags.get(), "owndata")).get() == Py_True;
}

}  // namespace

void NumpyCapture::require_writable(PyObject* array) {
  const auto refuse = [&](const char* why) { c.side_exit(BreakReason::Mutation, why); };
  const Ref held = stand_in_for(array);
  const ArrayStandIn& target = stand_in_of(held.get());
  if (target.is_number || !is_writable(target.sample)) refuse("an array of NumPy is written that may not be");
  const ArrayStandIn& root = root_of(target);
  if (!is_own(root)) {
    // NumPy's writes are none to autograd, which the operator's would be.
    const auto requires_grad = [](const graph::Value& value) { return value.meta.requires_grad; };
    if (std::ranges::any_of(c.graph.values, requires_grad)) refuse("an array is written beside gradients");
    return;
  }
  for (const auto& [tensor, of] : array_by_tensor) {
    if (&root_of(stand_in_of(stand_in_for(of.get()).get())) == &root) {
      refuse("an array is written that a tensor lies over");
    }
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
  Py_SETREF(target.sample, Py_NewRef(source.sample));
  target.known = source.known;
  update_views(held.get());
}

void NumpyCapture::write(PyObject* array, NumpyCall call) {
  const Ref held = stand_in_for(array);
  const bool own = is_own(root_of(stand_in_of(held.get())));
  // What holds it is computed anew: the whole array that NumPy has made, else as much as a tensor shows.
  Ref base = held;
  std::vector<PyObject*> steps;
  while (own ? stand_in_of(base.get()).text != nullptr : !stand_in_of(base.get()).tensor) {
    steps.push_back(stand_in_of(base.get()).text);
    base = stand_in_for(parent_of(stand_in_of(base.get())));
  }
  std::string path = "r";
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    path = std::string("(lambda a0: ") + PyUnicode_AsUTF8(*step) + ")(" + path + ")";
  }
  // A result that shows the memory of another array still does.
  const bool owns = !is_own(stand_in_of(base.get())) || owns_memory(stand_in_of(base.get()).sample);
  const std::string name = "a" + std::to_string(call.arrays.size());
  const std::string copy = owns ? name + ".copy('K')" : "copy_of_view(" + name + ")";
  call.text = "(lambda r: (lambda v: (" + call.text + ", r)[1])(" + path + "))(" + copy + ")";
  call.arrays.push_back(base);
  overwrite(base.get(), run(call).get());
}

void NumpyCapture::write_item(PyObject* array, PyObject* given, PyObject* value) {
  require_writable(array);
  // A tuple from outside, as one on the stack behind an exit is: what is in it is guarded.
  const Ref read = PyTuple_CheckExact(given) ? c.containers.resolve(given) : Ref::borrow(given);
  PyObject* const key = read.get();
  const Ref held = stand_in_for(array);
  if (is_basic_key(key) && !is_own(root_of(stand_in_of(held.get())))) {
    const Ref view = item(array, key_of_view(key).get());
    return write(view.get(), as_call({value}, "v.__setitem__(..., $)"));
  }
  write(array, as_call({key, value}, "v.__setitem__($, $)"));
}

void NumpyCapture::replace(PyObject* array, const std::function<Ref()>& compute) {
  require_writable(array);
  const Ref fresh = compute();
  write(array, as_call({fresh.get()}, "v.__setitem__(..., $)"));
}

Ref NumpyCapture::write_operator(PyObject* array, const std::string& method, PyObject* other) {
  require_writable(array);
  // What changes no array in place is refused: `v` is not there.
  write(array, as_call({other}, "{'v': v}[{id(v): 'v'}[id(operator." + method + "(v, $))]]"));
  return Ref::borrow(array);
}

void NumpyCapture::set_attribute(PyObject* array, PyObject* name, PyObject* value) {
  static constexpr const char* contents[] = {"real", "imag", "flat"};
  const auto is_name = [&](const char* other) { return PyUnicode_CompareWithASCIIString(name, other) == 0; };
  if (!value || std::ranges::none_of(contents, is_name)) {
    c.side_exit(BreakReason::Mutation, "an attribute of an array of NumPy is set");
  }
  require_writable(array);
  write(array, as_call({value}, std::string("setattr(v, '") + PyUnicode_AsUTF8(name) + "', $)"));
}

bool NumpyCapture::is_written(const ArrayStandIn& array) const {
  return std::ranges::any_of(array_by_tensor, [&](const auto& made) {
    return is_array_stand_in(made.second.get()) && &root_of(stand_in_of(made.second.get())) == &array &&
           (unpack_tensor(made.first).is_inference() || unpack_tensor(made.first)._version() != 0);
  });
}

}  // namespace magneto::capture
