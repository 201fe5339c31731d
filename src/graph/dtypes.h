// The short names of dtypes in the text form, both ways.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <span>
#include <string_view>

namespace magneto::graph {

struct DtypeName {
  c10::ScalarType dtype;
  std::string_view name;
};

/// All dtypes that PyTorch has, one row each.
std::span<const DtypeName> dtype_names();

/// The dtype that `dtype_name` prints as `name`.
std::optional<c10::ScalarType> dtype_of_name(std::string_view name);

}  // namespace magneto::graph
