// Mathematical functions as vector code, of our own: 1-2 units in the last place in f32, with IEEE's results for NaN,
// infinities, zeros and denormals. All work on a scalar or on a vector of any length, without branches.
//
// What has no vector form here (most of f64, rare functions of f32) calls the C library once for each lane.
#pragma once

#include <llvm/IR/IRBuilder.h>

#include "loops/ir.h"

namespace magneto::codegen {

/// Attribute of functions for machines that multiply by powers of two in one instruction (AVX-512's scalef).
inline constexpr const char* kScalesByPowers = "magneto-scalef";

/// The value of a Math instruction on floats whose operands are all scalars or all vectors of one length.
llvm::Value* emit_float_math(llvm::IRBuilder<>& builder, loops::Op op, llvm::Value* const* operands);

/// Lane by lane through `name` of the C library (the f32 version has an `f` behind it).
llvm::Value* emit_library_call(llvm::IRBuilder<>& builder, const char* name, llvm::Value* const* operands, int count);

/// f32 (any length) to the 16 bits of bf16 or f16, to nearest even, and back.
llvm::Value* emit_to_bf16(llvm::IRBuilder<>& builder, llvm::Value* value);
llvm::Value* emit_from_bf16(llvm::IRBuilder<>& builder, llvm::Value* bits);
llvm::Value* emit_to_f16(llvm::IRBuilder<>& builder, llvm::Value* value);
llvm::Value* emit_from_f16(llvm::IRBuilder<>& builder, llvm::Value* bits);

/// `type` with the lanes of `like` (or scalar as it).
llvm::Type* with_lanes_of(llvm::Type* type, llvm::Type* like);

}  // namespace magneto::codegen
