// Mode max-autotune: where lowering and scheduling decide by rules of thumb, the alternatives are run on the real
// shapes and the fastest is taken.
//
//   whole program   matrix products up to which size are generated (the others are the library's)
//   each kernel     how its loops are run (codegen::kVariants); or eager's own kernels for the operators in it
//
// At the end the result is run against the program as it would have been, and has to be faster. The program goes to the
// cache on disk as any other does, so that the next process measures nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "lower/program.h"
#include "passes/passes.h"

namespace magneto::runtime {

class Device;

struct Tuning {
  /// Nothing new is measured afterwards.
  double seconds = 0;
  /// For tests: not below zero: this alternative is taken, whatever was measured.
  int64_t takes = -1;
  /// Of the graph, with the values of the first call. Their contents stay.
  std::vector<at::Tensor> inputs;
  /// What is compiled, for people.
  std::string name;
};

struct Tuned {
  lower::LoopProgram program;
  /// What was measured, a line each.
  std::string report;
  /// How many kernels and products are made otherwise than without measuring.
  int64_t changed = 0;
};

/// Needs the GIL, and gives it up while something is measured. Throws PythonError on Ctrl-C; what an operator throws
/// means that nothing is chosen.
Tuned tune(const passes::Functional& functional, const Tuning& tuning, const Device& device);

}  // namespace magneto::runtime
