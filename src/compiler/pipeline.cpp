// The whole compile of a captured graph, stage after stage. What of it happens is said by the backend's row.
#include "compiler/pipeline.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "autograd/saved_layouts.h"
#include "cache/cache.h"
#include "compiler/ahead.h"
#include "compiler/cached_program.h"
#include "graph/aliases.h"
#include "graph/planted.h"
#include "graph/text.h"
#include "lower/lowering.h"
#include "observe/limits.h"
#include "observe/phase.h"
#include "passes/passes.h"
#include "passes/tiles.h"
#include "runtime/device/device.h"
#include "runtime/joint_computation.h"
#include "runtime/sized_computation.h"
#include "support/settings.h"
#include "support/tensor_object.h"

namespace magneto::compiler {
namespace {

using observe::Events;
using observe::Observer;
using observe::PhaseScope;
using Operators = Backend::Operators;
using TensorComputation = std::unique_ptr<runtime::TensorComputation>;

// -- one graph of tensors

/// Somebody wants to see what is made on the way, which the cache on disk would save.
bool is_watched(const graph::StageSink& sink) {
  for (size_t stage = 0; stage < std::size(graph::kStages); ++stage) {
    if (sink.insists_on(static_cast<graph::Stage>(stage))) return true;
  }
  return false;
}

/// What the program depends on besides the graph.
std::string text_of(const CompileWay& way) {
  std::string text = way.tuning.seconds > 0 ? "measured, " : "by rule, ";
  if (way.operators == Operators::Called) text += "called, ";
  if (way.operators == Operators::Exact) text += "exact, ";
  if (!way.regions) text += "without regions, ";
  text += "weights ";
  for (const bool weight : way.watched) text += weight ? '1' : '0';
  return text;
}

/// No operator becomes a part of a kernel.
lower::Choices all_called(const graph::Graph& graph) {
  lower::Choices choices;
  for (size_t i = 0; i < graph.aten_nodes.size(); ++i) choices.called.insert(static_cast<int32_t>(i));
  return choices;
}

lower::LoopProgram make_loops(passes::Functional functional, const CompileWay& way,
                              const std::optional<lower::LoopProgram>& known, graph::StageSink& sink) {
  PhaseScope phase("compile.backend.lowering", sink);
  lower::Choices choices = known ? known->choices : lower::Choices();
  if (way.operators == Operators::Called) {
    choices = all_called(functional.graph);
  } else {
    graph::fail_as_planted(functional.graph);
  }
  choices.exact = way.operators == Operators::Exact;
  choices.threads = at::get_num_threads();
  lower::LoopProgram lowered = lower::lower(std::move(functional), sink, std::move(choices));
  for (size_t i = 0; known && i < lowered.steps.size(); ++i) {
    if (lowered.steps[i].kernel) lowered.steps[i].kernel->variant = known->steps.at(i).kernel->variant;
  }
  return phase.done(std::move(lowered));
}

/// What kernels run on.
const runtime::Device& device_of(const CompileWay& way) {
  return way.operators == Operators::Interpreted ? runtime::interpreter_device() : runtime::cpu_device();
}

/// No process takes longer to make a program and goes on: measuring stops at its limit, the rest is short.
std::chrono::milliseconds patience_of(const CompileWay& way) {
  return std::chrono::milliseconds(20'000 + static_cast<int64_t>(1000 * way.tuning.seconds));
}

/// Lowering makes kernels of all that the region does, which `sink` is shown.
bool is_all_kernels(const graph::Region& region, graph::StageSink& sink) {
  observe::Events nobody;
  const lower::LoopProgram program =
      lower::lower(passes::normalise(region.graph, {}, nobody), nobody, {.threads = at::get_num_threads()});
  sink.offer(graph::Stage::loops, [&] { return "of the region @" + region.name + "\n" + lower::print(program); });
  return std::ranges::all_of(program.steps, [](const lower::Step& step) { return step.kernel != nullptr; });
}

/// Attention by tiles, where kernels do what is done to a tile.
passes::Functional with_tiles(passes::Functional functional, const CompileWay& way, graph::StageSink& sink) {
  const bool generated = way.operators == Operators::Generated || way.operators == Operators::Interpreted;
  if (!generated || !way.regions || !observe::allows(observe::Counted::Pass, "tile_attention")) return functional;
  PhaseScope phase(nullptr, sink);
  std::optional<passes::Functional> tiled = passes::tile_attention(functional);
  if (!tiled) return functional;
  bool all = true;
  graph::for_each_region(tiled->graph, [&](const graph::Region& region) {
    if (!all || !region.name.starts_with("tile_")) return;
    all = is_all_kernels(region, sink);
    if (all) return;
    sink.offer(graph::Stage::hints, [&] {
      return "attention computes all scores at once: kernels don't do all that its score and mask functions do\n";
    });
  });
  return all ? phase.done(std::move(*tiled), "tile_attention") : functional;
}

/// Cache, passes, measuring, lowering. What somebody looks at is made even where the cache has the program.
lower::LoopProgram make_program(const graph::Graph& graph, const CompileWay& way, graph::StageSink& sink,
                                Compiled& result) {
  PhaseScope cache_phase("compile.backend.cache", sink);
  runtime::CachedProgram cache(graph, text_of(way));
  const bool is_cached = way.operators != Operators::Interpreted && !observe::numbers().active();
  std::optional<lower::LoopProgram> program = cache_phase.done(is_cached ? cache.find(patience_of(way)) : std::nullopt);
  result.cached = program.has_value();
  if (program && !is_watched(sink)) return std::move(*program);

  PhaseScope pass_phase("compile.backend.passes", sink);
  passes::Functional functional = pass_phase.done(
      with_tiles(passes::normalise(graph, way.watched, sink, way.operators == Operators::Exact), way, sink),
      graph::Stage::normal_form);

  if (way.tuning.seconds > 0) {
    runtime::Tuned tuned{.program = {}, .report = "from the cache on disk\n"};
    if (!program) {
      tuned = runtime::tune(functional, way.tuning, device_of(way));
      program = std::move(tuned.program);
      result.tuned = tuned.changed;
    }
    sink.offer(graph::Stage::choices, [&] { return tuned.report; });
  }

  if (!program || is_watched(sink)) program = make_loops(std::move(functional), way, program, sink);
  if (is_cached && !result.cached) cache.keep(*program);
  return std::move(*program);
}

graph::Graph without_torch_level(graph::Graph graph) {
  graph.torch_nodes.clear();
  for (graph::AtenNode& node : graph.aten_nodes) node.torch_node = -1;
  return graph;
}

void count(const lower::LoopProgram& program, Compiled& result) {
  for (const lower::Step& step : program.steps) {
    if (!step.kernel) {
      result.externs.push_back(program.functional.graph.aten_nodes[step.call.node].op.operator_name().name);
      continue;
    }
    ++result.kernels;
    for (const loops::Block& block : step.kernel->kernel.blocks)
      result.instructions += static_cast<int64_t>(block.code.size());
  }
  result.cut = program.cut;
}

/// For a graph that has no program as a whole: the operators that do not compile may be few, and what stands around
/// them does.
Compiled without_program(const graph::Graph& graph, const CompileWay& way, graph::StageSink& sink,
                         const std::string& why) {
  if (!way.whole) {
    graph::Graph renamed = without_torch_level(graph);
    passes::simplify_views(renamed);
    if (passes::can_cut(renamed)) return compile_parts(renamed, way, sink);
  }
  return {.computation = runtime::make_aten_computation(graph), .uncompiled = why};
}

std::vector<std::string> lines_of(const graph::Graph& graph) {
  std::vector<std::string> lines;
  for (const graph::AtenNode& node : graph.aten_nodes) {
    lines.push_back(node.torch_node < 0 ? "" : graph::origin_text(graph, node));
  }
  return lines;
}

runtime::Origin origin_of(const graph::Graph& graph, const CompileWay& way) {
  const bool known = way.lines.size() == graph.aten_nodes.size();
  return {.place = way.place, .operators = known ? way.lines : lines_of(graph)};
}

// -- sizes

/// Sizes that an operator of the graph says.
bool has_data_sizes(const graph::Graph& graph) { return !graph.symbols_of(graph::ValueKind::Result).empty(); }

/// A size is data-dependent; a backward finds it in what is saved.
bool depends_on_data(const graph::Graph& graph) {
  return std::ranges::any_of(graph.symbols, [](const graph::SymbolBinding& symbol) { return symbol.symbol < 0; });
}

/// Generates code for one size of a graph that has been captured for many.
runtime::Specialise specialise(CompileWay way, const Request& request) {
  way.tuning = {};  // for the sizes of the capture
  way.ends = {};
  return [way = std::move(way), disk_cache = request.disk_cache, place = request.place](const graph::Graph& graph) {
    const cache::Pause without(!disk_cache);
    Events events;
    Compiled made = compile_graph(graph, way, events);
    events.tell(&Observer::program_made, {place, made, /*specialised=*/true});
    return std::move(made.computation);
  };
}

/// Generates code for some of a backward's gradients.
runtime::Specialise pruned(CompileWay way, const Request& request) {
  const auto of_data = [](const autograd::Backward& backward) { return has_data_sizes(backward.graph); };
  if (request.backend.runs_captured() || std::ranges::any_of(request.joint->backwards, of_data)) return {};
  return [way = std::move(way), disk_cache = request.disk_cache](const graph::Graph& graph) {
    const cache::Pause without(!disk_cache);
    Events events;
    return std::move(compile_graph(graph, way, events).computation);
  };
}

/// By what is known of the graph's sizes.
Compiled compile_sizes(const Request& request, const graph::Graph& graph, const CompileWay& way, Events& events) {
  Compiled made = compile_graph(graph, way, events);
  if (graph.symbols.empty() || made.uncompiled.empty() || depends_on_data(graph)) return made;
  events.tell(&Observer::no_code_for_all_sizes, {request.place, made.uncompiled});
  const graph::SymbolValues captured = captured_sizes(request);
  made = compile_graph(graph::with_numbers(graph, captured), way, events);
  made.computation =
      runtime::make_sized_computation(graph, captured, std::move(made.computation), specialise(way, request));
  return made;
}

// -- levels

/// A graph none of whose results requires grad. `direction`: for people.
TensorComputation compile_tensors(const Request& request, const graph::Graph& graph, const CompileWay& way,
                                  const char* direction, Events& events) {
  const bool numbered = !request.backend.runs_captured() && observe::allows(observe::Counted::Graph, request.place);
  if (!numbered) return call_parts(graph, way.ends);
  events.tell(&Observer::graph_compile, {direction, /*is_done=*/false});
  Compiled made = compile_sizes(request, graph, way, events);
  events.tell(&Observer::program_made, {request.place, made, /*specialised=*/false});
  if (!made.uncompiled.empty()) {
    events.offer(graph::Stage::hints, [&] { return "the operators run one by one: " + made.uncompiled + "\n"; });
  }
  events.tell(&Observer::graph_compile, {direction, /*is_done=*/true});
  return std::move(made.computation);
}

/// How operators run. What is generated is interpreted for tests that ask for that.
Operators operators_of(const Backend& backend) {
  const bool interpreted = backend.operators == Operators::Generated && settings().interpret_kernels;
  return interpreted ? Operators::Interpreted : backend.operators;
}

TensorComputation compile_inference(const Request& request, Events& events) {
  CompileWay way{.operators = operators_of(request.backend), .watched = request.watched, .place = request.place};
  if (way.operators == Operators::Generated) way.tuning = request.tuning;
  return compile_tensors(request, request.graph, way, "FORWARDS", events);
}

/// A graph with gradients: its forward, and backwards that autograd's engine calls. The weights change with each step:
/// nothing is prepared of them, and nothing measured.
std::unique_ptr<runtime::Computation> compile_joint(const Request& request, Events& events) {
  CompileWay way{.operators = operators_of(request.backend), .place = request.place};
  way.trains = true;
  graph::Graph graph = request.graph;
  if (way.operators == Operators::Generated || way.operators == Operators::Interpreted) {
    autograd::save_channels_last(graph, *request.joint);
  }
  way.lines = lines_of(graph);
  const graph::Graph forward = runtime::forward_of(graph, *request.joint);
  events.tell(&Observer::joint_graph, {request.place, forward, *request.joint});
  TensorComputation forward_computation = compile_tensors(request, forward, way, "FORWARDS", events);
  std::vector<TensorComputation> backwards;
  way.place = "the backward of " + request.place;
  way.lines = {};
  for (const autograd::Backward& backward : request.joint->backwards) {
    way.ends = backward.ends;
    backwards.push_back(compile_tensors(request, backward.graph, way, "BACKWARDS", events));
  }
  way.ends = {};
  runtime::Specialise prune = pruned(std::move(way), request);
  auto torch_level = request.joint->results.of_classes ? nullptr : runtime::make_torch_computation(request.graph);
  return runtime::make_joint_computation(graph, std::move(*request.joint), std::move(forward_computation),
                                         std::move(backwards), std::move(torch_level), std::move(prune));
}

}  // namespace

std::unique_ptr<runtime::Computation> without_joint(const Request& request, Events& events) {
  events.tell(&Observer::no_joint_graph, {request.start, request.no_joint});
  events.offer(graph::Stage::hints, [&] {
    return "results require grad, and there is no joint graph (" + request.no_joint +
           "): the torch calls run one by one, under autograd. For inference, call it under torch.no_grad() or "
           "torch.inference_mode()\n";
  });
  return runtime::make_torch_computation(request.graph);
}

graph::SymbolValues captured_sizes(const Request& request) {
  std::vector<const at::Tensor*> inputs;
  for (const Ref& input : request.inputs) inputs.push_back(&unpack_tensor(input.get()));
  return graph::SymbolReader(request.graph).read(inputs.data());
}

lower::LoopProgram loops_of(const graph::Graph& graph, const CompileWay& way, graph::StageSink& sink) {
  Compiled about;
  return make_program(graph, way, sink, about);
}

Compiled compile_graph(const graph::Graph& graph, const CompileWay& way, graph::StageSink& sink) {
  if (!way.ends.empty()) return compile_parts(graph, way, sink);
  if (has_data_sizes(graph)) {  // no memory can be planned across what says them
    if (graph::changed_in_place(graph).empty()) return compile_parts(graph, way, sink);
    graph::Graph renamed = without_torch_level(graph);  // a part sees one shape of each of its inputs
    passes::simplify_views(renamed);
    return compile_parts(renamed, way, sink);
  }
  const auto is_dense = [](const graph::Value& value) { return passes::is_dense_cpu(value.meta); };
  if (!std::ranges::all_of(graph.values, is_dense))
    return without_program(graph, way, sink, "tensors that are no plain tensors of the CPU");
  Compiled result;
  try {
    graph::Graph captured = without_torch_level(graph);
    lower::LoopProgram loops = make_program(graph, way, sink, result);
    count(loops, result);
    // Its memory is planned, and machine code made.
    runtime::CompiledProgram program(std::move(loops), device_of(way), way.trains);
    program.offer(sink);
    result.planned_peak = program.planned_peak();
    if (sink.watches()) result.watch = program.watch();
    result.computation =
        runtime::make_compiled_computation(std::move(program), std::move(captured), origin_of(graph, way));
  } catch (const passes::Unsupported& refusal) {
    return without_program(graph, way, sink, refusal.what());
  } catch (const runtime::NoCodeGenerator& missing) {
    result.computation = runtime::make_aten_computation(graph);
    result.uncompiled = missing.what();
  }
  return result;
}

std::unique_ptr<runtime::Computation> compile(const Request& request, Events& events) {
  switch (request.backend.level) {
    case Backend::Level::Torch:
      return runtime::make_torch_computation(request.graph);
    case Backend::Level::Module:
      return call_backend(request);
    case Backend::Level::Aten:
      break;
  }
  if (request.backend.operators == Operators::Users) {
    return is_export(request.callable) ? compile_for_export(request) : compile_by_users(request, events);
  }
  const cache::Pause without(!request.disk_cache);
  if (!request.needs_grad) return compile_inference(request, events);
  return request.joint ? compile_joint(request, events) : without_joint(request, events);
}

}  // namespace magneto::compiler
