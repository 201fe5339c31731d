#include "fake/sparse_gradients.h"

#include <ATen/ops/_embedding_bag_backward_ops.h>
#include <ATen/ops/embedding_sparse_backward_ops.h>

#include <algorithm>
#include <utility>

#include "fake/dispatch_key.h"
#include "fake/fake_impl.h"
#include "fake/operator_facts.h"
#include "graph/aliases.h"
#include "ops/kinds.h"

namespace magneto::fake {

namespace {

thread_local bool takes_sparse = false;

constexpr c10::DispatchKeySet kBelowFirst(c10::DispatchKeySet::FULL_AFTER, kFirstKey);

/// That such a gradient can't be scaled by frequencies, PyTorch says.
bool is_taken(const at::Tensor& gradient, bool scale_grad_by_freq) {
  return takes_sparse && as_fake(gradient) && !scale_grad_by_freq;
}

at::Tensor of_embedding(c10::DispatchKeySet keys, const at::Tensor& gradient, const at::Tensor& indices,
                        int64_t num_weights, int64_t padding_idx, bool scale_grad_by_freq) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("magneto::embedding_sparse_backward", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t, int64_t)>();
  if (is_taken(gradient, scale_grad_by_freq)) return op.call(gradient, indices, num_weights, padding_idx);
  return at::_ops::embedding_sparse_backward::redispatch(keys & kBelowFirst, gradient, indices, num_weights,
                                                         padding_idx, scale_grad_by_freq);
}

at::Tensor of_bags(c10::DispatchKeySet keys, const at::Tensor& gradient, const at::Tensor& indices,
                   const at::Tensor& offsets, const at::Tensor& offset2bag, const at::Tensor& bag_size,
                   const at::Tensor& maximum_indices, c10::SymInt num_weights, bool scale_grad_by_freq, int64_t mode,
                   bool sparse, const std::optional<at::Tensor>& per_sample_weights, int64_t padding_idx) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("magneto::embedding_bag_sparse_backward", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                               const at::Tensor&, const at::Tensor&, const at::Tensor&, c10::SymInt,
                                               int64_t, const std::optional<at::Tensor>&, int64_t)>();
  if (sparse && is_taken(gradient, scale_grad_by_freq)) {
    return op.call(gradient, indices, offsets, offset2bag, bag_size, maximum_indices, std::move(num_weights), mode,
                   per_sample_weights, padding_idx);
  }
  return at::_ops::_embedding_bag_backward::redispatch(
      keys & kBelowFirst, gradient, indices, offsets, offset2bag, bag_size, maximum_indices, std::move(num_weights),
      scale_grad_by_freq, mode, sparse, per_sample_weights, padding_idx);
}

}  // namespace

TakesSparseGradients::TakesSparseGradients() : before_(std::exchange(takes_sparse, true)) {}
TakesSparseGradients::~TakesSparseGradients() { takes_sparse = before_; }

bool is_sparse_gradient(const graph::Graph& graph, graph::ValueId id) {
  const int32_t producer = graph.values[id].producer;
  return producer >= 0 && ops::is_kind(ops::operator_of(graph.aten_nodes[producer].op), ops::gives_sparse);
}

std::string reads_sparse_gradient(const graph::Graph& graph, size_t first) {
  for (size_t i = first; i < graph.aten_nodes.size(); ++i) {
    bool reads = false;
    graph::for_each_operand(graph.aten_nodes[i], [&](graph::ValueId id) { reads |= is_sparse_gradient(graph, id); });
    if (reads) return operator_name(graph.aten_nodes[i].op) + " reads the sparse gradient of an embedding";
  }
  return {};
}

void register_sparse_gradients(torch::Library& whole) {
  whole.impl("embedding_sparse_backward", TORCH_FN(of_embedding));
  whole.impl("_embedding_bag_backward", TORCH_FN(of_bags));
}

}  // namespace magneto::fake
