// Decoded bytecode: one code object as a list of instructions with absolute jump targets, whatever the CPython version.
#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "python/ref.h"

namespace magneto {

/// The opcodes of all supported CPython versions (opcodes.def). Numbers differ between versions; names are matched
/// when the extension is loaded.
enum class Op : uint8_t {
  Unknown,
#define X(name) name,
#include "python/bytecode/opcodes.def"
#undef X
};

/// "LOAD_FAST"; "<unknown>" for Unknown.
const char* op_name(Op op);
/// The number of an opcode in this interpreter. Throws std::invalid_argument if it has no such opcode.
uint8_t opcode_number(Op op);

struct Instr {
  Op op = Op::Unknown;
  int32_t arg = 0;      // with EXTENDED_ARG folded in, and of one form for all versions (`normalise`)
  int32_t start = 0;    // code unit of the first EXTENDED_ARG prefix, or of the instruction itself
  int32_t offset = 0;   // code unit of the instruction itself (what prev_instr holds while it runs)
  int32_t next = 0;     // index in CodeInfo::instrs of the instruction that follows
  int32_t target = -1;  // jumps, FOR_ITER, SEND: index in CodeInfo::instrs of the target; else -1
  int32_t line = -1;    // source line; -1 when unknown
};

/// The opcode and its argument as CPython 3.11 has them, from what this version has.
void normalise(Instr& instr);

/// SEND leaves the iterator that has ended on the stack.
extern const bool send_leaves_iterator;

/// One row of the exception table, in instruction indices.
struct Handler {
  int32_t begin, end;  // covers instructions [begin, end)
  int32_t target;      // index of the handler's first instruction
  int32_t depth;       // value stack depth to unwind to
  bool lasti;          // push the raising instruction's offset (as CPython counts it) below the exception
};

struct Liveness;

struct CodeInfo {
  PyCodeObject* code;             // borrowed: the cache below keeps it alive
  std::vector<Instr> instrs;      // EXTENDED_ARG and CACHE left out
  std::vector<Handler> handlers;  // innermost first for overlapping ranges
  std::vector<int32_t> index_of;  // code unit -> index in instrs (-1 inside caches); one past the end -> instrs.size()
  int32_t nlocals = 0;            // co_nlocalsplus: locals, cells and free variables
  int32_t stack_size = 0;
  Ref names, consts, localsplus_names;  // tuples; localsplus_names in slot order
  std::vector<uint8_t> kinds;           // co_localspluskinds: CO_FAST_LOCAL | CO_FAST_CELL | CO_FAST_FREE per slot
  int32_t first_free = 0;               // slot of the first free variable
  int32_t free_count = 0;
  int32_t entry = 0;  // index of the RESUME that starts the body (after COPY_FREE_VARS, MAKE_CELL...)

  mutable std::shared_ptr<const Liveness> liveness;  // of liveness.h, once asked for

  /// The handler that covers an instruction, or null.
  const Handler* handler_of(int32_t instr) const;
};

/// An instruction of the program.
struct CodePlace {
  const CodeInfo* info;
  int32_t instr;
  int32_t line() const { return info->instrs[instr].line; }
};

/// Decodes a code object (never its quickened form). Decoded once per code object and kept until `forget_code`.
/// Throws PythonError.
const CodeInfo& decode(PyCodeObject* code);

/// Drops a code object's decoded form; references to it end here.
void forget_code(PyCodeObject* code);

/// Matches opcode names with this interpreter's numbers (through the stdlib module `opcode`). Called once at load;
/// throws PythonError.
void init_opcodes();

}  // namespace magneto
