// What PyTorch's `.vec` operators call, which asks for plain sizes on the way (native/UpSample.h).
#include "fake/resized_images.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <unordered_map>

#include "fake/fake_impl.h"
#include "fake/scales.h"
#include "fake/symbolic.h"

namespace magneto::fake {

namespace {

/// (input, SymInt[]? output_size, [bool align_corners,] float[]? scale_factors).
struct Resize {
  explicit Resize(at::ArrayRef<c10::IValue> args) : args(args), input(args.front().toTensor()) {}

  bool has_dynamic_gradient() const {
    const FakeImpl* fake = as_fake(input);
    return fake && fake->symbolic() && !fake->state().purpose.exports && input.requires_grad() &&
           at::GradMode::is_enabled() && input.dim() > 2;
  }

  size_t rank() const { return static_cast<size_t>(input.dim()) - 2; }

  /// Nothing: eager raises, or computes it otherwise than the rules of sizes can say.
  std::optional<SymSizes> output() const {
    SymSizes sizes;
    if (!args[1].isNone()) {
      if (args[1].isIntList()) {
        for (const int64_t size : args[1].toIntVector()) sizes.push_back(size);
      } else {
        for (const c10::IValue& size : args[1].toListRef()) sizes.push_back(size.toSymInt());
      }
    } else {
      const std::vector<double> factors = scales();
      if (factors.size() != rank()) return std::nullopt;
      for (size_t i = 0; i < factors.size(); ++i) {
        const auto parts = partition(factors[i]);
        if (factors[i] <= 0 || !parts) return std::nullopt;
        sizes.push_back(input.sym_size(static_cast<int64_t>(i) + 2) * parts->first / parts->second);
      }
    }
    return sizes.size() == rank() ? std::optional(sizes) : std::nullopt;
  }

  std::vector<double> scales() const {
    return args.back().isNone() ? std::vector<double>{} : args.back().toDoubleVector();
  }

  at::ArrayRef<c10::IValue> args;
  at::Tensor input;
};

/// Of an operator that takes a list of factors the one that takes each by itself; nothing: it is no such operator.
std::optional<c10::OperatorHandle> by_dimension(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  if (name.overload_name != "vec") return std::nullopt;
  return c10::Dispatcher::singleton().findSchema({name.name, ""});
}

}  // namespace

bool call_resize(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto plain = by_dimension(op);
  if (!plain) return false;
  const size_t count = op.schema().arguments().size();
  const Resize resize(torch::jit::last(*stack, count));
  if (!resize.has_dynamic_gradient()) return false;
  const auto sizes = resize.output();
  const std::vector<double> scales = resize.scales();
  if (!sizes || plain->schema().arguments().size() != count - 1 + resize.rank()) return false;
  torch::jit::Stack inner;
  inner.emplace_back(resize.input);
  inner.emplace_back(std::vector<c10::SymInt>(sizes->begin(), sizes->end()));
  for (size_t i = 2; i + 1 < count; ++i) inner.push_back(resize.args[i]);
  for (size_t i = 0; i < resize.rank(); ++i) {
    inner.push_back(i < scales.size() ? c10::IValue(scales[i]) : c10::IValue());
  }
  plain->callBoxed(inner);
  torch::jit::drop(*stack, count);
  stack->push_back(inner.front());
  return true;
}

}  // namespace magneto::fake
