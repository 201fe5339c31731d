// Copying a guard program: the same checks over sources of its own, for other roots.
#include "guards/program.h"

namespace magneto::guards {

GuardProgram::Impl::Impl(const Impl& other)
    : global_state(other.global_state),
      ops(other.ops),
      fixed(other.fixed),
      groups(other.groups),
      entries(other.entries),
      types(other.types),
      distinct_sets(other.distinct_sets),
      size_checks(other.size_checks),
      tensors(other.tensors),
      sizes_and_strides(other.sizes_and_strides),
      computed(other.values.size()),
      writer(other.writer),
      owner(other.owner),
      sources(other.sources),
      checks(other.checks),
      places(other.places),
      place_names(other.place_names),
      size_places(other.size_places),
      bare(other.bare),
      slot_by_source(other.slot_by_source) {
  const auto own = [&](const Source*& source) {
    if (source) source = &sources[slot_by_source[source->id]];
  };
  for (Source& source : sources) {
    own(source.base);
    own(source.other);
  }
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
  for (TensorCheck& check : tensors) {
    check.sizes_and_strides = sizes_and_strides.data() + (check.sizes_and_strides - other.sizes_and_strides.data());
  }
  for (Op& op : ops) {
    if (op.kind != OpKind::CheckTensor) continue;
    op.pointer = tensors.data() + (static_cast<const TensorCheck*>(op.pointer) - other.tensors.data());
  }
  for (Group& group : groups) {
    group.dict = nullptr;
    group.version = 0;
  }
  for (DistinctSet& set : distinct_sets) set.moving.clear();
  values.reserve(other.values.size() + 1);  // its address is never null
  values.assign(other.values.size(), nullptr);
  for (size_t slot = 0; slot < values.size(); ++slot) {
    if (owner[slot] == kConstant) values[slot] = other.values[slot];
  }
}

}  // namespace magneto::guards
