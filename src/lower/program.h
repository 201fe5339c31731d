// What lowering makes of a graph: kernels and calls over buffers.
//
//     graph -> Functional -> [tensor expressions, roots] -> [groups] -> LoopProgram
//
// A buffer is the memory of one tensor of the graph. Views have none: they are a geometry over a buffer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "graph/symbols.h"
#include "loops/ir.h"
#include "lower/choices.h"
#include "passes/passes.h"

namespace magneto::lower {

using BufferId = int32_t;
inline constexpr BufferId kNoBuffer = -1;

enum class BufferKind : uint8_t {
  Input,     // given by the caller
  Constant,  // kept by the program
  Extern,    // made by an operator's own kernel
  Kernel,    // made by a generated kernel
};

struct Buffer {
  BufferKind kind = BufferKind::Kernel;
  /// The tensor whose memory it is; kNoValue for what only kernels hand each other.
  graph::ValueId value = graph::kNoValue;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  shapes::Sizes sizes, strides;
  /// The position among the graph's inputs.
  int32_t input = -1;
  /// The operator that made it (Extern), or of an alias the buffer whose memory it shares.
  int32_t node = -1;
  /// Leaves the program, or is shared by a tensor that an operator made: memory of its own, not the arena's.
  bool escapes = false;
};

/// Where a value of the graph is found.
struct Place {
  BufferId buffer = kNoBuffer;
  /// Elements from the buffer's first.
  shapes::Size offset;
};

struct KernelStep {
  loops::Kernel kernel;
  /// The program's buffer for each buffer of the kernel that is no scratch, in order.
  std::vector<BufferId> buffers;
  /// The operators of the graph that it computes, or parts of which it computes.
  std::vector<int32_t> operators;
  /// By value of the kernel: the operator that it is computed for; -1: none.
  std::vector<int32_t> value_operators;
  /// How its loops are run (codegen::kVariants).
  int32_t variant = 0;
};

/// A call of an operator of the graph.
struct ExternStep {
  int32_t node;
};

struct Step {
  std::unique_ptr<KernelStep> kernel;  // null: an extern
  ExternStep call{-1};
};

struct LoopProgram {
  passes::Functional functional;
  std::vector<Buffer> buffers;
  /// By ValueId; without a buffer where only kernels know the value.
  std::vector<Place> places;
  std::vector<Step> steps;
  /// View operators that make outputs, in order: run as eager runs them, so that outputs are real views.
  std::vector<int32_t> output_views;
  /// The functional graph's writes that are left to be done at the end; kernels do the others.
  std::vector<passes::Functional::Write> copies;
  /// Expressions that are no part of a kernel that they could have been in, because its code would become too large.
  int32_t cut = 0;
  /// By which it was lowered.
  Choices choices;

  /// How many elements the buffer's memory spans.
  shapes::Size span(BufferId buffer) const;
};

std::string print(const LoopProgram& program);
/// What its kernels violate; empty when they are sound.
std::vector<std::string> verify(const LoopProgram& program);

}  // namespace magneto::lower
