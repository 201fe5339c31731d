// A node of autograd's graph whose backward is a graph of ours: what a larger backward takes in.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <string>

#include "autograd/joint.h"

namespace magneto::autograd {

class CompiledNode : public torch::autograd::Node {
 public:
  using Node::Node;

  /// Not empty: why its backward can't be a part of another one.
  virtual std::string why_apart() const = 0;
  /// It gives some of its gradients, and other nodes (ContinuingNode) the rest: it is called, so that these do so in
  /// their time.
  virtual bool is_cut() const = 0;
  /// Its graph; lives as long as `owner`.
  virtual const Backward& backward() const = 0;
  virtual std::shared_ptr<const void> owner() const = 0;
  /// What that reads of the forward. Throws as its own backward would.
  virtual torch::autograd::variable_list saved_tensors() = 0;
};

/// Goes on with the backward of one that is cut in parts, and is called behind it.
class ContinuingNode : public torch::autograd::Node {
 public:
  using Node::Node;
};

}  // namespace magneto::autograd
