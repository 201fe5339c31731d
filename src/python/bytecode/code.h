// Decoded bytecode: one code object as a list of instructions with absolute jump targets, whatever the CPython version.
#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "python/ref.h"

namespace magneto {

/// The canonical instructions (instructions.def), to which the bytecode of every CPython version is decoded.
enum class Op : uint8_t {
  Unknown,
#define I(name, pops, pushes, locals, flow, looks) name,
#include "python/bytecode/instructions.def"
#undef I
};

/// "LOAD_FAST"; "<unknown>" for Unknown.
const char* op_name(Op op);
/// The number of the interpreter's opcode of that name. Throws std::invalid_argument if it has none.
uint8_t opcode_number(std::string_view name);

/// In COMPARE_OP's argument: the result is turned into a bool.
constexpr int32_t kThenToBool = 16;

struct Instr {
  Op op = Op::Unknown;
  int32_t arg = 0;      // with EXTENDED_ARG folded in; what it means: instructions.def
  int32_t second = -1;  // a second argument: the second local; a call's keywords (index of their names in consts)
  int32_t start = 0;    // code unit where it is entered: of the first prefix, or of the instruction itself
  int32_t offset = 0;   // code unit of the instruction itself (where its errors are raised)
  int32_t next = 0;     // index in CodeInfo::instrs of the instruction that follows
  int32_t target = -1;  // jumps, FOR_ITER, SEND: index in CodeInfo::instrs of the target; else -1
  int32_t line = -1;    // source line; -1 when unknown
};

/// The local variables that an instruction reads or writes, by its `arg` and `second`.
enum class Locals : uint8_t { None, Reads, Writes, ReadsBoth, WritesBoth, WritesReads };
/// Where it goes on: at the next instruction (or its target), at its target only, nowhere in this frame.
enum class Flow : uint8_t { Next, Jump, End };

/// A row of instructions.def.
int32_t pops_of(const Instr& in);
int32_t pushes_of(const Instr& in);
int32_t operands_looked_at(const Instr& in);
Locals locals_of(Op op);
Flow flow_of(Op op);

/// One row of the exception table, in instruction indices.
struct Handler {
  int32_t begin, end;  // covers instructions [begin, end)
  int32_t target;      // index of the handler's first instruction
  int32_t depth;       // value stack depth to unwind to
  bool lasti;          // push the raising instruction's offset (as CPython counts it) below the exception
};

struct Liveness;

/// In CodeInfo::kinds: CO_FAST_CELL, CO_FAST_FREE.
constexpr uint8_t kCellOrFree = 0x40 | 0x80;

struct CodeInfo {
  PyCodeObject* code;             // borrowed: the cache below keeps it alive
  std::vector<Instr> instrs;      // prefixes and inline caches left out
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

/// Matches this interpreter's opcodes with the canonical instructions (through the stdlib module `opcode`). Called once
/// at load; throws PythonError.
void init_opcodes();

}  // namespace magneto
