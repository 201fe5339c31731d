// A hook on a gradient (Tensor.register_hook) that a capture interprets when it runs autograd's engine on stand-ins.
#pragma once

#include <Python.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <utility>

#include "python/ref.h"

namespace magneto::autograd {

class InterpretedHook final : public torch::autograd::FunctionPreHook {
 public:
  InterpretedHook(Ref function, uint32_t output) : function_(std::move(function)), output_(output) {}
  ~InterpretedHook() override;

  /// Throws where the program's function raises, or gives what autograd would refuse.
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override;

 private:
  Ref function_;
  uint32_t output_;
};

/// No other hooks see what the node is given, or gives.
bool has_interpreted_hooks_alone(torch::autograd::Node& node);

}  // namespace magneto::autograd
