#include "cache/cache.h"

#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "cache/directory.h"
#include "cache/secret.h"

namespace magneto::cache {
namespace {

struct State {
  std::mutex mutex;
  Settings settings;
  bool opened = false, writable = true;
  int pauses = 0;
  std::shared_ptr<Directory> directory;
  Counters counters;
  std::set<Digest> used;
  std::set<std::string> said;
  std::string notice;
};

State& state() {
  static State& instance = *new State;  // threads may still compile at exit
  return instance;
}

constexpr const char* kAdvice =
    " Set MAGNETO_CACHE_DIR to a directory of your own, or magneto.config.disk_cache = False.";

void say_unused(const std::string& problem) {
  say("Compiled code is not kept on disk, so that each process compiles again: " + problem + "." + kAdvice);
}

/// The cache is not used any more.
void give_up(const std::string& problem) {
  {
    const std::lock_guard lock(state().mutex);
    state().directory = nullptr;
  }
  say_unused(problem);
}

/// Null: there is none.
std::shared_ptr<Directory> opened_directory() {
  State& s = state();
  std::string problem;
  {
    const std::lock_guard lock(s.mutex);
    if (s.pauses) return nullptr;
    if (s.opened || !s.settings.enabled) return s.directory;
    s.opened = true;
    try {
      const std::optional<Digest> secret = find_secret(s.settings.key_file);
      s.directory = std::make_shared<Directory>(
          s.settings.directory.empty() ? default_directory() : s.settings.directory, s.settings.limit_bytes, secret);
      return s.directory;
    } catch (const Unusable& why) {
      problem = why.what();
    }
  }
  say_unused(problem);
  return nullptr;
}

}  // namespace

void configure(const Settings& settings) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.settings = settings;
  s.opened = false;
  s.writable = true;
  s.directory = nullptr;
}

bool enabled() {
  const std::lock_guard lock(state().mutex);
  return state().settings.enabled && !state().pauses;
}

Pause::Pause(bool pauses) : pauses_(pauses) {
  const std::lock_guard lock(state().mutex);
  state().pauses += pauses_;
}

Pause::~Pause() {
  const std::lock_guard lock(state().mutex);
  state().pauses -= pauses_;
}

std::optional<std::string> find(const Digest& key) {
  const auto directory = opened_directory();
  if (!directory) return std::nullopt;
  std::string content;
  Directory::Outcome outcome;
  try {
    outcome = directory->load(key, content);
  } catch (const Untrusted& why) {
    give_up(why.what());
    return std::nullopt;
  }
  if (outcome == Directory::Outcome::Damaged) {
    say("An entry of the cache in " + directory->path() + " was damaged; it is removed and compiled again.");
  }
  const std::lock_guard lock(state().mutex);
  Counters& counters = state().counters;
  ++(outcome == Directory::Outcome::Found ? counters.hits : counters.misses);
  counters.damaged += outcome == Directory::Outcome::Damaged;
  if (outcome != Directory::Outcome::Found) return std::nullopt;
  state().used.insert(key);
  return content;
}

void keep(const Digest& key, std::string_view content) {
  const auto directory = opened_directory();
  if (!directory) return;
  {
    const std::lock_guard lock(state().mutex);
    if (!state().writable) return;
  }
  std::string problem;
  try {
    const int64_t removed = directory->store(key, content);
    const std::lock_guard lock(state().mutex);
    state().counters.removed += removed;
    state().used.insert(key);
    return;
  } catch (const Untrusted& why) {
    return give_up(why.what());
  } catch (const Unusable& why) {
    problem = why.what();
  }
  say("Compiled code is not kept for other processes: the cache in " + problem + "." + kAdvice);
  const std::lock_guard lock(state().mutex);
  state().writable = false;
}

std::vector<Digest> used_keys() {
  const std::lock_guard lock(state().mutex);
  return {state().used.begin(), state().used.end()};
}

void note_used(const std::vector<Digest>& keys) {
  const std::lock_guard lock(state().mutex);
  state().used.insert(keys.begin(), keys.end());
}

std::shared_ptr<Directory> used_directory() { return opened_directory(); }

Counters counters() {
  const std::lock_guard lock(state().mutex);
  return state().counters;
}

void reset_counters() {
  const std::lock_guard lock(state().mutex);
  state().counters = {};
}

void note_wait() {
  const std::lock_guard lock(state().mutex);
  ++state().counters.waits;
}

void say(const std::string& text) {
  const std::lock_guard lock(state().mutex);
  if (state().said.insert(text).second) state().notice += (state().notice.empty() ? "" : "\n") + text;
}

std::string take_notice() {
  const std::lock_guard lock(state().mutex);
  return std::exchange(state().notice, {});
}

}  // namespace magneto::cache
