// What an exported program takes to be as it is in the call that is captured: of data, a draft; of how tensors lie in
// memory, each that asks.
#pragma once

#include <cstdint>
#include <string>

#include "python/ref.h"

namespace magneto::graph {

struct Assumption {
  enum class Kind : uint8_t { Data, MissingFake, Layout };  // of data; what an operator gives; of strides
  Kind kind = Kind::Data;
  /// What is asked, and the answer; of an operator its name, and what it gave.
  std::string question, answer;
  std::string explanation, hint;
  /// Where, in the program: the code object, the byte of the instruction, the line.
  Ref code = {};
  int32_t offset = 0, line = 0;
};

}  // namespace magneto::graph
