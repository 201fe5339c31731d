// BLAKE2b with 32 bytes of result (RFC 7693): names of entries, and checksums of what they hold; with a key, which only
// who knows the key can make.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace magneto::cache {

using Digest = std::array<uint8_t, 32>;

/// Takes text piece by piece. Pieces are not told apart: put a length or a separator between them.
class Hasher {
 public:
  /// The key, if there is one: at most 64 bytes.
  explicit Hasher(std::string_view key = {});
  Hasher& add(std::string_view bytes);
  /// Once, at the end.
  Digest finish();

 private:
  void compress(bool last);

  uint64_t state_[8];
  uint8_t block_[128];
  size_t filled_ = 0;
  uint64_t count_ = 0;
};

inline std::string_view bytes_of(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}
std::string hex(std::string_view bytes);
inline std::string hex(const Digest& digest) { return hex(bytes_of(digest)); }

}  // namespace magneto::cache
