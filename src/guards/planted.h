// For tests: guards that check less than they should, so that the tests of guards can show that they would notice.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "guards/program.h"

namespace magneto::guards {

/// What a check that a fault has put in the place of another still compares.
enum class Weaker : uint8_t {
  EqualInPython,    // 1 is True is 1.0
  AtLeast,          // a length
  AtMost,           // a length
  LengthOfAnyType,  // the length alone
  FirstKey,
  KeysInAnyOrder,
  CodeAlone,        // of a function: no defaults
  DefaultsAlone,    // of a function: not its code
  TensorOfAnyType,  // the rest names the fact of a tensor that is not compared
  TensorOfAnyDtype,
  TensorOfAnyGradient,  // requires_grad
};

/// The fault planted at the place "guard" (guard_faults.def) happens to a program that has just been compiled. With
/// "survey" planted, only notes which ones could.
void weaken_as_planted(GuardProgram::Impl& program);
/// The planted fault: the snapshot does not have what such an op read.
bool is_forgotten(OpKind kind);
/// OpKind::CheckPlanted.
bool weaker_holds(Weaker weaker, const Check& check, PyObject* value);

/// Name and meaning of each.
std::vector<std::pair<std::string, std::string>> guard_faults();
/// The names of those that could have happened to the programs compiled since this was last asked.
std::vector<std::string> take_survey();

}  // namespace magneto::guards
