// What an AtenProgram is made of: one step per ATen node. Built by program_builder.cpp, run by aten_program.cpp.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/symbols.h"
#include "runtime/program/aten_program.h"

namespace magneto::runtime {

enum class Place : uint8_t { Input, Constant, Register };

/// Where a step finds a tensor.
struct Operand {
  Place place = Place::Register;
  /// No later step needs the register: the tensor moves into the call and dies with it.
  bool last_use = false;
  int32_t index = -1;
};

struct Argument {
  enum class Kind : uint8_t { Constant, Tensor, TensorList, OptionalTensorList, Size };
  Kind kind = Kind::Constant;
  Operand tensor;
  /// The operator takes the number in the tensor.
  bool as_number = false;
  /// Lists; an index below 0 is an absent tensor.
  std::vector<Operand> list;
  c10::IValue constant;
  graph::SizeArg size;
};

/// A view whose geometry is known: made without calling the operator while the source has the geometry of the capture.
struct StaticView {
  std::vector<int64_t> source_sizes;
  std::vector<int64_t> source_strides;
  struct Result {
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    int64_t offset;  // beyond the source's
  };
  std::vector<Result> results;
};

enum class CallMode : uint8_t { Direct, Tracked, Dispatched };

struct RunTensors;
struct Step;
/// A typed call for a frequent operator (see typed_calls.cpp).
using TypedCall = at::Tensor (*)(const Step& step, c10::DispatchKeySet keys, const RunTensors& registers);

struct Step {
  c10::OperatorHandle op;
  CallMode mode = CallMode::Direct;
  c10::DispatchKeySet keys;
  std::vector<Argument> arguments;
  /// Register of each tensor result; -1: not kept.
  std::vector<int32_t> results;
  TypedCall typed = nullptr;
  std::unique_ptr<StaticView> view;
  /// Written tensors whose version counter nobody else moves: the operator has no kernel that does (_foreach_add_).
  std::vector<Operand> bumped;
  /// Symbols that its results say: the position among the tensors that it gives, and what to read there.
  std::vector<std::pair<size_t, graph::SymbolBinding>> symbols;
  int32_t node = -1;
  /// A collective, whose operands and results lie in planned memory: it is waited for before the next step.
  bool waits = false;
};

/// A constant that each run gets its own copy of.
struct CopiedConstant {
  at::Tensor tensor;
  int32_t register_index;
};

struct AtenProgram::Impl {
  std::vector<Step> steps;
  std::vector<at::Tensor> constants;
  std::vector<CopiedConstant> copied_constants;
  std::vector<Operand> outputs;
  int32_t register_count = 0;
  size_t input_count = 0;
  graph::SymbolReader symbols;
  /// All tensors are dense, strided and not complex: steps may be direct.
  bool plain = true;

  explicit Impl(const graph::Graph& graph) : symbols(graph) {}
};

/// One run's tensors.
struct RunTensors {
  const at::Tensor* const* inputs;
  const at::Tensor* constants;
  at::Tensor* registers;

  const at::Tensor& operator[](const Operand& operand) const {
    switch (operand.place) {
      case Place::Input:
        return *inputs[operand.index];
      case Place::Constant:
        return constants[operand.index];
      case Place::Register:
        break;
    }
    return registers[operand.index];
  }
};

AtenProgram::Impl build_program(const graph::Graph& graph);

/// The typed call for `step`'s operator and constants; null if it has none.
TypedCall find_typed_call(const Step& step);

}  // namespace magneto::runtime
