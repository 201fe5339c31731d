// Sparse gradients of embeddings as PyTorch computes them, in memory of their own: PyTorch's are made of the very
// tensors that they are given.
#include <ATen/ops/_embedding_bag_backward.h>
#include <ATen/ops/embedding_sparse_backward.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace magneto::runtime {

namespace {

/// With its strides, also of an expanded one: whether values are contiguous decides how PyTorch adds to them.
at::Tensor copy_of(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense() || tensor.numel() == 0) return tensor.clone();
  int64_t reach = 1;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) reach += (tensor.size(dim) - 1) * tensor.stride(dim);
  return tensor.as_strided({reach}, {1}).clone().as_strided(tensor.sizes(), tensor.strides());
}

at::Tensor embedding_sparse_backward(const at::Tensor& gradient, const at::Tensor& indices, int64_t num_weights,
                                     int64_t padding_idx) {
  return at::embedding_sparse_backward(copy_of(gradient), indices.clone(), num_weights, padding_idx,
                                       /*scale_grad_by_freq=*/false);
}

at::Tensor embedding_bag_sparse_backward(const at::Tensor& gradient, const at::Tensor& indices,
                                         const at::Tensor& offsets, const at::Tensor& offset2bag,
                                         const at::Tensor& bag_size, const at::Tensor& maximum_indices,
                                         c10::SymInt num_weights, int64_t mode,
                                         const std::optional<at::Tensor>& per_sample_weights, int64_t padding_idx) {
  return at::_embedding_bag_backward_symint(gradient, indices.clone(), offsets, offset2bag, bag_size, maximum_indices,
                                            std::move(num_weights), /*scale_grad_by_freq=*/false, mode,
                                            /*sparse=*/true, per_sample_weights, padding_idx);
}

/// Captures go on with this.
at::Tensor stand_in(const at::Tensor& gradient, c10::SymInt rows) {
  return at::empty_symint({std::move(rows), gradient.sym_size(-1)}, gradient.options());
}

at::Tensor stand_in_of_embedding(const at::Tensor& gradient, const at::Tensor&, int64_t num_weights, int64_t) {
  return stand_in(gradient, num_weights);
}

at::Tensor stand_in_of_bags(const at::Tensor& gradient, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                            const at::Tensor&, const at::Tensor&, c10::SymInt num_weights, int64_t,
                            const std::optional<at::Tensor>&, int64_t) {
  return stand_in(gradient, std::move(num_weights));
}

TORCH_LIBRARY_FRAGMENT(magneto, library) {
  library.def("embedding_sparse_backward(Tensor gradient, Tensor indices, int num_weights, int padding_idx) -> Tensor");
  library.impl("embedding_sparse_backward", c10::DispatchKey::CPU, embedding_sparse_backward);
  library.impl("embedding_sparse_backward", c10::DispatchKey::Meta, stand_in_of_embedding);
  library.def(
      "embedding_bag_sparse_backward(Tensor gradient, Tensor indices, Tensor offsets, Tensor offset2bag, "
      "Tensor bag_size, Tensor maximum_indices, SymInt num_weights, int mode, Tensor? per_sample_weights, "
      "int padding_idx) -> Tensor");
  library.impl("embedding_bag_sparse_backward", c10::DispatchKey::CPU, embedding_bag_sparse_backward);
  library.impl("embedding_bag_sparse_backward", c10::DispatchKey::Meta, stand_in_of_bags);
}

}  // namespace

}  // namespace magneto::runtime
