// How this PyTorch owns the nodes of the autograd graph: std::shared_ptr once, c10::intrusive_ptr since 2.12 or so.
#pragma once

#include <torch/csrc/autograd/edge.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace magneto {

using NodePointer = decltype(torch::autograd::Edge::function);

/// A new node; as an edge takes it.
template <typename Node, typename Pointer = NodePointer, typename... Args>
auto make_autograd_node(Args&&... args) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<Node>(std::forward<Args>(args)...);
  } else {
    return c10::make_intrusive<Node>(std::forward<Args>(args)...);
  }
}

}  // namespace magneto
