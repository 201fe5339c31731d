// Backwards inside DistributedDataParallel, cut where the gradients of a bucket are complete.
//
// DDP exchanges gradients in buckets, each as soon as all of its gradients have been accumulated. A backward that is
// one node of autograd's graph gives all of them at its end, when nothing is left to run meanwhile. So its graph is
// cut, in its own order, where the gradients that are complete fill a bucket, and the parts are nodes of their own
// (runtime/gradient_chain.h). Buckets are filled in the order in which gradients come, which DDP notes in the first
// step and keeps to from the second one on. Where is a matter of the graph and of DDP's limits alone: ranks cut alike.
#pragma once

#include <set>
#include <vector>

#include "autograd/joint.h"

namespace magneto::autograd {

/// Of one DistributedDataParallel.
struct Buckets {
  /// Bytes of the first one, the second one, ...; the last number holds for all further ones.
  std::vector<int64_t> limits;
  /// Those of the forward's inputs that are its parameters.
  std::set<graph::ValueId> parameters;
};

/// Sets where the joint graph's backwards are cut. `forward`: the graph that they belong to.
void cut_at_buckets(const graph::Graph& forward, const std::vector<Buckets>& all, Joint& joint);

}  // namespace magneto::autograd
