#include "codegen/perf_map.h"

#include <fcntl.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>

#include "support/settings.h"

namespace magneto::codegen {

void note_code(const void* begin, size_t size, const std::string& name) {
  if (!settings().perf_map) return;
  char place[64];
  snprintf(place, sizeof place, "%" PRIxPTR " %zx ", reinterpret_cast<uintptr_t>(begin), size);
  const std::string line = place + name + "\n";
  // Opened each time: a forked child has a file of its own; CPython may append to the same file.
  const std::string path = "/tmp/perf-" + std::to_string(getpid()) + ".map";
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return;
  [[maybe_unused]] const ssize_t written = write(file, line.data(), line.size());
  close(file);
}

}  // namespace magneto::codegen
