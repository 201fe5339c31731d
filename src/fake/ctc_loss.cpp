#include "fake/ctc_loss.h"

#include <ATen/core/Reduction.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_ctc_loss.h>
#include <ATen/ops/ctc_loss_ops.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "fake/dispatch_key.h"
#include "fake/fake_impl.h"

namespace magneto::fake {

namespace {

/// As PyTorch composes it of tensors whose class it does not know (LossCTC.cpp): the lengths stay tensors.
at::Tensor composed(const at::Tensor& given, const at::Tensor& targets, const at::Tensor& input_lengths,
                    const at::Tensor& target_lengths, int64_t blank, int64_t reduction, bool zero_infinity) {
  const bool batched = given.dim() == 3;
  const at::Tensor log_probs = batched ? given : given.unsqueeze(1);
  at::Tensor loss = std::get<0>(at::_ctc_loss(log_probs, targets.to(log_probs.device(), at::kLong), input_lengths,
                                              target_lengths, blank, zero_infinity));
  if (zero_infinity) {
    const at::Tensor infinite = loss.eq(std::numeric_limits<double>::infinity());
    loss = at::where(infinite, at::zeros({}, loss.options()), loss);
  }
  if (reduction == at::Reduction::Mean) return loss.div(target_lengths.clamp_min(1).to(loss.device())).mean();
  if (reduction == at::Reduction::Sum) return loss.sum();
  return batched ? loss : loss.squeeze(0);
}

/// A tensor of the program's constants.
at::Tensor tensor_of(at::IntArrayRef numbers) {
  const BelowFake guard;
  // Not written to: the copy is.
  return at::from_blob(const_cast<int64_t*>(numbers.data()), {static_cast<int64_t>(numbers.size())}, at::kLong).clone();
}

at::Tensor ctc_loss_of_numbers(c10::DispatchKeySet keys, const at::Tensor& log_probs, const at::Tensor& targets,
                               at::IntArrayRef input_lengths, at::IntArrayRef target_lengths, int64_t blank,
                               int64_t reduction, bool zero_infinity) {
  const bool ours = as_fake(log_probs) && log_probs.device().is_cpu() &&
                    !keys.has_any(c10::autocast_dispatch_keyset | kTransformKeys);
  if (ours) {
    return at::_ops::ctc_loss_Tensor::call(log_probs, targets, tensor_of(input_lengths), tensor_of(target_lengths),
                                           blank, reduction, zero_infinity);
  }
  return at::_ops::ctc_loss_IntList::redispatch(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kFirstKey),
                                                log_probs, targets, input_lengths, target_lengths, blank, reduction,
                                                zero_infinity);
}

}  // namespace

bool call_ctc_loss(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (op.operator_name().name != at::_ops::ctc_loss_Tensor::name) return false;
  constexpr size_t kArguments = 7;
  const auto args = torch::jit::last(*stack, kArguments);
  const at::Tensor& log_probs = args[0].toTensor();
  if (!at::GradMode::is_enabled() || !log_probs.requires_grad() || !log_probs.device().is_cpu()) return false;
  at::Tensor loss = composed(log_probs, args[1].toTensor(), args[2].toTensor(), args[3].toTensor(), args[4].toInt(),
                             args[5].toInt(), args[6].toBool());
  torch::jit::drop(*stack, kArguments);
  stack->emplace_back(std::move(loss));
  return true;
}

void register_ctc_loss(torch::Library& whole) { whole.impl("ctc_loss.IntList", TORCH_FN(ctc_loss_of_numbers)); }

}  // namespace magneto::fake
