// torch.Tensor(...), torch.FloatTensor(...) and their like: older constructors, which take sizes or data.
#include <Python.h>

#include <algorithm>
#include <cstring>

#include "capture/calls/calls.h"
#include "capture/capture.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/attributes.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

/// The dtype that a class makes tensors of, for a CPU's dense ones. Null: no such class.
Ref dtype_made(Capture& capture, PyTypeObject* type) {
  static constinit Imported default_dtype("torch", "get_default_dtype"), strided("torch", "strided");
  PyObject* object = reinterpret_cast<PyObject*>(type);
  if (object == tensor_class()) return capture.calls.call(default_dtype.get(), {});
  if (std::strcmp(Py_TYPE(object)->tp_name, "torch.tensortype") != 0) return {};
  const Ref layout = checked(PyObject_GetAttrString(object, "layout"));
  const Ref is_cuda = checked(PyObject_GetAttrString(object, "is_cuda"));
  const bool plain = layout.get() == strided.get() && is_cuda.get() == Py_False;
  return plain ? checked(PyObject_GetAttrString(object, "dtype")) : Ref();
}

bool is_whole_number(PyObject* object) { return PyLong_CheckExact(number_now(object)); }

bool holds_numbers(PyObject* object) {
  return PyList_Check(object) || (PyTuple_Check(object) && Py_TYPE(object) != size_class()) || PyRange_Check(object);
}

}  // namespace

Ref TorchCalls::legacy_tensor(PyTypeObject* type, const CallArgs& args) {
  static constinit Imported empty("torch", "empty"), as_tensor("torch", "as_tensor");
  static PyObject* const dtype_name = checked(Py_BuildValue("(s)", "dtype")).release();
  const std::vector<PyObject*>& values = args.values;
  if (args.kwnames) return {};
  const bool array = values.size() == 1 && is_array(values[0]);
  const bool data = values.size() == 1 && holds_numbers(values[0]);
  const bool sizes =
      std::ranges::all_of(values, is_whole_number) || (values.size() == 1 && Py_TYPE(values[0]) == size_class());
  if (!array && !data && !sizes) return {};
  const Ref dtype = dtype_made(c, type);
  if (!dtype) return {};
  if (array) {  // one that has the dtype shares its memory
    static PyObject* const to = PyObject_GetAttrString(tensor_class(), "to");
    const Ref shared = c.calls.call(as_tensor.get(), CallArgs{{values[0]}});
    return c.calls.call(to, CallArgs{{shared.get(), dtype.get()}});
  }
  CallArgs given{values, dtype_name};
  const Ref none = checked(PyLong_FromLong(0));
  if (values.empty()) given.values.push_back(none.get());
  given.values.push_back(dtype.get());
  return c.calls.call(data ? as_tensor.get() : empty.get(), std::move(given));
}

}  // namespace magneto::capture
