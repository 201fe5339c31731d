// The functions of mathematics that are approximated: for f32 and where it says so for f64, within the errors that
// vector_math.h tells. A file for each subject; those of f64 that f32 has in other ways: wide_math.cpp.
#pragma once

#include "codegen/llvm/math_builder.h"

namespace magneto::codegen {

// exponentials.cpp; f64 too, but for tanh
Value* exp(const Math& m, Value* x);
/// Of x for which it is a normal number: -87 to 88 for f32. NaN stays.
Value* exp_in_range(const Math& m, Value* x);
Value* exp2(const Math& m, Value* x);
Value* expm1(const Math& m, Value* x);
Value* sigmoid(const Math& m, Value* x);
Value* tanh(const Math& m, Value* x);

// logarithms.cpp; f64 too
Value* log(const Math& m, Value* x);
Value* log2(const Math& m, Value* x);
Value* log10(const Math& m, Value* x);
Value* log1p(const Math& m, Value* x);

// error_function.cpp
Value* erf(const Math& m, Value* x);
/// With exp(-x*x) at hand.
Value* erf_from(const Math& m, Value* x, Value* gauss);

// inverse_sines.cpp
Value* asin(const Math& m, Value* x);
Value* acos(const Math& m, Value* x);
Value* atan(const Math& m, Value* x);

// wide_math.cpp: of f64
Value* wide_tanh(const Math& m, Value* x);
Value* wide_erf(const Math& m, Value* x);
/// sin (0) or cos (1) of what is below 2^30.
Value* wide_sine(const Math& m, Value* x, int quarters);

}  // namespace magneto::codegen
