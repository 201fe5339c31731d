// Which values of the forward a backward is given, and which it computes again.
//
// Saving a value costs memory until the backward has run, and time: it is written and read where kernels would have
// kept it in registers. Computing it again costs time, too, most often less: a backward's kernel that reads `x`
// computes `silu(x)` at no cost beside memory's. So the cheapest choice is a cut of least capacity between what the
// forward is given and what the backward reads (min_cut.h).
//
//     source --cost of computing again--> operator --cost of saving--> its results --no cut--> operators that read them
//     a value that the backward reads --no cut--> sink
//
// What is on the sink's side must be there when the backward runs. An operator on it is run again; a result on it whose
// operator is not is saved. Costs are in bytes that go through memory (partition.cpp). An operator that must not run
// twice (random numbers, writes, effects, operands that are written later) has no finite cost, nor has saving a value
// that eager does not save where somebody else could write it: eager would raise no error then. (Of inputs that is
// given up where the user asks for less memory.)
#pragma once

#include <Python.h>

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "graph/graph.h"

namespace magneto::autograd {

/// How the values that a backward reads come to it.
struct PartitionWay {
  /// Values may be computed again to save time or memory. Else what eager saves is saved.
  bool recompute = false;
  /// How much memory saved values may take: up to 1, as a share of what the fastest partition takes, else in bytes.
  double memory_budget = 1;
  /// Torch nodes' targets that are calls of torch.utils.checkpoint: what they compute is computed again in any case,
  /// but for what their policies save: a mark for each operator of the call, in order. No marks: nothing is.
  std::map<const PyObject*, std::vector<bool>> checkpoints;
  /// There are others, whose policies could not be asked.
  bool unknown_policies = false;
  /// The joint graph as a whole is asked for: somebody else cuts it.
  bool whole = false;
  /// Operators that are parts of kernels, whose results need not be in memory.
  bool (*is_fused)(const graph::AtenNode& node) = nullptr;
};

/// Operators of a joint graph: the forward's end at `forward`, those of one backward are from `begin` to `end`.
struct JointRange {
  size_t forward, begin, end;
};

/// What a partition does otherwise than asked.
enum class Departure : uint8_t { SearchGivenUp, BudgetNotKept, PolicyNotFollowed };

struct Partition {
  /// By value of the joint graph: results of the forward, and inputs.
  std::vector<bool> saved;
  /// Inputs besides, which only operators of checkpoints read again: as they are then, as in eager.
  std::vector<graph::ValueId> reread;
  /// What that holds of memory which neither inputs nor results of the segment hold, and what eager's choice would
  /// (equal values once: common_reads.h).
  int64_t bytes = 0, eager_bytes = 0;
  std::set<Departure> departures;
};

/// `reads`: what the backward reads of the forward, its tangents not among them. A value that is read and neither saved
/// nor an input or a constant is to be computed again; `is_repeatable_view`'s results always are.
Partition partition(const graph::Graph& joint, const JointRange& range, const std::vector<graph::ValueId>& reads,
                    const PartitionWay& way);

}  // namespace magneto::autograd
