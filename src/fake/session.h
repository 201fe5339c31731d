// What the files of this folder share: the inside of a Session.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "fake/autocast_cache.h"
#include "fake/fake_impl.h"

namespace magneto::fake {

struct Session::Impl {
  explicit Impl(graph::Graph& graph);
  ~Impl();

  /// A new fake with its own storage; not yet a value.
  at::Tensor empty(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype, c10::Device device);
  /// A new fake of the same dtype, device and sizes, and of the same strides if they are dense and do not overlap, else
  /// contiguous; not yet a value. `meta`: what it is.
  at::Tensor dense_like(const at::Tensor& other, graph::TensorMeta& meta);
  /// A new fake on the storage of the fake `base`; not yet a value.
  at::Tensor view(const at::Tensor& base, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset,
                  c10::ScalarType dtype);

  /// Makes `fake` stand for a new value of the graph: the result of node `producer`.
  graph::ValueId add_result(FakeImpl& fake, int32_t producer);

  /// PyTorch prints tensors with torch.func's keys excluded, by an object of Python whose life ends with the printing
  /// frame: an error there, which a stand-in raises, keeps the frame, and of two such frames the first to go includes
  /// the keys, the last excludes them for good. What they were before the session holds again.
  void restore_transforms() const {
    for (const auto& [key, excluded] : transforms_) c10::impl::tls_set_dispatch_key_excluded(key, excluded);
  }

  /// The value of a fake; throws for fakes of another session or of operators that were taken back.
  graph::ValueId value_of(const FakeImpl& fake) const;
  /// It is the tensor whose metadata was changed last, and no other value yet for that.
  bool was_changed(const FakeImpl& fake) const;
  /// The tensor whose metadata was changed last is a new value from now on, a view that operator `producer` gives.
  graph::ValueId changed_as_view(FakeImpl& fake, int32_t producer);

  /// Changes the metadata of a fake as an in-place operator does. Refuses if another fake stands for the same value.
  void change_metadata(FakeImpl& fake, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset);

  /// Records the refusal and throws it as c10::Error (RuntimeError in Python).
  [[noreturn]] void refuse(Refusal::Kind kind, const c10::OperatorHandle& op, const std::string& message);

  at::Tensor wrap(const at::Tensor& real, graph::ValueId value);

  /// Some size differs from run to run.
  bool has_symbols = false;
  /// Tensors given as `out=` have been made for what is written to them.
  bool trusts_outputs = false;
  /// What an operator gives that no fake is known of. Nothing: that is not to be had.
  std::function<std::optional<std::vector<c10::IValue>>(const c10::OperatorHandle&, std::span<const c10::IValue>)>
      run_for_real = {};
  /// A symbol that only the data says, which `op` gives.
  shapes::Expr make_unbacked(shapes::Range range, const c10::OperatorHandle& op);
  void note_origin(std::string origin);
  std::optional<shapes::Expr> last_unbacked;
  /// By symbol: "Tensor.item at user.py:4 in f".
  std::vector<std::string> origins;

  /// Of leaves that require gradients.
  AutocastCasts casts;

  graph::Graph& graph;
  std::shared_ptr<SessionState> state;

 private:
  friend class Session;

  c10::intrusive_ptr<ValueIdentity> identify(graph::ValueId value);
  const c10::Storage& storage_for(const at::Tensor& real);

  /// Fake storages by real storage; the real ones are kept alive so that an address stands for one storage.
  std::unordered_map<const c10::StorageImpl*, std::pair<c10::Storage, c10::Storage>> storages_;
  /// Fakes of real tensors that became constants; the graph keeps the real ones alive.
  std::unordered_map<const c10::TensorImpl*, at::Tensor> constants_;

  /// The keys of torch.func's levels, and whether the thread excludes them.
  using Excluded = std::pair<c10::DispatchKey, bool>;
  static Excluded excluded(c10::DispatchKey key) { return {key, c10::impl::tls_is_dispatch_key_excluded(key)}; }
  const std::array<Excluded, 2> transforms_{excluded(c10::DispatchKey::FuncTorchDynamicLayerFrontMode),
                                            excluded(c10::DispatchKey::FuncTorchDynamicLayerBackMode)};

  /// Where the history of an input that is no leaf begins.
  std::unordered_map<graph::ValueId, std::shared_ptr<torch::autograd::Edge>> histories_;

  /// What `rollback` restores.
  struct MetadataChange {
    c10::weak_intrusive_ptr<c10::TensorImpl> fake;
    std::vector<int64_t> sizes, strides;
    int64_t offset;
    /// The value that it was before, where the graph has a view for what it is now.
    graph::ValueId value = graph::kNoValue;
  };
  std::vector<MetadataChange> metadata_changes_;
  size_t changes_as_views_ = 0;
};

/// Another session, or none, is this thread's from here on; gives the one before.
Session* exchange_current(Session* session);

/// "aten.add.Tensor", as users know operators from Python.
std::string operator_name(const c10::OperatorHandle& op);

}  // namespace magneto::fake
