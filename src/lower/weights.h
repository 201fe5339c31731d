// What expressions cost, roughly: for deciding what is computed once, and how much one kernel computes.
#pragma once

#include "lower/dag.h"

namespace magneto::lower {

/// Above this an expression takes a function like exp.
inline constexpr float kFunction = 4;

/// What a node costs by itself, per element, in loads from memory.
float own_weight(const Node& node);

/// How many instructions it is.
int32_t own_code(const Node& node);

}  // namespace magneto::lower
