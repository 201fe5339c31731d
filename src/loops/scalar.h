// One element at a time: what each instruction means, for the interpreter.
#pragma once

#include <cstdint>

#include "loops/ir.h"

namespace magneto::loops {

/// A value of a kernel. Floats are in `f` (an f32 exactly), integers and bool in `i` (wrapped to their width).
struct Scalar {
  double f = 0;
  int64_t i = 0;
  static Scalar of_float(double number) { return {number, 0}; }
  static Scalar of_int(int64_t number) { return {0, number}; }
};

/// An integer as the dtype keeps it.
int64_t wrap(Dtype dtype, int64_t number);
/// A float as the dtype keeps it.
Scalar rounded(Dtype dtype, long double number);
/// The identity of min (`greatest`) or of max.
Scalar extreme(Dtype dtype, bool greatest);

Scalar compute(Op op, Dtype dtype, const Scalar* operands);
bool compare(Op op, Scalar a, Scalar b, Dtype dtype);
Scalar cast(Dtype from, Dtype to, Scalar value);
Scalar load_element(Dtype dtype, const void* element);
void store_element(Dtype dtype, void* element, Scalar value);

}  // namespace magneto::loops
