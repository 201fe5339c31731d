// Fused attention of the CPU. (Elsewhere `scaled_dot_product_attention` decomposes into operators of the other
// families.)
#include <ATen/OpMathType.h>

#include "fake/elementwise.h"

namespace magneto::fake {
namespace {

/// (query, key, value, dropout_p, is_causal, attn_mask, scale) gives the output, laid out like the query, and
/// logsumexp, laid out as (batch, length, heads).
bool flash_attention_for_cpu(Call& call) {
  const at::Tensor &query = call.tensor(0), &key = call.tensor(1), &value = call.tensor(2);
  const at::Tensor mask = call.optional_tensor(5);
  const c10::ScalarType dtype = query.scalar_type();
  if (class_of(dtype) == kNone) return false;
  TORCH_CHECK(c10::isFloatingType(dtype),
              "scaled_dot_product_attention_flash_attention: Expected data type in FP32, "
              "FP64, BF16, FP16, but got ",
              dtype, " instead.");
  TORCH_CHECK(query.dim() == 4 && key.dim() == 4 && value.dim() == 4,
              "scaled_dot_product_attention_flash_attention: Accept only 4 dims inputs shape of {B, H, T, K}");
  TORCH_CHECK(call.arg(3).toDouble() == 0,
              "scaled_dot_product_attention_flash_attention: Currently do not support "
              "dropout > 0");
  TORCH_CHECK(query.size(3) == value.size(3) && key.size(3) == value.size(3),
              "scaled_dot_product_attention_flash_attention: Q/K/V should have the same head size");
  if (key.scalar_type() != dtype || value.scalar_type() != dtype) return false;
  if (mask.defined() && (mask.dim() != 2 && mask.dim() != 4)) return false;
  const int64_t batch = query.size(0), heads = query.size(1), length = query.size(2), size = query.size(3);
  const at::DimVector strides = like_layout(query).strides;
  call.result(call.empty({batch, heads, length, size}, strides, dtype, query.device()));
  call.result(call.empty({batch, heads, length}, {heads * length, 1, heads}, at::toOpMathType(dtype), query.device()));
  return true;
}

/// (src, embed_dim, num_heads, ...) gives what it got, contiguous. What eager refuses is left to it.
bool transformer_encoder_layer(Call& call) {
  const at::Tensor& source = call.tensor(0);
  if (class_of(source.scalar_type()) == kNone || !c10::isFloatingType(source.scalar_type()) || source.dim() != 3 ||
      source.size(2) != call.integer(1)) {
    return false;
  }
  call.result(call.empty(source.sizes(), source.scalar_type(), source.device()));
  return true;
}

constexpr RuleRow rows[] = {
#define ROW_shape_attention(op, ...) {op, __VA_ARGS__},
#include "ops/rows.def"
};

}  // namespace

std::span<const RuleRow> attention_rules() { return rows; }

}  // namespace magneto::fake
