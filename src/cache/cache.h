// The process's cache on disk: one directory, counters, and what the user is to be told.
//
// Whatever is wrong with it costs time only: nothing here throws, a missing or broken cache finds nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/digest.h"

namespace magneto::cache {

class Directory;

struct Settings {
  bool enabled = true;
  /// Empty: default_directory().
  std::string directory;
  int64_t limit_bytes = 0;
  /// Where the key of a keyed cache is; empty: see secret.h.
  std::string key_file;
};
/// Takes effect with the next find or keep.
void configure(const Settings& settings);
bool enabled();

/// While one lives, nothing is found and nothing kept, on any thread.
class Pause {
 public:
  explicit Pause(bool pauses);
  ~Pause();
  Pause(const Pause&) = delete;

 private:
  const bool pauses_;
};

/// What was kept under this key, unless it is damaged.
std::optional<std::string> find(const Digest& key);
/// Keeps `content` under this key, for other processes.
void keep(const Digest& key, std::string_view content);

/// The entries that this process found or made.
std::vector<Digest> used_keys();
void note_used(const std::vector<Digest>& keys);
/// The directory that entries are in; null: the cache is off, or can't be used.
std::shared_ptr<Directory> used_directory();

struct Counters {
  int64_t hits = 0, misses = 0, damaged = 0, removed = 0;
  int64_t waits = 0;  // for another process that made the entry
};
Counters counters();
void reset_counters();
void note_wait();

/// The user is to be told; each text once.
void say(const std::string& text);
/// What is to be said and was not yet; empty: nothing.
std::string take_notice();

}  // namespace magneto::cache
