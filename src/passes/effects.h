// What a pass may do with an operator.
#pragma once

#include "graph/graph.h"

namespace magneto::passes {

struct OperatorTraits {
  /// Draws random numbers: neither taken out, nor merged, nor moved across another one.
  bool random = false;
  /// Is called for something besides its results (assertions, hidden state, custom operators).
  bool effect = false;
  /// Writes some argument.
  bool writes = false;
  /// Some result shares memory with an argument.
  bool aliases = false;
  /// A view by metadata alone, of the same dtype: sizes, strides and offset over its first argument.
  bool view = false;
};

/// Looked up once per operator and thread.
const OperatorTraits& traits_of(const c10::OperatorHandle& op);

/// Of the operator called `name` ("aten::pow").
const std::vector<c10::OperatorName>& overloads_of(const std::string& name);

/// The operator must stay, in its place among its like: an effect, or random numbers. (Batch norm has an effect in
/// training only.)
bool is_pinned(const graph::AtenNode& node);

}  // namespace magneto::passes
