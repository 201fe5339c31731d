// Writes an operator that ran on fakes into the graph.
#pragma once

#include <span>

#include "fake/operator_facts.h"

namespace magneto::fake {

/// Puts graph constants in place of the real tensors among `args`. Numbers wrapped as tensors stay: rules need to see
/// them as such, and most are recorded as numbers.
void replace_real_tensors(Session& session, std::span<c10::IValue> args);

/// Appends the node and makes its new results values.
void record(Session& session, const c10::OperatorHandle& op, const OperatorFacts& facts,
            std::span<const c10::IValue> args, std::span<const c10::IValue> results);

}  // namespace magneto::fake
