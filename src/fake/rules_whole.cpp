// Composite operators that are recorded whole, before they decompose: on the way they read data, and at run time the
// operator itself does so. Autograd is not asked: an operator that has a gradient is here only where nothing needs it.
#include <ATen/core/Reduction.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/Exception.h>

#include <cmath>

#include "fake/fake_impl.h"
#include "fake/scales.h"
#include "fake/windows.h"

namespace magneto::fake {

namespace {

/// one_hot(Tensor self, int num_classes=-1): checks that each class is in range.
template <class C>
bool one_hot(C& call) {
  const at::Tensor& self = call.tensor(0);
  const Size<C> classes = size_argument(call, 1);
  TORCH_CHECK(self.scalar_type() == c10::kLong, "one_hot is only applicable to index tensor of type LongTensor.");
  if (classes < 1) return false;  // read off the data, or an error
  auto sizes = sizes_of<C>(self);
  sizes.push_back(classes);
  return add(call, sizes, c10::kLong, self.device());
}

bool needs_grad(const at::Tensor& tensor) {
  const FakeImpl* fake = tensor.defined() ? as_fake(tensor) : nullptr;
  if (fake && fake->state().purpose.exports) return false;
  return tensor.defined() && tensor.requires_grad() && at::GradMode::is_enabled();
}

/// max_pool1d(Tensor self, int[1] kernel, int[1] stride=[], int[1] padding=0, int[1] dilation=1, bool ceil_mode=False):
/// where nothing needs gradients, its kernel works on the data at once.
template <class C>
bool max_pool1d(C& call) {
  const at::Tensor& self = call.tensor(0);
  if constexpr (kPlain<C>) {
    const std::vector<int64_t> kernel = call.ints(1), stride = call.ints(2), padding = call.ints(3),
                               dilation = call.ints(4);
    if (needs_grad(self) || !self.device().is_cpu() || (self.dim() != 2 && self.dim() != 3)) return false;
    if (kernel.size() != 1 || stride.size() > 1 || padding.size() != 1 || dilation.size() != 1) return false;
    if (kernel[0] <= 0 || (!stride.empty() && stride[0] <= 0) || dilation[0] <= 0) return false;
    if (padding[0] < 0 || padding[0] > kernel[0] / 2 || self.size(-2) == 0 || self.size(-1) == 0) return false;
  }
  const auto sizes = pooled<1, 4, 5>(call);
  return sizes && add(call, *sizes, self.scalar_type(), self.device());
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

/// Scaled by the factors that argument `scales_arg` lists.
template <class C>
std::optional<Sizes<C>> scaled(const C& call, size_t scales_arg) {
  auto sizes = sizes_of<C>(call.tensor(0));
  const std::vector<double> scales = call.arg(scales_arg).toDoubleVector();
  if (scales.size() + 2 != sizes.size()) return std::nullopt;
  for (size_t i = 0; i < scales.size(); ++i) {
    const auto parts = partition(scales[i]);
    if (scales[i] <= 0 || !parts) return std::nullopt;
    sizes[i + 2] = sizes[i + 2] * parts->first / parts->second;
    if (sizes[i + 2] < 1) return std::nullopt;
  }
  return sizes;
}

/// upsample_*.vec(Tensor input, SymInt[]? output_size, [bool align_corners,] float[]? scale_factors).
template <size_t scales_arg, class C>
bool upsample(C& call) {
  const at::Tensor& input = call.tensor(0);
  if (kPlain<C> && (!has_symbols(input) || needs_grad(input) || input.dim() < 3)) return false;
  const bool told = !call.is_none(1);
  if (told && sizes_argument(call, 1).size() + 2 != static_cast<size_t>(input.dim())) return false;
  const auto sizes = told ? resized_as_told(call) : scaled(call, scales_arg);
  if (!sizes) return false;
  if constexpr (kPlain<C>) {
    if (std::any_of(sizes->begin(), sizes->end(), [](int64_t size) { return size < 1; })) return false;
    if (input.dim() == 5 && !input.is_contiguous()) return false;
  }
  return add(call, *sizes, input.scalar_type(), input.device(), [&](const at::DimVector& now) {
    const bool last = input.dim() == 4 && input.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
    return strides_in_format(now, last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
  });
}

/// What a recurrent network's kernel takes, without gradients and dropout.
bool is_usual_recurrent(const Call& call, const std::vector<at::Tensor>& states) {
  const at::Tensor& input = call.tensor(0);
  const std::vector<at::Tensor> params = call.tensors(2);
  const bool drops = call.boolean(6) && call.arg(5).toDouble() > 0;
  if (!has_symbols(input) || input.dim() != 3 || !input.device().is_cpu() || drops || params.empty()) return false;
  if (call.arg(1).isTensorList() && states.size() != 2) return false;
  const int64_t directions = call.boolean(7) ? 2 : 1, layers = call.integer(4);
  const int64_t batch = input.size(call.boolean(8) ? 0 : 1);
  if (needs_grad(input) || params[0].dim() != 2 || params[0].size(1) != input.size(2) || input.numel() == 0) {
    return false;
  }
  for (const at::Tensor& param : params) {
    if (needs_grad(param) || param.scalar_type() != input.scalar_type()) return false;
  }
  return std::all_of(states.begin(), states.end(), [&](const at::Tensor& state) {
    return !needs_grad(state) && state.dim() == 3 && state.scalar_type() == input.scalar_type() &&
           state.size(0) == layers * directions && state.size(1) == batch;
  });
}

/// lstm.input(Tensor input, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train,
/// bool bidirectional, bool batch_first); of the other recurrent networks hx is one tensor. Gives the output, and the
/// states as they are in the end.
template <class C>
bool recurrent(C& call) {
  const at::Tensor& input = call.tensor(0);
  const std::vector<at::Tensor> states =
      call.arg(1).isTensorList() ? call.tensors(1) : std::vector<at::Tensor>{call.tensor(1)};
  if constexpr (kPlain<C>) {
    if (!is_usual_recurrent(call, states)) return false;
  }
  const bool batch_first = call.boolean(8);
  auto sizes = sizes_of<C>(input);
  if (size_of<C>(states[0], 1) != sizes[batch_first ? 0 : 1]) return false;
  sizes[2] = size_of<C>(states[0], 2) * (call.boolean(7) ? 2 : 1);
  const auto strides = [&](const at::DimVector& now) {
    return batch_first ? at::DimVector{now[2], now[0] * now[2], 1} : at::DimVector{now[1] * now[2], now[2], 1};
  };
  if (!add(call, sizes, input.scalar_type(), input.device(), strides)) return false;
  for (const at::Tensor& state : states) {
    if (!add(call, sizes_of<C>(state), input.scalar_type(), input.device())) return false;
  }
  return true;
}

constexpr RuleRow kRules[] = {
#define ROW_shape_whole(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
};

}  // namespace

std::span<const RuleRow> whole_rules() { return kRules; }
std::span<const SymbolicRow> symbolic_whole_rules() {
  static constexpr SymbolicRow rows[] = {
#define ROW_symbolic_whole(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

}  // namespace magneto::fake
