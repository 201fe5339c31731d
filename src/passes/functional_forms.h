// What an operator that writes, and a view that is written, are without writes: for functionalise.cpp.
#pragma once

#include <optional>

#include "passes/rewriter.h"

namespace magneto::passes {

/// The operator that gives what `op` writes: `add_.Tensor` has `add.Tensor`, `add.out` too.
std::optional<c10::OperatorHandle> functional_of(const c10::OperatorHandle& op);

/// To what an operator's operands promote: tensors with dimensions, tensors without, and numbers, each Undefined where
/// there are none. Undefined: there is no operand.
c10::ScalarType promoted(c10::ScalarType dims, c10::ScalarType zero, c10::ScalarType number, bool floats_for_integers);

/// The dtype in which `functional` gives its k-th result in place of `node`, from the promotion of its operands `args`,
/// values of `graph`. Sizes and layout are those of the memory that `node` writes: writes do not change them. Throws
/// Unsupported where that is not known beforehand.
c10::ScalarType written_dtype(const graph::Graph& graph, const graph::AtenNode& node,
                              const c10::OperatorHandle& functional, const std::vector<graph::AtenArg>& args, size_t k,
                              const graph::TensorMeta& memory);

/// A view that gives the elements in the same order other sizes, its second argument.
bool is_reshape(const c10::OperatorHandle& op);

/// A view that was written, in a graph that is made.
struct WrittenView {
  Rewriter& out;
  /// The view operator as captured, and which of its results was written.
  const graph::AtenNode& node;
  int32_t result;
  /// What it is a view of, and what the view became; values of the new graph.
  graph::ValueId parent, value;
  int32_t torch_node;
};

/// What `op`, which gives row-major results in whose order it draws random numbers, draws for memory that lies densely
/// in another order: on the way there and back its dimensions change places. Throws Unsupported where an operand beside
/// the first is no constant.
graph::ValueId draw_in_rows(Rewriter& out, const c10::OperatorHandle& op, std::vector<graph::AtenArg> args,
                            const graph::TensorMeta& memory, int32_t torch_node);

/// The value of what `view` is a view of, once it was written. Throws Unsupported for a view that has no inverse.
graph::ValueId put_back(const WrittenView& view);

/// Throws Unsupported, naming the operator.
[[noreturn]] void refuse(const c10::OperatorHandle& op, const char* why);

}  // namespace magneto::passes
