// What of packed sequences (torch.nn.utils.rnn) only the lengths say: how many rows each step has, and where each row
// lies in the padded batch. Lengths that eager refuses, or that it makes something odd of, are CPython's.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "runtime/plan/plan.h"

namespace magneto::runtime {

namespace {

std::span<const int64_t> numbers_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<int64_t>(), static_cast<size_t>(tensor.numel())};
}

/// Of the lengths of sequences of at most `steps`: how many are longer than 0, than 1, ...
at::Tensor batch_sizes(const at::Tensor& lengths, int64_t steps) {
  const at::Tensor contiguous = lengths.contiguous();
  const std::span<const int64_t> all = numbers_of(contiguous);
  const bool usual = !all.empty() && std::ranges::is_sorted(all, std::greater<>()) && all.back() > 0;
  TORCH_CHECK(usual && all.front() <= steps, kNotSo, "lengths fall, none is zero, and none passes the padded batch");
  at::Tensor sizes = at::empty({all.front()}, lengths.options());
  auto* const counts = sizes.mutable_data_ptr<int64_t>();
  for (size_t i = all.size(), step = 0; i > 0; --i) {
    for (; step < static_cast<size_t>(all[i - 1]); ++step) counts[step] = static_cast<int64_t>(i);
  }
  return sizes;
}

/// The places of the packed rows in a padded batch whose steps lie `step_stride` rows apart, and whose sequences
/// `row_stride`. `count`: how many there are, if that is known.
at::Tensor packed_places(const at::Tensor& batch_sizes, int64_t batch, int64_t step_stride, int64_t row_stride,
                         std::optional<int64_t> count) {
  const at::Tensor contiguous = batch_sizes.contiguous();
  const std::span<const int64_t> sizes = numbers_of(contiguous);
  const bool usual =
      !sizes.empty() && sizes.front() == batch && sizes.back() > 0 && std::ranges::is_sorted(sizes, std::greater<>());
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  TORCH_CHECK(usual && (!count || *count == total), kNotSo,
              "a packed sequence has as many rows as its batch sizes say");
  at::Tensor places = at::empty({total}, batch_sizes.options());
  auto* place = places.mutable_data_ptr<int64_t>();
  for (size_t step = 0; step < sizes.size(); ++step) {
    for (int64_t row = 0; row < sizes[step]; ++row) {
      *place++ = static_cast<int64_t>(step) * step_stride + row * row_stride;
    }
  }
  return places;
}

// NOLINTBEGIN(performance-unnecessary-value-param): kernels take sizes by value

at::Tensor batch_sizes_kernel(const at::Tensor& lengths, c10::SymInt steps) {
  return batch_sizes(lengths, steps.expect_int());
}

at::Tensor packed_places_kernel(const at::Tensor& batch_sizes, c10::SymInt batch, c10::SymInt step_stride,
                                c10::SymInt row_stride, std::optional<c10::SymInt> count) {
  return packed_places(batch_sizes, batch.expect_int(), step_stride.expect_int(), row_stride.expect_int(),
                       count ? std::optional(count->expect_int()) : std::nullopt);
}

// NOLINTEND(performance-unnecessary-value-param)

TORCH_LIBRARY_FRAGMENT(magneto, library) {
  library.def("batch_sizes(Tensor lengths, SymInt steps) -> Tensor", {at::Tag::dynamic_output_shape});
  library.impl("batch_sizes", c10::DispatchKey::CompositeExplicitAutograd, batch_sizes_kernel);
  library.def(
      "packed_places(Tensor batch_sizes, SymInt batch, SymInt step_stride, SymInt row_stride, SymInt? count) -> Tensor",
      {at::Tag::dynamic_output_shape});
  library.impl("packed_places", c10::DispatchKey::CompositeExplicitAutograd, packed_places_kernel);
}

}  // namespace

}  // namespace magneto::runtime
