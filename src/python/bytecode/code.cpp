#include "python/bytecode/code.h"

#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>

#include "python/bytecode/decode.h"

namespace magneto {

namespace {

constexpr int opcode_count = 256;

/// An opcode of this interpreter.
struct OpcodeRow {
  std::string name;
  Op op = Op::Unknown;
  Form form = Form::Plain;
  bool extends = false;  // EXTENDED_ARG
  uint8_t caches = 0;    // inline cache entries that follow
  int8_t direction = 0;  // of a relative jump: 1 forward, -1 backward; 0: no jump
};

std::array<OpcodeRow, opcode_count>& opcodes() {
  static auto* rows = new std::array<OpcodeRow, opcode_count>;
  return *rows;
}

constexpr const char* op_names[] = {
    "<unknown>",
#define I(name, pops, pushes, locals, flow, looks) #name,
#include "python/bytecode/instructions.def"
#undef I
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

Op intrinsic_1(int32_t function) {
  switch (function) {
    case 3:
      return Op::STOPITERATION_ERROR;
    case 5:
      return Op::UNARY_POSITIVE;
    case 6:
      return Op::LIST_TO_TUPLE;
    default:
      return Op::CALL_INTRINSIC_1;
  }
}

constexpr int32_t kSubscript = 26;  // BINARY_OP's argument, from 3.14 on

/// Gives the instruction the canonical form.
void bring_into_form(Instr& in, Form form) {
  switch (form) {
    case Form::Plain:
    case Form::Prefix:
    case Form::KeywordNames:
    case Form::CallKeywords:
    case Form::SmallInt:
    case Form::CommonConstant:
    case Form::NoJump:
    case Form::Special:
      break;
    case Form::NoArgument:
      in.arg = 0;
      break;
    case Form::WithFormat:
      in.arg = 4;
      break;
    case Form::WithKeywords:
      in.arg = 1;
      break;
    case Form::MaybeSubscript:
      if (in.arg == kSubscript) in.op = Op::BINARY_SUBSCR;
      break;
    case Form::MaybeMethod:
      if (in.arg & 1) in.op = Op::LOAD_METHOD;
      in.arg >>= 1;
      break;
    case Form::CompareFourBit:
      in.arg >>= 4;
      break;
    case Form::CompareToBool:
      in.arg = in.arg >> 5 | (in.arg & 16 ? kThenToBool : 0);
      break;
    case Form::TwoLocals:
      in.second = in.arg & 15;
      in.arg >>= 4;
      break;
    case Form::Intrinsic1:
      in.op = intrinsic_1(in.arg);
      break;
    case Form::Intrinsic2:
      if (in.arg == 1) in.op = Op::PREP_RERAISE_STAR;
      break;
  }
}

/// Splits the code units into instructions.
class Reader {
 public:
  Reader(CodeInfo& info, const uint8_t* units, int32_t count) : info_(info), units_(units), count_(count) {}

  void read() {
    info_.index_of.assign(count_ + 1, -1);
    while (unit_ < count_) read_instruction();
    info_.index_of[count_] = index();
    for (Instr& instr : info_.instrs) {
      if (instr.target < 0) continue;
      instr.target = info_.index_of[instr.target];
      if (instr.op == Op::FOR_ITER) instr.target += dialect.skipped_at_loop_end;
    }
  }

 private:
  int32_t index() const { return static_cast<int32_t>(info_.instrs.size()); }
  const OpcodeRow& row() const { return opcodes()[units_[2 * unit_]]; }

  /// One code unit with its inline caches; gives its argument.
  int32_t read_unit() {
    info_.index_of[unit_] = index();
    uint32_t arg = units_[2 * unit_ + 1];
    while (row().extends) {
      info_.index_of[++unit_] = index();
      arg = arg << 8 | units_[2 * unit_ + 1];
    }
    return static_cast<int32_t>(arg);
  }

  void read_instruction() {
    Instr instr;
    instr.start = unit_;
    int32_t arg = read_unit();
    for (; row().form == Form::KeywordNames || row().form == Form::Prefix; arg = read_unit()) {
      if (row().form == Form::KeywordNames) instr.second = arg;
      unit_ += 1 + row().caches;
    }
    const OpcodeRow& opcode = row();
    instr.op = opcode.op;
    if (opcode.form == Form::CallKeywords) take_names(instr);
    instr.arg = arg;
    instr.offset = unit_;
    unit_ += 1 + opcode.caches;
    // A code unit for now: an index once all instructions are known.
    if (opcode.direction) instr.target = unit_ + opcode.direction * instr.arg;
    bring_into_form(instr, opcode.form);
    if (opcode.form == Form::SmallInt) instr.arg = add_constant(checked(PyLong_FromLong(arg)));
    if (opcode.form == Form::CommonConstant) take_common_constant(instr);
    if (instr.op == Op::CALL) take_with(instr);
    if (opcode.form == Form::Special) specials_ = {specials_[1], index()};
    instr.next = index() + 1;
    info_.instrs.push_back(instr);
  }

  /// Gives the index of a constant that is no code object's.
  int32_t add_constant(Ref value) {
    const Py_ssize_t count = PyTuple_GET_SIZE(info_.consts.get());
    for (Py_ssize_t i = PyTuple_GET_SIZE(info_.code->co_consts); i < count; ++i) {
      if (PyTuple_GET_ITEM(info_.consts.get(), i) == value.get()) return static_cast<int32_t>(i);
    }
    Ref more = checked(PyTuple_New(count + 1));
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyTuple_SET_ITEM(more.get(), i, Py_NewRef(PyTuple_GET_ITEM(info_.consts.get(), i)));
    }
    PyTuple_SET_ITEM(more.get(), count, value.release());
    info_.consts = std::move(more);
    return static_cast<int32_t>(count);
  }

  /// What a function of the user's has no name for.
  void take_common_constant(Instr& instr) {
    const std::string_view name = dialect.common_constants[instr.arg];
    if (name == "AssertionError") {
      instr.op = Op::LOAD_ASSERTION_ERROR;
      return;
    }
    const Ref builtins = checked(PyImport_ImportModule("builtins"));
    instr.arg = add_constant(attribute(builtins, std::string(name).c_str()));
  }

  /// From 3.14 on the entry of a `with` block is written out: COPY 1, LOAD_SPECIAL, SWAP 2, SWAP 3, LOAD_SPECIAL, and
  /// this call. They become one instruction again.
  void take_with(Instr& call) {
    constexpr int32_t kPieces = 5;
    if (call.arg != 0 || specials_[1] != index() - 1 || specials_[0] != index() - 4) return;
    const Instr& first = info_.instrs[index() - kPieces];
    if (first.op != Op::COPY) return;
    call.op = info_.instrs.back().arg == 0 ? Op::BEFORE_WITH : Op::BEFORE_ASYNC_WITH;
    take_from(call, first.start, kPieces);
  }

  /// The LOAD_CONST in front of a call with keywords becomes part of it.
  void take_names(Instr& call) {
    if (info_.instrs.empty() || info_.instrs.back().op != Op::LOAD_CONST) {
      call.op = Op::Unknown;  // no compiler does so
      return;
    }
    call.second = info_.instrs.back().arg;
    take_from(call, info_.instrs.back().start, 1);
  }

  /// The last `count` instructions become part of `in`, which starts where they do.
  void take_from(Instr& in, int32_t start, size_t count) {
    in.start = start;
    info_.instrs.resize(info_.instrs.size() - count);
    for (int32_t unit = start; unit <= unit_ && unit <= count_; ++unit) {
      if (info_.index_of[unit] >= 0) info_.index_of[unit] = index();
    }
  }

  CodeInfo& info_;
  const uint8_t* units_;
  int32_t count_;
  int32_t unit_ = 0;
  std::array<int32_t, 2> specials_ = {-1, -1};  // the last two LOAD_SPECIAL
};

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
  info->consts = Ref::borrow(code->co_consts);
  Ref bytes = checked(PyCode_GetCode(code));
  Reader(*info, reinterpret_cast<const uint8_t*>(PyBytes_AS_STRING(bytes.get())),
         static_cast<int32_t>(PyBytes_GET_SIZE(bytes.get()) / 2))
      .read();
  read_lines(*info);
  read_handlers(*info);
  info->nlocals = code->co_nlocalsplus;
  info->stack_size = code->co_stacksize;
  info->names = Ref::borrow(code->co_names);
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

uint8_t opcode_number(std::string_view name) {
  const auto& rows = opcodes();
  auto found = std::find_if(rows.begin(), rows.end(), [name](const OpcodeRow& row) { return row.name == name; });
  if (found == rows.end()) throw std::invalid_argument("no such opcode in this interpreter");
  return static_cast<uint8_t>(found - rows.begin());
}

int32_t pops_of(const Instr& in) {
  switch (in.op) {
#define I(name, pops, pushes, locals, flow, looks) \
  case Op::name:                                   \
    return pops;
#include "python/bytecode/instructions.def"
#undef I
    case Op::Unknown:
      break;
  }
  return 0;
}

int32_t pushes_of(const Instr& in) {
  if (dialect.exit_is_callable && (in.op == Op::BEFORE_WITH || in.op == Op::BEFORE_ASYNC_WITH)) return 3;
  switch (in.op) {
#define I(name, pops, pushes, locals, flow, looks) \
  case Op::name:                                   \
    return pushes;
#include "python/bytecode/instructions.def"
#undef I
    case Op::Unknown:
      break;
  }
  return 0;
}

int32_t operands_looked_at(const Instr& in) {
  switch (in.op) {
#define I(name, pops, pushes, locals, flow, looks) \
  case Op::name:                                   \
    return looks;
#include "python/bytecode/instructions.def"
#undef I
    case Op::Unknown:
      break;
  }
  return 0;
}

Locals locals_of(Op op) {
  static constexpr Locals rows[] = {
      Locals::None,
#define I(name, pops, pushes, locals, flow, looks) Locals::locals,
#include "python/bytecode/instructions.def"
#undef I
  };
  return rows[static_cast<int>(op)];
}

Flow flow_of(Op op) {
  static constexpr Flow rows[] = {
      Flow::Next,
#define I(name, pops, pushes, locals, flow, looks) Flow::flow,
#include "python/bytecode/instructions.def"
#undef I
  };
  return rows[static_cast<int>(op)];
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
  auto& rows = opcodes();
  Ref module = checked(PyImport_ImportModule("opcode"));
  Ref opmap = attribute(module, "opmap");
  Ref caches = attribute(module, "_inline_cache_entries");  // by number, from 3.13 on by name
  PyObject *key, *value;
  for (Py_ssize_t position = 0; PyDict_Next(opmap.get(), &position, &key, &value);) {
    const long number = PyLong_AsLong(value);
    if (number < 0 || number >= opcode_count) continue;  // above 255: the compiler's pseudo instructions
    OpcodeRow& row = rows[number];
    row.name = utf8(key);
    row.extends = row.name == "EXTENDED_ARG";
    const auto listed = std::ranges::find(dialect.decodings, row.name, &Decoding::name);
    row.op = listed == dialect.decodings.end() ? op_named(row.name) : listed->op;
    if (listed != dialect.decodings.end()) row.form = listed->form;
    Ref count;
    if (PyDict_Check(caches.get())) {
      count = Ref::borrow(PyDict_GetItem(caches.get(), key));
    } else {
      count = checked(PySequence_GetItem(caches.get(), number));
    }
    if (count) row.caches = static_cast<uint8_t>(PyLong_AsLong(count.get()));
  }
  Ref jumps = attribute(module, "hasjrel");
  for (Py_ssize_t i = 0; i < PySequence_Size(jumps.get()); ++i) {
    Ref number = checked(PySequence_GetItem(jumps.get(), i));
    const long opcode = PyLong_AsLong(number.get());
    if (opcode < 0 || opcode >= opcode_count || rows[opcode].form == Form::NoJump) continue;
    rows[opcode].direction = rows[opcode].name.find("BACKWARD") != std::string::npos ? -1 : 1;
  }
  if (PyErr_Occurred()) throw PythonError{};
}

}  // namespace magneto
