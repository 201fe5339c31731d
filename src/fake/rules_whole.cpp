// Composite operators that are recorded whole, before they decompose: on the way they read data, and at run time the
// operator itself does so. Autograd is not asked: an operator that has a gradient is here only where nothing needs it.
#include <ATen/core/Reduction.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/Pool.h>
#include <c10/util/Exception.h>

#include "fake/rules.h"

namespace magneto::fake {

namespace {

/// one_hot(Tensor self, int num_classes=-1): checks that each class is in range.
bool one_hot(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const int64_t classes = call.integer(1);
  TORCH_CHECK(self.scalar_type() == c10::kLong, "one_hot is only applicable to index tensor of type LongTensor.");
  if (classes < 1) return false;  // read off the data, or an error
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes.push_back(classes);
  call.result(call.empty(sizes, c10::kLong, self.device()));
  return true;
}

bool needs_grad(const at::Tensor& tensor) {
  return tensor.defined() && tensor.requires_grad() && at::GradMode::is_enabled();
}

/// max_pool1d(Tensor self, int[1] kernel, int[1] stride=[], int[1] padding=0, int[1] dilation=1, bool ceil_mode=False):
/// where nothing needs gradients, its kernel works on the data at once.
bool max_pool1d(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const std::vector<int64_t> kernel = call.ints(1), given_stride = call.ints(2), padding = call.ints(3),
                             dilation = call.ints(4);
  if (needs_grad(self) || !self.device().is_cpu() || (self.dim() != 2 && self.dim() != 3)) return false;
  if (kernel.size() != 1 || given_stride.size() > 1 || padding.size() != 1 || dilation.size() != 1) return false;
  const int64_t stride = given_stride.empty() ? kernel[0] : given_stride[0], width = self.size(-1);
  if (kernel[0] <= 0 || stride <= 0 || padding[0] < 0 || padding[0] > kernel[0] / 2 || dilation[0] <= 0) return false;
  if (self.size(-2) == 0 || width == 0) return false;
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes.back() = at::native::pooling_output_shape(width, kernel[0], padding[0], stride, dilation[0], call.boolean(5));
  if (sizes.back() < 1) return false;
  call.result(call.empty(sizes, self.scalar_type(), self.device()));
  return true;
}

/// cross_entropy_loss(Tensor self, Tensor target, Tensor? weight=None, int reduction=Mean, SymInt ignore_index=-100,
/// float label_smoothing=0.0): its weighted mean with smoothing counts what is not ignored.
bool cross_entropy_loss(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const at::Tensor weight = call.optional_tensor(2);
  if (!weight.defined() || call.integer(3) != at::Reduction::Mean || call.arg(5).toDouble() == 0) return false;
  if (needs_grad(self) || needs_grad(weight) || self.sizes() == call.tensor(1).sizes()) return false;
  call.result(call.empty({}, self.scalar_type(), self.device()));
  return true;
}

/// ctc_loss.Tensor(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank=0, int
/// reduction=Mean, bool zero_infinity=False): reads the lengths.
bool ctc_loss(Call& call) {
  const at::Tensor& log_probs = call.tensor(0);
  if (needs_grad(log_probs) || !log_probs.device().is_cpu() || log_probs.dim() != 3) return false;
  if (log_probs.scalar_type() != c10::kFloat && log_probs.scalar_type() != c10::kDouble) return false;
  std::vector<int64_t> sizes;
  if (call.integer(5) == at::Reduction::None) sizes.push_back(log_probs.size(1));
  call.result(call.empty(sizes, log_probs.scalar_type(), log_probs.device()));
  return true;
}

constexpr RuleRow kRules[] = {
    {"aten::ctc_loss.Tensor", ctc_loss},
    {"aten::one_hot", one_hot},
    {"aten::max_pool1d", max_pool1d},
    {"aten::cross_entropy_loss", cross_entropy_loss},
};

}  // namespace

std::span<const RuleRow> whole_rules() { return kRules; }

}  // namespace magneto::fake
