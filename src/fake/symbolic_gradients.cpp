// Symbolic rules of the operators that autograd's formulas call: a gradient is as large as what it is the gradient of.
#include "fake/symbolic_rules.h"

namespace magneto::fake {
namespace {

/// Result k, where there is one, is as large as argument number k of `of`.
template <size_t... of>
bool like(SymbolicCall& call) {
  size_t k = 0;
  const auto one = [&](size_t argument) {
    const size_t result = k++;
    if (result >= call.result_count() || !call.result(result).defined()) return true;
    return !call.is_none(argument) && call.tensor(argument).defined() && call.dense(result, call.sizes(argument));
  };
  return (one(of) && ...);
}

/// As large as the sizes that argument `i` lists.
template <size_t i>
bool as_told(SymbolicCall& call) {
  return all_results(call, call.symints(i));
}

/// The gradients of the input, and of a weight and a bias that have a number for each channel.
bool of_channels(SymbolicCall& call, const c10::SymInt& channels) {
  for (size_t k = 1; k < call.result_count(); ++k) {
    if (call.result(k).defined() && !call.dense(k, {channels})) return false;
  }
  return !call.result(0).defined() || call.dense(0, call.sizes(1));
}

/// (grad, input, ...).
bool batch_norm(SymbolicCall& call) {
  return call.sizes(1).size() >= 2 && of_channels(call, call.tensor(1).sym_size(1));
}

/// (grad, input, mean, rstd, weight, N, C, ...).
bool group_norm(SymbolicCall& call) { return of_channels(call, call.symint(6)); }

/// (grad, input, weight, bias_sizes, ...).
bool convolution(SymbolicCall& call) {
  if (call.result_count() > 2 && call.result(2).defined()) {
    if (call.is_none(3) || !call.dense(2, call.symints(3))) return false;
  }
  return like<1, 2>(call);
}

/// (grad, indices, num_weights, ...).
bool embedding(SymbolicCall& call) {
  const SymSizes grad = call.sizes(0);
  return !grad.empty() && all_results(call, {call.symint(2), grad.back()});
}

constexpr SymbolicRow rows[] = {
    {"aten::_softmax_backward_data", like<1>},
    {"aten::_log_softmax_backward_data", like<1>},
    {"aten::native_dropout_backward", like<0>},
    {"aten::rrelu_with_noise_backward", like<1>},
    {"aten::glu_backward", like<1>},
    {"aten::log_sigmoid_backward", like<1>},
    {"aten::mse_loss_backward", like<1>},
    {"aten::smooth_l1_loss_backward", like<1>},
    {"aten::huber_loss_backward", like<1>},
    {"aten::soft_margin_loss_backward", like<1>},
    {"aten::binary_cross_entropy_backward", like<1>},
    {"aten::nll_loss_backward", like<1>},
    {"aten::nll_loss2d_backward", like<1>},
    {"aten::native_layer_norm_backward", like<1, 5, 6>},
    {"aten::native_batch_norm_backward", batch_norm},
    {"aten::native_group_norm_backward", group_norm},
    {"aten::_weight_norm_interface_backward", like<1, 2>},
    {"aten::convolution_backward", convolution},
    {"aten::embedding_dense_backward", embedding},
    {"aten::select_backward", as_told<1>},
    {"aten::slice_backward", as_told<1>},
    {"aten::diagonal_backward", as_told<1>},
    {"aten::unfold_backward", as_told<1>},
    {"aten::masked_scatter_backward", as_told<2>},
    {"aten::max_pool2d_with_indices_backward", like<1>},
    {"aten::max_pool3d_with_indices_backward", like<1>},
    {"aten::avg_pool2d_backward", like<1>},
    {"aten::avg_pool3d_backward", like<1>},
    {"aten::_adaptive_avg_pool2d_backward", like<1>},
    {"aten::_adaptive_avg_pool3d_backward", like<1>},
    {"aten::adaptive_max_pool2d_backward", like<1>},
    {"aten::adaptive_max_pool3d_backward", like<1>},
    {"aten::reflection_pad1d_backward", like<1>},
    {"aten::reflection_pad2d_backward", like<1>},
    {"aten::reflection_pad3d_backward", like<1>},
    {"aten::replication_pad1d_backward", like<1>},
    {"aten::replication_pad2d_backward", like<1>},
    {"aten::replication_pad3d_backward", like<1>},
    {"aten::grid_sampler_2d_backward", like<1, 2>},
    {"aten::grid_sampler_3d_backward", like<1, 2>},
    {"aten::upsample_nearest1d_backward", as_told<2>},
    {"aten::upsample_nearest2d_backward", as_told<2>},
    {"aten::upsample_nearest3d_backward", as_told<2>},
    {"aten::upsample_linear1d_backward", as_told<2>},
    {"aten::upsample_bilinear2d_backward", as_told<2>},
    {"aten::upsample_bicubic2d_backward", as_told<2>},
    {"aten::upsample_trilinear3d_backward", as_told<2>},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", like<1, 2, 3>},
};

}  // namespace

std::span<const SymbolicRow> symbolic_gradients_rules() { return rows; }

}  // namespace magneto::fake
