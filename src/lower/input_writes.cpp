#include "lower/input_writes.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "graph/aliases.h"
#include "graph/overwrites.h"

namespace magneto::lower {
namespace {

using shapes::Expr;

bool may_fail(const Step& step) { return !step.kernel || step.kernel->kernel.may_raise(); }

int argument_of(const KernelStep& kernel, BufferId buffer) {
  const auto found = std::find(kernel.buffers.begin(), kernel.buffers.end(), buffer);
  return found == kernel.buffers.end() ? -1 : static_cast<int>(found - kernel.buffers.begin());
}

bool has_role(const KernelStep& kernel, BufferId buffer, loops::Role role) {
  const int argument = argument_of(kernel, buffer);
  return argument >= 0 && kernel.kernel.buffers[argument].role == role;
}
bool stores_to(const KernelStep& kernel, BufferId buffer) { return has_role(kernel, buffer, loops::Role::Out); }

/// All loads of buffer `in` stand in the block that stores `out`, at the element that it stores, and before it does.
bool touches_same(const loops::Kernel& kernel, int in, int out) {
  for (const loops::Block& block : kernel.blocks) {
    std::optional<Expr> loaded;
    bool stored = false;
    for (const loops::Instruction& instruction : block.code) {
      if (instruction.op == loops::Op::Load && instruction.buffer == in) {
        if (stored || (loaded && *loaded != instruction.index)) return false;
        loaded = instruction.index;
      }
      if (instruction.op == loops::Op::Store && instruction.buffer == out) {
        if (stored || (loaded && *loaded != instruction.index)) return false;
        stored = true;
      }
    }
    if (loaded && !stored) return false;
  }
  return true;
}

class InputWrites {
 public:
  explicit InputWrites(LoopProgram& program) : program_(program), graph_(program.functional.graph) {}

  void run() {
    find_readers();
    sink();
    find_users();
    for (const auto& write : program_.functional.writes) {
      if (write.input == write.value) continue;
      if (!write_directly(write)) program_.copies.push_back(write);
    }
  }

 private:
  void find_readers() {
    readers_.resize(graph_.values.size());
    for (const graph::AtenNode& node : graph_.aten_nodes) {
      graph::for_each_operand(node, [&](graph::ValueId id) { ++readers_[id]; });
    }
    for (const graph::ValueId id : graph_.outputs) ++readers_[id];
  }

  /// By buffer, so that each write looks at its own alone: an optimizer has thousands.
  void find_users() {
    users_.resize(program_.buffers.size());
    placed_.resize(program_.buffers.size());
    for (size_t i = 0; i < program_.steps.size(); ++i) {
      for (const BufferId buffer : read_by(program_.steps[i])) {
        if (buffer != kNoBuffer) users_[buffer].push_back(i);
      }
      if (may_fail(program_.steps[i])) end_of_failing_ = i + 1;
    }
    for (size_t id = 0; id < program_.places.size(); ++id) {
      const BufferId buffer = program_.places[id].buffer;
      if (buffer != kNoBuffer) placed_[buffer].push_back(static_cast<graph::ValueId>(id));
    }
    for (const auto& write : program_.functional.writes) ++writes_of_[program_.places[write.value].buffer];
  }

  static std::vector<size_t> union_of(const std::vector<size_t>& a, const std::vector<size_t>& b) {
    std::vector<size_t> both;
    std::ranges::set_union(a, b, std::back_inserter(both));
    return both;
  }

  /// A second run, from the new contents, gives the same: elements are replaced, and nothing else reads the input.
  bool is_repeatable(const passes::Functional::Write& write) const {
    graph::ValueId id = write.value;
    while (id != write.input) {
      const int32_t producer = graph_.values[id].producer;
      if (producer < 0) return false;
      const graph::AtenNode& node = graph_.aten_nodes[producer];
      const auto* base = node.args.empty() ? nullptr : std::get_if<graph::ValueId>(&node.args[0]);
      if (!base || !graph::overwrites(node) || readers_[*base] != 1) return false;
      id = *base;
    }
    return true;
  }

  std::set<BufferId> read_by(const Step& step) const {
    std::set<BufferId> buffers;
    if (!step.kernel) {
      graph::for_each_operand(graph_.aten_nodes[step.call.node],
                              [&](graph::ValueId id) { buffers.insert(program_.places[id].buffer); });
    } else {
      for (size_t i = 0; i < step.kernel->buffers.size(); ++i) buffers.insert(step.kernel->buffers[i]);
    }
    return buffers;
  }

  /// Kernels that give inputs their contents, behind the last step that may fail, unless a step up to there reads what
  /// they make.
  void sink() {
    std::set<BufferId> contents;
    for (const auto& write : program_.functional.writes) {
      if (write.input != write.value && !is_repeatable(write)) contents.insert(program_.places[write.value].buffer);
    }
    std::vector<Step>& steps = program_.steps;
    const auto last = std::find_if(steps.rbegin(), steps.rend(), may_fail);
    if (contents.empty() || last == steps.rend()) return;
    const auto end = static_cast<size_t>(last.base() - steps.begin());
    std::vector<bool> sinks(end);
    std::set<BufferId> needed;
    for (size_t i = end; i-- > 0;) {
      const Step& step = steps[i];
      bool gives = false, waited_for = false;
      if (!may_fail(step)) {
        for (const BufferId buffer : step.kernel->buffers) {
          if (has_role(*step.kernel, buffer, loops::Role::In)) continue;
          gives |= contents.count(buffer) != 0;
          waited_for |= needed.count(buffer) != 0;
        }
      }
      sinks[i] = gives && !waited_for;
      if (!sinks[i]) needed.merge(read_by(step));
    }
    std::vector<Step> before, behind;
    for (size_t i = 0; i < end; ++i) (sinks[i] ? behind : before).push_back(std::move(steps[i]));
    std::move(before.begin(), before.end(), steps.begin());
    std::move(behind.begin(), behind.end(), steps.begin() + static_cast<std::ptrdiff_t>(before.size()));
  }

  /// A kernel writes an input directly if nothing reads its old contents later, or at another element in that kernel,
  /// and nothing fails from then on.
  bool write_directly(const passes::Functional::Write& write) {
    const BufferId to = program_.places[write.input].buffer, from = program_.places[write.value].buffer;
    const Buffer& input = program_.buffers[to];
    const Buffer& value = program_.buffers[from];
    if (value.kind != BufferKind::Kernel || value.escapes || value.value != write.value) return false;
    if (input.dtype != value.dtype || input.sizes != value.sizes || input.strides != value.strides) return false;
    if (writes_of_.at(from) > 1) return false;
    const std::vector<size_t> steps = union_of(users_[from], users_[to]);
    bool written = false;
    for (const size_t i : steps) {
      const Step& step = program_.steps[i];
      if (!step.kernel) {
        if (written && read_by(step).count(to)) return false;
        continue;
      }
      const KernelStep& kernel = *step.kernel;
      const bool reads = argument_of(kernel, to) >= 0;
      if (written && reads) return false;
      if (!stores_to(kernel, from)) continue;
      if (!written && i < end_of_failing_ && !is_repeatable(write)) return false;
      written = true;
      if (reads && !touches_same(kernel.kernel, argument_of(kernel, to), argument_of(kernel, from))) return false;
    }
    if (!written) return false;
    // Whoever reads the new value reads the input.
    for (const size_t i : users_[from]) {
      if (!program_.steps[i].kernel) continue;
      for (BufferId& buffer : program_.steps[i].kernel->buffers) {
        if (buffer == from) buffer = to;
      }
    }
    users_[to] = steps;
    for (const graph::ValueId id : placed_[from]) program_.places[id].buffer = to;
    placed_[to].insert(placed_[to].end(), placed_[from].begin(), placed_[from].end());
    return true;
  }

  LoopProgram& program_;
  const graph::Graph& graph_;
  std::vector<int32_t> readers_;                     // by ValueId: operators and outputs
  std::vector<std::vector<size_t>> users_;           // by BufferId: steps, in their order
  std::vector<std::vector<graph::ValueId>> placed_;  // by BufferId: what lies in it
  std::unordered_map<BufferId, int> writes_of_;      // new values of inputs
  size_t end_of_failing_ = 0;                        // no step from here on may fail
};

}  // namespace

void write_inputs(LoopProgram& program) { InputWrites(program).run(); }

}  // namespace magneto::lower
