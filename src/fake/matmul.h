// torch.matmul of more than matrices, with dynamic sizes.
#pragma once

#include <torch/library.h>

namespace magneto::fake {

/// Puts our kernel for `aten::matmul` above all others.
void register_matmul(torch::Library& whole);

}  // namespace magneto::fake
