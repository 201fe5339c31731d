// Copying a guard program: the same checks over sources of its own, for other roots.
#include "guards/program.h"

namespace magneto::guards {

GuardProgram::Impl::Impl(const Impl& other)
    : global_state(other.global_state),
      ops(other.ops),
      slots(other.slots),
      groups(other.groups),
      types(other.types),
      distinct_sets(other.distinct_sets),
      size_checks(other.size_checks),
      tensors(other.tensors),
      checks(other.checks),
      lines(other.lines) {
  const auto own = [&](const Source*& source) { source = slots.own(source); };
  for (Check& check : checks) {
    own(check.source);
    own(check.other);
    for (const Source*& source : check.sources) own(source);
    if (!check.sizes) continue;
    SizeAssumptions sizes = *check.sizes;
    for (auto& symbol : sizes.symbols) own(symbol.place.source);
    for (auto& same : sizes.same) own(same.place.source);
    check.sizes = std::make_shared<const SizeAssumptions>(std::move(sizes));
  }
  for (Op& op : ops) {
    if (op.kind != OpKind::CheckTensor) continue;
    op.pointer = tensors.same(static_cast<const TensorCheck*>(op.pointer), other.tensors);
  }
  groups.forget();
  for (DistinctSet& set : distinct_sets) set.moving.clear();
}

}  // namespace magneto::guards
