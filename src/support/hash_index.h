// Where items of a vector stand, by their hashes.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace magneto {

/// Open addressing in one block: captures add thousands of items, and a node of std::unordered_multimap is an
/// allocation.
class HashIndex {
 public:
  /// The position of an item of this hash for which `same(position)` holds; -1: there is none.
  template <typename Same>
  int32_t find(size_t hash, const Same& same) const {
    if (slots_.empty()) return -1;
    const uint32_t wanted = folded(hash);
    for (size_t i = wanted & mask();; i = (i + 1) & mask()) {
      const Slot& slot = slots_[i];
      if (slot.position < 0) return -1;
      if (slot.hash == wanted && same(slot.position)) return slot.position;
    }
  }

  void add(size_t hash, int32_t position) {
    if (2 * (count_ + 1) > slots_.size()) grow();
    put({folded(hash), position});
    ++count_;
  }

 private:
  struct Slot {
    uint32_t hash = 0;
    int32_t position = -1;
  };

  size_t mask() const { return slots_.size() - 1; }
  static uint32_t folded(size_t hash) { return static_cast<uint32_t>((hash * 0x9E3779B97F4A7C15ULL) >> 32U); }

  void put(Slot slot) {
    size_t i = slot.hash & mask();
    while (slots_[i].position >= 0) i = (i + 1) & mask();
    slots_[i] = slot;
  }

  void grow() {
    std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots_.empty() ? 64 : 2 * slots_.size()));
    for (const Slot& slot : old) {
      if (slot.position >= 0) put(slot);
    }
  }

  std::vector<Slot> slots_;  // a power of two
  size_t count_ = 0;
};

}  // namespace magneto
