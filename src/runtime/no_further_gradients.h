// Gradients that were asked for with gradients (create_graph=True), where a program has none.
#pragma once

#include <torch/csrc/autograd/variable.h>

namespace magneto::runtime {

/// Gives the gradients a history that leads to `ends`, so that whoever never differentiates them has what eager gives.
/// A backward through it raises NotImplementedError.
void refuse_further_gradients(torch::autograd::variable_list& gradients, const torch::autograd::variable_list& ends);

}  // namespace magneto::runtime
