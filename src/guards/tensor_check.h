// The check of one tensor, in the form in which it is compared: a few words, and the sizes and strides in one block.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <cstdint>
#include <string>

#include "guards/guards.h"

namespace magneto::guards {

struct TensorCheck {
  PyTypeObject* type;
  uint64_t dispatch_keys;
  const int64_t* sizes_and_strides;  // `rank` sizes, then `rank` strides; owned by the program
  int32_t rank;
  c10::ScalarType dtype;
  bool requires_grad;
  c10::Device device;
};

/// The object is a torch.Tensor or an instance of a subclass.
bool is_tensor(PyObject* object);

/// Reads what a guard compares. Throws std::invalid_argument if the object is no tensor, or one whose sizes or strides
/// are symbolic or not its own (sparse, nested).
TensorGuard read_tensor(PyObject* object);

bool tensor_matches(const TensorCheck& check, PyObject* object);

/// What differs, as the peer words it: "tensor 'L['x']' rank mismatch. expected 2, actual 3"; empty when nothing does.
std::string tensor_mismatch(const TensorCheck& check, PyObject* object, const std::string& name);

/// "check_tensor(L['x'], Tensor, DispatchKeySet(...), torch.float32, device=cpu, ...)".
std::string tensor_text(const TensorGuard& guard, const std::string& name);

/// The gradient of a tensor as an object that the tensor keeps alive, None without one; null if `object` is no tensor.
PyObject* load_grad(PyObject* object);

}  // namespace magneto::guards
