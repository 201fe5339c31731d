// What stands in the way of backwards that the engine has run on stand-ins.
#include <algorithm>

#include "autograd/joint.h"
#include "fake/sparse_gradients.h"

namespace magneto::autograd {

/// Where the groups' backwards become one, it would add up sparse gradients.
bool JointTrace::adds_sparse() const {
  for (size_t leaf = 0; leaf < leaves_.size(); ++leaf) {
    size_t groups = 0, sparse = 0;
    for (const Group& group : groups_) {
      const graph::ValueId gradient = group.gradients[leaf];
      if (gradient == graph::kNoValue) continue;
      ++groups;
      sparse += static_cast<size_t>(fake::is_sparse_gradient(*graph_, gradient));
    }
    if (groups > 1 && sparse > 0) return true;
  }
  return false;
}

/// A result with a hook of the run's that autograd would not call as in eager: without all of the gradient, or where
/// there is none. kNoValue: there is none.
graph::ValueId JointTrace::hidden_hook() const {
  const size_t computed = results_.computed.size();
  for (size_t root = 0; root < roots_.size() && !results_.hooked.empty(); ++root) {
    const graph::ValueId value = roots_[root] < computed ? results_.computed[roots_[root]].value : graph::kNoValue;
    if (!results_.hooked.contains(value)) continue;
    if (results_.computed[roots_[root]].is_base) return value;
    if (std::ranges::any_of(inside_, [&](const auto& pair) { return pair.first == root; })) return value;
    for (const Group& group : groups_) {
      if (group.roots.size() > 1 && std::ranges::count(group.roots, root) > 0) return value;
      for (size_t leaf = 0; leaf < leaves_.size(); ++leaf) {
        if (leaves_[leaf].root != root) continue;
        const auto reaches = [&](size_t outer) { return reaches_[outer][leaf]; };
        const auto from = std::ranges::count_if(group.roots, reaches);
        const bool given = group.gradients[leaf] != graph::kNoValue;
        if (given ? from != std::ssize(group.roots) : from > 0) return value;
      }
    }
  }
  return graph::kNoValue;
}

}  // namespace magneto::autograd
