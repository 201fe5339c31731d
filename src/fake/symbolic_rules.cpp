#include "fake/symbolic_rules.h"

#include <ATen/WrapDimUtils.h>

namespace magneto::fake {

int64_t wrapped(int64_t dim, const SymSizes& sizes) {
  return at::maybe_wrap_dim(dim, static_cast<int64_t>(sizes.size()));
}

bool same_sizes(const SymSizes& a, const SymSizes& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

namespace {

bool is_argument(const SymbolicCall& call, const at::Tensor& tensor) {
  for (size_t i = 0; i < call.size(); ++i) {
    if (call.arg(i).isTensor() && call.tensor(i).is_same(tensor)) return true;
  }
  return false;
}

}  // namespace

bool all_results(SymbolicCall& call, const SymSizes& sizes) {
  for (size_t k = 0; k < call.result_count(); ++k) {
    if (!call.result(k).defined()) continue;
    if (is_argument(call, call.result(k))) {
      const c10::SymIntArrayRef own = call.result(k).sym_sizes();
      if (!same_sizes(SymSizes(own.begin(), own.end()), sizes)) return false;
    } else if (!call.dense(k, sizes)) {
      return false;
    }
  }
  return true;
}

bool like_self(SymbolicCall& call) { return all_results(call, call.sizes(0)); }

}  // namespace magneto::fake
