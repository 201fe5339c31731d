// Processes that would make the same entry at the same time, as the ranks of a training job do: one makes it, the
// others wait and find it. A claim is a lock of the operating system on a byte of one file in the cache's directory. It
// belongs to the process that made it: a process that dies holds none, and a forked child has none of its parent's.
#pragma once

#include <chrono>
#include <memory>

#include "cache/digest.h"

namespace magneto::cache {

class Directory;

/// How `wait` sleeps: for threads that hold what others need, such as Python's lock.
void sleep_by(void (*sleep)(std::chrono::milliseconds));

/// Threads of one process do not keep each other out.
class Claim {
 public:
  /// Claims the entry for this process. Never waits.
  explicit Claim(const Digest& key);
  ~Claim();
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  /// Another process makes the entry now. Never where there is no cache, or one that can't be written.
  bool is_elsewhere() const { return elsewhere_; }
  /// Waits until the other process is done or gone, at most so long, and counts it (Counters::waits). Then the entry is
  /// there, or claimed.
  void wait(std::chrono::milliseconds longest);
  /// Somebody has made the entry in the meantime. Counts nothing.
  bool is_made() const;

 private:
  bool take();

  const Digest key_;
  std::shared_ptr<Directory> directory_;
  bool held_ = false, elsewhere_ = false;
};

}  // namespace magneto::cache
