#include "cache/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/directory.h"

namespace magneto::cache {
namespace {

constexpr size_t kShortest = 16, kLongest = 4096;  // bytes
constexpr const char* kVariable = "MAGNETO_CACHE_KEY";

std::string read_file(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) throw Unusable("the key in " + path + " can't be read (" + strerror(errno) + ")");
  std::string text(kLongest, '\0');
  struct stat facts{};
  const bool known = fstat(file, &facts) == 0 && S_ISREG(facts.st_mode);
  const ssize_t count = known ? read(file, text.data(), text.size()) : -1;
  close(file);
  if (count < 0) throw Unusable("the key in " + path + " can't be read: it is no file");
  if ((facts.st_uid != geteuid() && facts.st_uid != 0) || (facts.st_mode & (S_IWGRP | S_IRWXO)) != 0) {
    throw Unusable("the key in " + path + " is no secret: others can read or write it (chmod go= makes it usable)");
  }
  text.resize(static_cast<size_t>(count));
  return text;
}

}  // namespace

std::optional<Digest> find_secret(const std::string& key_file) {
  const char* const variable = getenv(kVariable);
  if (key_file.empty() && !(variable && *variable)) return std::nullopt;
  const std::string place = key_file.empty() ? kVariable : key_file;
  std::string text = key_file.empty() ? variable : read_file(key_file);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.size() < kShortest) {
    throw Unusable("the key in " + place + " is too short: it needs " + std::to_string(kShortest) + " bytes");
  }
  return Hasher().add(text).finish();
}

}  // namespace magneto::cache
