// Results of which others consist, where these consist of what is inside, too.
#pragma once

#include <vector>

#include "autograd/joint.h"
#include "autograd/root_node.h"

namespace magneto::runtime {

/// Raises where such a result has a hook: what it has been given is a part of the gradient. `defined`: by root, whether
/// it has one.
void refuse_hooks(const autograd::RootHooks& hooks, const autograd::Backward& backward,
                  const std::vector<bool>& defined);

}  // namespace magneto::runtime
