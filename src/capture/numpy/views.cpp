// Views of NumPy's arrays. One is a view in the graph as well, where a tensor can show it: one of fewer rows, or of
// other strides. Others (`a[::-1]`, `a.imag`) have no tensor: what is computed with them is written down with the text
// that makes them of the nearest array that has one. Where the segment hands a view on, NumPy makes it again by the
// same call: its base, its flags and whose memory it is are eager's.
#include "capture/capture.h"
#include "capture/numpy/arrays.h"
#include "capture/numpy/numpy_capture.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/world.h"
#include "guards/array.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

PyObject* parent_of(const ArrayStandIn& array) { return PyTuple_GET_ITEM(array.parents, 0); }

bool is_of_tensor(const ArrayStandIn& array) {
  static constinit Imported method("torch._C", "TensorBase.numpy");
  return array.maker == method.get();
}

const ArrayStandIn& root_of(const ArrayStandIn& array) {
  const ArrayStandIn* each = &array;
  while (is_array_stand_in(parent_of(*each))) each = &stand_in_of(parent_of(*each));
  return *each;
}

bool is_own(const ArrayStandIn& array) {
  return array.maker && !is_of_tensor(array) && parent_of(array) == array.tensor;
}

namespace {

/// The same view of another tensor, that an array of this layout is of `of`.
Ref view_of_tensor(Capture& c, const at::Tensor& tensor, PyObject* view, PyObject* of) {
  static constinit Imported function("torch", "ops.magneto.view_as.default");
  const at::Tensor like = guards::tensor_of_array(view);
  Ref sizes = checked(PyTuple_New(like.dim())), strides = checked(PyTuple_New(like.dim()));
  for (int64_t i = 0; i < like.dim(); ++i) {
    PyTuple_SET_ITEM(sizes.get(), i, checked(PyLong_FromLongLong(like.size(i))).release());
    PyTuple_SET_ITEM(strides.get(), i, checked(PyLong_FromLongLong(like.stride(i))).release());
  }
  const auto item = static_cast<int64_t>(like.element_size());
  Ref offset = checked(PyLong_FromLongLong(guards::offset_between(view, of) / item)),
      base = checked(tensor_object(tensor));
  return c.torch.call_torch(function.get(), {{base.get(), sizes.get(), strides.get(), offset.get()}});
}

/// An array of its own with the same contents.
Ref copy_of(PyObject* stand_in) { return checked(PyObject_CallMethod(stand_in_of(stand_in).sample, "copy", "s", "K")); }

}  // namespace

Ref NumpyCapture::view_of(const NumpyCall& call, PyObject* function, Ref sample) {
  PyObject* const parent = call.arrays[0].get();
  Ref made = make_stand_in(Ref(), std::move(sample), function, checked(PyTuple_Pack(1, parent)));
  ArrayStandIn& view = stand_in_of(made.get());
  view.text = checked(PyUnicode_FromString(call.text.c_str())).release();
  view.known = is_known(parent);
  show(view);
  if (is_array_stand_in(parent)) views_[parent].push_back(made);
  return made;
}

void NumpyCapture::show(ArrayStandIn& view) {
  Py_CLEAR(view.tensor);
  Ref held = stand_in_for(parent_of(view));
  while (!stand_in_of(held.get()).tensor) held = stand_in_for(parent_of(stand_in_of(held.get())));
  const ArrayStandIn& carrier = stand_in_of(held.get());
  const at::Tensor& tensor = unpack_tensor(carrier.tensor);
  if (!guards::layout_of(view.sample)) return;
  if (guards::tensor_of_array(view.sample).scalar_type() != tensor.scalar_type()) return;
  view.tensor = view_of_tensor(c, tensor, view.sample, carrier.sample).release();
}

void NumpyCapture::update_views(PyObject* array) {
  const auto found = views_.find(array);
  if (found == views_.end()) return;
  // Nobody can ask for one that is referred to here alone.
  std::erase_if(found->second,
                [&](const Ref& view) { return Py_REFCNT(view.get()) == 1 && !views_.count(view.get()); });
  const std::vector<Ref> views = found->second;
  for (const Ref& held : views) {
    ArrayStandIn& view = stand_in_of(held.get());
    const ArrayStandIn& parent = stand_in_of(array);
    Ref sample;
    c.run_suspended([&] { sample = Ref::steal(PyObject_CallOneArg(view.maker, parent.sample)); });
    if (!sample) throw PythonError{};
    Py_SETREF(view.sample, sample.release());
    view.known = parent.known;
    view.exposed = false;
    show(view);
    update_views(held.get());
  }
}

NumpyCall NumpyCapture::with_tensors(const NumpyCall& call) {
  NumpyCall made{"", {}, call.filled};
  std::string names, values;
  bool changed = false;
  for (size_t i = 0; i < call.arrays.size(); ++i) {
    const std::string name = "a" + std::to_string(i);
    Ref array = stand_in_for(call.arrays[i].get());
    std::string value = "$";
    for (; !stand_in_of(array.get()).tensor; array = stand_in_for(parent_of(stand_in_of(array.get())))) {
      const std::string text = PyUnicode_AsUTF8(stand_in_of(array.get()).text);
      value.replace(value.find('$'), 1, "(lambda a0: " + text + ")($)");
      changed = true;
    }
    value.replace(value.find('$'), 1, name);
    names += (i ? ", " : "") + name;
    values += (i ? ", " : "") + value;
    made.arrays.push_back(array);
  }
  made.text = changed ? "(lambda " + names + ": " + call.text + ")(" + values + ")" : call.text;
  return made;
}

Ref NumpyCapture::contents_of(PyObject* array) {
  Ref held = stand_in_for(array);
  const ArrayStandIn& view = stand_in_of(held.get());
  if (!guards::layout_of(view.sample))
    c.side_exit(BreakReason::OpaqueObject, "PyTorch is given a view that goes backwards");
  if (!view.tensor) held = result_in_graph({"a0.copy('K')", {held}}, copy_of(held.get()), false);
  return Ref::borrow(stand_in_of(held.get()).tensor);
}

/// The parts of complex numbers; PyTorch refuses a view that goes backwards.
Ref NumpyCapture::tensor_of_view(PyObject* array) {
  const ArrayStandIn& view = stand_in_of(array);
  Ref held = stand_in_for(parent_of(view));
  while (!stand_in_of(held.get()).tensor) held = stand_in_for(parent_of(stand_in_of(held.get())));
  const ArrayStandIn& carrier = stand_in_of(held.get());
  const at::Tensor& whole = unpack_tensor(carrier.tensor);
  if (!whole.is_complex() || !guards::layout_of(view.sample) ||
      guards::tensor_of_array(view.sample).scalar_type() != c10::toRealValueType(whole.scalar_type())) {
    c.side_exit(BreakReason::OpaqueObject, "a tensor over an array whose memory no tensor can show");
  }
  static constinit Imported function("torch", "view_as_real");
  const Ref parts = c.torch.call_torch(function.get(), {{carrier.tensor}});
  const Ref tensor = view_of_tensor(c, unpack_tensor(parts.get()), view.sample, carrier.sample);
  array_by_tensor[tensor.get()] = Ref::borrow(array);
  c.world.keep(tensor);
  return tensor;
}

}  // namespace magneto::capture
