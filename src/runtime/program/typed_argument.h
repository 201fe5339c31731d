// What typed calls (typed_calls.cpp) and calls into planned memory (out_calls.cpp) hand to an operator.
#pragma once

#include <string_view>
#include <type_traits>

#include "runtime/program/program_steps.h"

namespace magneto::runtime {

/// Argument `index` of a step as the C++ type that the operator takes.
template <typename Type>
decltype(auto) argument(const Step& step, const RunTensors& registers, size_t index) {
  const Argument& argument = step.arguments[index];
  if constexpr (std::is_same_v<Type, at::Tensor>) {
    return registers[argument.tensor];
  } else if constexpr (std::is_same_v<Type, at::Scalar>) {
    return argument.constant.toScalar();
  } else if constexpr (std::is_same_v<Type, std::string_view>) {
    return std::string_view(argument.constant.toStringRef());
  } else if constexpr (std::is_same_v<Type, c10::SymInt>) {
    return c10::SymInt(argument.constant.toInt());
  } else {
    return argument.constant.to<Type>();
  }
}

}  // namespace magneto::runtime
