#include "runtime/program/numpy_calls.h"

#include <ATen/ops/as_strided.h>
#include <torch/library.h>

#include <algorithm>
#include <unordered_map>

#include "guards/array.h"
#include "python/imported.h"
#include "runtime/plan/torch_errors.h"
#include "support/tensor_object.h"

namespace magneto::runtime {

namespace {

struct Call {
  Ref function, checked;
};

/// By text, which the number of arrays follows from. Needs the GIL.
const Call& call_of(const std::string& text, size_t arrays) {
  static auto* known = new std::unordered_map<std::string, Call>;
  if (const auto found = known->find(text); found != known->end()) return found->second;
  static constinit Imported make("magneto._numpy", "function"), check("magneto._numpy", "checked");
  Call call;
  call.function = checked(PyObject_CallFunction(make.get(), "sn", text.c_str(), static_cast<Py_ssize_t>(arrays)));
  call.checked = checked(PyObject_CallOneArg(check.get(), call.function.get()));
  return known->emplace(text, std::move(call)).first->second;
}

/// What lies in the memory of an operand, which eager's has other strides than, would change with it.
Ref call_on_tensors(const std::string& text, at::TensorList operands) {
  std::vector<Ref> arrays;
  std::vector<PyObject*> args;
  for (const at::Tensor& operand : operands) args.push_back(arrays.emplace_back(array_of_tensor(operand)).get());
  PyObject* const function = call_of(text, operands.size()).checked.get();
  Ref result = checked(PyObject_Vectorcall(function, args.data(), args.size(), nullptr));
  const bool shared = guards::is_array(result.get()) && std::ranges::any_of(args, [&](PyObject* array) {
                        return guards::shares_memory(result.get(), array);
                      });
  return shared ? checked(PyObject_CallMethod(result.get(), "copy", nullptr)) : std::move(result);
}

/// A call of NumPy that gives a new array, of this layout.
at::Tensor numpy(std::string call, at::TensorList operands, at::IntArrayRef size, at::IntArrayRef stride,
                 at::ScalarType dtype) {
  at::Tensor result;
  with_python([&] {
    Ref array = call_on_tensors(call, operands);
    if (guards::is_array(array.get()) && guards::layout_of(array.get())) {
      result = guards::tensor_of_array(array.get());
    }
  });
  TORCH_CHECK(result.defined() && result.sizes() == size && result.strides() == stride && result.scalar_type() == dtype,
              "magneto::numpy: ", call, " gave an array of another layout");
  return result;
}

/// What shares memory with `self`, as NumPy's views do; the offset counts from its first item.
at::Tensor view_as(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride, int64_t offset) {
  return at::as_strided(self, size, stride, self.storage_offset() + offset);
}

TORCH_LIBRARY_FRAGMENT(magneto, library) {
  library.def("numpy(str call, Tensor[] operands, int[] size, int[] stride, ScalarType dtype) -> Tensor");
  library.impl("numpy", c10::DispatchKey::CompositeExplicitAutograd, numpy);
  library.def("view_as(Tensor(a) self, int[] size, int[] stride, int offset) -> Tensor(a)");
  library.impl("view_as", c10::DispatchKey::CompositeExplicitAutograd, view_as);
}

template <typename Function>
PyObject* guarded(const Function& function) {
  try {
    return function().release();
  } catch (const PythonError&) {
    return nullptr;
  }
}

PyObject* array_of(PyObject*, PyObject* tensor) {
  return guarded([&] { return array_of_tensor(unpack_tensor(tensor)); });
}

PyObject* number_of(PyObject*, PyObject* tensor) {
  return guarded([&] {
    Ref array = array_of_tensor(unpack_tensor(tensor));
    Ref all = checked(PyTuple_New(0));
    return checked(PyObject_GetItem(array.get(), all.get()));
  });
}

PyObject* tensor_of(PyObject*, PyObject* array) { return tensor_object(guards::tensor_of_array(array)); }

}  // namespace

PyMethodDef kArrayOfTensor = {"array_of_tensor", array_of, METH_O, "The array of NumPy that a tensor stands for."};
PyMethodDef kNumberOfTensor = {"number_of_tensor", number_of, METH_O, "The number of NumPy that a tensor stands for."};
PyMethodDef kTensorOfArray = {"tensor_of_array", tensor_of, METH_O, "The tensor over an array's memory."};

PyObject* numpy_function(const std::string& call, size_t arrays) { return call_of(call, arrays).function.get(); }

Ref array_of_tensor(const at::Tensor& tensor) {
  if (PyObject* array = guards::array_under(tensor)) return Ref::borrow(array);
  static constinit Imported method("torch._C", "TensorBase.numpy");
  Ref object = checked(tensor_object(tensor));
  return checked(PyObject_CallOneArg(method.get(), object.get()));
}

}  // namespace magneto::runtime
