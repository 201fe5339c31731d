#include "fake/sized_input.h"

#include <algorithm>
#include <numeric>

#include "fake/session.h"
#include "fake/size_node.h"
#include "graph/symbols.h"

namespace magneto::fake {

std::vector<shapes::Expr> strides_in(const at::Tensor& real, const std::vector<shapes::Expr>& sizes) {
  std::vector<int64_t> order(sizes.size());
  std::iota(order.rbegin(), order.rend(), 0);
  std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return real.stride(a) < real.stride(b); });
  std::vector<shapes::Expr> strides(sizes.size());
  shapes::Expr next = 1;
  int64_t now = 1;
  for (const int64_t dim : order) {
    strides[dim] = real.stride(dim) == now ? next : shapes::Expr(real.stride(dim));
    if (real.stride(dim) == 0) continue;
    next = strides[dim] * sizes[dim];
    now = real.stride(dim) * real.size(dim);
  }
  return strides;
}

at::Tensor make_sized_input(Session& session, const at::Tensor& real, std::string name,
                            graph::SymbolicGeometry geometry) {
  at::Tensor tensor = session.make_input(real, std::move(name));
  Session::Impl& impl = session.impl();
  auto symbolic = std::make_shared<FakeImpl::Symbolic>();
  symbolic->sizes = to_symints(impl.state, geometry.sizes);
  symbolic->strides = to_symints(impl.state, geometry.strides);
  symbolic->offset = to_symint(impl.state, geometry.storage_offset);
  as_fake(tensor)->set_symbolic(std::move(symbolic));
  impl.graph.values[session.value_of(tensor)].meta.symbolic = std::move(geometry);
  return tensor;
}

std::set<int32_t> settle_sizes(Session& session, graph::Graph& graph) {
  shapes::Environment& environment = session.sizes();
  std::set<int32_t> used;
  graph::for_each_size(graph, [&](shapes::Expr& size) {
    size = environment.original(environment.simplified(size));
    shapes::any_leaf(size, [&](shapes::Expr leaf) {
      used.insert(leaf.id());
      return false;
    });
  });
  graph::fold_numbers(graph);
  return used;
}

}  // namespace magneto::fake
