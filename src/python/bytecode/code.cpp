#include "python/bytecode/code.h"

#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <unordered_map>

namespace magneto {

namespace {

constexpr int opcode_count = 256;

/// What this interpreter's `opcode` module says about each opcode number.
struct OpcodeRow {
  Op op = Op::Unknown;
  uint8_t caches = 0;    // inline cache entries that follow
  int8_t direction = 0;  // of a relative jump: 1 forward, -1 backward; 0: no jump
};

std::array<OpcodeRow, opcode_count> opcodes;

constexpr const char* op_names[] = {
    "<unknown>",
#define X(name) #name,
#include "python/bytecode/opcodes.def"
#undef X
};

Op op_named(std::string_view name) {
  auto found = std::find(std::begin(op_names), std::end(op_names), name);
  return found == std::end(op_names) ? Op::Unknown : static_cast<Op>(found - std::begin(op_names));
}

Ref attribute(const Ref& object, const char* name) { return checked(PyObject_GetAttrString(object.get(), name)); }

std::string_view utf8(PyObject* text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text, &size);
  if (!data) throw PythonError{};
  return {data, static_cast<size_t>(size)};
}

/// A reader of the compressed tables of code objects: numbers in groups of six bits, bit 6 marks a continuation.
struct TableReader {
  const uint8_t* at;
  const uint8_t* end;

  explicit TableReader(PyObject* bytes)
      : at(reinterpret_cast<const uint8_t*>(PyBytes_AS_STRING(bytes))), end(at + PyBytes_GET_SIZE(bytes)) {}
  bool done() const { return at >= end; }

  /// Most significant group first (exception table).
  int32_t big_endian() {
    int32_t value = *at & 63;
    while (*at++ & 64) value = value << 6 | (*at & 63);
    return value;
  }
  /// Least significant group first, the lowest bit is the sign (location table).
  int32_t signed_little_endian() {
    uint32_t value = *at & 63;
    for (int shift = 6; *at++ & 64; shift += 6) value |= static_cast<uint32_t>(*at & 63) << shift;
    int32_t magnitude = static_cast<int32_t>(value >> 1);
    return value & 1 ? -magnitude : magnitude;
  }
};

/// Splits the code units into instructions.
void read_instructions(CodeInfo& info, const uint8_t* units, int32_t count) {
  info.index_of.assign(count + 1, -1);
  for (int32_t unit = 0; unit < count;) {
    Instr instr;
    instr.start = unit;
    uint32_t arg = 0;
    const OpcodeRow* row = &opcodes[units[2 * unit]];
    for (; row->op == Op::EXTENDED_ARG; row = &opcodes[units[2 * unit]]) {
      info.index_of[unit] = static_cast<int32_t>(info.instrs.size());
      arg = (arg | units[2 * unit + 1]) << 8;
      ++unit;
    }
    instr.op = row->op;
    instr.arg = static_cast<int32_t>(arg | units[2 * unit + 1]);
    instr.offset = unit;
    info.index_of[unit] = static_cast<int32_t>(info.instrs.size());
    unit += 1 + row->caches;
    // A code unit for now: an index once all instructions are known.
    if (row->direction) instr.target = unit + row->direction * instr.arg;
    normalise(instr);
    instr.next = static_cast<int32_t>(info.instrs.size()) + 1;
    info.instrs.push_back(instr);
  }
  info.index_of[count] = static_cast<int32_t>(info.instrs.size());
  for (Instr& instr : info.instrs) {
    if (instr.target >= 0) instr.target = info.index_of[instr.target];
  }
}

/// Reads the location table (CPython's Objects/locations.md). One pass: PyCode_Addr2Line starts again for each address.
void read_lines(CodeInfo& info) {
  enum Form { one_line = 10, one_line_end = 12, no_columns = 13, with_columns = 14, no_location = 15 };
  TableReader table(info.code->co_linetable);
  int32_t line = info.code->co_firstlineno;
  const int32_t count = static_cast<int32_t>(info.index_of.size()) - 1;
  for (int32_t unit = 0; !table.done();) {
    const uint8_t head = *table.at++;
    const int form = head >> 3 & 15;
    if (form >= one_line && form <= one_line_end) line += form - one_line;
    if (form == no_columns || form == with_columns) line += table.signed_little_endian();
    while (!table.done() && !(*table.at & 128)) ++table.at;  // columns
    for (int32_t end = unit + (head & 7) + 1; unit < end && unit < count; ++unit) {
      const int32_t index = info.index_of[unit];
      if (index >= 0 && info.instrs[index].offset == unit) info.instrs[index].line = form == no_location ? -1 : line;
    }
  }
  for (Instr& instr : info.instrs) {  // what sets a function up is no line's: its first one stands for it
    if (instr.line >= 0) break;
    instr.line = info.code->co_firstlineno;
  }
}

void read_handlers(CodeInfo& info) {
  for (TableReader table(info.code->co_exceptiontable); !table.done();) {
    const int32_t begin = table.big_endian();
    const int32_t end = begin + table.big_endian();
    const int32_t target = table.big_endian();
    const int32_t depth_and_lasti = table.big_endian();
    info.handlers.push_back({info.index_of[begin], info.index_of[end], info.index_of[target], depth_and_lasti >> 1,
                             (depth_and_lasti & 1) != 0});
  }
}

std::unique_ptr<CodeInfo> decode_new(PyCodeObject* code) {
  auto info = std::make_unique<CodeInfo>();
  info->code = code;
  Ref bytes = checked(PyCode_GetCode(code));
  read_instructions(*info, reinterpret_cast<const uint8_t*>(PyBytes_AS_STRING(bytes.get())),
                    static_cast<int32_t>(PyBytes_GET_SIZE(bytes.get()) / 2));
  read_lines(*info);
  read_handlers(*info);
  info->nlocals = code->co_nlocalsplus;
  info->stack_size = code->co_stacksize;
  info->names = Ref::borrow(code->co_names);
  info->consts = Ref::borrow(code->co_consts);
  info->localsplus_names = Ref::borrow(code->co_localsplusnames);
  const char* kinds = PyBytes_AS_STRING(code->co_localspluskinds);
  info->kinds.assign(kinds, kinds + PyBytes_GET_SIZE(code->co_localspluskinds));
  info->free_count = code->co_nfreevars;
  info->first_free = info->nlocals - info->free_count;
  auto resume =
      std::find_if(info->instrs.begin(), info->instrs.end(), [](const Instr& i) { return i.op == Op::RESUME; });
  if (resume != info->instrs.end()) info->entry = static_cast<int32_t>(resume - info->instrs.begin());
  return info;
}

struct CacheEntry {
  Ref code;
  std::unique_ptr<CodeInfo> info;
};

/// Never destroyed: at exit the interpreter may be gone before static destructors run.
std::unordered_map<PyCodeObject*, CacheEntry>& cache() {
  static auto* entries = new std::unordered_map<PyCodeObject*, CacheEntry>;
  return *entries;
}

}  // namespace

const char* op_name(Op op) { return op_names[static_cast<int>(op)]; }

uint8_t opcode_number(Op op) {
  auto found = std::find_if(opcodes.begin(), opcodes.end(), [op](const OpcodeRow& row) { return row.op == op; });
  if (op == Op::Unknown || found == opcodes.end()) throw std::invalid_argument("no such opcode in this interpreter");
  return static_cast<uint8_t>(found - opcodes.begin());
}

const Handler* CodeInfo::handler_of(int32_t instr) const {
  // The compiler gives each instruction one handler at most: ranges are sorted and do not overlap.
  auto after = std::upper_bound(handlers.begin(), handlers.end(), instr,
                                [](int32_t index, const Handler& handler) { return index < handler.begin; });
  if (after == handlers.begin()) return nullptr;
  const Handler& handler = *--after;
  return instr < handler.end ? &handler : nullptr;
}

const CodeInfo& decode(PyCodeObject* code) {
  auto found = cache().find(code);
  if (found != cache().end()) return *found->second.info;
  // Decoding allocates, so it may collect garbage and let other threads in: one may have decoded `code` meanwhile.
  std::unique_ptr<CodeInfo> info = decode_new(code);
  auto [entry, inserted] = cache().try_emplace(code);
  if (inserted) entry->second = {Ref::borrow(reinterpret_cast<PyObject*>(code)), std::move(info)};
  return *entry->second.info;
}

void forget_code(PyCodeObject* code) {
  auto node = cache().extract(code);  // dropping the references may run Python code: only once the entry is out
}

void init_opcodes() {
  Ref module = checked(PyImport_ImportModule("opcode"));
  Ref opmap = attribute(module, "opmap");
  PyObject *key, *value;
  for (Py_ssize_t position = 0; PyDict_Next(opmap.get(), &position, &key, &value);) {
    const long number = PyLong_AsLong(value);
    // Numbers above 255 are the compiler's pseudo instructions.
    if (number >= 0 && number < opcode_count) opcodes[number].op = op_named(utf8(key));
  }
  Ref caches = attribute(module, "_inline_cache_entries");
  for (int number = 0; number < opcode_count; ++number) {
    Ref count = checked(PySequence_GetItem(caches.get(), number));
    opcodes[number].caches = static_cast<uint8_t>(PyLong_AsLong(count.get()));
  }
  Ref jumps = attribute(module, "hasjrel");
  for (Py_ssize_t i = 0; i < PySequence_Size(jumps.get()); ++i) {
    Ref number = checked(PySequence_GetItem(jumps.get(), i));
    const long opcode = PyLong_AsLong(number.get());
    if (opcode < 0 || opcode >= opcode_count) continue;
    const bool backward = std::string_view(op_name(opcodes[opcode].op)).find("BACKWARD") != std::string_view::npos;
    opcodes[opcode].direction = backward ? -1 : 1;
  }
  if (PyErr_Occurred()) throw PythonError{};
}

}  // namespace magneto
