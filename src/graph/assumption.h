// What a draft of an exported program takes to be as it is in the call that is captured.
#pragma once

#include <cstdint>
#include <string>

#include "python/ref.h"

namespace magneto::graph {

struct Assumption {
  enum class Kind : uint8_t { Data, MissingFake };  // what the program asks of data; what an operator gives
  Kind kind = Kind::Data;
  /// What is asked, and the answer; of an operator its name, and what it gave.
  std::string question, answer;
  std::string explanation, hint;
  /// Where, in the program: the code object, the byte of the instruction, the line.
  Ref code = {};
  int32_t offset = 0, line = 0;
};

}  // namespace magneto::graph
