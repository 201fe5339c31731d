#include "aot/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "cache/digest.h"

namespace magneto::aot {
namespace {

constexpr std::string_view kMagic("magneto aot\0\0\0\0\0", 16);
constexpr uint64_t kVersion = 1;
/// Behind the magic: the version, place and size of each part and of the tensors.
constexpr size_t kParts = 4, kNumbers = 1 + 2 * (kParts + 1);
constexpr size_t kHead = kMagic.size() + kNumbers * sizeof(uint64_t) + sizeof(cache::Digest);

}  // namespace

Mapping::Mapping(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat about{};
  if (file < 0 || fstat(file, &about) != 0) {
    const std::string why = strerror(errno);
    if (file >= 0) close(file);
    throw BadFile(path + " can't be read (" + why + "): give the path of a file that this user may read.");
  }
  size_ = static_cast<size_t>(about.st_size);
  void* memory = size_ ? mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0) : MAP_FAILED;
  close(file);
  if (memory == MAP_FAILED) {
    throw BadFile(path + (size_ ? " can't be mapped into memory." : " is empty: write it again."));
  }
  data_ = static_cast<char*>(memory);
}

Mapping::~Mapping() { munmap(data_, size_); }

Parts read_parts(const std::string& path) {
  Parts parts{
      .mapping = std::make_shared<const Mapping>(path), .manifest = {}, .program = {}, .kernels = {}, .text = {}};
  const std::string_view all(parts.mapping->data(), parts.mapping->size());
  if (!all.starts_with(kMagic)) throw BadFile(path + " is no file of magneto.aot_compile.");
  const auto damaged = [&](const char* why) {
    return BadFile(path + " is damaged (" + why + "): copy it again, or compile the program again.");
  };
  if (all.size() < kHead) throw damaged("it ends early");
  std::array<uint64_t, kNumbers> numbers;
  memcpy(numbers.data(), all.data() + kMagic.size(), sizeof numbers);
  if (numbers[0] != kVersion) {
    throw BadFile(path + " is of version " + std::to_string(numbers[0]) + ", and this Magneto reads version " +
                  std::to_string(kVersion) + ": compile the program again.");
  }
  size_t end = kHead;
  const auto part = [&](size_t which) {
    const uint64_t place = numbers[1 + 2 * which], size = numbers[2 + 2 * which];
    if (place < end || place > all.size() || size > all.size() - place) throw damaged("it ends early");
    end = place + size;
    return all.substr(place, size);
  };
  parts.manifest = part(0);
  parts.program = part(1);
  parts.kernels = part(2);
  parts.text = part(3);
  const size_t checked = end;
  const std::string_view tensors = part(kParts);
  parts.data = static_cast<size_t>(tensors.data() - all.data());
  parts.data_size = tensors.size();
  cache::Hasher hasher;
  hasher.add(all.substr(0, kHead - sizeof(cache::Digest))).add(all.substr(kHead, checked - kHead));
  if (cache::bytes_of(hasher.finish()) != all.substr(kHead - sizeof(cache::Digest), sizeof(cache::Digest))) {
    throw damaged("its checksum does not fit");
  }
  return parts;
}

}  // namespace magneto::aot
