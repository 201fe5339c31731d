#include "cache/identity.h"

#include <cpuid.h>
#include <elf.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <vector>

namespace magneto::cache {
namespace {

std::string describe_machine() {
  std::string text;
  const auto add = [&](const char* what, uint64_t value) {
    char digits[16];
    text.append(what).append(digits, std::to_chars(digits, std::end(digits), value, 16).ptr);
  };
  // Leaves of the CPUID instruction, and the registers (EAX = 1, EBX = 2, ECX = 4, EDX = 8) in which they tell the
  // model and its features; others hold the number of the core that asks, for example.
  constexpr struct {
    unsigned leaf, part, registers;
  } kLeaves[] = {{0, 0, 15},   {1, 0, 13},   {7, 0, 15},          {7, 1, 15},        {0xd, 1, 1},
                 {0x19, 0, 2}, {0x24, 0, 3}, {0x80000001, 0, 12}, {0x80000008, 0, 2}};
  for (const auto& row : kLeaves) {
    unsigned values[4] = {};
    if (__get_cpuid_max(row.leaf & 0x80000000, nullptr) < row.leaf) continue;
    __cpuid_count(row.leaf, row.part, values[0], values[1], values[2], values[3]);
    add(" leaf ", row.leaf);
    add("/", row.part);
    for (int i = 0; i < 4; ++i) {
      if (row.registers >> i & 1) add(" ", values[i]);
    }
    if (row.leaf == 1 && values[2] & bit_OSXSAVE) {
      uint32_t low = 0, high = 0;
      __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
      add(" xcr0 ", low);
    }
  }
  for (const int level : {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE}) {
    add(" cache ", static_cast<uint64_t>(std::max(0L, sysconf(level))));
  }
  // What a user takes from oneDNN, whose results programs are compiled to give, also where they are odd.
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    if (const char* value = std::getenv(name)) text.append(" ").append(name).append("=").append(value);
  }
  return text;
}

}  // namespace

const std::string& machine() {
  static const std::string text = describe_machine();
  return text;
}

std::string build_id(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  const auto read_at = [&](void* to, size_t bytes, uint64_t offset) {
    return pread(fd, to, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
  };
  std::string id;
  Elf64_Ehdr header;
  if (read_at(&header, sizeof header, 0) && memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
      header.e_phentsize == sizeof(Elf64_Phdr)) {
    for (int i = 0; i < header.e_phnum && id.empty(); ++i) {
      Elf64_Phdr segment;
      if (!read_at(&segment, sizeof segment, header.e_phoff + i * sizeof segment)) break;
      if (segment.p_type != PT_NOTE || segment.p_filesz > 4096) continue;
      std::vector<char> notes(segment.p_filesz);
      if (!read_at(notes.data(), notes.size(), segment.p_offset)) break;
      const auto padded = [](size_t bytes) { return (bytes + 3) / 4 * 4; };
      for (size_t at = 0; at + sizeof(Elf64_Nhdr) <= notes.size();) {
        Elf64_Nhdr note;
        memcpy(&note, notes.data() + at, sizeof note);
        const size_t name = at + sizeof note, data = name + padded(note.n_namesz);
        if (data + note.n_descsz > notes.size()) break;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && memcmp(notes.data() + name, "GNU", 4) == 0) {
          id.assign(notes.data() + data, note.n_descsz);
          break;
        }
        at = data + padded(note.n_descsz);
      }
    }
  }
  close(fd);
  return id;
}

}  // namespace magneto::cache
