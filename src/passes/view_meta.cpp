#include "passes/view_meta.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/List.h>

#include <algorithm>
#include <numeric>

#include "fake/strides.h"
#include "graph/symbols.h"
#include "graph/text.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace magneto::passes {

using graph::AtenArg;
using graph::TensorMeta;
using graph::ValueId;

namespace {

/// A tensor without data.
at::Tensor stand_in(const TensorMeta& meta) {
  return at::detail::empty_strided_meta(meta.sizes, meta.strides, meta.dtype);
}

std::vector<TensorMeta> call(const c10::OperatorHandle& op, torch::jit::Stack stack, const TensorMeta* view_of) {
  try {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  } catch (const c10::Error& error) {
    throw Unsupported(graph::operator_text(op) + ": " + error.what_without_backtrace());
  }
  std::vector<TensorMeta> results;
  const auto add = [&](const at::Tensor& tensor) {
    TensorMeta meta = graph::meta_of(tensor);
    meta.device = at::kCPU;
    if (view_of) meta.storage_offset += view_of->storage_offset;
    results.push_back(std::move(meta));
  };
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) add(value.toTensor());
    if (!value.isTensorList()) continue;
    for (const at::Tensor& tensor : value.toTensorVector()) add(tensor);
  }
  return results;
}

}  // namespace

std::vector<TensorMeta> view_metas(const graph::AtenNode& node, const TensorMeta& source) {
  if (node.op.operator_name().name == "aten::as_strided") throw Unsupported("as_strided of memory that is written");
  torch::jit::Stack stack;
  stack.emplace_back(stand_in(source));
  if (source.symbolic) throw Unsupported("a view of written memory whose sizes are dynamic");
  for (size_t i = 1; i < node.args.size(); ++i) stack.push_back(constant_of(node.args[i]));
  return call(node.op, std::move(stack), &source);
}

TensorMeta row_major(TensorMeta meta) {
  meta.storage_offset = 0;
  meta.strides = graph::contiguous_strides(meta.sizes);
  if (!meta.symbolic) return meta;
  meta.symbolic->storage_offset = 0;
  shapes::Expr stride = 1;
  for (size_t dim = meta.strides.size(); dim-- > 0;) {
    meta.symbolic->strides[dim] = stride;
    stride *= meta.symbolic->sizes[dim];
  }
  return meta;
}

TensorMeta dense(TensorMeta meta) {
  meta.storage_offset = 0;
  if (meta.symbolic) meta.symbolic->storage_offset = 0;
  const fake::Layout layout = fake::like_layout(fake::Geometry(meta.sizes, meta.strides));
  if (std::ranges::equal(layout.strides, meta.strides)) return meta;
  meta.strides.assign(layout.strides.begin(), layout.strides.end());
  if (meta.symbolic) {
    // Dimensions in the same order, whatever their sizes are.
    std::vector<size_t> order(meta.strides.size());
    std::iota(order.rbegin(), order.rend(), 0);
    std::ranges::stable_sort(order, {}, [&](size_t dim) { return meta.strides[dim]; });
    shapes::Expr stride = 1;
    for (const size_t dim : order) {
      meta.symbolic->strides[dim] = stride;
      stride *= meta.symbolic->sizes[dim];
    }
  }
  return meta;
}

bool lies_alike(const TensorMeta& a, const TensorMeta& b) {
  const shapes::Sizes sizes = graph::sizes_of(a), left = graph::strides_of(a), right = graph::strides_of(b);
  if (sizes != graph::sizes_of(b) || graph::offset_of(a) != graph::offset_of(b) || a.dtype != b.dtype) return false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 1 && left[i] != right[i]) return false;
  }
  return true;
}

}  // namespace magneto::passes
