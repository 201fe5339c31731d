// What equal operators of a forward make is saved once.
#pragma once

#include <optional>
#include <vector>

#include "autograd/partition.h"

namespace magneto::autograd {

/// The joint graph with backward operators, and `gradients`, that read the first of values which equal operators of the
/// forward make of equal operands: the attention mask that each layer makes anew, say. Not of what is written, drawn,
/// or handed out: eager notices if somebody writes that before the backward. Nothing: there are no such values.
std::optional<graph::Graph> with_common_reads(const graph::Graph& joint, const JointRange& range,
                                              const PartitionWay& way, std::vector<graph::ValueId>& gradients);

}  // namespace magneto::autograd
