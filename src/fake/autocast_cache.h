// Autocast's cache of casts.
//
// In eager a leaf that requires gradients is cast once until the outermost block of autocast ends: the next operator
// that takes it is given that cast, with its history, whatever has been written to the leaf since. PyTorch's own cache
// would keep stand-ins beyond the capture; a session has one of its own, for what is cast in the segment.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

namespace magneto::fake {

class Session;

class AutocastCasts {
 public:
  AutocastCasts() = default;
  ~AutocastCasts();
  AutocastCasts(const AutocastCasts&) = delete;

  /// PyTorch keeps no casts of it, as it itself tells it of those whose address stands for changing data. It knows them
  /// by address: they live until this ends.
  void leave_to_session(const at::Tensor& leaf);
  /// Operators are given `read` in the place of `leaf`, whose data was set: one cast serves both.
  void stand_for(const at::Tensor& read, const at::Tensor& leaf);
  /// What autocast casts `leaf` to: made by `cast` where there is none.
  at::Tensor cast(const Session& session, const at::Tensor& leaf, const std::function<at::Tensor()>& cast);
  /// Autocast keeps it: a cast of that dtype, of a leaf that requires gradients.
  bool keeps(const at::Tensor& leaf, at::ScalarType dtype) const;
  bool has(const at::Tensor& leaf) const { return casts_.contains(leaf.unsafeGetTensorImpl()); }
  void clear() { casts_.clear(); }

  /// A torch call runs. What it is cast to is known here alone: the kernels of autocast are called with autocast off.
  class Call {
   public:
    explicit Call(AutocastCasts& casts);
    ~Call() { casts_.dtypes_ = outer_; }
    Call(const Call&) = delete;

   private:
    AutocastCasts& casts_;
    const std::vector<std::pair<c10::DeviceType, at::ScalarType>> outer_;
  };

  /// What is recorded meanwhile becomes no part of the graph around: no cast of the one serves in the other.
  class Aside {
   public:
    explicit Aside(AutocastCasts& casts) : casts_(casts), outer_(std::exchange(casts.casts_, {})) {}
    ~Aside() { casts_.casts_ = std::move(outer_); }
    Aside(const Aside&) = delete;

   private:
    AutocastCasts& casts_;
    std::unordered_map<const c10::TensorImpl*, at::Tensor> outer_;
  };

 private:
  const c10::TensorImpl* leaf_of(const at::Tensor& read) const;

  std::vector<at::Tensor> leaves_;
  std::unordered_map<const c10::TensorImpl*, std::pair<at::Tensor, at::Tensor>> read_for_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> casts_;    // by leaf
  std::vector<std::pair<c10::DeviceType, at::ScalarType>> dtypes_;  // of the call that runs
};

/// Puts our kernel for `to(dtype)` above all others.
void register_autocast_casts(torch::Library& whole);

}  // namespace magneto::fake
