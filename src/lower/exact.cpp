// Calls for which generated code has eager's bits: the last column of the lowering rules. tests/ops/test_exact_rows.py
// compares each row that names one of these with eager, bit by bit.
#include "lower/lowering.h"

namespace magneto::lower {

bool exact(Call&) { return true; }

bool exact_on_integers(Call& call) { return !is_float(call.compute()); }

bool exact_without_factor(Call& call) { return exact_on_integers(call) || (!call.is_tensor(2) && call.number(2) == 1); }

bool exact_square(Call& call) { return call.number(1) == 2; }

}  // namespace magneto::lower
