// Other schedules than the one that is estimated to be the fastest, for who measures (codegen::kVariants).
#pragma once

#include "codegen/llvm/schedule.h"

namespace magneto::codegen {

struct Variant {
  bool other_lanes = false;  // along rows where it would be across them, and the other way
  bool narrow = false;       // one register at a time
  bool wide = false;         // twice as many registers
};

Schedule make_schedule(loops::Kernel kernel, const Machine& machine, const Variant& variant);

}  // namespace magneto::codegen
