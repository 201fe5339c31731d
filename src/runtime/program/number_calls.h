// Data-dependent numbers, and what Python computes of them: the step of an optimizer and its bias corrections.
// An optimizer has some for each weight, so none of them may cost what a call of an operator does.
#pragma once

#include <optional>

#include "guards/number.h"
#include "runtime/program/compiled_steps.h"

namespace magneto::runtime {

/// What Python's operator gives of two numbers, one of which at least is a float; none: it raises, gives no float, or
/// is for Python to say.
std::optional<double> float_result(guards::Arithmetic operation, const c10::Scalar& left, const c10::Scalar& right);

/// `magneto::item` of a float and `magneto::arithmetic`, into memory that is there.
void item_into(const Step& step, c10::DispatchKeySet keys, const RunTensors& registers, at::Tensor& out);
void arithmetic_into(const Step& step, c10::DispatchKeySet keys, const RunTensors& registers, at::Tensor& out);

}  // namespace magneto::runtime
