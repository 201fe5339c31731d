// Results of which others consist, where these consist of what is inside, too.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <vector>

#include "autograd/joint.h"

namespace magneto::runtime {

/// Raises where such a result has a hook: what it has been given is a part of the gradient. `defined`: by root, whether
/// it has one.
void refuse_hooks(torch::autograd::Node& node, const autograd::Backward& backward, const std::vector<bool>& defined);

}  // namespace magneto::runtime
