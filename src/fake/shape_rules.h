// What rules use that are written once, for plain numbers and for dynamic sizes: a rule is a
// template over the call, which is a Call or a SymbolicCall, and both columns of the operator's row name it.
//
// The sizes come from a SymbolicCall as expressions; what the rule asks of them is assumed, and what it finds wrong is
// declined. Dtype, device and strides are those that the same rule, or PyTorch's kernel, gave for this run's numbers:
// what concerns them alone (`kPlain<C>`) a SymbolicCall is not asked.
#pragma once

#include <ATen/ExpandUtils.h>

#include "fake/elementwise.h"
#include "fake/symbolic_rules.h"

namespace magneto::fake {

template <class C>
constexpr bool kPlain = std::is_same_v<C, Call>;
template <class C>
using Size = std::conditional_t<kPlain<C>, int64_t, c10::SymInt>;
template <class C>
using Sizes = std::conditional_t<kPlain<C>, at::DimVector, SymSizes>;

// Arguments.

inline int64_t size_argument(const Call& call, size_t i) { return call.integer(i); }
inline c10::SymInt size_argument(const SymbolicCall& call, size_t i) { return call.symint(i); }

inline at::DimVector sizes_argument(const Call& call, size_t i) { return at::DimVector(call.ints(i)); }
inline SymSizes sizes_argument(const SymbolicCall& call, size_t i) { return call.symints(i); }

inline std::vector<int64_t> dims_argument(const Call& call, size_t i) { return call.ints(i); }
inline std::vector<int64_t> dims_argument(const SymbolicCall& call, size_t i) { return call.integers(i); }

template <class C>
Sizes<C> sizes_of(const at::Tensor& tensor) {
  if constexpr (kPlain<C>) {
    return at::DimVector(tensor.sizes());
  } else {
    const c10::SymIntArrayRef sizes = tensor.sym_sizes();
    return SymSizes(sizes.begin(), sizes.end());
  }
}

template <class C>
Size<C> size_of(const at::Tensor& tensor, int64_t dim) {
  if constexpr (kPlain<C>) {
    return tensor.size(dim);
  } else {
    return tensor.sym_size(dim);
  }
}

template <class C>
Size<C> numel_of(const at::Tensor& tensor) {
  if constexpr (kPlain<C>) {
    return tensor.numel();
  } else {
    return tensor.sym_numel();
  }
}

inline int64_t smaller(int64_t a, int64_t b) { return std::min(a, b); }
inline c10::SymInt smaller(const c10::SymInt& a, const c10::SymInt& b) { return a.min(b); }

/// Asks whether they are the same.
template <class List>
bool are_equal(const List& a, const List& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin());
}

/// What two shapes broadcast to, or eager's error.
inline at::DimVector broadcast(at::IntArrayRef a, at::IntArrayRef b) { return at::infer_size_dimvector(a, b); }
inline SymSizes broadcast(c10::SymIntArrayRef a, c10::SymIntArrayRef b) { return broadcast_sizes(a, b); }

/// A tensor of sizes `a` expands to `sizes`.
inline bool expands(const at::DimVector& a, const at::DimVector& sizes) { return at::is_expandable_to(a, sizes); }
inline bool expands(const SymSizes& a, const SymSizes& sizes) { return are_equal(broadcast_sizes(a, sizes), sizes); }

// Results, in schema order. Each gives true, unless a SymbolicCall's are others in this run.

/// A new tensor, contiguous.
inline bool add(Call& call, const at::DimVector& sizes, c10::ScalarType dtype, c10::Device device) {
  call.result(call.empty(sizes, dtype, device));
  return true;
}
inline bool add(SymbolicCall& call, const SymSizes& sizes, c10::ScalarType, c10::Device) { return call.add(sizes); }

/// A new tensor with the strides that `strides(sizes)` says for this run's sizes.
template <class Strides>
bool add(Call& call, const at::DimVector& sizes, c10::ScalarType dtype, c10::Device device, const Strides& strides) {
  call.result(call.empty(sizes, strides(sizes), dtype, device));
  return true;
}
template <class Strides>
bool add(SymbolicCall& call, const SymSizes& sizes, c10::ScalarType, c10::Device, const Strides&) {
  return call.add(sizes);
}

/// A new tensor like `source`, as `empty_like` would make it.
inline bool add_like(Call& call, const at::Tensor& source, c10::ScalarType dtype, c10::Device device,
                     at::MemoryFormat format = at::MemoryFormat::Preserve) {
  call.result(new_like(call, source, dtype, device, format));
  return true;
}
inline bool add_like(SymbolicCall& call, const at::Tensor& source, c10::ScalarType, c10::Device,
                     at::MemoryFormat = at::MemoryFormat::Preserve) {
  return call.add(sizes_of<SymbolicCall>(source));
}

/// Argument 0 itself, of an operator in place.
inline bool add_self(Call& call) {
  call.result(call.tensor(0));
  return true;
}
inline bool add_self(SymbolicCall& call) { return call.add(call.sizes(0)); }

/// What is computed element by element of these arguments, all of them tensors; or a number that is `reduced` from it.
inline bool add_elementwise(Call& call, std::initializer_list<size_t> arguments, c10::ScalarType dtype, bool reduced) {
  Operands operands;
  for (const size_t i : arguments) operands.add(call.tensor(i));
  const Layout layout = operands.layout(dtype);
  call.result(reduced ? call.empty({}, dtype, operands.device())
                      : call.empty(layout.sizes, layout.strides, dtype, operands.device()));
  return true;
}
inline bool add_elementwise(SymbolicCall& call, std::initializer_list<size_t> arguments, c10::ScalarType,
                            bool reduced) {
  SymSizes sizes;
  for (const size_t i : arguments) sizes = broadcast_sizes(sizes, call.tensor(i).sym_sizes());
  return call.add(reduced ? SymSizes() : sizes);
}

// Conditions of dtypes, which the sizes' rule need not repeat: see structured.h.

template <DtypeSet accepted, SymbolicRule rule, DtypeSet checked = kNone>
bool only(SymbolicCall& call) {
  return rule(call);
}

template <DtypeSet dtypes, SymbolicRule rule>
bool when(SymbolicCall& call) {
  return rule(call);
}

}  // namespace magneto::fake
