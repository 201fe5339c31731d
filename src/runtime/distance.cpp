#include "runtime/distance.h"

#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace magneto::runtime {
namespace {

/// Values one after the other in memory, in an order that both tensors have.
std::pair<at::Tensor, at::Tensor> aligned(const at::Tensor& want, const at::Tensor& got) {
  if (want.strides() == got.strides() && want.is_non_overlapping_and_dense()) return {want, got};
  return {want.contiguous(), got.contiguous()};
}

template <typename T>
struct Sums {
  static constexpr int64_t kLanes = 8, kBlock = 1024;

  T scale = 0, worst = 0;
  double squares = 0;
  bool odd = false;

  /// A block with NaN, infinity, or the end.
  template <typename S>
  void slow(const S* want, const S* got, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const T a = static_cast<T>(want[i]), b = static_cast<T>(got[i]);
      if (std::isfinite(a) && std::isfinite(b)) {
        scale = std::max(scale, std::abs(a));
        worst = std::max(worst, std::abs(a - b));
        squares += static_cast<double>(a - b) * static_cast<double>(a - b);
      } else if (a != b && !(std::isnan(a) && std::isnan(b))) {
        odd = true;
      }
    }
  }

  template <typename S>
  void block(const S* want, const S* got) {
    T scales[kLanes] = {}, worsts[kLanes] = {}, sums[kLanes] = {};
    for (int64_t i = 0; i < kBlock; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const T a = static_cast<T>(want[i + lane]), difference = a - static_cast<T>(got[i + lane]);
        const T size = std::abs(a), off = std::abs(difference);
        scales[lane] = size > scales[lane] ? size : scales[lane];
        worsts[lane] = off > worsts[lane] ? off : worsts[lane];
        sums[lane] += difference * difference;
      }
    }
    T sum = 0;
    for (int64_t lane = 0; lane < kLanes; ++lane) sum += sums[lane];
    if (!std::isfinite(sum)) return slow(want, got, kBlock);  // NaN and infinity get there
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      scale = std::max(scale, scales[lane]);
      worst = std::max(worst, worsts[lane]);
    }
    squares += static_cast<double>(sum);
  }

  template <typename S>
  Distance of(const S* want, const S* got, int64_t count, double epsilon) {
    int64_t i = 0;
    for (; i + kBlock <= count; i += kBlock) block(want + i, got + i);
    slow(want + i, got + i, count - i);
    if (odd) return {.differs = true};
    if (worst == 0) return {};
    const double unit = epsilon * static_cast<double>(scale);
    if (unit == 0) return {.differs = true};
    return {.worst = static_cast<double>(worst) / unit, .mean = std::sqrt(squares / static_cast<double>(count)) / unit};
  }
};

template <typename S, typename T>
Distance distance_of(const at::Tensor& want, const at::Tensor& got) {
  return Sums<T>().of(want.const_data_ptr<S>(), got.const_data_ptr<S>(), want.numel(),
                      static_cast<double>(std::numeric_limits<S>::epsilon()));
}

template <typename S>
Nonfinite nonfinite_of(const at::Tensor& tensor) {
  const S* values = tensor.const_data_ptr<S>();
  Nonfinite found;
  constexpr int64_t block = 4096;
  for (int64_t begin = 0; begin < tensor.numel(); begin += block) {
    const int64_t end = std::min(begin + block, tensor.numel());
    // Zero times a number is zero; times NaN or infinity it is NaN.
    constexpr int64_t lanes = 8;
    float sums[lanes] = {};
    int64_t i = begin;
    for (; i + lanes <= end; i += lanes) {
      for (int64_t lane = 0; lane < lanes; ++lane) sums[lane] += static_cast<float>(values[i + lane] * S(0));
    }
    for (; i < end; ++i) sums[0] += static_cast<float>(values[i] * S(0));
    float sum = 0;
    for (const float lane : sums) sum += lane;
    if (sum == 0) continue;
    for (i = begin; i < end; ++i) {
      const auto value = static_cast<double>(values[i]);
      found.nan |= std::isnan(value);
      found.infinity |= std::isinf(value);
    }
  }
  return found;
}

bool is_plain_floating(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.is_cpu() && !tensor.is_conj() &&
         (tensor.is_floating_point() || tensor.is_complex());
}

}  // namespace

Distance distance(const at::Tensor& want, const at::Tensor& got) {
  if (!want.defined() && !got.defined()) return {};
  if (want.defined() != got.defined() || want.scalar_type() != got.scalar_type() || want.sizes() != got.sizes()) {
    return {.differs = true};
  }
  if (want.unsafeGetTensorImpl() == got.unsafeGetTensorImpl() || want.numel() == 0) return {};
  const auto [a, b] = aligned(want, got);
  if (std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0) return {};
  switch (a.scalar_type()) {
    case at::kFloat:
      return distance_of<float, float>(a, b);
    case at::kDouble:
      return distance_of<double, double>(a, b);
    case at::kHalf:
      return distance_of<at::Half, float>(a, b);
    case at::kBFloat16:
      return distance_of<at::BFloat16, float>(a, b);
    case at::kComplexFloat:
    case at::kComplexDouble:
      return distance(at::view_as_real(a), at::view_as_real(b));
    default:
      return {.differs = true};
  }
}

Nonfinite nonfinite_in(const at::Tensor& tensor) {
  if (!is_plain_floating(tensor)) return {};
  const at::Tensor real = tensor.is_complex() ? at::view_as_real(tensor) : tensor;
  const at::Tensor values = real.is_non_overlapping_and_dense() ? real : real.contiguous();
  switch (values.scalar_type()) {
    case at::kFloat:
      return nonfinite_of<float>(values);
    case at::kDouble:
      return nonfinite_of<double>(values);
    case at::kHalf:
      return nonfinite_of<at::Half>(values);
    case at::kBFloat16:
      return nonfinite_of<at::BFloat16>(values);
    default:
      return {};
  }
}

}  // namespace magneto::runtime
