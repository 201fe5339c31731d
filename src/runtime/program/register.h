// The tensor objects of a call, by number: one per buffer that an operator or the caller sees, one per view of such.
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "graph/graph.h"

namespace magneto::runtime {

enum class Source : uint8_t {
  Input,     // the caller's tensor
  Constant,  // the program's tensor
  Copy,      // a copy of a constant for each call
  Arena,     // planned memory; the tensor object is kept with the arena
  Fresh,     // made for each call, in front of the first step that writes it: outputs and what they share memory with,
             // and large intermediates where memory is pooled
  Returned,  // what an operator's kernel gave
  View,      // geometry over another register
};

struct Register {
  Source source = Source::Fresh;
  /// Input, Constant, Copy: which. View: the register it is a view of.
  int32_t index = -1;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  /// Where they differ from run to run: of the run that was captured, and in a frame of its last run.
  std::vector<int64_t> sizes, strides;
  /// Arena: bytes. View: elements.
  int64_t offset = 0;
  int64_t bytes = 0;
  /// Fresh: the register whose memory it takes over, which dies with the step that makes this one. -1: none. Of an
  /// input: where a run may.
  int32_t over = -1;
  /// A later step reads it: it must be what the capture saw.
  bool read = false;
  /// Something but a kernel needs the tensor object. (Kernels need pointers.)
  bool held = false;
  /// A kernel writes it.
  bool written = false;
  /// Made of weights alone: in the prepared memory, at `offset`, instead of the arena; or Returned, among its tensors.
  bool prepared = false;
  /// The steps that use it; it is given up behind the last one.
  int32_t first_step = INT32_MAX, last_step = -1;
  /// The graph's value that it holds, for people.
  graph::ValueId value = graph::kNoValue;
};

/// What a register of so many bytes takes of the arena.
inline int64_t arena_space(int64_t bytes) {
  constexpr int64_t kAlignment = 64;
  return (std::max<int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace magneto::runtime
