// Nodes of the autograd graph that are custom functions.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <string_view>
#include <typeinfo>

namespace magneto::autograd {

/// The node is written in Python. (PyTorch does not export its class.)
inline bool is_python(const torch::autograd::Node& node) {
  return std::string_view(typeid(node).name()).find("6PyNode") != std::string_view::npos;
}

}  // namespace magneto::autograd
