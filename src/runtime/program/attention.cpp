// Attention by PyTorch's flash kernel for the CPU, with the results of the operators that it stands for
// (passes/attention.cpp).
//
//     magneto::attention(query, key, value, mask, scale, fill)
//
// is softmax(query @ key^T * scale + mask) @ value of tensors [batch, heads, length, head size], as [batch, length,
// heads, head size] without gaps. With `fill`, `mask` is 0 or -infinity, and scores are `fill` where it is not 0.
//
// The kernel differs in some cases: a row that is masked as a whole is 0, not NaN; it divides last, so that a sum can
// overflow; NaN and infinity take other ways through its exp. Each of these leaves a trace in the result or in the
// rows' logarithms of sums. Where there is one, all is computed anew, as written out.
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>

#include "codegen/kernel.h"

namespace magneto::runtime {
namespace {

/// exp of less than minus this is 0 in float32.
constexpr double kGone = 104;
/// So many numbers are looked at by one thread.
constexpr int64_t kGrain = 1 << 16;

bool all_finite(const at::Tensor& dense) {
  const auto* numbers = dense.const_data_ptr<float>();
  std::atomic<bool> finite = true;
  codegen::on_threads(0, dense.numel(), kGrain, [&](int64_t begin, int64_t end) {
    // As integers, of which a loop takes several at a time.
    int32_t largest = 0;
    for (int64_t i = begin; i < end; ++i) {
      largest = std::max(largest, std::bit_cast<int32_t>(numbers[i]) & std::numeric_limits<int32_t>::max());
    }
    if (largest >= std::bit_cast<int32_t>(std::numeric_limits<float>::infinity())) finite = false;
  });
  return finite;
}

/// Each row had a key (the kernel says 0, or -infinity, of others), and keys with a score of `fill` would have got no
/// share of it.
bool all_attended(const at::Tensor& dense_log_sums, int64_t keys, std::optional<double> fill) {
  const auto* numbers = dense_log_sums.const_data_ptr<float>();
  const double most = -std::numeric_limits<double>::infinity();
  const auto least = static_cast<float>(fill ? *fill + kGone + std::log(static_cast<double>(keys)) : most);
  return std::all_of(numbers, numbers + dense_log_sums.numel(),
                     [&](float number) { return number > least && number != 0 && std::isfinite(number); });
}

at::Tensor written_out(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                       const std::optional<at::Tensor>& mask, double scale, std::optional<double> fill) {
  at::Tensor scores = at::matmul(query, key.transpose(2, 3)).mul_(scale);
  if (mask) scores = fill ? scores.masked_fill_(mask->ne(0), *fill) : scores.add_(*mask);
  return at::matmul(scores.softmax(-1), value);
}

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double scale, std::optional<double> fill) {
  auto [result, log_sums] = at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, /*dropout_p=*/0,
                                                                            /*is_causal=*/false, mask, scale);
  result = result.transpose(1, 2).contiguous();
  if (!all_attended(log_sums.transpose(1, 2).contiguous(), key.size(2), fill) || !all_finite(result)) {
    result.copy_(written_out(query, key, value, mask, scale, fill).transpose(1, 2));
  }
  return result;
}

TORCH_LIBRARY_FRAGMENT(magneto, library) {
  library.def("attention(Tensor query, Tensor key, Tensor value, Tensor? mask, float scale, float? fill) -> Tensor");
  library.impl("attention", c10::DispatchKey::CPU, attention);
}

}  // namespace
}  // namespace magneto::runtime
