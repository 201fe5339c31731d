// The secret that entries are made with, for caches that others can write to: shared ones, restored ones.
#pragma once

#include <optional>
#include <string>

#include "cache/digest.h"

namespace magneto::cache {

/// Made of what the file holds, if one is named, else of the environment's MAGNETO_CACHE_KEY. Nothing: neither is set.
/// Throws Unusable where one is set and is no secret: a cache that was to have one is not used without.
std::optional<Digest> find_secret(const std::string& key_file);

}  // namespace magneto::cache
