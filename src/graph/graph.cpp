#include "graph/graph.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <vector>

#include "graph/dtypes.h"

namespace magneto::graph {

ValueId Graph::add_input(std::string name, TensorMeta meta) {
  const auto id = static_cast<ValueId>(values.size());
  values.push_back({ValueKind::Input, std::move(meta), std::move(name), {}, -1});
  inputs.push_back(id);
  return id;
}

ValueId Graph::add_constant(at::Tensor tensor) {
  const auto id = static_cast<ValueId>(values.size());
  TensorMeta meta = meta_of(tensor);
  values.push_back({ValueKind::Constant, std::move(meta), {}, std::move(tensor), -1});
  return id;
}

ValueId Graph::add_result(TensorMeta meta, int32_t producer) {
  const auto id = static_cast<ValueId>(values.size());
  values.push_back({ValueKind::Result, std::move(meta), {}, {}, producer});
  return id;
}

std::vector<SymbolBinding> Graph::symbols_of(ValueKind kind) const {
  std::vector<SymbolBinding> found;
  for (const SymbolBinding& symbol : symbols) {
    if (values[symbol.value].kind == kind) found.push_back(symbol);
  }
  return found;
}

TensorMeta meta_of(const at::Tensor& tensor) {
  TensorMeta meta;
  meta.dtype = tensor.scalar_type();
  meta.device = tensor.device();
  meta.requires_grad = tensor.requires_grad();
  meta.wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  meta.sizes = tensor.sizes().vec();
  // Sparse and other layouts have no strides; their operators run all the same.
  if (tensor.layout() == at::kStrided) {
    meta.strides = tensor.strides().vec();
    meta.storage_offset = tensor.storage_offset();
  }
  return meta;
}

std::string_view dtype_name(c10::ScalarType dtype) {
  for (const DtypeName& row : dtype_names()) {
    if (row.dtype == dtype) return row.name;
  }
  return "undefined";
}

std::optional<c10::ScalarType> dtype_of_name(std::string_view name) {
  for (const DtypeName& row : dtype_names()) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

std::span<const DtypeName> dtype_names() {
  using c10::ScalarType;
  static constexpr DtypeName named[] = {
      {ScalarType::Float, "f32"},
      {ScalarType::Double, "f64"},
      {ScalarType::Half, "f16"},
      {ScalarType::BFloat16, "bf16"},
      {ScalarType::Long, "i64"},
      {ScalarType::Int, "i32"},
      {ScalarType::Short, "i16"},
      {ScalarType::Char, "i8"},
      {ScalarType::Byte, "u8"},
      {ScalarType::UInt16, "u16"},
      {ScalarType::UInt32, "u32"},
      {ScalarType::UInt64, "u64"},
      {ScalarType::Bool, "b8"},
      {ScalarType::ComplexHalf, "c32"},
      {ScalarType::ComplexFloat, "c64"},
      {ScalarType::ComplexDouble, "c128"},
      {ScalarType::Float8_e5m2, "f8e5m2"},
      {ScalarType::Float8_e4m3fn, "f8e4m3fn"},
      {ScalarType::Float8_e5m2fnuz, "f8e5m2fnuz"},
      {ScalarType::Float8_e4m3fnuz, "f8e4m3fnuz"},
      {ScalarType::Float8_e8m0fnu, "f8e8m0fnu"},
      {ScalarType::Float4_e2m1fn_x2, "f4e2m1fn_x2"},
      {ScalarType::QInt8, "qi8"},
      {ScalarType::QUInt8, "qu8"},
      {ScalarType::QInt32, "qi32"},
      {ScalarType::QUInt4x2, "qu4x2"},
      {ScalarType::QUInt2x4, "qu2x4"},
      {ScalarType::Bits1x8, "bits1x8"},
      {ScalarType::Bits2x4, "bits2x4"},
      {ScalarType::Bits4x2, "bits4x2"},
      {ScalarType::Bits8, "bits8"},
      {ScalarType::Bits16, "bits16"},
      {ScalarType::UInt1, "u1"},
      {ScalarType::UInt2, "u2"},
      {ScalarType::UInt3, "u3"},
      {ScalarType::UInt4, "u4"},
      {ScalarType::UInt5, "u5"},
      {ScalarType::UInt6, "u6"},
      {ScalarType::UInt7, "u7"},
      {ScalarType::Int1, "i1"},
      {ScalarType::Int2, "i2"},
      {ScalarType::Int3, "i3"},
      {ScalarType::Int4, "i4"},
      {ScalarType::Int5, "i5"},
      {ScalarType::Int6, "i6"},
      {ScalarType::Int7, "i7"},
  };
  // A dtype that PyTorch has grown since is called as PyTorch calls it.
  static const auto* const rows = [] {
    auto* const rows = new std::vector<DtypeName>(std::begin(named), std::end(named));
    for (int number = 0; number < static_cast<int>(ScalarType::NumOptions); ++number) {
      const auto dtype = static_cast<ScalarType>(number);
      if (dtype == ScalarType::Undefined) continue;
      if (std::ranges::find(named, dtype, &DtypeName::dtype) == std::end(named)) {
        rows->push_back({dtype, c10::toString(dtype)});
      }
    }
    return rows;
  }();
  return *rows;
}

std::string operator_text(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  std::string text = name.name;
  if (const size_t colons = text.find("::"); colons != std::string::npos) text.replace(colons, 2, ".");
  text += '.';
  text += name.overload_name.empty() ? "default" : name.overload_name;
  return text;
}

}  // namespace magneto::graph
