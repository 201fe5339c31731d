// Products whose gradients read data: `prod` and `cumprod` have derivatives of ours on stand-ins.
#pragma once

#include <torch/library.h>

namespace magneto::fake {

/// Puts our kernels for them above all others.
void register_products(torch::Library& whole);

}  // namespace magneto::fake
