#include "lower/late.h"

#include <algorithm>
#include <vector>

#include "graph/aliases.h"

namespace magneto::lower {
namespace {

/// Less memory is not worth a place.
constexpr double kLeastBytes = 1 << 16;

/// From the last step to the first: where each one stands in the new order is known of all behind it.
class LateOrder {
 public:
  explicit LateOrder(LoopProgram& program)
      : program_(program),
        end_(static_cast<int32_t>(program.steps.size())),
        uses_(program.buffers.size(), {end_, end_, -1}) {}

  void run() {
    std::vector<std::vector<int32_t>> before(program_.steps.size() + 1);
    bool any = false;
    for (int32_t i = end_; i-- > 0;) {
      const Accesses accesses = accesses_of(program_.steps[i]);
      const int32_t place = place_of(i, accesses);
      any |= place != i;
      before[place].push_back(i);
      for (const BufferId id : accesses.read) {
        uses_[id].first_read = std::min(uses_[id].first_read, place);
        uses_[id].last = std::max(uses_[id].last, place);
      }
      for (const BufferId id : accesses.written) {
        uses_[id].first_write = std::min(uses_[id].first_write, place);
        uses_[id].last = std::max(uses_[id].last, place);
      }
    }
    if (!any) return;
    std::vector<Step> steps;
    for (const std::vector<int32_t>& here : before) {
      // The step that stays is the last of them: what was put before it came earlier.
      for (size_t k = here.size(); k-- > 0;) steps.push_back(std::move(program_.steps[here[k]]));
    }
    program_.steps = std::move(steps);
  }

 private:
  /// Of the steps behind the one at hand, by their new places: end_ and -1 where there is none.
  struct Uses {
    int32_t first_read, first_write, last;
  };
  struct Accesses {
    std::vector<BufferId> read, written;
    bool may_move = false;
  };

  Accesses accesses_of(const Step& step) const {
    Accesses found;
    const auto place = [&](graph::ValueId id) {
      return id == graph::kNoValue ? kNoBuffer : program_.places[id].buffer;
    };
    if (!step.kernel) {
      const graph::AtenNode& node = program_.functional.graph.aten_nodes[step.call.node];
      graph::for_each_operand(node, [&](graph::ValueId id) { found.read.push_back(place(id)); });
      for (const graph::ValueId id : node.results) found.written.push_back(place(id));
      std::erase(found.read, kNoBuffer);
      std::erase(found.written, kNoBuffer);
      return found;
    }
    const loops::Kernel& kernel = step.kernel->kernel;
    found.may_move = !kernel.may_raise();
    size_t argument = 0;
    for (const loops::Buffer& buffer : kernel.buffers) {
      if (buffer.role == loops::Role::Scratch) continue;
      while (step.kernel->buffers[argument] == kNoBuffer) ++argument;
      const BufferId id = step.kernel->buffers[argument++];
      if (buffer.role != loops::Role::Out) found.read.push_back(id);
      if (buffer.role == loops::Role::In) continue;
      found.written.push_back(id);
      found.may_move &= buffer.role == loops::Role::Out && program_.buffers[id].kind == BufferKind::Kernel;
    }
    return found;
  }

  int32_t place_of(int32_t i, const Accesses& accesses) const {
    if (!accesses.may_move) return i;
    int32_t place = end_;
    double made = 0, kept = 0;
    for (const BufferId id : accesses.written) {
      place = std::min({place, uses_[id].first_read, uses_[id].first_write});
      made += bytes(id);
    }
    for (const BufferId id : accesses.read) place = std::min(place, uses_[id].first_write);
    if (place <= i + 1 || made < kLeastBytes) return i;
    for (const BufferId id : accesses.read) {
      const Buffer& buffer = program_.buffers[id];
      if (buffer.kind != BufferKind::Constant && !buffer.escapes && uses_[id].last < place) kept += bytes(id);
    }
    return made >= kept ? place : i;
  }

  double bytes(BufferId id) const {
    return static_cast<double>(program_.span(id).hint()) *
           static_cast<double>(c10::elementSize(program_.buffers[id].dtype));
  }

  LoopProgram& program_;
  const int32_t end_;
  std::vector<Uses> uses_;  // by buffer
};

}  // namespace

void run_late(LoopProgram& program) { LateOrder(program).run(); }

}  // namespace magneto::lower
