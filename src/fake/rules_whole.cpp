// Composite operators that are recorded whole, before they decompose: on the way they read data, and at run time the
// operator itself does so. Autograd is not asked: an operator that has a gradient is here only where nothing needs it.
#include <ATen/core/Reduction.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/Pool.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/Exception.h>

#include <cmath>

#include "fake/fake_impl.h"
#include "fake/rules.h"
#include "fake/scales.h"

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

// -- with dynamic sizes: on the way these operators ask for plain ones

bool has_symbols(const at::Tensor& tensor) {
  const FakeImpl* fake = as_fake(tensor);
  return fake && fake->symbolic();
}

/// upsample_*.vec(Tensor input, SymInt[]? output_size, [bool align_corners,] float[]? scale_factors).
template <int scales_arg>
bool upsample(Call& call) {
  const at::Tensor& input = call.tensor(0);
  if (!has_symbols(input) || needs_grad(input) || input.dim() < 3) return false;
  std::vector<int64_t> sizes = input.sizes().vec();
  if (!call.is_none(1)) {
    const std::vector<int64_t> told = call.ints(1);
    if (told.size() + 2 != sizes.size()) return false;
    std::copy(told.begin(), told.end(), sizes.begin() + 2);
  } else {
    const std::vector<double> scales = call.arg(scales_arg).toDoubleVector();
    if (scales.size() + 2 != sizes.size()) return false;
    for (size_t i = 0; i < scales.size(); ++i) {
      if (scales[i] <= 0 || !partition(scales[i])) return false;
      sizes[i + 2] = static_cast<int64_t>(static_cast<double>(sizes[i + 2]) * scales[i]);
    }
  }
  for (const int64_t size : sizes) {
    if (size < 1) return false;
  }
  if (input.dim() == 5 && !input.is_contiguous()) return false;
  const bool last = input.dim() == 4 && input.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
  if (last) {
    call.result(call.empty(sizes, c10::get_channels_last_strides_2d(sizes), input.scalar_type(), input.device()));
  } else {
    call.result(call.empty(sizes, input.scalar_type(), input.device()));
  }
  return true;
}

/// lstm.input(Tensor input, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train,
/// bool bidirectional, bool batch_first); of the other recurrent networks hx is one tensor.
bool recurrent(Call& call) {
  const at::Tensor& input = call.tensor(0);
  const bool two_states = call.arg(1).isTensorList();
  const std::vector<at::Tensor> states = two_states ? call.tensors(1) : std::vector{call.tensor(1)};
  const std::vector<at::Tensor> params = call.tensors(2);
  const bool drops = call.boolean(6) && call.arg(5).toDouble() > 0;
  if (!has_symbols(input) || input.dim() != 3 || !input.device().is_cpu() || drops || params.empty()) return false;
  if (two_states && states.size() != 2) return false;
  const int64_t directions = call.boolean(7) ? 2 : 1, layers = call.integer(4);
  const bool batch_first = call.boolean(8);
  const int64_t batch = input.size(batch_first ? 0 : 1), steps = input.size(batch_first ? 1 : 0);
  if (needs_grad(input) || params[0].dim() != 2 || params[0].size(1) != input.size(2) || batch == 0 || steps == 0) {
    return false;
  }
  for (const at::Tensor& param : params) {
    if (needs_grad(param) || param.scalar_type() != input.scalar_type()) return false;
  }
  for (const at::Tensor& state : states) {
    if (needs_grad(state) || state.dim() != 3 || state.scalar_type() != input.scalar_type()) return false;
    if (state.size(0) != layers * directions || state.size(1) != batch) return false;
  }
  const int64_t width = states[0].size(2) * directions;
  if (batch_first) {
    const std::vector<int64_t> sizes = {batch, steps, width}, strides = {width, batch * width, 1};
    call.result(call.empty(sizes, strides, input.scalar_type(), input.device()));
  } else {
    call.result(call.empty({steps, batch, width}, input.scalar_type(), input.device()));
  }
  for (const at::Tensor& state : states) call.result(call.empty(state.sizes(), input.scalar_type(), input.device()));
  return true;
}

constexpr RuleRow kRules[] = {
#define ROW_shape_whole(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
};

}  // namespace

std::span<const RuleRow> whole_rules() { return kRules; }

}  // namespace magneto::fake
