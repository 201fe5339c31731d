// A schedule in words, for people.
#include "codegen/llvm/schedule.h"

namespace magneto::codegen {
namespace {

std::string loops_text(const std::vector<loops::Loop>& loops, const Lanes& lanes) {
  std::string out;
  for (const loops::Loop& loop : loops) {
    out += (out.empty() ? "" : ", ") + ("i" + std::to_string(loop.variable)) + " < " + shapes::text(loop.extent);
    if (loop.variable != lanes.variable) continue;
    out += " by " + std::to_string(lanes.wide) + " lanes";
    if (lanes.narrow != lanes.wide) {
      out += lanes.narrow == 1 ? ", the rest one by one" : ", the rest by " + std::to_string(lanes.narrow) + " masked";
    }
  }
  return out.empty() ? "once" : out;
}

}  // namespace

std::string print(const Schedule& schedule) {
  const loops::Kernel& kernel = schedule.kernel;
  const bool across = schedule.rows.variable >= 0;
  std::string out = "vectors of " + std::to_string(schedule.machine.vector_bytes) + " bytes, lanes " +
                    (across ? "across rows" : "within rows") + "\n";
  out += "rows: " + loops_text(kernel.parallel, schedule.rows) + "\n";
  for (size_t i = 0; i < kernel.blocks.size(); ++i) {
    const loops::Block& block = kernel.blocks[i];
    if (block.is_stage()) out += "  stage: " + loops_text(block.loops, schedule.stages[i]) + "\n";
  }
  if (const Tile& tile = schedule.tile) {
    std::string lengths, names;
    for (const Tile::Side& side : tile.across) {
      lengths += std::to_string(side.length) + " by ";
      names += "i" + std::to_string(side.variable) + " and ";
    }
    const bool staged = tile.stage.variable >= 0;
    out += lengths + (staged ? shapes::text(tile.stage.extent) : std::to_string(Tile::kSide)) + " of " + names +
           (staged ? "a stage" : "i" + std::to_string(tile.lanes.variable));
    out += ", turned:";
    for (const auto* list : {&tile.loads, &tile.stores}) {
      for (const Tile::Turned& turned : *list) {
        out += " b" + std::to_string(turned.buffer) + "[" + shapes::text(turned.index) + "]";
      }
    }
    out += "\n";
  }
  for (const Schedule::Ahead& ahead : schedule.ahead) {
    out += "ahead: b" + std::to_string(ahead.buffer) + "[" + shapes::text(ahead.index) + "]\n";
  }
  for (size_t b = 0; b < schedule.streamed.size(); ++b) {
    if (schedule.streamed[b]) out += "around the cache: b" + std::to_string(b) + "\n";
  }
  return out + "units: " + shapes::text(schedule.units) + ", of " + shapes::text(schedule.rows_per_unit) + " rows, " +
         shapes::text(unit_cost(kernel) * schedule.rows_per_unit) + " bytes each\n";
}

}  // namespace magneto::codegen
