// Random numbers that are drawn for tensors of parameters; the CPU's own kernels, which zeros must not try (the stream
// of random numbers would move).
#include <ATen/ExpandUtils.h>

#include "fake/elementwise.h"

namespace magneto::fake {
namespace {

/// As many as argument `of` has elements: poisson, _standard_gamma, normal with one tensor.
template <size_t of, DtypeSet dtypes = kFloats>
bool one_each(Call& call) {
  const at::Tensor& parameters = call.tensor(of);
  if (!is_plain(parameters, dtypes)) return false;
  call.result(call.empty(parameters.sizes(), parameters.scalar_type(), parameters.device()));
  return true;
}

/// _sample_dirichlet(concentration): a distribution along the last dimension.
bool dirichlet(Call& call) { return call.tensor(0).dim() > 0 && one_each<0, kSingles>(call); }

/// normal.Tensor_float(mean, std).
bool normal_around(Call& call) { return call.arg(1).toDouble() >= 0 && one_each<0>(call); }

/// normal.Tensor_Tensor(mean, std).
bool normal(Call& call) {
  const at::Tensor &mean = call.tensor(0), &deviation = call.tensor(1);
  if (!is_plain(mean) || !is_plain(deviation) || mean.scalar_type() != deviation.scalar_type()) return false;
  if (!at::are_expandable(mean.sizes(), deviation.sizes())) return false;
  const at::DimVector sizes = at::infer_size_dimvector(mean.sizes(), deviation.sizes());
  call.result(call.empty(sizes, mean.scalar_type(), mean.device()));
  return true;
}

/// binomial(count, prob), of the same sizes.
bool binomial(Call& call) {
  const at::Tensor &count = call.tensor(0), &probability = call.tensor(1);
  if (count.sizes() != probability.sizes() || count.scalar_type() != probability.scalar_type()) return false;
  return one_each<0, kSingles>(call);
}

/// rrelu_with_noise(self, noise, ...): the slopes are written to the noise.
template <bool inplace>
bool rrelu(Call& call) {
  const at::Tensor &self = call.tensor(0), &noise = call.tensor(1);
  if (!is_plain(self) || self.scalar_type() != noise.scalar_type() || self.sizes() != noise.sizes()) return false;
  if (!self.is_contiguous() || !noise.is_contiguous()) return false;
  call.result(inplace ? self : call.empty(self.sizes(), self.scalar_type(), self.device()));
  return true;
}

}  // namespace

std::span<const RuleRow> random_rules() {
  static constexpr RuleRow rows[] = {
#define ROW_shape_random(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

}  // namespace magneto::fake
