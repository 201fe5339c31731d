// Guards that fail, with the user's lines that needed them.
#pragma once

#include <string>
#include <vector>

#include "guards/guards.h"

namespace magneto::guards {

/// A guard that fails.
struct Failure {
  /// As the recompile log words it: "tensor 'L['x']' size mismatch at index 0. expected 3, actual 4".
  std::string text;
  /// The user's line that needed it: "playground.py:6 in fn"; empty where it is not known.
  std::string place;
};

/// Why `check` fails for these roots; empty when it holds. May allocate; not hot.
Failure failure_of(GuardProgram& program, const Roots& roots);
/// All checks that fail for these roots and can be looked at.
std::vector<Failure> failures_of(GuardProgram& program, const Roots& roots);

/// The user's lines that needed the relations in what was assumed of sizes, in their order.
void note_size_places(GuardSet& set, std::vector<std::string> places);

/// A text about symbols in terms of their places.
std::string in_places(const std::string& text, const SizeAssumptions& assumptions);
/// Which of the relations such a line is of; -1: none.
int relation_of_line(const std::string& line, const SizeAssumptions& assumptions);

}  // namespace magneto::guards
