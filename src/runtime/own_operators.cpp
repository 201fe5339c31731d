// Operators of our own: what a graph has to do and ATen has no operator for.
#include <ATen/ops/select.h>
#include <torch/csrc/Exceptions.h>
#include <torch/library.h>

#include <mutex>

#include "python/imported.h"
#include "python/ref.h"

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

TORCH_LIBRARY(magneto, library) {
  library.def("manual_seed(int seed) -> ()", {at::Tag::nondeterministic_seeded});
  library.impl("manual_seed", c10::DispatchKey::CompositeExplicitAutograd, manual_seed);
  library.def("seed_generator(Generator? generator, int seed) -> ()", {at::Tag::nondeterministic_seeded});
  library.impl("seed_generator", c10::DispatchKey::CompositeExplicitAutograd, seed_generator);
  library.def("select(Tensor(a) self, int dim, Tensor index) -> Tensor(a)");
  library.impl("select", c10::DispatchKey::CompositeExplicitAutograd, select);
}

}  // namespace

}  // namespace magneto::runtime
