// Values that follow from the code alone: `torch.tensor(5)`, `torch.arange(3) + 1`. A small fake whose operator read
// nothing else keeps what the operator gives, so that `.item()`, a mask or `nonzero` of it needs no data of the run.
// Inputs that hardly ever change (a module's small integer buffers) are known too; what is computed from them remembers
// which, and once the capture goes on with such a value, it is guarded.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <span>
#include <vector>

#include "fake/fake_impl.h"
#include "fake/operator_facts.h"

namespace magneto::fake {

/// The results of the operator for real, if all of its tensors are known and nothing else decides them. The capture
/// goes on with them.
std::optional<std::vector<c10::IValue>> read_known(Session& session, const c10::OperatorHandle& op,
                                                   const OperatorFacts& facts, std::span<const c10::IValue> args);

/// Whether `read_known` gives something.
bool is_known(const c10::OperatorHandle& op, const OperatorFacts& facts, std::span<const c10::IValue> args);

/// Fakes with the geometry of results that were computed.
std::vector<c10::IValue> fakes_like(Session& session, std::span<const c10::IValue> values);

/// Computes and keeps the values of results that are small enough.
void keep_known(const c10::OperatorHandle& op, const OperatorFacts& facts, std::span<const c10::IValue> args,
                std::span<const c10::IValue> results);

/// Notes which storages the operator writes: nothing on them is known any longer, but for a tensor that an in-place
/// operator changes in a known way.
void write_known(const c10::OperatorHandle& op, const OperatorFacts& facts, std::span<const c10::IValue> args);

/// Indices whose known masks are replaced by as many fakes as a mask has dimensions, each as long as it has true
/// entries: for a rule to infer the shape with. Nothing if a mask is unknown.
std::optional<std::vector<c10::IValue>> without_masks(Session& session, std::span<const c10::IValue> args);

}  // namespace magneto::fake
