// Code of kernels outside of the cache on disk: for files of programs that were compiled ahead of time.
#pragma once

#include <memory>
#include <string>

#include "codegen/kernel.h"

namespace magneto::codegen {

/// Equal ones have the same code.
std::string content_of(const loops::Kernel& kernel, int32_t variant);
/// The code for a kernel, from the cache on disk, or made by LLVM. Throws as `compile`.
FinishedCode finished_code(const loops::Kernel& kernel, int32_t variant);
/// While the result lives, `compile` finds this code for that content. Throws std::runtime_error when it is damaged.
std::shared_ptr<const Code> know(const std::string& content, const FinishedCode& code, const std::string& name);

}  // namespace magneto::codegen
