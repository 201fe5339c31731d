// C functions of dynamic numbers, in the terms of arithmetic that each run repeats.
#include <algorithm>
#include <string_view>

#include "capture/calls/handlers.h"
#include "capture/interpreter/operations.h"
#include "capture/numbers/numbers.h"
#include "guards/number.h"

namespace magneto::capture {

using guards::Arithmetic;

namespace {

struct BinaryRow {
  std::string_view name;
  Arithmetic operation;
};
constexpr BinaryRow kBinary[] = {
    {"_operator.add", Arithmetic::Add},
    {"_operator.sub", Arithmetic::Subtract},
    {"_operator.mul", Arithmetic::Multiply},
    {"_operator.truediv", Arithmetic::TrueDivide},
    {"_operator.floordiv", Arithmetic::FloorDivide},
    {"_operator.mod", Arithmetic::Remainder},
    {"_operator.pow", Arithmetic::Power},
    {"builtins.pow", Arithmetic::Power},
    {"_operator.lshift", Arithmetic::LeftShift},
    {"_operator.rshift", Arithmetic::RightShift},
    {"_operator.and_", Arithmetic::And},
    {"_operator.or_", Arithmetic::Or},
    {"_operator.xor", Arithmetic::Xor},
    {"_operator.lt", Arithmetic::Less},
    {"_operator.le", Arithmetic::LessEqual},
    {"_operator.eq", Arithmetic::Equal},
    {"_operator.ne", Arithmetic::NotEqual},
    {"_operator.gt", Arithmetic::Greater},
    {"_operator.ge", Arithmetic::GreaterEqual},
};

struct UnaryRow {
  std::string_view name;
  UnaryOperator operation;
};
constexpr UnaryRow kUnary[] = {
    {"_operator.neg", UnaryOperator::Negative},
    {"_operator.pos", UnaryOperator::Positive},
    {"_operator.inv", UnaryOperator::Invert},
    {"_operator.invert", UnaryOperator::Invert},
};

constexpr std::string_view kDivmod = "builtins.divmod", kIndex = "_operator.index";

/// Division by zero is left to the function itself, which words the error.
Ref quotient_and_remainder(Capture& capture, PyObject* left, PyObject* right) {
  const int nonzero = PyObject_IsTrue(number_now(right));
  if (nonzero <= 0) return {};
  Ref quotient = capture.numbers.unknown_operation(Arithmetic::FloorDivide, left, right);
  Ref remainder = capture.numbers.unknown_operation(Arithmetic::Remainder, left, right);
  return quotient && remainder ? checked(PyTuple_Pack(2, quotient.get(), remainder.get())) : Ref();
}

}  // namespace

bool is_number_function(std::string_view name) {
  return std::ranges::count(kBinary, name, &BinaryRow::name) > 0 ||
         std::ranges::count(kUnary, name, &UnaryRow::name) > 0 || name == kDivmod || name == kIndex;
}

Ref number_function(Capture& capture, std::string_view name, const CallArgs& args) {
  const std::vector<PyObject*>& values = args.values;
  const auto is_number = [](PyObject* value) { return guards::is_number(number_now(value)); };
  if (args.kwnames || std::ranges::none_of(values, is_unknown_number) || !std::ranges::all_of(values, is_number)) {
    return {};
  }
  if (values.size() == 1) {
    if (name == kIndex) return PyLong_CheckExact(number_now(values[0])) ? Ref::borrow(values[0]) : Ref();
    const auto row = std::ranges::find(kUnary, name, &UnaryRow::name);
    return row == std::end(kUnary) ? Ref() : unary_operator(capture, row->operation, values[0]);
  }
  if (values.size() != 2) return {};
  if (name == kDivmod) return quotient_and_remainder(capture, values[0], values[1]);
  const auto row = std::ranges::find(kBinary, name, &BinaryRow::name);
  return row == std::end(kBinary) ? Ref() : capture.numbers.unknown_operation(row->operation, values[0], values[1]);
}

}  // namespace magneto::capture
