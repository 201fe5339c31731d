#include "lower/kernel_frame.h"

#include <algorithm>

namespace magneto::lower {

loops::BufferId KernelBuffers::of(BufferId buffer, loops::Role role) {
  const auto [entry, added] = known_.try_emplace(buffer, -1);
  if (added) {
    const Buffer& info = lowering_.program.buffers[buffer];
    const std::string name = info.value == graph::kNoValue ? "" : "%" + std::to_string(info.value);
    entry->second = add(*loop_dtype(info.dtype), role, lowering_.program.span(buffer).expr(), name);
    program_buffers_.resize(std::max<size_t>(program_buffers_.size(), entry->second + 1), kNoBuffer);
    program_buffers_[entry->second] = buffer;
  }
  if (role == loops::Role::Out) builder_.written(entry->second);
  return entry->second;
}

loops::BufferId KernelBuffers::scratch(Dtype dtype, Expr elements) {
  return add(dtype, loops::Role::Scratch, elements);
}

loops::BufferId KernelBuffers::add(Dtype dtype, loops::Role role, Expr elements, const std::string& name) {
  const loops::BufferId made = builder_.buffer(dtype, role, elements, name);
  dtypes_.resize(std::max<size_t>(dtypes_.size(), made + 1));
  dtypes_[made] = dtype;
  return made;
}

KernelVariables::KernelVariables(const Dag& dag, const Group& group, loops::Builder& builder)
    : dag_(dag), group_(group), builder_(builder) {
  for (const Axis& axis : group.axes) {
    if (!axis.inner) rows_.emplace(axis.variable, bind(axis, builder.parallel(axis.extent.expr())));
  }
}

Expr KernelVariables::bind(const Axis& axis, Expr variable) {
  extents_.resize(std::max<size_t>(extents_.size(), variable.id() + 1));
  extents_[variable.id()] = axis.extent;
  return variable;
}

void KernelVariables::begin_row() {
  current_ = rows_;
  place_in_row_ = Expr(0);
  builder_.row();
}

void KernelVariables::begin_stage() {
  current_ = rows_;
  place_in_row_ = Expr(0);
  std::vector<Expr> extents;
  for (const Axis& axis : group_.axes) {
    if (axis.inner) extents.push_back(axis.extent.expr());
  }
  const std::vector<Expr> variables = builder_.stage(extents);
  size_t next = 0;
  for (const Axis& axis : group_.axes) {
    if (!axis.inner) continue;
    current_[axis.variable] = bind(axis, variables[next]);
    place_in_row_ = place_in_row_ * axis.extent.expr() + variables[next++];
  }
}

std::vector<Expr> KernelVariables::bound(const std::vector<Expr>& index) const {
  std::vector<Expr> result;
  for (const Expr expr : index) {
    result.push_back(simplify(shapes::substitute(expr, [&](Expr leaf) -> std::optional<Expr> {
      if (leaf.kind() != shapes::ExprKind::Variable) return std::nullopt;
      const auto found = current_.find(leaf.id());
      // A reduced dimension, asked for behind its stage: only one of size one can be.
      return found == current_.end() ? Expr(0) : found->second;
    })));
  }
  return result;
}

Expr KernelVariables::simplify(Expr expr) const { return expr.is_constant() ? expr : knowledge().simplified(expr); }

}  // namespace magneto::lower
