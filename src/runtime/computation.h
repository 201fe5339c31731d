// The ways to run a graph: the ATen level from C++, the torch level under autograd, a backend's callable.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compiler/tune.h"
#include "graph/graph.h"
#include "observe/program_watch.h"
#include "observe/stages.h"
#include "runtime/plan/plan.h"

namespace magneto::runtime {

/// The ATen operators in order, below autograd: for graphs none of whose results requires grad.
std::unique_ptr<TensorComputation> make_aten_computation(const graph::Graph& graph);

/// How `make_compiled_computation` goes about it.
struct CompileWay {
  /// Kernels run in the loop IR's interpreter.
  bool interpret = false;
  /// For tools: the operators of the normal form run one by one, no kernel is generated.
  bool operators_only = false;
  /// It is a part already: what does not compile is not cut again.
  bool whole = false;
  /// By input: a convolution's weight whose every write is noticed (Prepacked::can_watch), and that there is room for.
  std::vector<bool> watched;
  /// Not zero seconds: alternatives are measured. The inputs are set then.
  Tuning tuning;
};

/// Generated kernels for a graph none of whose results requires grad.
struct Compiled {
  std::unique_ptr<TensorComputation> computation;
  /// Not empty: why the operators run one by one after all.
  std::string uncompiled;
  int64_t kernels = 0;
  /// The instructions of their loops, and the expressions that would have made a kernel too large.
  int64_t instructions = 0, cut = 0;
  /// Operators that are called, by name.
  std::vector<std::string> externs;
  /// It was found in the cache on disk: nothing was lowered.
  bool kept = false;
  /// Kernels and products that measuring made otherwise.
  int64_t tuned = 0;
  /// If the sink watches.
  std::shared_ptr<ProgramWatch> watch;
};
/// `sink` is offered the stages. Throws PythonError on Ctrl-C while something is measured.
Compiled make_compiled_computation(const graph::Graph& graph, const CompileWay& way, graph::StageSink& sink);
/// The same of a graph with operators that are called as they are, on the tensors of the run: those that find
/// data-dependent sizes, and those that nothing compiles. What stands between them is compiled, part by part. Nothing
/// is measured. (partitioned_computation.cpp)
Compiled make_partitioned_computation(const graph::Graph& graph, const CompileWay& way, graph::StageSink& sink);
/// The torch calls in order, through their Python callables, under the current grad mode.
std::unique_ptr<Computation> make_torch_computation(const graph::Graph& graph);
/// `callable(*inputs)` gives a tuple or list of the graph's outputs (or one tensor for a single output). The numbers of
/// the graph's symbols stand before the inputs. `users`: it comes from a user's backend.
std::unique_ptr<Computation> make_callable_computation(Ref callable, const graph::Graph& graph, bool users);

}  // namespace magneto::runtime
