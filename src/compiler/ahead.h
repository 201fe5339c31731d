// A captured graph as the file of a program that is compiled ahead of time has it.
#pragma once

#include <string>
#include <vector>

#include "compiler/pipeline.h"

namespace magneto::compiler {

struct Ahead {
  /// lower::pack of the program, with all constants; the code of its kernels.
  std::string program, kernels;
  /// Those that are called, by name.
  std::vector<std::string> operators;
};

/// The kernels and calls of a graph, before code is made. Throws passes::Unsupported. (pipeline.cpp)
lower::LoopProgram loops_of(const graph::Graph& graph, const CompileWay& way, graph::StageSink& sink);

/// Throws PythonError (NotYet) where something has no place in a file: it names the operator.
Ahead compile_ahead(const Request& request);

}  // namespace magneto::compiler
