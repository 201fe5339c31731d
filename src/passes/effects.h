// What a pass may do with an operator.
#pragma once

#include "graph/graph.h"
#include "ops/operator.h"

namespace magneto::passes {

using OperatorTraits = ops::Operator;

/// Looked up once per operator and thread.
inline const OperatorTraits& traits_of(const c10::OperatorHandle& op) { return ops::operator_of(op); }

/// Of the operator called `name` ("aten::pow").
const std::vector<c10::OperatorName>& overloads_of(const std::string& name);

/// The operator must stay, in its place among its like: an effect, or random numbers. (Batch norm has an effect in
/// training only.)
bool is_pinned(const graph::AtenNode& node);

/// Run again, or once for two that are equal, it gives the same, as long as nobody writes what it reads and makes: it
/// writes nothing, is not pinned, and gives the same in a backward.
bool is_repeatable(const graph::AtenNode& node);

}  // namespace magneto::passes
