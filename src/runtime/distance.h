// How far two tensors are apart: the quick look, before float64 is asked (magneto/_debug/same.py).
#pragma once

#include <ATen/core/Tensor.h>

namespace magneto::runtime {

struct Distance {
  /// No such distance: another dtype or shape, other integers, NaN or infinity in one of them only.
  bool differs = false;
  /// The largest difference and the root of the mean square, in units of the dtype's last place of the largest value.
  double worst = 0, mean = 0;

  bool within(const Distance& allowed) const { return !differs && worst <= allowed.worst && mean <= allowed.mean; }
};

/// Both undefined: none. NaN is as good as NaN.
Distance distance(const at::Tensor& want, const at::Tensor& got);

/// What of NaN and infinity a tensor has.
struct Nonfinite {
  bool nan = false, infinity = false;
};
Nonfinite nonfinite_in(const at::Tensor& tensor);

}  // namespace magneto::runtime
