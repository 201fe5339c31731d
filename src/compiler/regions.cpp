#include "compiler/regions.h"

#include "compiler/pipeline.h"
#include "runtime/program/regions.h"

namespace magneto::compiler {

c10::IValue compile_region(const graph::Region& region, Backend::Operators operators) {
  observe::Events events;
  const CompileWay way{.operators = operators, .place = "the region " + region.name};
  Compiled made = compile_graph(region.graph, way, events);
  events.tell(&observe::Observer::program_made, {way.place, made, /*specialised=*/false});
  return runtime::region_operand(std::move(made.computation));
}

c10::IValue call_region(const graph::Region& region) {
  return runtime::region_operand(runtime::make_aten_computation(region.graph));
}

}  // namespace magneto::compiler
