// Sizes and strides of views that a pass makes anew, asked of the view operators' own kernels.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace magneto::passes {

/// The results of view operator `node` on a first argument of type `source`. Throws Unsupported if PyTorch refuses it.
std::vector<graph::TensorMeta> view_metas(const graph::AtenNode& node, const graph::TensorMeta& source);

/// `meta` as a tensor of its own with contiguous strides.
graph::TensorMeta row_major(graph::TensorMeta meta);

/// `meta` as a tensor of its own has it: the same order of strides, no gaps, no overlap.
graph::TensorMeta dense(graph::TensorMeta meta);

/// The IValue that boxed calls want for an argument of that type, made of tensors that `tensor` gives.
template <typename Tensor>
c10::IValue boxed(const graph::AtenArg& arg, const c10::Type& type, Tensor tensor) {
  if (const auto* constant = std::get_if<c10::IValue>(&arg)) return *constant;
  if (const auto* id = std::get_if<graph::ValueId>(&arg)) {
    if (*id != graph::kNoValue) return tensor(*id);
    return type.kind() == c10::TypeKind::OptionalType ? c10::IValue() : c10::IValue(at::Tensor());
  }
  const c10::Type* list = &type;
  while (list->kind() == c10::TypeKind::OptionalType) list = list->castRaw<c10::OptionalType>()->getElementType().get();
  const auto& ids = std::get<std::vector<graph::ValueId>>(arg);
  if (list->castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::OptionalType) {
    c10::List<std::optional<at::Tensor>> items;
    for (const graph::ValueId id : ids) {
      items.push_back(id == graph::kNoValue ? std::nullopt : std::optional<at::Tensor>(tensor(id)));
    }
    return items;
  }
  c10::List<at::Tensor> items;
  for (const graph::ValueId id : ids) items.push_back(id == graph::kNoValue ? at::Tensor() : tensor(id));
  return items;
}

/// The same geometry, strides of dimensions of size one aside.
bool lies_alike(const graph::TensorMeta& a, const graph::TensorMeta& b);

}  // namespace magneto::passes
