// Operators of the compiler's own about how tensors lie.
//
// What autograd writes to a part of a gradient in its place: ATen's as_strided_scatter copies the whole storage, and
// counts from its start: of what lies in planned memory, that is the memory of others.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

namespace magneto::runtime {

namespace {

/// A contiguous tensor, with `part` in the place of what a view of it shows; `offset`: from its first element.
at::Tensor write_strided(const at::Tensor& base, const at::Tensor& part, c10::SymIntArrayRef size,
                         c10::SymIntArrayRef stride, c10::SymInt offset) {
  at::Tensor written = base.clone(at::MemoryFormat::Contiguous);
  written.as_strided_symint(size, stride, std::move(offset)).copy_(part);
  return written;
}

at::Tensor written_stand_in(const at::Tensor& base, const at::Tensor&, c10::SymIntArrayRef, c10::SymIntArrayRef,
                            c10::SymInt) {
  return at::empty_like(base, at::MemoryFormat::Contiguous);
}

/// A copy with those strides.
at::Tensor restrided(const at::Tensor& self, c10::SymIntArrayRef stride) {
  const at::AutoDispatchBelowADInplaceOrView uncounted;  // a new value has not been written
  return at::empty_strided_symint(self.sym_sizes(), stride, self.options()).copy_(self);
}

TORCH_LIBRARY_FRAGMENT(magneto, library) {
  library.def("write_strided(Tensor base, Tensor part, SymInt[] size, SymInt[] stride, SymInt offset) -> Tensor");
  library.impl("write_strided", c10::DispatchKey::CPU, write_strided);
  library.impl("write_strided", c10::DispatchKey::Meta, written_stand_in);
  library.def("restrided(Tensor self, SymInt[] stride) -> Tensor");
  library.impl("restrided", c10::DispatchKey::CompositeExplicitAutograd, restrided);
}

}  // namespace

}  // namespace magneto::runtime
