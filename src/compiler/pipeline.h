// From a captured graph to what runs it. The stages, in order, are those of pipeline.cpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "autograd/joint.h"
#include "compiler/backends.h"
#include "compiler/tune.h"
#include "graph/assumption.h"
#include "graph/graph.h"
#include "graph/symbols.h"
#include "guards/sizes.h"
#include "observe/events.h"
#include "observe/program_watch.h"
#include "runtime/computation.h"

namespace magneto::compiler {

/// A captured graph, and how it is to be compiled.
struct Request {
  const graph::Graph& graph;
  const Backend& backend;
  /// Of a backend that is a Python callable: it, and the torch.fx.GraphModule that it gets. Borrowed.
  PyObject *callable = nullptr, *module = nullptr;
  /// Of the run that was captured; and which of them are watched (CompileWay).
  const std::vector<Ref>& inputs;
  std::vector<bool> watched;
  /// A result requires gradients: they are those of the joint graph, or it says why there is none.
  bool needs_grad = false;
  std::shared_ptr<autograd::Joint> joint;
  std::string no_joint;
  /// What is compiled, for people: where it begins.
  CodePlace start;
  std::string place;
  /// Of a backend that is made of compilers of users: what the capture assumed, as text.
  std::string guards;
  /// And what it assumed of dynamic sizes.
  std::vector<const guards::SizeAssumptions*> sizes;
  /// And of data, for a draft.
  std::vector<graph::Assumption> assumptions;
  bool disk_cache = true;
  /// Zero seconds: nothing is measured.
  runtime::Tuning tuning;
};

/// Throws PythonError where the backend raised, and on Ctrl-C.
std::unique_ptr<runtime::Computation> compile(const Request& request, observe::Events& events);

// -- parts of it

/// How one graph of tensors is compiled.
struct CompileWay {
  Backend::Operators operators = Backend::Operators::Generated;
  /// It is a part already: what does not compile is not cut again.
  bool whole = false;
  /// Not empty: it is compiled in parts that can be run one by one. In front of which operators they end.
  std::vector<size_t> ends = {};
  /// By input: a convolution's weight whose every write is noticed (Prepacked::can_watch), and that there is room for.
  std::vector<bool> watched;
  /// Not zero seconds: alternatives are measured. The inputs are set then.
  runtime::Tuning tuning;
  /// What is compiled, for people.
  std::string place;
  /// Of a graph that has no torch level any more: the user's line of each operator.
  std::vector<std::string> lines;
  /// Operators that run regions may take the place of others.
  bool regions = true;
  /// A half of a joint graph: its memory is pooled.
  bool trains = false;
};

/// Generated kernels for a graph none of whose results requires grad.
struct Compiled {
  std::unique_ptr<runtime::TensorComputation> computation;
  /// Not empty: why the operators run one by one after all.
  std::string uncompiled;
  int64_t kernels = 0;
  /// The instructions of their loops, and the expressions that would have made a kernel too large.
  int64_t instructions = 0, cut = 0;
  /// Operators that are called, by name.
  std::vector<std::string> externs;
  /// It was found in the cache on disk: nothing was lowered.
  bool cached = false;
  /// Kernels and products that measuring made otherwise.
  int64_t tuned = 0;
  /// CompiledProgram::planned_peak; -1: nothing is planned.
  int64_t planned_peak = -1;
  /// If the sink watches.
  std::shared_ptr<runtime::ProgramWatch> watch;
};

/// One graph of tensors. Throws PythonError on Ctrl-C while something is measured.
Compiled compile_graph(const graph::Graph& graph, const CompileWay& way, graph::StageSink& sink);
/// The same of a graph with operators that are called as they are, on the tensors of the run: those that find
/// data-dependent sizes, and those that nothing compiles. What stands between them is compiled, part by part. Nothing
/// is measured. (parts.cpp)
Compiled compile_parts(const graph::Graph& graph, const CompileWay& way, graph::StageSink& sink);
/// The operators one by one, in parts that can be run one by one where there are `ends` (CompileWay).
std::unique_ptr<runtime::TensorComputation> call_parts(const graph::Graph& graph, const std::vector<size_t>& ends);
/// What a Python callable makes of the graph. (callable.cpp)
std::unique_ptr<runtime::Computation> call_backend(const Request& request);
/// What the compilers of a user make of its forward and its backward. (user_compilers.cpp)
std::unique_ptr<runtime::Computation> compile_by_users(const Request& request, observe::Events& events);
/// torch.export asks: the computation gives tensors of the right form alone (export.cpp).
bool is_export(PyObject* compilers);
/// ...for a draft.
bool is_draft(PyObject* compilers);
std::unique_ptr<runtime::Computation> compile_for_export(const Request& request);
/// The torch calls one by one, under autograd: there is no joint graph.
std::unique_ptr<runtime::Computation> without_joint(const Request& request, observe::Events& events);
/// What the graph's symbols were in the capture.
graph::SymbolValues captured_sizes(const Request& request);

}  // namespace magneto::compiler
