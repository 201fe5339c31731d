// Finished code in the cache on disk (src/cache), by all that it depends on.
#pragma once

#include <optional>
#include <string>

#include "cache/digest.h"
#include "codegen/kernel.h"

namespace magneto::codegen {

/// What was kept for a kernel's text and options, made by the compiler in that file for this CPU.
std::optional<FinishedCode> find_kept(const std::string& text, int options, const std::string& compiler);
/// Its key; nothing: it is not kept.
std::optional<cache::Digest> key_of(const std::string& text, int options, const std::string& compiler);
void keep(const std::string& text, int options, const std::string& compiler, const FinishedCode& code);

}  // namespace magneto::codegen
