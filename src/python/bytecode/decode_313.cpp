// CPython 3.13's bytecode.
#include "python/bytecode/decode.h"

namespace magneto {

namespace {

constexpr Decoding kDecodings[] = {
    {"CACHE", Op::NOP},
    {"CALL_INTRINSIC_1", Op::CALL_INTRINSIC_1, Form::Intrinsic1},
    {"CALL_INTRINSIC_2", Op::CALL_INTRINSIC_2, Form::Intrinsic2},
    {"CALL_KW", Op::CALL, Form::CallKeywords},
    {"COMPARE_OP", Op::COMPARE_OP, Form::CompareToBool},
    {"END_FOR", Op::POP_TOP},
    {"FORMAT_SIMPLE", Op::FORMAT_VALUE, Form::NoArgument},
    {"FORMAT_WITH_SPEC", Op::FORMAT_VALUE, Form::WithFormat},
    {"JUMP_BACKWARD", Op::JUMP},
    {"JUMP_BACKWARD_NO_INTERRUPT", Op::JUMP},
    {"JUMP_FORWARD", Op::JUMP},
    {"LOAD_ATTR", Op::LOAD_ATTR, Form::MaybeMethod},
    {"LOAD_FAST_CHECK", Op::LOAD_FAST},
    {"LOAD_FAST_LOAD_FAST", Op::LOAD_FAST_LOAD_FAST, Form::TwoLocals},
    {"MAKE_FUNCTION", Op::MAKE_FUNCTION, Form::NoArgument},
    {"STORE_FAST_LOAD_FAST", Op::STORE_FAST_LOAD_FAST, Form::TwoLocals},
    {"STORE_FAST_STORE_FAST", Op::STORE_FAST_STORE_FAST, Form::TwoLocals},
};

}  // namespace

const Dialect dialect = {kDecodings, /*null_above_callable=*/true, /*send_leaves_iterator=*/true,
                         /*skipped_at_loop_end=*/2, /*exit_is_callable=*/false};  // END_FOR, POP_TOP

}  // namespace magneto
