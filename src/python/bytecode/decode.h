// How one CPython version says the canonical instructions of instructions.def: decode_3NN.cpp, one of which is built.
#pragma once

#include <span>
#include <string_view>

#include "python/bytecode/code.h"

namespace magneto {

/// What becomes of an instruction's argument, and of the instruction.
enum class Form : uint8_t {
  Plain,
  NoArgument,      // the argument says nothing
  MaybeMethod,     // lowest bit: LOAD_METHOD; the rest is LOAD_ATTR's argument
  CompareFourBit,  // the comparison is above four bits of something else
  CompareToBool,   // above five bits, the highest of which asks for a TO_BOOL
  WithFormat,      // FORMAT_VALUE's "with a format"
  TwoLocals,       // two slots of four bits each
  Prefix,          // belongs to the instruction that follows
  KeywordNames,    // ...and says which constant holds its keywords' names
  CallKeywords,    // a call whose keywords' names were loaded by the LOAD_CONST in front of it
  WithKeywords,    // CALL_FUNCTION_EX: an entry for keywords is always there, null where there are none
  MaybeSubscript,  // BINARY_OP: an operator that is a BINARY_SUBSCR
  SmallInt,        // a constant: the argument itself
  CommonConstant,  // a constant: one of those that the interpreter has
  Special,         // LOAD_SPECIAL: a part of the entry of a `with` block
  NoJump,          // its argument is no target
  Intrinsic1,      // CALL_INTRINSIC_1's functions
  Intrinsic2,
};

/// An opcode whose name or argument is not the canonical one.
struct Decoding {
  std::string_view name;
  Op op;
  Form form = Form::Plain;
};

/// What else differs: where entries lie on the stack is part of a frame that CPython and we both run.
struct Dialect {
  std::span<const Decoding> decodings;
  bool null_above_callable;     // of a callable without a self: python/bytecode/callable.h
  bool send_leaves_iterator;    // SEND leaves the iterator that has ended on the stack, for an END_SEND
  int32_t skipped_at_loop_end;  // instructions at FOR_ITER's target that it skips when its iterator ends
  bool exit_is_callable;        // what a `with` block keeps is a callable of two entries, not a bound method
  std::span<const std::string_view> common_constants = {};  // names in `builtins`
};

extern const Dialect dialect;

}  // namespace magneto
