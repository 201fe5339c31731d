// Operators whose results' sizes, or number, only the data says: `nonzero`, `x[mask]`, `.item()`.
//
// What is not known before the code runs is a symbol without a value (u0), which the run finds in the result. A
// question about it that nothing decides, PyTorch's own code and the rules get answered as for an example, and that the
// answer holds is checked in each run (magneto::check): where it does not, CPython runs the segment.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <span>
#include <vector>

#include "fake/operator_facts.h"
#include "fake/session.h"

namespace magneto::fake {

/// The results of the operator on fakes, where the session takes sizes that data says, and the operator has a rule for
/// them. Where it made a symbol, that is bound to a result by `bind_symbol`, once the operator is recorded.
std::optional<std::vector<c10::IValue>> infer_from_data(Session& session, const c10::OperatorHandle& op,
                                                        const OperatorFacts& facts, std::span<const c10::IValue> args);

/// What a custom operator gives whose fake kernel asks for a data-dependent size. (magneto._fake_sizes)
/// Nothing where that is not wanted, or is no size of a contiguous result as it is.
std::optional<std::vector<c10::IValue>> infer_from_context(Session& session, const c10::OperatorHandle& op,
                                                           std::span<const c10::IValue> args);
void bind_symbol(Session& session, std::span<const c10::IValue> results);

/// The value whose elements that are not zero the operator lists, by their places; kNoValue: it is another operator.
graph::ValueId mask_of_places(const graph::AtenNode& node);

/// The value whose elements that are not zero the operator counts: its result is as large. kNoValue: another operator.
graph::ValueId counted_by(const graph::Graph& graph, const graph::AtenNode& node);

/// What stands for a data-dependent float, where rules want a number: nothing follows from it.
inline constexpr double kSomeFloat = 0.5;

/// `.item()` of an integer tensor: records the read, and gives the symbol. Nothing for other tensors.
std::optional<c10::IValue> infer_item(Session& session, std::span<const c10::IValue> args);

/// What has to hold, so that the operator does not raise: of those that programs give such numbers.
std::vector<shapes::Relation> needed_of_data(const c10::OperatorHandle& op, std::span<const c10::IValue> args);

/// The results of the operators of our own that take such numbers; nothing for all others.
std::optional<std::vector<c10::IValue>> infer_own(Session& session, const c10::OperatorHandle& op);

}  // namespace magneto::fake
