// CPython 3.11's bytecode.
#include "python/bytecode/decode.h"

namespace magneto {

namespace {

constexpr Decoding kDecodings[] = {
    {"CACHE", Op::NOP},
    {"JUMP_BACKWARD", Op::JUMP},
    {"JUMP_BACKWARD_NO_INTERRUPT", Op::JUMP},
    {"JUMP_FORWARD", Op::JUMP},
    {"KW_NAMES", Op::Unknown, Form::KeywordNames},
    {"LOAD_CLOSURE", Op::LOAD_FAST},
    {"POP_JUMP_BACKWARD_IF_FALSE", Op::POP_JUMP_IF_FALSE},
    {"POP_JUMP_BACKWARD_IF_NONE", Op::POP_JUMP_IF_NONE},
    {"POP_JUMP_BACKWARD_IF_NOT_NONE", Op::POP_JUMP_IF_NOT_NONE},
    {"POP_JUMP_BACKWARD_IF_TRUE", Op::POP_JUMP_IF_TRUE},
    {"POP_JUMP_FORWARD_IF_FALSE", Op::POP_JUMP_IF_FALSE},
    {"POP_JUMP_FORWARD_IF_NONE", Op::POP_JUMP_IF_NONE},
    {"POP_JUMP_FORWARD_IF_NOT_NONE", Op::POP_JUMP_IF_NOT_NONE},
    {"POP_JUMP_FORWARD_IF_TRUE", Op::POP_JUMP_IF_TRUE},
    {"PRECALL", Op::Unknown, Form::Prefix},
};

}  // namespace

const Dialect dialect = {kDecodings, /*null_above_callable=*/false, /*send_leaves_iterator=*/false,
                         /*skipped_at_loop_end=*/0, /*exit_is_callable=*/false};

}  // namespace magneto
