// Operators of our own: what a graph has to do and ATen has no operator for.
#include <ATen/ScalarOps.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/select.h>
#include <torch/csrc/Exceptions.h>
#include <torch/library.h>

#include <mutex>

#include "python/imported.h"
#include "python/ref.h"
#include "shapes/relation.h"

namespace magneto::runtime {

namespace {

/// torch.manual_seed, by PyTorch's own function: it seeds the generators of all devices, those to come included.
void manual_seed(int64_t seed) {
  const pybind11::gil_scoped_acquire gil;
  try {
    static constinit Imported function("torch.random", "manual_seed");
    checked(PyObject_CallFunction(function.get(), "L", static_cast<long long>(seed)));
  } catch (const PythonError&) {
    python_error error;
    error.persist();
    throw error;
  }
}

/// torch.Generator.manual_seed. (Optional: a schema knows no other generators.)
void seed_generator(std::optional<at::Generator> generator, int64_t seed) {
  TORCH_CHECK(generator && generator->defined(), "magneto::seed_generator: expected a generator");
  const std::scoped_lock lock(generator->mutex());
  generator->set_current_seed(static_cast<uint64_t>(seed));
}

/// `tensor[index]` with a tensor of one integer: as in eager a view, whose place is read from the data.
at::Tensor select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  return at::select(self, dim, index.item<int64_t>());
}

/// `self.item()`, as an operand that is still beside tensors what a Python number is.
at::Tensor item(const at::Tensor& self) { return at::native::wrapped_scalar_tensor(self.item()); }

/// A number that follows from sizes, as such an operand.
at::Tensor number(c10::SymInt value) { return at::native::wrapped_scalar_tensor(value.expect_int()); }

/// The same as a tensor like any other, to be handed on.
at::Tensor size(c10::SymInt value) { return at::scalar_tensor(value.expect_int(), at::kLong); }

/// What the capture went on with, and only the data says. Where it does not hold, CPython runs the segment.
void check(c10::SymInt difference, int64_t kind, std::string_view question) {
  TORCH_CHECK(shapes::holds(static_cast<shapes::Relation::Kind>(kind), difference.expect_int()),
              "magneto: not so in this run: ", question);
}

TORCH_LIBRARY(magneto, library) {
  library.def("item(Tensor self) -> Tensor");
  library.impl("item", c10::DispatchKey::CompositeExplicitAutograd, item);
  library.def("number(SymInt value) -> Tensor");
  library.impl("number", c10::DispatchKey::CompositeExplicitAutograd, number);
  library.def("size(SymInt value) -> Tensor");
  library.impl("size", c10::DispatchKey::CompositeExplicitAutograd, size);
  library.def("check(SymInt difference, int kind, str question) -> ()");
  library.impl("check", c10::DispatchKey::CompositeExplicitAutograd, check);
  library.def("manual_seed(int seed) -> ()", {at::Tag::nondeterministic_seeded});
  library.impl("manual_seed", c10::DispatchKey::CompositeExplicitAutograd, manual_seed);
  library.def("seed_generator(Generator? generator, int seed) -> ()", {at::Tag::nondeterministic_seeded});
  library.impl("seed_generator", c10::DispatchKey::CompositeExplicitAutograd, seed_generator);
  library.def("select(Tensor(a) self, int dim, Tensor index) -> Tensor(a)");
  library.impl("select", c10::DispatchKey::CompositeExplicitAutograd, select);
}

}  // namespace

}  // namespace magneto::runtime
