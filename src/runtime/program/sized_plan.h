// The memory of a program whose sizes are dynamic, computed at entry: the geometry of its registers, where
// each lies in the arena, how much its kernels have to do.
//
// What lies where in the arena's order was decided for the sizes of the capture. A register lies behind those below it
// that live at the same time, whatever the sizes are; so a plan for other sizes is one walk in that order.
#pragma once

#include "graph/symbols.h"
#include "runtime/device/kernel_call.h"
#include "runtime/program/register.h"
#include "shapes/size_program.h"

namespace magneto::runtime {

struct SizedPlan {
  explicit SizedPlan(const graph::Graph& graph) : reader(graph) {}

  graph::SymbolReader reader;
  shapes::SizeProgram sizes;

  /// A number of a register, and which of the sizes it is.
  enum class Part : uint8_t { Size, Stride, ViewOffset, Bytes };
  struct Field {
    int32_t reg;
    Part part;
    int32_t dim;
    int32_t size;
  };
  std::vector<Field> fields;

  /// In the order of the arena: a register, and those that it lies behind.
  struct Planned {
    int32_t reg;
    std::vector<int32_t> behind;
  };
  std::vector<Planned> arena;
  /// Registers that lie where another one does.
  std::vector<std::pair<int32_t, int32_t>> shared;

  /// By kernel.
  struct Work {
    int32_t units, cost;
    std::vector<int32_t> symbols;  // ids
  };
  std::vector<Work> kernels;
};

/// A frame's state for the sizes of its last call.
struct FrameSizes {
  graph::SymbolValues values;
  std::vector<int64_t> sizes;
  std::vector<Register> registers;
  std::vector<KernelRun> kernels;
  /// The symbols of all kernels, one kernel's after another's.
  std::vector<int64_t> symbols;
  int64_t arena_bytes = 0;

  FrameSizes(const SizedPlan& plan, const std::vector<Register>& captured);
  /// Computes the rest for `values`.
  void resize(const SizedPlan& plan);
};

}  // namespace magneto::runtime
