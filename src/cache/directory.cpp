#include "cache/directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace magneto::cache {
namespace {

struct Header {
  char magic[8];
  Digest key, checksum;
  uint64_t length;
};
static_assert(sizeof(Header) == 80);
constexpr char kMagic[8] = {'m', 'a', 'g', 'n', 'e', 't', 'o', 1};
constexpr int64_t kLargest = 1 << 28;  // no entry of ours has as many bytes
constexpr time_t kHour = 3600;
constexpr const char* kAside = "new-";  // files that are being written

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() { close(); }
  File(const File&) = delete;
  int get() const { return fd_; }
  int close() { return fd_ < 0 ? 0 : ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

[[noreturn]] void fail(const std::string& what) { throw Unusable(what + " (" + strerror(errno) + ")"); }

bool is_ours(const struct stat& facts) {
  return facts.st_uid == geteuid() && (facts.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

void make_directories(const std::string& path) {
  for (size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1)) {
    mkdir(path.substr(0, end).c_str(), 0700);  // what it could not make, the last one reports
  }
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) fail(path + " can't be made");
}

/// The part it is in.
int shard_of(const Digest& key) { return key[0] >> 4; }
std::string shard_name(int shard) { return std::string(1, "0123456789abcdef"[shard]); }

/// Throws Untrusted if it belongs to another user, or others can write it.
void check_trust(int folder, const std::string& path) {
  struct stat facts;
  if (fstat(folder, &facts) != 0) throw Untrusted(path + " tells nothing of its owner");
  if (facts.st_uid != geteuid()) throw Untrusted(path + " belongs to another user");
  if (!is_ours(facts)) throw Untrusted(path + " can be written by other users (chmod go-w makes it usable)");
}

/// Removes what lies there: a file, a link, or, where somebody put a folder in an entry's place, all of that.
bool remove_at(int folder, const char* name, int depth = 0) {
  if (unlinkat(folder, name, 0) == 0 || unlinkat(folder, name, AT_REMOVEDIR) == 0) return true;
  if (depth > 64) return false;
  const int inner = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (inner < 0) return false;
  const std::unique_ptr<DIR, int (*)(DIR*)> items(fdopendir(inner), closedir);
  while (const dirent* item = readdir(items.get())) {
    const std::string_view each = item->d_name;
    if (each != "." && each != ".." && !remove_at(inner, item->d_name, depth + 1)) return false;
  }
  return unlinkat(folder, name, AT_REMOVEDIR) == 0;
}

/// In a time that does not tell where they differ.
bool equal(const Digest& one, const Digest& other) {
  uint8_t difference = 0;
  for (size_t i = 0; i < one.size(); ++i) difference |= one[i] ^ other[i];
  return difference == 0;
}

/// What a file takes on the disk.
int64_t disk_bytes(int64_t size) { return (size + 4095) / 4096 * 4096; }

bool read_all(int fd, char* to, size_t count) {
  while (count > 0) {
    const ssize_t got = read(fd, to, count);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    count -= static_cast<size_t>(got);
  }
  return true;
}

bool write_all(int fd, const char* from, size_t count) {
  while (count > 0) {
    // A file size limit raises SIGXFSZ, which Python ignores; then it is EFBIG here.
    const ssize_t put = write(fd, from, count);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    from += put;
    count -= static_cast<size_t>(put);
  }
  return true;
}

}  // namespace

std::string default_directory() {
  const auto absolute = [](const char* variable) -> std::string {
    const char* value = getenv(variable);
    return value && *value == '/' ? value : "";  // a relative one is to be ignored: XDG base directory specification
  };
  if (const std::string base = absolute("XDG_CACHE_HOME"); !base.empty()) return base + "/magneto";
  std::string home = absolute("HOME");
  if (home.empty()) {
    struct passwd entry, *found = nullptr;
    std::vector<char> buffer(16384);
    if (getpwuid_r(geteuid(), &entry, buffer.data(), buffer.size(), &found) == 0 && found && *found->pw_dir == '/') {
      home = found->pw_dir;
    }
  }
  if (home.empty()) throw Unusable("there is no home directory");
  return home + "/.cache/magneto";
}

Directory::Directory(std::string path, int64_t limit_bytes, std::optional<Digest> secret)
    : path_(std::move(path)), shard_limit_(limit_bytes / kShards), secret_(secret ? bytes_of(*secret) : "") {
  const auto open_it = [&] { return open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); };
  directory_ = open_it();
  if (directory_ < 0 && errno == ENOENT) {
    make_directories(path_);
    directory_ = open_it();
  }
  if (directory_ < 0) fail(path_ + " can't be opened");
  try {
    check_trust(directory_, path_);
  } catch (...) {
    close(directory_);
    throw;
  }
}

Directory::~Directory() {
  close(directory_);
  if (locks_ >= 0) close(locks_);
}

/// The digest itself; with a secret one that nobody else can tell, so that others' entries are not even looked at.
std::string Directory::name_of(const Digest& key) const {
  return hex(secret_.empty() ? key : Hasher(secret_).add("name").add(bytes_of(key)).finish());
}

Digest Directory::checksum(const Digest& key, std::string_view content) const {
  return Hasher(secret_).add(secret_.empty() ? "" : "content").add(bytes_of(key)).add(content).finish();
}

Digest Directory::seal(std::string_view content) const { return Hasher(secret_).add("seal").add(content).finish(); }

bool Directory::has_seal(const Digest& given, std::string_view content) const { return equal(given, seal(content)); }

/// A part of the directory; negative: there is none. `replaced`: something else lay in its place, and is gone. Throws
/// Untrusted.
int Directory::open_shard(int shard, bool& replaced) const {
  const std::string name = shard_name(shard);
  const int folder = openat(directory_, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0) {
    replaced = (errno == ENOTDIR || errno == ELOOP) && unlinkat(directory_, name.c_str(), 0) == 0;
    return folder;
  }
  try {
    check_trust(folder, path_ + "/" + name);
  } catch (...) {
    close(folder);
    throw;
  }
  return folder;
}

Directory::Outcome Directory::load(const Digest& key, std::string& content) {
  bool replaced = false;
  const File shard(open_shard(shard_of(key), replaced));
  if (shard.get() < 0) return replaced ? Outcome::Damaged : Outcome::Missing;
  const std::string name = name_of(key);
  // O_NONBLOCK: whatever lies there, a pipe for example, must not stop us.
  File file(openat(shard.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  const bool foreign = file.get() < 0 && (errno == ELOOP || errno == EACCES || errno == ENXIO);
  if (file.get() < 0 && !foreign) return Outcome::Missing;
  const auto whole = [&] {
    struct stat facts;
    if (fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode) || !is_ours(facts)) return false;
    Header header;
    if (facts.st_size < static_cast<off_t>(sizeof header) || facts.st_size > kLargest) return false;
    if (!read_all(file.get(), reinterpret_cast<char*>(&header), sizeof header)) return false;
    const auto length = static_cast<uint64_t>(facts.st_size) - sizeof header;
    if (memcmp(header.magic, kMagic, sizeof kMagic) != 0 || header.key != key || header.length != length) return false;
    content.resize(length);
    if (!read_all(file.get(), content.data(), length) || !equal(checksum(key, content), header.checksum)) return false;
    // Used: it goes later. Once an hour is enough, and on a read-only disk it is not needed.
    if (facts.st_mtime + kHour < time(nullptr)) futimens(file.get(), nullptr);
    return true;
  };
  if (!foreign && whole()) return Outcome::Found;
  remove_at(shard.get(), name.c_str());  // if another process has just written a good one: that costs time only
  return Outcome::Damaged;
}

bool Directory::has(const Digest& key) const {
  const std::string name = shard_name(shard_of(key)) + "/" + name_of(key);
  return faccessat(directory_, name.c_str(), R_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/// Two keys whose names begin alike share a byte: then one waits for nothing.
int Directory::lock(const Digest& key, short type) {
  std::call_once(locks_opened_, [this] {
    const auto open_it = [&] {
      const int file = openat(directory_, "locks", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
      struct stat facts;
      if (file < 0 || (fstat(file, &facts) == 0 && S_ISREG(facts.st_mode) && is_ours(facts))) return file;
      close(file);
      return -1;
    };
    locks_ = open_it();
    if (locks_ < 0 && remove_at(directory_, "locks")) locks_ = open_it();  // something else lay there
  });
  if (locks_ < 0) return -1;
  struct flock byte{};
  byte.l_type = type;
  byte.l_whence = SEEK_SET;
  byte.l_start = static_cast<off_t>(std::stoull(name_of(key).substr(0, 15), nullptr, 16));
  byte.l_len = 1;
  return fcntl(locks_, F_SETLK, &byte);
}

Directory::Lock Directory::claim(const Digest& key) {
  if (lock(key, F_WRLCK) == 0) return Lock::Held;
  const bool taken = locks_ >= 0 && (errno == EACCES || errno == EAGAIN);
  return taken ? Lock::Elsewhere : Lock::No;
}

void Directory::release(const Digest& key) { lock(key, F_UNLCK); }

int64_t Directory::store(const Digest& key, std::string_view content) {
  static std::atomic<uint64_t> counter{0};
  const int shard = shard_of(key);
  const int64_t bytes = disk_bytes(static_cast<int64_t>(content.size() + sizeof(Header)));
  if (bytes > shard_limit_) return 0;  // would push out everything else
  bool replaced = false;
  int opened = open_shard(shard, replaced);
  if (opened < 0) {
    if (mkdirat(directory_, shard_name(shard).c_str(), 0700) != 0 && errno != EEXIST) fail(path_ + " can't be written");
    opened = open_shard(shard, replaced);
  }
  const File folder(opened);
  if (folder.get() < 0) fail(path_ + " can't be read");
  int64_t removed = 0;
  {
    const std::lock_guard lock(mutex_);
    if (room_[shard] < bytes) removed = make_room(shard, folder.get(), bytes);
    room_[shard] -= bytes;
  }
  Header header{};
  memcpy(header.magic, kMagic, sizeof kMagic);
  header.key = key;
  header.checksum = checksum(key, content);
  header.length = content.size();
  const std::string name = name_of(key), aside = kAside + std::to_string(getpid()) + "-" + std::to_string(counter++) +
                                                 "-" + name.substr(0, 8);
  File file(openat(folder.get(), aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.get() < 0) fail(path_ + " can't be written");
  if (!write_all(file.get(), reinterpret_cast<const char*>(&header), sizeof header) ||
      !write_all(file.get(), content.data(), content.size()) || file.close() != 0 ||
      renameat(folder.get(), aside.c_str(), folder.get(), name.c_str()) != 0) {
    const int why = errno;
    unlinkat(folder.get(), aside.c_str(), 0);
    errno = why;
    fail(path_ + " can't be written");
  }
  return removed;
}

/// Looks through a part: removes what processes left that died, and if there is no room for `bytes`, the entries that
/// were not used for longest. Gives how many entries went.
int Directory::make_room(int shard, int folder, int64_t bytes) {
  const int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail(path_ + " can't be read");
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(fdopendir(fd), closedir);
  struct Item {
    timespec used;
    int64_t bytes;
    std::string name;
  };
  std::vector<Item> items;
  int64_t total = 0;
  while (const dirent* item = readdir(listing.get())) {
    struct stat facts;
    if (*item->d_name == '.' || fstatat(fd, item->d_name, &facts, AT_SYMLINK_NOFOLLOW) != 0) continue;
    const bool aside = strncmp(item->d_name, kAside, strlen(kAside)) == 0;
    if (aside && facts.st_mtime + kHour < time(nullptr)) {
      remove_at(fd, item->d_name);
      continue;
    }
    total += disk_bytes(facts.st_size);
    if (!aside) items.push_back({facts.st_mtim, disk_bytes(facts.st_size), item->d_name});
  }
  int removed = 0;
  if (total + bytes > shard_limit_) {
    std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
      return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
    });
    // An eighth more than needed, so that not every entry from here on comes here.
    for (const Item& item : items) {
      if (total + bytes <= shard_limit_ - shard_limit_ / 8) break;
      if (remove_at(fd, item.name.c_str())) ++removed;
      total -= item.bytes;
    }
  }
  room_[shard] = std::max(bytes, shard_limit_ - total);
  return removed;
}

}  // namespace magneto::cache
