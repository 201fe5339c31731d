#include "python/bytecode/liveness.h"

#include <algorithm>
#include <span>
#include <utility>

namespace magneto {

struct Liveness {
  size_t words = 0;              // 64 slots each
  std::vector<uint64_t> before;  // per instruction: slots that are live in front of it; empty: all are
};

namespace {

/// The function names one of these.
bool names_any(const CodeInfo& info, std::span<const char* const> names) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(info.names.get()); ++i) {
    PyObject* name = PyTuple_GET_ITEM(info.names.get(), i);
    for (const char* known : names) {
      if (PyUnicode_CompareWithASCIIString(name, known) == 0) return true;
    }
  }
  return false;
}

/// A function that names one of these may look at its own locals by other ways than its bytecode.
constexpr const char* kSeesFrame[] = {"locals",    "vars",         "dir",   "eval",       "exec",
                                      "_getframe", "currentframe", "stack", "breakpoint", "set_trace"};
/// ...at its first argument.
constexpr const char* kSeesFirst[] = {"super"};

/// The usual backward data flow, to its fixed point: as many rounds as loops are nested, and one.
Liveness analyse(const CodeInfo& info) {
  Liveness result;
  if (names_any(info, kSeesFrame)) return result;
  const bool first = names_any(info, kSeesFirst) && info.nlocals > 0;
  const size_t count = info.instrs.size();
  const size_t words = result.words = (info.nlocals + 63) / 64;
  result.before.assign(count * words, 0);
  std::vector<uint64_t> live(words);
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = count; i-- > 0;) {
      const Instr& instr = info.instrs[i];
      std::fill(live.begin(), live.end(), 0);
      auto merge = [&](int32_t successor) {
        if (successor < 0 || static_cast<size_t>(successor) >= count) return;
        for (size_t w = 0; w < words; ++w) live[w] |= result.before[successor * words + w];
      };
      const auto read = [&](int32_t slot) { live[slot / 64] |= uint64_t{1} << (slot % 64); };
      const auto write = [&](int32_t slot) { live[slot / 64] &= ~(uint64_t{1} << (slot % 64)); };
      if (flow_of(instr.op) == Flow::Next) merge(instr.next);
      merge(instr.target);
      switch (locals_of(instr.op)) {
        case Locals::None:
          break;
        case Locals::Reads:
          read(instr.arg);
          break;
        case Locals::Writes:
          write(instr.arg);
          break;
        case Locals::ReadsBoth:
          read(instr.arg);
          read(instr.second);
          break;
        case Locals::WritesBoth:
          write(instr.arg);
          write(instr.second);
          break;
        case Locals::WritesReads:  // in this order: what it writes it does not need
          read(instr.second);
          write(instr.arg);
          break;
      }
      // A handler is entered with the locals as they are in front of the instruction that raises.
      if (const Handler* handler = info.handler_of(static_cast<int32_t>(i))) merge(handler->target);
      if (first) live[0] |= 1;
      uint64_t* known = &result.before[i * words];
      for (size_t w = 0; w < words; ++w) changed |= std::exchange(known[w], live[w]) != live[w];
    }
  }
  return result;
}

}  // namespace

bool is_live(const CodeInfo& info, int32_t instr, int32_t slot) {
  if (info.kinds[slot] & kCellOrFree) return true;
  if (!info.liveness) info.liveness = std::make_shared<const Liveness>(analyse(info));
  const Liveness& known = *info.liveness;
  if (known.before.empty()) return true;
  return known.before[instr * known.words + slot / 64] >> (slot % 64) & 1;
}

}  // namespace magneto
