// What code depends on besides its source: the CPU and the compiler. Both without loading LLVM.
#pragma once

#include <string>

namespace magneto::cache {

/// The CPU: model, features, what the operating system lets programs use of them, sizes of caches. Equal texts get
/// equal code.
const std::string& machine();

/// The build id of an ELF file (a hash of its content that the linker leaves in it); empty if it has none.
std::string build_id(const std::string& path);

}  // namespace magneto::cache
