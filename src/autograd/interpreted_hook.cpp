#include "autograd/interpreted_hook.h"

#include <algorithm>
#include <stdexcept>

#include "support/gil.h"
#include "support/tensor_object.h"

namespace magneto::autograd {

InterpretedHook::~InterpretedHook() {
  const WithGil gil;
  function_ = Ref();
}

torch::autograd::variable_list InterpretedHook::operator()(const torch::autograd::variable_list& gradients) {
  const WithGil gil;
  torch::autograd::variable_list results = gradients;
  at::Tensor& gradient = results.at(output_);
  const Ref given = gradient.defined() ? checked(tensor_object(gradient)) : Ref::borrow(Py_None);
  const Ref result = Ref::steal(PyObject_CallOneArg(function_.get(), given.get()));
  if (!result) {
    PyErr_Clear();
    throw std::runtime_error("it raises an exception");
  }
  if (result.get() == Py_None) return results;
  if (!is_tensor_object(result.get())) throw std::runtime_error("it gives no tensor");
  const at::Tensor& other = unpack_tensor(result.get());
  const bool fits = gradient.defined() && other.sym_sizes() == gradient.sym_sizes() &&
                    other.scalar_type() == gradient.scalar_type() && other.device() == gradient.device();
  if (!fits) throw std::runtime_error("it gives another kind of tensor than it is given");
  gradient = other;
  return results;
}

bool has_interpreted_hooks_alone(torch::autograd::Node& node) {
  const auto is_interpreted = [](const auto& hook) { return dynamic_cast<InterpretedHook*>(hook.get()) != nullptr; };
  return node.pre_hooks().empty() && node.post_hooks().empty() && node.retains_grad_hooks().empty() &&
         std::ranges::all_of(node.tensor_pre_hooks(), is_interpreted);
}

}  // namespace magneto::autograd
