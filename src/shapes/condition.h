// A relation as Python writes it.
#pragma once

#include <string>

#include "shapes/relation.h"

namespace magneto::shapes {

/// `s0 == 2*s1`, `s0 != 4`, `s0 <= 512`.
std::string condition(const Relation& relation);

}  // namespace magneto::shapes
