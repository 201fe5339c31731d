// Fused attention of the CPU. (Elsewhere `scaled_dot_product_attention` decomposes into operators of the other
// families.)
#include <ATen/OpMathType.h>

#include "fake/shape_rules.h"

namespace magneto::fake {
namespace {

/// (query, key, value, dropout_p, is_causal, attn_mask, scale) gives the output, laid out like the query, and
/// logsumexp, laid out as (batch, length, heads).
template <class C>
bool flash_attention_for_cpu(C& call) {
  const at::Tensor &query = call.tensor(0), &key = call.tensor(1), &value = call.tensor(2);
  const at::Tensor mask = call.optional_tensor(5);
  const c10::ScalarType dtype = query.scalar_type();
  if (kPlain<C> && class_of(dtype) == kNone) return false;
  TORCH_CHECK(c10::isFloatingType(dtype),
              "scaled_dot_product_attention_flash_attention: Expected data type in FP32, "
              "FP64, BF16, FP16, but got ",
              dtype, " instead.");
  TORCH_CHECK(query.dim() == 4 && key.dim() == 4 && value.dim() == 4,
              "scaled_dot_product_attention_flash_attention: Accept only 4 dims inputs shape of {B, H, T, K}");
  TORCH_CHECK(!kPlain<C> || call.arg(3).toDouble() == 0,
              "scaled_dot_product_attention_flash_attention: Currently do not support "
              "dropout > 0");
  const auto sizes = sizes_of<C>(query), keys = sizes_of<C>(key), values = sizes_of<C>(value);
  TORCH_CHECK(sizes[3] == values[3] && keys[3] == values[3],
              "scaled_dot_product_attention_flash_attention: Q/K/V should have the same head size");
  if (key.scalar_type() != dtype || value.scalar_type() != dtype) return false;
  if (mask.defined() && (mask.dim() != 2 && mask.dim() != 4)) return false;
  const Size<C>&batch = sizes[0], &heads = sizes[1], &length = sizes[2];
  if constexpr (!kPlain<C>) {  // of numbers, the kernel itself says it
    if (batch != keys[0] || batch != values[0] || keys[1] != values[1] || keys[2] != values[2]) return false;
    if (heads != keys[1] && heads % keys[1] != 0) return false;  // heads may share keys
    if (mask.defined() && !expands(sizes_of<C>(mask), {batch, heads, length, keys[2]})) return false;
  }
  return add(call, sizes, dtype, query.device(), [&](const at::DimVector&) { return like_layout(query).strides; }) &&
         add(call, {batch, heads, length}, at::toOpMathType(dtype), query.device(),
             [](const at::DimVector& now) { return at::DimVector{now[1] * now[2], 1, now[1]}; });
}

/// (grad, query, key, value, out, logsumexp, ...) gives the gradients of the three, laid out as (batch, length, heads,
/// head size). What the forward has not accepted is left to the kernel.
bool flash_attention_for_cpu_backward(Call& call) {
  const at::Tensor& query = call.tensor(1);
  for (size_t i = 0; i < 4; ++i) {
    const at::Tensor& each = call.tensor(i);
    if (!each.defined() || !each.is_cpu() || each.dim() != 4 || each.scalar_type() != query.scalar_type() ||
        !c10::isFloatingType(each.scalar_type()) || each.numel() == 0) {
      return false;
    }
  }
  for (size_t i = 1; i < 4; ++i) {
    add(call, at::DimVector(call.tensor(i).sizes()), query.scalar_type(), query.device(),
        [](const at::DimVector& now) { return at::DimVector{now[1] * now[2] * now[3], now[3], now[1] * now[3], 1}; });
  }
  return true;
}

/// (src, embed_dim, num_heads, ...) gives what it got, contiguous. What eager refuses is left to it.
template <class C>
bool transformer_encoder_layer(C& call) {
  const at::Tensor& source = call.tensor(0);
  if constexpr (kPlain<C>) {
    if (class_of(source.scalar_type()) == kNone || !c10::isFloatingType(source.scalar_type()) || source.dim() != 3 ||
        source.size(2) != call.integer(1)) {
      return false;
    }
  }
  return add(call, sizes_of<C>(source), source.scalar_type(), source.device());
}

}  // namespace

std::span<const RuleRow> attention_rules() {
  static constexpr RuleRow rows[] = {
#define ROW_shape_attention(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

std::span<const SymbolicRow> symbolic_attention_rules() {
  static constexpr SymbolicRow rows[] = {
#define ROW_symbolic_attention(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
  };
  return rows;
}

}  // namespace magneto::fake
