// torch.matmul of more than matrices, where sizes differ from run to run.
#pragma once

#include <torch/library.h>

namespace magneto::fake {

/// Puts our kernel for `aten::matmul` above all others.
void register_matmul(torch::Library& whole);

}  // namespace magneto::fake
