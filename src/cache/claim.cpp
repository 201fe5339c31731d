#include "cache/claim.h"

#include <algorithm>
#include <thread>

#include "cache/cache.h"
#include "cache/directory.h"

namespace magneto::cache {
namespace {

void (*sleep_for)(std::chrono::milliseconds) = [](std::chrono::milliseconds time) {
  std::this_thread::sleep_for(time);
};

}  // namespace

void sleep_by(void (*sleep)(std::chrono::milliseconds)) { sleep_for = sleep; }

Claim::Claim(const Digest& key) : key_(key), directory_(used_directory()) { elsewhere_ = !take(); }

Claim::~Claim() {
  if (held_) directory_->release(key_);
}

bool Claim::take() {
  if (!directory_) return true;
  const Directory::Lock lock = directory_->claim(key_);
  held_ = lock == Directory::Lock::Held;
  return lock != Directory::Lock::Elsewhere;
}

void Claim::wait(std::chrono::milliseconds longest) {
  if (!elsewhere_) return;
  note_wait();
  const auto end = std::chrono::steady_clock::now() + longest;
  for (auto pause = std::chrono::milliseconds(1); elsewhere_ && std::chrono::steady_clock::now() < end;
       pause = std::min(pause * 2, std::chrono::milliseconds(16))) {
    sleep_for(pause);
    elsewhere_ = !take();
  }
}

bool Claim::is_made() const { return directory_ && directory_->has(key_); }

}  // namespace magneto::cache
