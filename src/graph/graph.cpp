// Temporary: what src/fake/ needs until the graph's own file is merged.
#include "graph/graph.h"

namespace magneto::graph {

ValueId Graph::add_input(std::string name, TensorMeta meta) {
  const ValueId id = static_cast<ValueId>(values.size());
  values.push_back({.kind = ValueKind::Input, .meta = std::move(meta), .name = std::move(name)});
  inputs.push_back(id);
  return id;
}

ValueId Graph::add_constant(at::Tensor tensor) {
  const ValueId id = static_cast<ValueId>(values.size());
  values.push_back({.kind = ValueKind::Constant, .meta = meta_of(tensor), .constant = std::move(tensor)});
  return id;
}

ValueId Graph::add_result(TensorMeta meta, int32_t producer) {
  const ValueId id = static_cast<ValueId>(values.size());
  values.push_back({.kind = ValueKind::Result, .meta = std::move(meta), .producer = producer});
  return id;
}

TensorMeta meta_of(const at::Tensor& tensor) {
  return {.dtype = tensor.scalar_type(),
          .device = tensor.device(),
          .sizes = tensor.sizes().vec(),
          .strides = tensor.strides().vec(),
          .storage_offset = tensor.storage_offset(),
          .requires_grad = tensor.requires_grad()};
}

}  // namespace magneto::graph
