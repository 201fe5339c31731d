// Composite operators that are recorded whole, before they decompose: on the way they read data only to check it, and
// at run time the operator itself does so. Only operators without a gradient can be here: autograd is not asked.
#include <c10/util/Exception.h>

#include "fake/rules.h"

namespace magneto::fake {

namespace {

/// one_hot(Tensor self, int num_classes=-1): checks that each class is in range.
bool one_hot(Call& call) {
  const at::Tensor& self = call.tensor(0);
  const int64_t classes = call.integer(1);
  TORCH_CHECK(self.scalar_type() == c10::kLong, "one_hot is only applicable to index tensor of type LongTensor.");
  if (classes < 1) return false;  // read off the data, or an error
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes.push_back(classes);
  call.result(call.empty(sizes, c10::kLong, self.device()));
  return true;
}

constexpr RuleRow kRules[] = {
    {"aten::one_hot", one_hot},
};

}  // namespace

std::span<const RuleRow> whole_rules() { return kRules; }

}  // namespace magneto::fake
