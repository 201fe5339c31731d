#include "fake/known.h"

#include <ATen/ops/clone.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/nonzero.h>

#include <algorithm>

#include "fake/dispatch_key.h"
#include "fake/session.h"

namespace magneto::fake {

namespace {

/// Most elements of a tensor whose values are kept.
constexpr int64_t kMostKnown = 1024;

/// A number, or a list with one, that differs from run to run.
bool is_symbolic(const c10::IValue& arg) {
  if (arg.isSymInt() || arg.isSymFloat() || arg.isSymBool()) return true;
  if (!arg.isList() || arg.isTensorList() || arg.isIntList() || arg.isDoubleList() || arg.isBoolList()) return false;
  return std::ranges::any_of(arg.toListRef(), [](const c10::IValue& item) { return is_symbolic(item); });
}

/// The tensors of a call as far as they are known, and the inputs that they follow from.
struct Values {
  std::vector<graph::ValueId> from;

  /// Undefined tensors, numbers that PyTorch wrapped, and known fakes.
  std::optional<at::Tensor> of(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (FakeImpl* fake = as_fake(tensor)) {
      const at::Tensor* known = fake->known();
      if (!known) return std::nullopt;
      from.insert(from.end(), fake->known_from().begin(), fake->known_from().end());
      return *known;
    }
    return tensor.unsafeGetTensorImpl()->is_wrapped_number() ? std::optional(tensor) : std::nullopt;
  }

  std::optional<c10::IValue> of(const c10::IValue& arg) {
    if (is_symbolic(arg)) return std::nullopt;
    if (arg.isTensor()) {
      auto value = of(arg.toTensor());
      return value ? std::optional<c10::IValue>(*value) : std::nullopt;
    }
    if (arg.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& item : arg.toTensorVector()) {
        auto value = of(item);
        if (!value) return std::nullopt;
        list.push_back(*value);
      }
      return list;
    }
    if (arg.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& item : arg.toListRef()) {
        auto value = item.isNone() ? at::Tensor() : of(item.toTensor());
        if (!value) return std::nullopt;
        list.push_back(item.isNone() ? std::nullopt : value);
      }
      return list;
    }
    return arg;
  }
};

/// A real tensor that looks like the fake, for an operator that reads nothing else of it.
at::Tensor look_alike(const at::Tensor& fake) {
  return at::empty_strided(fake.sizes(), fake.strides(), fake.options().requires_grad(false));
}

bool is_small(const c10::IValue& result) {
  const auto small = [](const at::Tensor& tensor) {
    return !tensor.defined() || (tensor.numel() <= kMostKnown && tensor.device().is_cpu());
  };
  if (result.isTensor()) return small(result.toTensor());
  if (result.isTensorList()) return std::ranges::all_of(result.toTensorVector(), small);
  return false;
}

void keep(const at::Tensor& fake, const at::Tensor& value, const Values& values) {
  FakeImpl* impl = fake.defined() ? as_fake(fake) : nullptr;
  if (impl && value.defined() && fake.sizes() == value.sizes() && fake.dtype() == value.dtype()) {
    impl->know(value, values.from);
  }
}

/// The results for real, if all that decides them is known.
std::optional<std::vector<c10::IValue>> known_results(const c10::OperatorHandle& op, const OperatorFacts& facts,
                                                      std::span<const c10::IValue> args, Values& values) {
  if (!facts.computes) return std::nullopt;
  BelowFake guard;
  torch::jit::Stack stack;
  for (const c10::IValue& arg : args) {
    if (arg.isDevice() && !arg.toDevice().is_cpu()) return std::nullopt;
    if (stack.empty() && facts.looks_only && arg.isTensor() && arg.toTensor().device().is_cpu()) {
      stack.emplace_back(look_alike(arg.toTensor()));
      continue;
    }
    auto value = values.of(arg);
    if (!value) return std::nullopt;
    stack.push_back(std::move(*value));
  }
  op.callBoxed(&stack);
  return std::vector<c10::IValue>(stack.begin(), stack.end());
}

}  // namespace

std::optional<std::vector<c10::IValue>> read_known(Session& session, const c10::OperatorHandle& op,
                                                   const OperatorFacts& facts, std::span<const c10::IValue> args) {
  Values values;
  auto results = known_results(op, facts, args, values);
  if (results) session.impl().state->read_inputs.insert(values.from.begin(), values.from.end());
  return results;
}

bool is_known(const c10::OperatorHandle& op, const OperatorFacts& facts, std::span<const c10::IValue> args) {
  Values values;
  return known_results(op, facts, args, values).has_value();
}

std::vector<c10::IValue> fakes_like(Session& session, std::span<const c10::IValue> values) {
  std::vector<c10::IValue> fakes;
  const auto fake_of = [&](const at::Tensor& value) {
    return session.impl().empty(value.sizes(), value.strides(), value.scalar_type(), value.device());
  };
  for (const c10::IValue& value : values) {
    if (value.isTensor()) {
      fakes.emplace_back(fake_of(value.toTensor()));
    } else {
      c10::List<at::Tensor> list;
      for (const at::Tensor& item : value.toTensorVector()) list.push_back(fake_of(item));
      fakes.emplace_back(std::move(list));
    }
  }
  return fakes;
}

void keep_known(const c10::OperatorHandle& op, const OperatorFacts& facts, std::span<const c10::IValue> args,
                std::span<const c10::IValue> results) {
  if (!facts.computes || !std::ranges::all_of(results, is_small)) return;
  Values values;
  const auto known = known_results(op, facts, args, values);
  if (!known || known->size() != results.size()) return;
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].isTensor()) {
      keep(results[i].toTensor(), (*known)[i].toTensor(), values);
      continue;
    }
    const auto fakes = results[i].toTensorVector();
    const auto items = (*known)[i].toTensorVector();
    for (size_t k = 0; k < std::min(fakes.size(), items.size()); ++k) keep(fakes[k], items[k], values);
  }
}

namespace {

at::Tensor copied(const at::Tensor& tensor) { return tensor.defined() ? at::clone(tensor) : tensor; }

/// What an in-place operator leaves in its first argument, a tensor or a list of them, if that follows from the code.
/// (A buffer that a module counts in holds another number at each run.)
std::optional<std::vector<at::Tensor>> written_values(const c10::OperatorHandle& op, const OperatorFacts& facts,
                                                      std::span<const c10::IValue> args) {
  const auto& schema = op.schema().arguments();
  if (!facts.follows || args.empty() || (!args[0].isTensor() && !args[0].isTensorList())) return std::nullopt;
  torch::jit::Stack stack;
  Values values;
  for (size_t i = 0; i < args.size(); ++i) {
    const bool written = schema[i].alias_info() && schema[i].alias_info()->isWrite();
    auto value = written == (i == 0) ? values.of(args[i]) : std::nullopt;
    if (!value) return std::nullopt;
    stack.push_back(std::move(*value));
  }
  if (!values.from.empty()) return std::nullopt;
  BelowFake guard;
  std::vector<at::Tensor> targets;
  if (stack[0].isTensor()) {
    targets.push_back(copied(stack[0].toTensor()));
    stack[0] = targets[0];
  } else {
    for (const at::Tensor& tensor : stack[0].toTensorVector()) targets.push_back(copied(tensor));
    stack[0] = targets;
  }
  op.callBoxed(&stack);
  return targets;
}

}  // namespace

void write_known(const c10::OperatorHandle& op, const OperatorFacts& facts, std::span<const c10::IValue> args) {
  const auto& schema = op.schema().arguments();
  const auto written = written_values(op, facts, args);
  const auto forget = [](const at::Tensor& tensor) {
    if (FakeImpl* fake = tensor.defined() ? as_fake(tensor) : nullptr) fake->note_write();
  };
  for (size_t i = 0; i < args.size(); ++i) {
    if (!schema[i].alias_info() || !schema[i].alias_info()->isWrite()) continue;
    if (args[i].isTensor()) forget(args[i].toTensor());
    if (args[i].isTensorList()) std::ranges::for_each(args[i].toTensorVector(), forget);
  }
  if (!written) return;
  const auto targets = args[0].isTensor() ? std::vector{args[0].toTensor()} : args[0].toTensorVector();
  for (size_t i = 0; i < targets.size(); ++i) keep(targets[i], (*written)[i], {});
}

void Session::know_input(const at::Tensor& fake, const at::Tensor& real) {
  FakeImpl* impl = as_fake(fake);
  BelowFake guard;
  impl->know(at::clone(real), {impl->value()});
}

const std::set<graph::ValueId>& Session::read_inputs() const { return impl_->state->read_inputs; }

std::optional<std::vector<c10::IValue>> without_masks(Session& session, std::span<const c10::IValue> args) {
  std::vector<c10::IValue> changed(args.begin(), args.end());
  Values values;
  for (c10::IValue& arg : changed) {
    if (!arg.isOptionalTensorList()) continue;
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& item : arg.toListRef()) {
      const at::Tensor index = item.isNone() ? at::Tensor() : item.toTensor();
      if (!index.defined() || (index.scalar_type() != c10::kBool && index.scalar_type() != c10::kByte)) {
        list.push_back(item.isNone() ? std::nullopt : std::optional(index));
        continue;
      }
      auto mask = values.of(index);
      if (!mask) return std::nullopt;
      int64_t count = 0;
      {
        BelowFake guard;
        count = at::nonzero(*mask).size(0);
      }
      for (int64_t k = 0; k < index.dim(); ++k) {
        list.push_back(session.impl().empty({count}, {1}, c10::kLong, index.device()));
      }
    }
    arg = std::move(list);
  }
  session.impl().state->read_inputs.insert(values.from.begin(), values.from.end());
  return changed;
}

}  // namespace magneto::fake
