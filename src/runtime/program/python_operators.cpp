// Operators of our own that need Python. Programs that are compiled ahead of time can't have them.
#include <ATen/ScalarOps.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "guards/number.h"
#include "python/imported.h"
#include "python/ref.h"
#include "runtime/plan/torch_errors.h"
#include "runtime/program/number_calls.h"
#include "support/tensor_object.h"

namespace magneto::runtime {
namespace {

/// torch.manual_seed, by PyTorch's own function: it seeds the generators of all devices, those to come included.
void manual_seed(int64_t seed) {
  with_python([&] {
    static constinit Imported function("torch.random", "manual_seed");
    checked(PyObject_CallFunction(function.get(), "L", static_cast<long long>(seed)));
  });
}

/// torch.nn.init.trunc_normal_ of a tensor like that one, by PyTorch's own function.
at::Tensor truncated_normal(const at::Tensor& self, double mean, double std, double a, double b,
                            std::optional<at::ScalarType>, std::optional<at::Layout>, std::optional<at::Device>,
                            std::optional<bool>, std::optional<at::MemoryFormat>) {
  at::Tensor made = at::empty_like(self);
  with_python([&] {
    static constinit Imported function("torch.nn.init", "_no_grad_trunc_normal_");
    const Ref tensor = checked(tensor_object(made));
    checked(PyObject_CallFunction(function.get(), "Odddd", tensor.get(), mean, std, a, b));
  });
  return made;
}

PyObject* python_number(const at::Scalar& number) {
  return number.isFloatingPoint() ? PyFloat_FromDouble(number.toDouble()) : PyLong_FromLongLong(number.toLong());
}

/// A float that is computed of numbers as Python does it.
at::Tensor arithmetic(const at::Scalar& left, const at::Scalar& right, int64_t operation) {
  const auto kind = static_cast<guards::Arithmetic>(operation);
  if (const auto found = float_result(kind, left, right)) return at::native::wrapped_scalar_tensor(*found);
  at::Tensor made;
  with_python([&] {
    const Ref a = checked(python_number(left)), b = checked(python_number(right));
    const Ref result = checked(guards::compute(kind, a.get(), b.get()).release());
    TORCH_CHECK(PyFloat_CheckExact(result.get()), "magneto::arithmetic: no float is the result");
    made = at::native::wrapped_scalar_tensor(PyFloat_AS_DOUBLE(result.get()));
  });
  return made;
}

TORCH_LIBRARY_FRAGMENT(magneto, library) {
  library.def("arithmetic(Scalar left, Scalar right, int operation) -> Tensor");
  library.impl("arithmetic", c10::DispatchKey::CompositeExplicitAutograd, arithmetic);
  library.def(
      "truncated_normal(Tensor self, float mean, float std, float a, float b, *, ScalarType? dtype=None, "
      "Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
      {at::Tag::nondeterministic_seeded});
  library.impl("truncated_normal", c10::DispatchKey::CompositeExplicitAutograd, truncated_normal);
  library.def("manual_seed(int seed) -> ()", {at::Tag::nondeterministic_seeded});
  library.impl("manual_seed", c10::DispatchKey::CompositeExplicitAutograd, manual_seed);
}

}  // namespace
}  // namespace magneto::runtime
