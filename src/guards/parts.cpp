#include "guards/parts.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <bit>

namespace magneto::guards {

Slots::Slots(const Slots& other)
    : computed(other.values.size()),
      writer(other.writer),
      owner(other.owner),
      bare(other.bare),
      sources(other.sources),
      by_source(other.by_source) {
  for (Source& source : sources) {
    source.base = own(source.base);
    source.other = own(source.other);
  }
  values.reserve(other.values.size() + 1);  // its address is never null
  values.assign(other.values.size(), nullptr);
  for (size_t slot = 0; slot < values.size(); ++slot) {
    if (owner[slot] == kConstant) values[slot] = other.values[slot];
  }
}

void Slots::resize() {
  values.reserve(sources.size() + 1);  // its address is never null
  values.assign(sources.size(), nullptr);
  computed.resize(sources.size());
  owner.assign(sources.size(), -1);
  writer.assign(sources.size(), -1);
  bare.assign(sources.size(), true);
}

bool TypeAttributes::look_up(const std::vector<Check>& all, LastFailure& failure) {
  version = 0;
  for (const int32_t index : checks) {
    const Check& check = all[index];
    const DictEntry found =
        check.kind == CheckKind::Bases ? DictEntry{type->tp_mro} : find_type_attribute(type, check.name.get());
    if (found.known && found.value == check.object.get()) continue;
    failure.check = index;
    return false;
  }
  version = type_version(type);  // looking up has given it one
  return true;
}

DistinctSet::DistinctSet(std::vector<int32_t> slots)
    : slots(std::move(slots)), seen(std::bit_ceil(2 * this->slots.size())) {}

PyObject** DistinctSet::place_of(PyObject* value) {
  const size_t mask = seen.size() - 1;
  // Objects are aligned to 16 bytes; the product spreads the rest over the high bits.
  size_t position = (reinterpret_cast<uintptr_t>(value) >> 4) * 0x9e3779b97f4a7c15ull >> 32 & mask;
  while (seen[position] && seen[position] != value) position = (position + 1) & mask;
  return &seen[position];
}

bool DistinctSet::all_distinct(const std::vector<PyObject*>& values, LastFailure& failure) {
  std::ranges::fill(seen, nullptr);
  for (const int32_t slot : slots) {
    PyObject* value = values[slot];
    if (!value) continue;
    PyObject** place = place_of(value);
    if (*place) {
      failure.slots[1] = slot;
      failure.slots[0] = *std::ranges::find_if(slots, [&](int32_t each) { return values[each] == value; });
      return false;
    }
    *place = value;
  }
  return true;
}

bool DistinctSet::moving_distinct(const std::vector<PyObject*>& values) {
  c10::SmallVector<PyObject**, 16> added;
  bool distinct = true;
  for (const int32_t slot : moving) {
    if (!values[slot]) continue;
    PyObject** place = place_of(values[slot]);
    distinct = !*place;
    if (!distinct) break;
    *place = values[slot];
    added.push_back(place);
  }
  // The last first: each leaves the chain of places as it found it.
  while (!added.empty()) *added.pop_back_val() = nullptr;
  return distinct;
}

void DistinctSet::hold(const std::vector<bool>& held, const std::vector<PyObject*>& values) {
  std::ranges::fill(seen, nullptr);
  moving.clear();
  for (const int32_t slot : slots) {
    if (!held[slot]) {
      moving.push_back(slot);
    } else if (values[slot]) {
      *place_of(values[slot]) = values[slot];
    }
  }
}

TensorChecks::TensorChecks(const TensorChecks& other)
    : checks_(other.checks_), sizes_and_strides_(other.sizes_and_strides_) {
  for (TensorCheck& check : checks_) {
    check.sizes_and_strides = sizes_and_strides_.data() + (check.sizes_and_strides - other.sizes_and_strides_.data());
  }
}

void TensorChecks::reserve(size_t checks, size_t numbers) {
  checks_.reserve(checks);
  sizes_and_strides_.reserve(numbers);
}

const TensorCheck* TensorChecks::add(const TensorGuard& guard) {
  const int64_t* start = sizes_and_strides_.data() + sizes_and_strides_.size();
  const auto append = [&](const std::vector<int64_t>& numbers, const std::vector<bool>& free) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      sizes_and_strides_.push_back(!free.empty() && free[i] ? kFree : numbers[i]);
    }
  };
  append(guard.sizes, guard.free_sizes);
  append(guard.strides, guard.free_strides);
  checks_.push_back({guard.type, guard.dispatch_keys, start, static_cast<int32_t>(guard.sizes.size()), guard.dtype,
                     guard.requires_grad, guard.device, !guard.free_sizes.empty(), guard.nested});
  return &checks_.back();
}

void TensorChecks::free(bool strides) {
  for (TensorCheck& check : checks_) {
    const ptrdiff_t start = check.sizes_and_strides - sizes_and_strides_.data() + (strides ? check.rank : 0);
    std::fill_n(sizes_and_strides_.begin() + start, check.rank, kFree);
    check.has_free = true;
  }
}

}  // namespace magneto::guards
