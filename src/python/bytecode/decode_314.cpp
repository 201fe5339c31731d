// CPython 3.14's bytecode.
#include "python/bytecode/decode.h"

namespace magneto {

namespace {

constexpr Decoding kDecodings[] = {
    {"BINARY_OP", Op::BINARY_OP, Form::MaybeSubscript},
    {"CACHE", Op::NOP},
    {"CALL_FUNCTION_EX", Op::CALL_FUNCTION_EX, Form::WithKeywords},
    {"CALL_INTRINSIC_1", Op::CALL_INTRINSIC_1, Form::Intrinsic1},
    {"CALL_INTRINSIC_2", Op::CALL_INTRINSIC_2, Form::Intrinsic2},
    {"CALL_KW", Op::CALL, Form::CallKeywords},
    {"COMPARE_OP", Op::COMPARE_OP, Form::CompareToBool},
    {"END_ASYNC_FOR", Op::END_ASYNC_FOR, Form::NoJump},
    {"END_FOR", Op::POP_TOP},
    {"FORMAT_SIMPLE", Op::FORMAT_VALUE, Form::NoArgument},
    {"FORMAT_WITH_SPEC", Op::FORMAT_VALUE, Form::WithFormat},
    {"JUMP_BACKWARD", Op::JUMP},
    {"JUMP_BACKWARD_NO_INTERRUPT", Op::JUMP},
    {"JUMP_FORWARD", Op::JUMP},
    {"LOAD_ATTR", Op::LOAD_ATTR, Form::MaybeMethod},
    {"LOAD_COMMON_CONSTANT", Op::LOAD_CONST, Form::CommonConstant},
    {"LOAD_FAST_BORROW", Op::LOAD_FAST},
    {"LOAD_FAST_BORROW_LOAD_FAST_BORROW", Op::LOAD_FAST_LOAD_FAST, Form::TwoLocals},
    {"LOAD_FAST_CHECK", Op::LOAD_FAST},
    {"LOAD_FAST_LOAD_FAST", Op::LOAD_FAST_LOAD_FAST, Form::TwoLocals},
    {"LOAD_SMALL_INT", Op::LOAD_CONST, Form::SmallInt},
    {"LOAD_SPECIAL", Op::Unknown, Form::Special},
    {"MAKE_FUNCTION", Op::MAKE_FUNCTION, Form::NoArgument},
    {"NOT_TAKEN", Op::Unknown, Form::Prefix},
    {"POP_ITER", Op::POP_TOP},
    {"STORE_FAST_LOAD_FAST", Op::STORE_FAST_LOAD_FAST, Form::TwoLocals},
    {"STORE_FAST_STORE_FAST", Op::STORE_FAST_STORE_FAST, Form::TwoLocals},
};

constexpr std::string_view kCommonConstants[] = {"AssertionError", "NotImplementedError", "tuple", "all", "any"};

}  // namespace

const Dialect dialect = {kDecodings,
                         /*null_above_callable=*/true,
                         /*send_leaves_iterator=*/true,
                         /*skipped_at_loop_end=*/2,
                         /*exit_is_callable=*/true,
                         kCommonConstants};

}  // namespace magneto
