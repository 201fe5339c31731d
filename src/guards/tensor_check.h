// The check of one tensor, in the form in which it is compared: a few words, and the sizes and strides in one block.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "guards/guards.h"
#include "python/ref.h"

namespace magneto::guards {

struct TensorCheck {
  PyTypeObject* type;
  uint64_t dispatch_keys;
  const int64_t* sizes_and_strides;  // `rank` sizes, then `rank` strides; owned by the program
  int32_t rank;
  c10::ScalarType dtype;
  bool requires_grad;
  c10::Device device;
  bool has_free;  // some of the sizes and strides are kFree
  bool nested;    // its class answers for its sizes; where it has nested ints, they are kFree
};

/// Stands for a size or stride that is checked elsewhere.
inline constexpr int64_t kFree = INT64_MIN;

/// The object is a torch.Tensor or an instance of a subclass.
bool is_tensor(PyObject* object);

/// Reads what a guard compares. Throws std::invalid_argument if the object is no tensor, or one whose strides are not
/// its own (sparse). Of sizes that are symbols nothing is compared, nor of strides beside such.
TensorGuard read_tensor(PyObject* object);

bool tensor_matches(const TensorCheck& check, PyObject* object);

/// The bytes of a small plain tensor, as a bytes object. Throws std::invalid_argument for others.
Ref read_data(PyObject* object);
/// The object is a plain tensor that holds these bytes.
bool data_matches(PyObject* object, PyObject* bytes);

/// What a tensor that passed a check looks like: the part of its TensorImpl that has sizes, strides, dtype, device and
/// dispatch keys, as bytes under a mask, and what its autograd metadata says.
struct TensorLook {
  static constexpr size_t kBytes = 128;
  alignas(16) unsigned char bytes[kBytes];
  alignas(16) unsigned char mask[kBytes];
  const TensorCheck* check;
  bool has_meta;
  bool comparable;  // false: the check has to tell
  bool brief;       // nothing counts but rank, two sizes, dtype, device, flags and keys

  bool same_as(const TensorLook& other) const;
};

/// Tensors that have passed, to be checked again: one that looks as it did passes, others go to their check.
class SeenTensors {
 public:
  void add(PyObject* object, const TensorCheck* check);
  bool all_match() const;

 private:
  struct Alike {
    TensorLook look;
    std::vector<PyObject*> tensors;
    bool match() const;
  };
  std::deque<Alike> kinds_;  // few: models repeat their layers
};

/// What differs, as the peer words it: "tensor 'L['x']' rank mismatch. expected 2, actual 3"; empty when nothing does.
std::string tensor_mismatch(const TensorCheck& check, PyObject* object, const std::string& name);

/// "check_tensor(L['x'], Tensor, DispatchKeySet(...), torch.float32, device=cpu, ...)".
std::string tensor_text(const TensorGuard& guard, const std::string& name);

/// The gradient of a tensor as an object that the tensor keeps alive, None without one; null if `object` is no tensor.
PyObject* load_grad(PyObject* object);

}  // namespace magneto::guards
