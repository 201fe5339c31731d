#include "autograd/written_views.h"

#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <algorithm>

namespace magneto::autograd {

namespace {

using c10::SymInt;
using torch::autograd::CopySlices;
using torch::autograd::variable_list;
using torch::autograd::generated::AsStridedBackward0;

bool is_contiguous(const at::TensorGeometry& of) {
  SymInt stride = 1;
  for (auto dim = static_cast<size_t>(of.dim()); dim-- > 0;) {
    const SymInt& size = of.sym_sizes()[dim];
    if (size != 1 && of.sym_strides()[dim] != stride) return false;
    stride *= size;
  }
  return true;
}

/// Two elements may be one place in memory.
bool may_overlap(const std::vector<SymInt>& sizes, const std::vector<SymInt>& strides) {
  std::vector<size_t> dims;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] != 1) dims.push_back(dim);
  }
  std::ranges::sort(dims, [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  SymInt last = 0;
  for (const size_t dim : dims) {
    if (strides[dim] <= last) return true;
    last += (sizes[dim] - 1) * strides[dim];
  }
  return false;
}

at::Tensor write_strided(const at::Tensor& base, const at::Tensor& part, c10::SymIntArrayRef size,
                         c10::SymIntArrayRef stride, const SymInt& offset) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("magneto::write_strided", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, c10::SymIntArrayRef,
                                               c10::SymIntArrayRef, c10::SymInt)>();
  return op.call(base, part, size, stride, offset);
}

/// Gradients of what the view is of, and of what was written.
std::optional<variable_list> of_write(CopySlices& node, const at::Tensor& gradient) {
  const at::TensorGeometry &base = node.base, &view = node.view;
  if (!is_contiguous(base)) return std::nullopt;
  const at::Tensor whole = gradient.clone(at::MemoryFormat::Contiguous);
  const SymInt offset = view.sym_storage_offset() - base.sym_storage_offset();
  const at::Tensor part = whole.as_strided_symint(view.sym_sizes(), view.sym_strides(), offset);
  variable_list gradients = (*node.fn)({part.clone()});
  gradients.resize(node.num_outputs());
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!node.next_edge(i).is_valid()) gradients[i].reset();
  }
  if (gradients[0].defined()) {
    gradients[0] = write_strided(whole, gradients[0], view.sym_sizes(), view.sym_strides(), offset);
  }
  return gradients;
}

std::optional<variable_list> of_view(AsStridedBackward0& node, const at::Tensor& gradient) {
  const at::TensorGeometry& base = node.self_geometry;
  if (!is_contiguous(base) || may_overlap(node.size, node.stride)) return std::nullopt;
  const SymInt offset = node.storage_offset ? *node.storage_offset - base.sym_storage_offset() : SymInt(0);
  const at::Tensor zeros = gradient.new_zeros_symint(base.sym_sizes());
  return variable_list{write_strided(zeros, gradient, node.size, node.stride, offset)};
}

}  // namespace

std::optional<variable_list> call_without_writes(torch::autograd::Node& node, const variable_list& gradients) {
  if (gradients.size() != 1 || !gradients[0].defined()) return std::nullopt;
  if (auto* write = dynamic_cast<CopySlices*>(&node)) return of_write(*write, gradients[0]);
  if (auto* view = dynamic_cast<AsStridedBackward0*>(&node)) return of_view(*view, gradients[0]);
  return std::nullopt;
}

}  // namespace magneto::autograd
