#include "runtime/program/promise.h"

#include <string>

#include "ops/library.h"
#include "runtime/plan/failed_call.h"
#include "runtime/plan/plan.h"

namespace magneto::runtime {
namespace {

/// "float32[4, 8]".
std::string tensor_text(c10::ScalarType dtype, c10::IntArrayRef sizes) {
  std::string text(c10::getDtypeNames(dtype).first);
  text += '[';
  for (size_t d = 0; d < sizes.size(); ++d) text += (d ? ", " : "") + std::to_string(sizes[d]);
  return text + "]";
}

}  // namespace

void check_promise(const c10::OperatorHandle& op, const at::Tensor& given, const Register& promised, bool fixed) {
  const c10::IntArrayRef sizes(promised.sizes);
  if (given.defined() && given.scalar_type() == promised.dtype &&
      (fixed ? given.sizes() == sizes : given.dim() == static_cast<int64_t>(sizes.size())))
    return;
  // An operator of PyTorch does not: that would be an error of ours.
  TORCH_CHECK(false, ops::is_of_library(op) ? kNotSo : "", op.operator_name().name, " returned ",
              given.defined() ? tensor_text(given.scalar_type(), given.sizes()) : "nothing", kPromised,
              tensor_text(promised.dtype, sizes));
}

}  // namespace magneto::runtime
