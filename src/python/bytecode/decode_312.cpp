// CPython 3.12's bytecode.
#include "python/bytecode/decode.h"

namespace magneto {

namespace {

constexpr Decoding kDecodings[] = {
    {"CACHE", Op::NOP},
    {"CALL_INTRINSIC_1", Op::CALL_INTRINSIC_1, Form::Intrinsic1},
    {"CALL_INTRINSIC_2", Op::CALL_INTRINSIC_2, Form::Intrinsic2},
    {"COMPARE_OP", Op::COMPARE_OP, Form::CompareFourBit},
    {"JUMP_BACKWARD", Op::JUMP},
    {"JUMP_BACKWARD_NO_INTERRUPT", Op::JUMP},
    {"JUMP_FORWARD", Op::JUMP},
    {"KW_NAMES", Op::Unknown, Form::KeywordNames},
    {"LOAD_ATTR", Op::LOAD_ATTR, Form::MaybeMethod},
    {"LOAD_CLOSURE", Op::LOAD_FAST},
    {"LOAD_FAST_CHECK", Op::LOAD_FAST},
};

}  // namespace

const Dialect dialect = {kDecodings, /*null_above_callable=*/false, /*send_leaves_iterator=*/true,
                         /*skipped_at_loop_end=*/1, /*exit_is_callable=*/false};  // END_FOR

}  // namespace magneto
