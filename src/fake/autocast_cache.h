// Autocast's cache of casts.
//
// In eager a leaf that requires gradients is cast once until the outermost region of autocast ends: the next operator
// that takes it is given that cast, with its history, whatever has been written to the leaf since. PyTorch's own cache
// would keep stand-ins beyond the capture; a session has one of its own, for what is cast in the segment.
//
// Where a region began before the segment, or goes on behind it, others cast in it, too. There the graph has an
// operator that takes the cast from PyTorch's cache and leaves it there (graph/kept_casts.h). Whether a region that the
// segment opens goes on behind it is known at its end: the casts are recorded as those, and become plain ones when it
// ends.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"

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
  /// What autocast casts `read` to, a leaf or what stands for one: where there is nothing yet it is recorded, as a
  /// plain cast by `cast`.
  at::Tensor cast(Session& session, const at::Tensor& read, const std::function<at::Tensor()>& cast);
  /// Autocast keeps it: a cast of that dtype, of a leaf that requires gradients.
  bool keeps(const at::Tensor& leaf, at::ScalarType dtype) const;
  bool has(const at::Tensor& leaf) const { return casts_.contains(leaf.unsafeGetTensorImpl()); }

  /// The segment begins. `shares`: others may cast in its regions, too.
  void begin(bool shares);
  /// The segment is in the region in which it began.
  bool is_in_outer() const { return is_in_outer_; }
  /// The region in which it began has ended: PyTorch's cache is to be emptied at the end of a run.
  bool has_left_outer() const { return has_left_outer_; }
  /// It has cast in a region that has not ended, and is not that in which it began.
  bool has_open() const { return !open_.empty(); }
  /// What is cast from here on is cast anew: a region has ended.
  void clear(graph::Graph& graph);

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
    explicit Aside(AutocastCasts& casts) : casts_(casts), outer_(std::exchange(casts.casts_, {})) { ++casts.asides_; }
    ~Aside() {
      --casts_.asides_;
      casts_.casts_ = std::move(outer_);
    }
    Aside(const Aside&) = delete;

   private:
    AutocastCasts& casts_;
    std::unordered_map<const c10::TensorImpl*, at::Tensor> outer_;
  };

 private:
  /// The leaf that `read` is, or stands for; undefined if it is none.
  at::Tensor leaf_of(const at::Tensor& read) const;
  /// The cast as part of the graph.
  at::Tensor record(Session& session, const at::Tensor& read, const at::Tensor& leaf,
                    const std::function<at::Tensor()>& cast);

  std::vector<at::Tensor> leaves_;
  std::unordered_map<const c10::TensorImpl*, std::pair<at::Tensor, at::Tensor>> read_for_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> casts_;    // by leaf
  std::vector<std::pair<c10::DeviceType, at::ScalarType>> dtypes_;  // of the call that runs
  bool shares_ = false, is_in_outer_ = false, has_left_outer_ = false;
  int asides_ = 0;
  std::vector<graph::ValueId> open_;  // kept casts of a region that the segment has opened
};

/// Puts our kernel for `to(dtype)` above all others.
void register_autocast_casts(torch::Library& whole);

}  // namespace magneto::fake
