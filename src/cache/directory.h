// Entries in a directory: content by the digest of what it was made from. Made for many processes without a lock, for
// kill -9 and for damaged disks:
//
//  - An entry is written aside and renamed, so it is whole or not there. Nobody changes an entry afterwards.
//  - Each entry holds its own key and a checksum over key and content. What does not fit is damaged: it is removed, and
//    never handed out. With a secret, names and checksums are made with it: who doesn't know it can make no entry.
//  - Only what the user owns is trusted: the directory must be theirs and writable by nobody else, each folder in it
//  and
//    each entry too. No link in it is followed.
//  - A reader sets the time of an entry that it used; the oldest go when the limit is reached.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "cache/digest.h"

namespace magneto::cache {

/// The directory can't be used, or an entry can't be written: the message says what and why.
class Unusable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What lies there may be somebody else's doing.
class Untrusted : public Unusable {
 public:
  using Unusable::Unusable;
};

/// The directory of this user's entries when none is named: under XDG_CACHE_HOME or ~/.cache. Throws Unusable.
std::string default_directory();

/// Thread-safe.
class Directory {
 public:
  /// Opens the directory, or makes it (0700). Throws Unusable.
  Directory(std::string path, int64_t limit_bytes, std::optional<Digest> secret);
  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  enum class Outcome : uint8_t { Found, Missing, Damaged };
  /// Gives an entry's content if it is whole; removes it if it is not. Throws Untrusted.
  Outcome load(const Digest& key, std::string& content);
  /// Writes an entry, and removes old ones where there are too many bytes; how many. Throws Unusable.
  int64_t store(const Digest& key, std::string_view content);
  /// An entry is there, whole or not.
  bool has(const Digest& key) const;
  /// No: nobody can be told here. (Not of entries but of keys: claim.h.)
  enum class Lock : uint8_t { Held, Elsewhere, No };
  Lock claim(const Digest& key);
  void release(const Digest& key);
  /// A checksum of something else that entries are carried in.
  Digest seal(std::string_view content) const;
  bool has_seal(const Digest& seal, std::string_view content) const;
  const std::string& path() const { return path_; }

 private:
  int open_shard(int shard, bool& replaced) const;
  int make_room(int shard, int folder, int64_t bytes);
  std::string name_of(const Digest& key) const;
  int lock(const Digest& key, short type);
  Digest checksum(const Digest& key, std::string_view content) const;

  // The limit holds for each of as many parts: to keep it, one part is looked through, not everything.
  static constexpr int kShards = 16;

  std::string path_;
  int64_t shard_limit_;
  std::string secret_;  // empty: none
  int directory_ = -1;
  std::once_flag locks_opened_;
  int locks_ = -1;  // a file that is never written: its bytes are locked
  std::mutex mutex_;
  int64_t room_[kShards] = {};  // bytes that may be written before the part is looked through again
};

}  // namespace magneto::cache
