// What PyTorch's nodes of autograd keep for their backward, field by field: tensors, and the numbers that their
// formulas are given. The fields are public members of the classes in <torch/csrc/autograd/generated/Functions.h>;
// which there are is read from that header when Magneto is built (tools/node_fields.py).
#pragma once

#include <c10/core/SymInt.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <cstdint>

namespace magneto::autograd {

/// Is told of the fields of a node, in their order.
class FieldVisitor {
 public:
  virtual ~FieldVisitor() = default;
  virtual void tensor(torch::autograd::SavedVariable& saved) = 0;
  /// What the formula is given as it is: a length stands in front of what may have several.
  virtual void number(int64_t number) = 0;
  /// A size, or another number that may be a symbol; it may be replaced. One of a list is a size, mostly.
  virtual void symint(c10::SymInt& number, bool in_list) = 0;
};

/// The node's class is one of those, or of a copy between devices or dtypes, or of a write to a view: that keeps where
/// the view lies, and the node of what was written, whose fields are its own.
bool has_known_fields(const torch::autograd::Node& node);
/// `node` has.
void visit_fields(torch::autograd::Node& node, FieldVisitor& visitor);

}  // namespace magneto::autograd
