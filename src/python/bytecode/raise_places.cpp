#include "python/bytecode/raise_places.h"

#include <vector>

namespace magneto {

namespace {

/// Follows the code from a handler's first instruction for as long as the entry that it was entered with lies there.
class Walk {
 public:
  Walk(const CodeInfo& info, int32_t place) : info_(info), place_(place), seen_(info.instrs.size()) {}

  /// The entry is there in front of `wanted`.
  bool reaches(int32_t wanted, const Handler& handler) {
    add(handler.target, handler.depth + 2);  // the offset and the exception
    while (!next_.empty()) {
      const auto [index, depth] = next_.back();
      next_.pop_back();
      if (index == wanted) return true;
      follow(info_.instrs[index], depth);
      // A handler around this instruction that leaves the entry where it is.
      const Handler* around = info_.handler_of(index);
      if (around && around->depth > place_) add(around->target, around->depth + around->lasti + 1);
    }
    return false;
  }

 private:
  struct Place {
    int32_t instr, depth;
  };

  void add(int32_t instr, int32_t depth) {
    if (depth <= place_ || instr < 0 || static_cast<size_t>(instr) >= seen_.size() || seen_[instr]) return;
    seen_[instr] = true;
    next_.push_back({instr, depth});
  }

  void follow(const Instr& in, int32_t depth) {
    if (depth - pops_of(in) <= place_) return;  // taken
    const int32_t after = depth - pops_of(in) + pushes_of(in);
    if (flow_of(in.op) == Flow::Next) add(in.next, after);
    if (in.target < 0) return;
    add(in.target, in.op == Op::FOR_ITER ? depth - 1 : after);  // a loop that ends takes its iterator
  }

  const CodeInfo& info_;
  const int32_t place_;
  std::vector<bool> seen_;
  std::vector<Place> next_;
};

}  // namespace

bool holds_raise_place(const CodeInfo& info, int32_t instr, int32_t depth) {
  for (const Handler& handler : info.handlers) {
    if (handler.lasti && handler.depth == depth && Walk(info, depth).reaches(instr, handler)) return true;
  }
  return false;
}

}  // namespace magneto
