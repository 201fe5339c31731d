// Guards as JSON, for tools: `python -m magneto report` shows them, magneto/_guard_tree.py makes TORCH_TRACE's text of
// them.
#pragma once

#include <string>
#include <vector>

#include "guards/guards.h"

namespace magneto::guards {

/// The tree that `print_tree` prints: {"texts": [...], "nodes": [[parent, name, accessor, [line, place, op, line,
/// place, op...], [ops that only load]]...]} with texts by number: in them \x01 is the node's name, \x02 its parent's.
std::string data(const GuardProgram& program);
/// The lines in it.
size_t count(const GuardProgram& program);

/// What the guards assume of dynamic sizes. Borrowed.
std::vector<const SizeAssumptions*> assumed_sizes(const GuardProgram& program);

/// What checking costs, in nanoseconds: {"ops": [each for itself], "hot": one check of all when nothing has changed}.
/// Empty where the guards do not hold for these roots.
std::string costs(GuardProgram& program, const Roots& roots);

}  // namespace magneto::guards
