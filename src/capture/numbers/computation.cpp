#include "capture/numbers/computation.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "capture/numbers/counters.h"
#include "capture/torch/tensor_map.h"
#include "fake/operator_facts.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

/// More operators than these, and tensors of more elements, are not computed for the sake of a bool.
constexpr size_t kMostComputed = 64;
constexpr int64_t kMostElements = 1 << 20, kMostFilled = 1 << 23;

at::Tensor state_of(at::Generator generator) {
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

struct Computation::Real::Guards {
  fake::Session::Pause pause;
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  at::Tensor state = state_of(generator);
};

Computation::Real::Real() : guards_(std::make_unique<Guards>()) {}

Computation::Real::~Real() {
  const std::scoped_lock lock(guards_->generator.mutex());
  guards_->generator.set_state(guards_->state);
}

Computation::Computation(Capture& capture, Extent extent) : c(capture), extent_(extent), aliases_(capture.graph) {
  part_.values = capture.graph.values;
}

std::optional<std::vector<at::Tensor>> Computation::values(const std::vector<graph::ValueId>& ids) {
  if (!collect(ids)) return {};
  const Real scope;
  const graph::OperatorRun::StandIns real = {
      .constant = [](const at::Tensor& constant) { return constant.clone(); },  // it may be written
      .size = [this](shapes::Expr size) { return c10::SymInt(evaluate(size)); },
      .number = [](const at::Tensor& holder) { return c10::SymFloat(holder.item<double>()); }};
  try {
    run_.emplace(part_, real);
    return run_->run(inputs_);
  } catch (const c10::Error&) {  // the run will raise it
    return {};
  }
}

std::optional<int64_t> Computation::size(shapes::Expr size) {
  std::vector<graph::ValueId> ids;
  const bool known = !shapes::any_leaf(size, [&](shapes::Expr leaf) {
    if (leaf.id() >= 0) return false;
    const graph::SymbolBinding* binding = binding_of(leaf);
    if (binding) ids.push_back(binding->value);
    return !binding;
  });
  const Real scope;
  if (!known || !values(ids)) return {};
  return evaluate(size);
}

const graph::SymbolBinding* Computation::binding_of(shapes::Expr symbol) const {
  const auto found = std::ranges::find_if(c.graph.symbols, [&](const graph::SymbolBinding& binding) {
    return binding.symbol == symbol.id() && c.graph.values[binding.value].kind == graph::ValueKind::Result;
  });
  return found == c.graph.symbols.end() ? nullptr : &*found;
}

int64_t Computation::evaluate(shapes::Expr size) {
  return shapes::evaluate(size, [&](shapes::Expr leaf) {
    const graph::SymbolBinding* binding = leaf.id() < 0 ? binding_of(leaf) : nullptr;
    if (!binding) return c.session->sizes().example(leaf);
    const at::Tensor& tensor = run_->value(binding->value);
    return binding->dim < 0 ? tensor.item<int64_t>() : tensor.size(binding->dim);
  });
}

/// Backwards from the last operator: what makes a value that is needed, or writes its memory, needs its operands.
bool Computation::collect(const std::vector<graph::ValueId>& ids) {
  if (!std::ranges::all_of(ids, [&](graph::ValueId id) { return need(id); })) return false;
  part_.outputs = ids;
  if (!collect_operators()) return false;
  std::ranges::reverse(part_.aten_nodes);
  return std::ranges::all_of(needed_, [&](graph::ValueId each) {
    if (is_filled(each)) return add_filled(each);
    const graph::Value& value = c.graph.values[each];
    const bool is_made = value.kind == graph::ValueKind::Result && value.producer >= 0;  // in this graph
    return is_made || value.kind == graph::ValueKind::Constant || add_input(each);
  });
}

bool Computation::collect_operators() {
  const auto& nodes = c.graph.aten_nodes;
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    const auto is_needed = [&](graph::ValueId result) { return needed_.contains(result) && !is_filled(result); };
    if (!std::ranges::any_of(node->results, is_needed) && !writes_what_is_needed(*node)) continue;
    if (!may_run(*node)) return false;
    bool complete = need_symbols(*node);
    graph::for_each_operand(*node, [&](graph::ValueId operand) { complete = complete && need(operand); });
    if (!complete) return false;
    part_.aten_nodes.push_back(*node);
  }
  return true;
}

bool Computation::may_run(const graph::AtenNode& node) const {
  if (graph::has_regions(node)) return false;
  if (extent_ == Extent::All) return true;
  if (extent_ == Extent::Filled && !node.op.hasTag(at::Tag::pointwise)) {  // fillings are as usual one by one alone
    bool of_filled = false;
    graph::for_each_operand(node, [&](graph::ValueId id) { of_filled |= id != graph::kNoValue && is_filled(id); });
    if (of_filled) return false;
  }
  const fake::OperatorFacts& facts = fake::facts_of(node.op);
  const bool is_plain = node.op.operator_name().name.starts_with("aten::") && (facts.computes || facts.follows);
  return is_plain && part_.aten_nodes.size() < kMostComputed;
}

/// False: it is too large, or the segment writes memory of the program's for it.
bool Computation::need(graph::ValueId id) {
  if (id == graph::kNoValue) return false;
  if (!needed_.insert(id).second) return true;
  const int64_t elements = c10::multiply_integers(c.graph.values[id].meta.sizes);
  if (is_filled(id)) return elements <= kMostFilled;
  groups_.insert(aliases_.group(id));
  if (extent_ == Extent::All) return true;
  const bool writes_input = aliases_.written(id) && aliases_.input(id);
  return !writes_input && elements <= (extent_ == Extent::Filled ? kMostFilled : kMostElements);
}

/// Floats, and masks that the program is given.
bool Computation::is_filled(graph::ValueId id) const {
  const graph::Value& value = c.graph.values[id];
  if (extent_ != Extent::Filled || value.kind == graph::ValueKind::Constant) return false;
  return c10::isFloatingType(value.meta.dtype) ||
         (value.kind == graph::ValueKind::Input && value.meta.dtype == at::kBool);
}

bool Computation::need_symbols(const graph::AtenNode& node) {
  return std::ranges::all_of(node.args, [&](const graph::AtenArg& arg) {
    const auto* sizes = std::get_if<graph::SizeArg>(&arg);
    return !sizes || std::ranges::all_of(sizes->sizes, [&](shapes::Expr size) { return need_symbols(size); });
  });
}

bool Computation::need_symbols(shapes::Expr size) {
  return !shapes::any_leaf(size, [&](shapes::Expr leaf) {
    const graph::SymbolBinding* binding = leaf.id() < 0 ? binding_of(leaf) : nullptr;
    return leaf.id() < 0 && (!binding || !need(binding->value));
  });
}

bool Computation::writes_what_is_needed(const graph::AtenNode& node) const {
  bool writes = false;
  for (size_t i = 0; i < node.args.size(); ++i) {
    if (!graph::writes_argument(node, i)) continue;
    graph::for_each_tensor(node.args[i], [&](graph::ValueId id) { writes |= groups_.contains(aliases_.group(id)); });
  }
  return writes;
}

bool Computation::add_filled(graph::ValueId id) {
  const graph::TensorMeta& meta = c.graph.values[id].meta;
  if (!meta.device.is_cpu()) return false;
  const Real scope;
  at::Tensor filling = filling_ == Filling::Zeros  ? at::zeros(meta.sizes, at::kFloat)
                       : filling_ == Filling::Ones ? at::ones(meta.sizes, at::kFloat)
                                                   : at::randn(meta.sizes, at::kFloat);
  if (filling_ == Filling::Large) filling.fill_(1000);
  if (filling_ == Filling::Negative) filling.fill_(-1000);
  if (filling_ == Filling::Rising || filling_ == Filling::Falling) {
    const auto first = static_cast<double>(part_.inputs.size()) + 1;
    filling = at::linspace(first, first + 0.5, filling.numel(), at::kFloat).view(meta.sizes);
    if (filling_ == Filling::Falling) filling.neg_();
  }
  part_.inputs.push_back(id);
  inputs_.push_back(meta.dtype == at::kBool ? filling > 0 : filling.to(meta.dtype));
  return true;
}

bool Computation::add_input(graph::ValueId id) {
  if (extent_ == Extent::Filled) return false;  // what it is now is no answer for others
  const auto found = c.tensors.inputs.find(id);
  if (found == c.tensors.inputs.end() || !is_tensor(found->second.real.get())) return false;
  const at::Tensor& real = unpack_tensor(found->second.real.get());
  if (fake::is_fake(real) || real.key_set().has(c10::DispatchKey::Python) || real.layout() != c10::kStrided) {
    return false;
  }
  if (extent_ == Extent::OfState && !is_small_buffer(*found->second.source, real)) return false;
  const bool is_written = aliases_.written(id);
  const auto shares = [&](graph::ValueId other) { return aliases_.group(other) == aliases_.group(id); };
  if (is_written && std::ranges::any_of(part_.inputs, shares)) return false;
  const Real scope;
  part_.inputs.push_back(id);
  inputs_.push_back(is_written ? real.detach().clone() : real);
  return true;
}

}  // namespace magneto::capture
