// The functions of magneto/aot.h.
#include <ATen/ops/from_blob.h>

#include <memory>
#include <string>
#include <vector>

#include "aot/program.h"
#include "magneto/aot.h"

struct MagnetoProgram {
  explicit MagnetoProgram(const char* path) : program(path) {}
  magneto::aot::Program program;
};

namespace {

thread_local std::string last_error;

/// What `body` throws is kept for magneto_error.
template <typename Body>
bool guarded(Body body) {
  try {
    body();
    last_error.clear();
    return true;
  } catch (const c10::Error& error) {
    last_error = error.what_without_backtrace();
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return false;
}

at::Tensor tensor_of(const MagnetoTensor& given) {
  const auto rank = static_cast<size_t>(given.rank);
  const at::IntArrayRef sizes(given.sizes, rank);
  const at::TensorOptions options = at::TensorOptions(static_cast<c10::ScalarType>(given.dtype));
  if (!given.strides) return at::from_blob(given.data, sizes, options);
  return at::from_blob(given.data, sizes, at::IntArrayRef(given.strides, rank), options);
}

MagnetoTensor handed_out(const at::Tensor& tensor) {
  auto owner = std::make_unique<at::Tensor>(tensor);
  const at::Tensor& kept = *owner;
  MagnetoTensor result{};
  result.data = kept.data_ptr();
  result.dtype = static_cast<int32_t>(kept.scalar_type());
  result.rank = static_cast<int32_t>(kept.dim());
  result.sizes = kept.sizes().data();
  result.strides = kept.strides().data();
  result.owner = owner.release();
  return result;
}

}  // namespace

MagnetoProgram* magneto_open(const char* path) {
  MagnetoProgram* program = nullptr;
  guarded([&] { program = new MagnetoProgram(path); });
  return program;
}

void magneto_close(MagnetoProgram* program) { delete program; }

const char* magneto_error() { return last_error.c_str(); }

size_t magneto_argument_count(const MagnetoProgram* program) { return program->program.manifest().arguments.size(); }

size_t magneto_result_count(const MagnetoProgram* program) { return program->program.manifest().results.size(); }

const char* magneto_argument_name(const MagnetoProgram* program, size_t index) {
  const auto& arguments = program->program.manifest().arguments;
  return index < arguments.size() ? arguments[index].where.c_str() : "";
}

int magneto_run(MagnetoProgram* program, const MagnetoTensor* arguments, MagnetoTensor* results) {
  return guarded([&] {
    std::vector<at::Tensor> tensors;
    for (size_t i = 0; i < magneto_argument_count(program); ++i) tensors.push_back(tensor_of(arguments[i]));
    const std::vector<at::Tensor> made = program->program.run(tensors);
    for (size_t i = 0; i < made.size(); ++i) results[i] = handed_out(made[i]);
  })
             ? 0
             : 1;
}

void magneto_free(MagnetoTensor* tensor) {
  delete static_cast<at::Tensor*>(tensor->owner);
  tensor->owner = nullptr;
}

int magneto_run_torch(MagnetoProgram* program, const void* arguments, size_t count, void* results) {
  return guarded([&] {
    const auto* tensors = static_cast<const at::Tensor*>(arguments);
    std::vector<at::Tensor> made = program->program.run(std::vector<at::Tensor>(tensors, tensors + count));
    std::move(made.begin(), made.end(), static_cast<at::Tensor*>(results));
  })
             ? 0
             : 1;
}
