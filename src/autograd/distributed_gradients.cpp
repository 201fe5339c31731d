#include "autograd/distributed_gradients.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include "fake/class_dispatch.h"
#include "python/dtensor.h"
#include "python/imported.h"
#include "python/ref.h"
#include "support/gil.h"
#include "support/tensor_object.h"

namespace magneto::autograd {

namespace {

/// What the function of magneto._dtensor gives; undefined: None.
at::Tensor call(PyObject* function, std::initializer_list<at::Tensor> tensors) {
  std::vector<Ref> objects;
  std::vector<PyObject*> args;
  for (const at::Tensor& tensor : tensors) {
    objects.push_back(checked(tensor_object(tensor)));
    args.push_back(objects.back().get());
  }
  const Ref result = checked(PyObject_Vectorcall(function, args.data(), args.size(), nullptr));
  return result.get() == Py_None ? at::Tensor() : unpack_tensor(result.get());
}

}  // namespace

bool is_dtensor(const at::Tensor& tensor) {
  if (!tensor.defined() || !fake::has_class_dispatch(tensor)) return false;
  const WithGil gil;
  return magneto::is_dtensor(Py_TYPE(checked(tensor_object(tensor)).get()));
}

at::Tensor local_gradient(const at::Tensor& gradient, const torch::autograd::Edge& leaf) {
  const auto* end = dynamic_cast<const torch::autograd::AccumulateGrad*>(leaf.function.get());
  if (!end || !is_dtensor(gradient) || !is_dtensor(end->variable)) return {};
  const WithGil gil;
  static constinit Imported function("magneto._dtensor", "local_gradient");
  return call(function.get(), {gradient, end->variable});
}

torch::autograd::Edge edge_of_local(const at::Tensor& distributed) {
  const WithGil gil;
  static constinit Imported function("magneto._dtensor", "local_with_history");
  return torch::autograd::impl::gradient_edge(call(function.get(), {distributed}));
}

}  // namespace magneto::autograd
