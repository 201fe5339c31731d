#include "codegen/object_loader.h"

#include <elf.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace magneto::codegen {
namespace {

struct Extern {
  std::string_view name;
  void* address;
};

void* find_extern(std::string_view name) {
  // Which overload of <math.h> is meant, the cast says.
  using D1 = double (*)(double);
  using D2 = double (*)(double, double);
  using S1 = float (*)(float);
  using S2 = float (*)(float, float);
  static const Extern kExterns[] = {
#define F1(name)                                              \
  {#name, reinterpret_cast<void*>(static_cast<D1>(&::name))}, \
      {#name "f", reinterpret_cast<void*>(static_cast<S1>(&::name##f))},
#define F2(name)                                              \
  {#name, reinterpret_cast<void*>(static_cast<D2>(&::name))}, \
      {#name "f", reinterpret_cast<void*>(static_cast<S2>(&::name##f))},
#define X(name) {#name, reinterpret_cast<void*>(&::name)},
#include "codegen/externs.def"
#undef F1
#undef F2
#undef X
  };
  const auto found =
      std::find_if(std::begin(kExterns), std::end(kExterns), [&](const Extern& e) { return e.name == name; });
  return found == std::end(kExterns) ? nullptr : found->address;
}

[[noreturn]] void damaged(const std::string& what) {
  throw std::runtime_error("a kernel's object file is damaged: " + what);
}

/// `jmp *[rip]` and the address behind it: in reach of all relative calls. The address alone serves as a GOT entry.
constexpr size_t kThunkBytes = 16;
constexpr size_t kThunkAddress = 8;

}  // namespace

LoadedObject::LoadedObject(std::string_view object) {
  try {
    load(object);
  } catch (...) {
    release();
    throw;
  }
}

LoadedObject::~LoadedObject() { release(); }

void LoadedObject::release() {
  if (memory_) munmap(memory_, size_);
  memory_ = nullptr;
}

void* LoadedObject::symbol(std::string_view name) const {
  if (!entry_) throw std::runtime_error("a kernel's object file defines no " + std::string(name));
  return entry_;
}

void LoadedObject::load(std::string_view object) {
  // Every offset is checked: the bytes may come from a file.
  const auto at = [&](uint64_t offset, uint64_t bytes) -> const char* {
    if (offset > object.size() || bytes > object.size() - offset) damaged("it ends early");
    return object.data() + offset;
  };
  Elf64_Ehdr header;
  memcpy(&header, at(0, sizeof header), sizeof header);
  if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_type != ET_REL || header.e_machine != EM_X86_64 || header.e_shentsize != sizeof(Elf64_Shdr)) {
    damaged("no x86-64 object");
  }
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  if (!sections.empty()) {
    memcpy(sections.data(), at(header.e_shoff, sections.size() * sizeof(Elf64_Shdr)),
           sections.size() * sizeof(Elf64_Shdr));
  }
  const auto section = [&](uint64_t index) -> const Elf64_Shdr& {
    if (index >= sections.size()) damaged("no such section");
    return sections[index];
  };

  // Lay out: all sections that take memory, then the thunks.
  std::vector<uint64_t> offsets(sections.size(), UINT64_MAX);
  uint64_t total = 0;
  const Elf64_Shdr* symbols_section = nullptr;
  for (size_t i = 0; i < sections.size(); ++i) {
    const Elf64_Shdr& s = sections[i];
    if (s.sh_type == SHT_SYMTAB) symbols_section = &s;
    if (!(s.sh_flags & SHF_ALLOC) || s.sh_type == SHT_X86_64_UNWIND) continue;
    const uint64_t align = std::max<uint64_t>(1, s.sh_addralign);
    if (align > 4096 || s.sh_size > (1u << 28)) damaged("a section out of proportion");
    total = (total + align - 1) / align * align;
    offsets[i] = total;
    total += s.sh_size;
  }
  if (!symbols_section || symbols_section->sh_entsize != sizeof(Elf64_Sym)) damaged("no symbols");
  // Looked at before memory is asked for: a damaged size may be a terabyte, which some systems grant.
  const char* symbols_at = at(symbols_section->sh_offset, symbols_section->sh_size);
  std::vector<Elf64_Sym> symbols(symbols_section->sh_size / sizeof(Elf64_Sym));
  memcpy(symbols.data(), symbols_at, symbols.size() * sizeof(Elf64_Sym));
  const Elf64_Shdr& names = section(symbols_section->sh_link);
  const auto name_of = [&](const Elf64_Sym& symbol) -> std::string_view {
    const char* text = at(names.sh_offset, names.sh_size);
    if (symbol.st_name >= names.sh_size) damaged("a name out of range");
    const size_t limit = names.sh_size - symbol.st_name;
    return {text + symbol.st_name, strnlen(text + symbol.st_name, limit)};
  };
  const uint64_t thunks = (total + 15) / 16 * 16;
  total = thunks + symbols.size() * kThunkBytes;

  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  size_ = (total + page - 1) / page * page;
  void* memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no memory for a kernel's code");
  memory_ = static_cast<char*>(memory);

  for (size_t i = 0; i < sections.size(); ++i) {
    if (offsets[i] == UINT64_MAX || sections[i].sh_type == SHT_NOBITS || sections[i].sh_size == 0) continue;
    memcpy(memory_ + offsets[i], at(sections[i].sh_offset, sections[i].sh_size), sections[i].sh_size);
  }

  std::vector<uint64_t> addresses(symbols.size(), 0);
  std::vector<bool> outside(symbols.size(), false);
  for (size_t i = 0; i < symbols.size(); ++i) {
    const Elf64_Sym& symbol = symbols[i];
    if (symbol.st_shndx == SHN_UNDEF) {
      if (i == 0 || symbol.st_name == 0) continue;
      char* thunk = memory_ + thunks + i * kThunkBytes;
      void* function = find_extern(name_of(symbol));
      if (!function) damaged("it calls " + std::string(name_of(symbol)));
      static constexpr unsigned char kJump[] = {0xff, 0x25, 2, 0, 0, 0, 0x90, 0x90};
      memcpy(thunk, kJump, sizeof kJump);
      memcpy(thunk + kThunkAddress, static_cast<const void*>(&function), sizeof function);
      addresses[i] = reinterpret_cast<uint64_t>(thunk);
      outside[i] = true;
    } else if (symbol.st_shndx < sections.size() && offsets[symbol.st_shndx] != UINT64_MAX) {
      if (symbol.st_value > sections[symbol.st_shndx].sh_size) damaged("a symbol out of range");
      addresses[i] = reinterpret_cast<uint64_t>(memory_) + offsets[symbol.st_shndx] + symbol.st_value;
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && ELF64_ST_BIND(symbol.st_info) == STB_GLOBAL) {
        entry_ = reinterpret_cast<void*>(addresses[i]);
        entry_size_ = symbol.st_size;
      }
    }
  }

  for (const Elf64_Shdr& s : sections) {
    if (s.sh_type != SHT_RELA || s.sh_info >= sections.size() || offsets[s.sh_info] == UINT64_MAX) continue;
    const uint64_t base = offsets[s.sh_info], limit = sections[s.sh_info].sh_size;
    for (uint64_t r = 0; r + sizeof(Elf64_Rela) <= s.sh_size; r += sizeof(Elf64_Rela)) {
      Elf64_Rela relocation;
      memcpy(&relocation, at(s.sh_offset + r, sizeof relocation), sizeof relocation);
      const uint64_t index = ELF64_R_SYM(relocation.r_info);
      const uint64_t type = ELF64_R_TYPE(relocation.r_info);
      if (index >= symbols.size() || addresses[index] == 0) damaged("a relocation to nothing");
      const uint64_t width = type == R_X86_64_64 || type == R_X86_64_PC64 ? 8 : 4;
      if (relocation.r_offset > limit || width > limit - relocation.r_offset) damaged("a relocation out of range");
      char* place = memory_ + base + relocation.r_offset;
      const auto from = reinterpret_cast<uint64_t>(place);
      uint64_t value = addresses[index] + static_cast<uint64_t>(relocation.r_addend);
      switch (type) {
        case R_X86_64_64:
          break;
        case R_X86_64_GOTPCREL:
        case R_X86_64_GOTPCRELX:
        case R_X86_64_REX_GOTPCRELX:
          if (!outside[index]) damaged("a GOT entry of its own symbol");
          value += kThunkAddress - from;
          break;
        case R_X86_64_PC32:
        case R_X86_64_PLT32:
        case R_X86_64_PC64:
          value -= from;
          break;
        default:
          damaged("relocation " + std::to_string(type));
      }
      memcpy(place, &value, width);
    }
  }
  if (mprotect(memory_, size_, PROT_READ | PROT_EXEC) != 0)
    throw std::runtime_error("no executable memory for a kernel");
}

}  // namespace magneto::codegen
