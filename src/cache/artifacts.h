// The entries that this process found or made, in one piece: for the cache of another machine.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "cache/digest.h"

namespace magneto::cache {

/// What was given is no artifacts, was damaged, or was sealed with another key than this cache's.
class BadArtifacts : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Artifacts {
  std::string bytes;  // empty: nothing was compiled, or nothing of it is in the cache any more
  std::vector<Digest> keys;
};
/// Throws Unusable where there is no cache.
Artifacts pack_artifacts();

/// Puts all entries into the cache of this process; their keys. Throws BadArtifacts, and Unusable where there is none.
std::vector<Digest> unpack_artifacts(std::string_view bytes);

}  // namespace magneto::cache
