#include "cache/digest.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace magneto::cache {
namespace {

static_assert(std::endian::native == std::endian::little, "words are copied as they lie in memory");

// RFC 7693, 2.6 and 2.7.
constexpr uint64_t kInitial[8] = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
                                  0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};
constexpr uint8_t kOrder[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

void mix(uint64_t* v, int a, int b, int c, int d, uint64_t x, uint64_t y) {
  v[a] += v[b] + x;
  v[d] = std::rotr(v[d] ^ v[a], 32);
  v[c] += v[d];
  v[b] = std::rotr(v[b] ^ v[c], 24);
  v[a] += v[b] + y;
  v[d] = std::rotr(v[d] ^ v[a], 16);
  v[c] += v[d];
  v[b] = std::rotr(v[b] ^ v[c], 63);
}

}  // namespace

Hasher::Hasher(std::string_view key) {
  std::copy(std::begin(kInitial), std::end(kInitial), state_);
  key = key.substr(0, 64);
  state_[0] ^= 0x01010000 ^ key.size() << 8 ^ sizeof(Digest);
  if (key.empty()) return;
  // It is the first block, filled with zeros.
  memset(block_, 0, sizeof block_);
  memcpy(block_, key.data(), key.size());
  filled_ = count_ = sizeof block_;
}

void Hasher::compress(bool last) {
  uint64_t m[16], v[16];
  memcpy(m, block_, sizeof m);
  std::copy(std::begin(state_), std::end(state_), v);
  std::copy(std::begin(kInitial), std::end(kInitial), v + 8);
  v[12] ^= count_;
  if (last) v[14] = ~v[14];
  for (int round = 0; round < 12; ++round) {
    const uint8_t* s = kOrder[round % 10];
    mix(v, 0, 4, 8, 12, m[s[0]], m[s[1]]);
    mix(v, 1, 5, 9, 13, m[s[2]], m[s[3]]);
    mix(v, 2, 6, 10, 14, m[s[4]], m[s[5]]);
    mix(v, 3, 7, 11, 15, m[s[6]], m[s[7]]);
    mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]]);
    mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]]);
    mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]]);
    mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]]);
  }
  for (int i = 0; i < 8; ++i) state_[i] ^= v[i] ^ v[i + 8];
}

Hasher& Hasher::add(std::string_view bytes) {
  while (!bytes.empty()) {
    if (filled_ == sizeof block_) {  // not before more comes: the last block is compressed differently
      compress(/*last=*/false);
      filled_ = 0;
    }
    const size_t taken = std::min(bytes.size(), sizeof block_ - filled_);
    memcpy(block_ + filled_, bytes.data(), taken);
    filled_ += taken;
    count_ += taken;
    bytes.remove_prefix(taken);
  }
  return *this;
}

Digest Hasher::finish() {
  memset(block_ + filled_, 0, sizeof block_ - filled_);
  compress(/*last=*/true);
  Digest digest;
  memcpy(digest.data(), state_, digest.size());
  return digest;
}

std::string hex(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char character : bytes) {
    const auto byte = static_cast<uint8_t>(character);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace magneto::cache
