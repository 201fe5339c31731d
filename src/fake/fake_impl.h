// The TensorImpl of a fake: metadata in the ordinary fields, a storage without data, and the value that it stands for.
#pragma once

#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <typeinfo>
#include <unordered_map>

#include "fake/fake.h"
#include "shapes/environment.h"

namespace magneto::fake {

/// The message of the exception that a fake's storage throws when its data is asked for.
inline constexpr const char* kDataAccess =
    "the data of a tensor was accessed while the code is being captured: it is not known before the code runs";

/// shapes::equal and its like.
using SizeQuestion = shapes::Relation (*)(shapes::Expr a, shapes::Expr b);

/// What outlives a session: fakes that escaped from it still point here.
struct SessionState {
  /// Null when the session is over.
  graph::Graph* graph = nullptr;
  /// Changed through std::atomic_ref: fakes die on any thread.
  int64_t alive = 0;
  /// For each value, the number it got when it was made: tells a value from one that a rollback took back and whose id
  /// was given again.
  std::vector<uint32_t> serials;
  uint32_t last_serial = 0;
  std::optional<Refusal> refusal;
  /// Set by FakeImpl::has_storage, unless autograd's engine asks.
  bool data_touched = false;
  bool engine_runs = false;
  /// How often storages were written: values known of an older state are void.
  std::unordered_map<const c10::StorageImpl*, uint32_t> writes;
  /// Storages with a view whose place in them only the run knows.
  std::set<const c10::StorageImpl*> unplaced;
  /// Storages of tensors of zeros that have no memory. Held, so that autograd's engine adds nothing up in their place.
  std::vector<c10::Storage> zeros;
  /// Inputs whose values the capture went on with.
  std::set<graph::ValueId> read_inputs;
  /// What is known of dynamic sizes.
  shapes::Environment sizes;
  /// Rules for plain numbers run: sizes are those of this run, and nothing is assumed.
  bool hinting = false;
  /// Code of PyTorch's runs that is right whatever the answers are: what nothing decides of sizes that only the data
  /// says is no question, where that code has a way for the general case.
  bool in_general = false;
  /// What was taken for the general case in an exported graph, though a size of 1 may have it otherwise: that a tensor
  /// is not contiguous, or has no such view. Where it is copied for that, it is by operator `next` of the graph.
  struct Unasked {
    size_t next;
    std::function<bool()> ask;
  };
  void leave_unasked(std::function<bool()> ask);
  struct {
    /// Functions run whose operators become the graph's: floats of sizes are operators, too.
    bool decomposes = false;
    /// The graph is for export: what it is differentiated by is what runs it.
    bool exports = false;
    std::vector<Unasked> unasked = {};
  } purpose;

  /// What was assumed of sizes that only data says.
  std::vector<shapes::Relation> checks;
  /// What they are, for messages.
  std::function<std::string(shapes::Expr)> origins;
  /// Answers once given hold: by question and what was asked.
  std::unordered_map<SizeQuestion, std::map<std::pair<const void*, const void*>, bool>> answers;
  /// The layouts that were assumed already, by the expressions of sizes and strides.
  std::set<std::vector<const void*>> layouts;

  /// The number that a size is in this run, assumed to be so in all. Of a data-dependent one: refused.
  int64_t number_of(shapes::Expr expr);
  /// The float in that tensor is needed: it is assumed to be in all runs what it is in this one. Refused as above.
  void fix_float(const at::Tensor& holder);
  /// Assumes it. False: data-dependent.
  std::function<bool(const at::Tensor& holder)> assume_float;
  /// Whether that holds in this run, assumed to hold (or not) in all. Of data-dependent sizes, whether it
  /// holds for an example of them, which each run checks.
  bool answer(const shapes::Relation& question);
  /// The same; operators ask the same questions again and again.
  bool answer(SizeQuestion question, shapes::Expr a, shapes::Expr b);

  /// Keeps the first refusal.
  void refuse(Refusal::Kind kind, std::string op, std::string message);
};

/// The value a fake stands for. Shallow copies of a fake (`x.data`, saved variables) share it, so its reference count
/// tells whether another fake would see a change of metadata.
struct ValueIdentity final : c10::intrusive_ptr_target {
  ValueIdentity(graph::ValueId id, uint32_t serial) : id(id), serial(serial) {}
  const graph::ValueId id;
  const uint32_t serial;
};

class FakeImpl final : public c10::TensorImpl {
 public:
  /// A new tensor: gets the autograd keys that a real one would get here and now (none in inference mode).
  FakeImpl(std::shared_ptr<SessionState> state, c10::Storage storage, c10::DispatchKeySet keys, caffe2::TypeMeta dtype);
  /// A view or copy: the key set is taken as it is.
  FakeImpl(ImplType view, std::shared_ptr<SessionState> state, c10::Storage storage, c10::DispatchKeySet keys,
           caffe2::TypeMeta dtype);
  ~FakeImpl() override;

  /// A storage of `nbytes` whose data nobody can get at.
  static c10::Storage make_storage(size_t nbytes, c10::Device device);

  SessionState& state() const { return *state_; }
  /// Of symbolic ones: they are those of a contiguous tensor, whatever the sizes are.
  bool has_contiguous_strides() const;
  const c10::intrusive_ptr<ValueIdentity>& identity() const { return identity_; }
  void set_identity(c10::intrusive_ptr<ValueIdentity> identity) { identity_ = std::move(identity); }
  /// The value, or kNoValue if the session is over or the value was rolled back.
  graph::ValueId value() const {
    if (!identity_ || !state_->graph) return graph::kNoValue;
    const size_t id = static_cast<size_t>(identity_->id);
    return id < state_->serials.size() && state_->serials[id] == identity_->serial ? identity_->id : graph::kNoValue;
  }

  /// The tensor's contents where they follow from the code (known.h), and from the values of the inputs that
  /// `known_from` names; null if they don't, or were written over.
  const at::Tensor* known() const;
  const std::vector<graph::ValueId>& known_from() const { return known_from_; }
  void know(at::Tensor value, std::vector<graph::ValueId> from = {});
  /// Becomes what `source` is, as `tensor.data = source` has it: the history and the version stay.
  void take(const FakeImpl& source);
  /// An operator writes to the storage.
  void note_write() { ++state_->writes[storage_.unsafeGetStorageImpl()]; }
  /// A view of it is made whose place is not known: nothing can be said of writes to the storage any more.
  void note_unplaced() { state_->unplaced.insert(storage_.unsafeGetStorageImpl()); }
  bool is_unplaced() const { return state_->unplaced.contains(storage_.unsafeGetStorageImpl()); }

  /// Sizes, strides and offset where some of them differ from run to run. What the tensor has is those of this run.
  struct Symbolic {
    std::vector<c10::SymInt> sizes, strides;
    c10::SymInt offset;
    c10::SymInt numel() const;
  };
  const Symbolic* symbolic() const { return symbolic_.get(); }
  /// Null: all are plain numbers. Their values in this run have been set before.
  void set_symbolic(std::shared_ptr<const Symbolic> symbolic);
  /// From here on all are as in this run.
  void specialise() const;
  /// The same, for good: sizes are plain numbers afterwards. False: they were.
  bool fix_sizes();

  c10::IntArrayRef sizes_custom() const override;
  /// Fixes that size alone.
  int64_t size_custom(int64_t d) const override;
  c10::IntArrayRef strides_custom() const override;
  int64_t numel_custom() const override;
  int64_t storage_offset_custom() const override;
  int64_t dim_custom() const override { return static_cast<int64_t>(sizes_and_strides_.size()); }
  c10::SymIntArrayRef sym_sizes_custom() const override;
  c10::SymIntArrayRef sym_strides_custom() const override;
  c10::SymInt sym_numel_custom() const override;
  c10::SymInt sym_storage_offset_custom() const override;
  c10::SymBool sym_is_contiguous_custom(at::MemoryFormat format) const override;
  c10::SymBool sym_is_non_overlapping_and_dense_custom() const override;
  bool is_strides_like_custom(at::MemoryFormat format) const override;

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version_counter,
                                                         bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version_counter,
                                                         bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& source) override;
  void release_resources() override;
  /// Asked by TensorImpl on the way to a data pointer, and by nothing else that runs on fakes. The storage throws next,
  /// but only this call is virtual: it is where an access is noticed even if the exception gets swallowed.
  bool has_storage() const override {
    state_->data_touched |= !state_->engine_runs;
    return TensorImpl::has_storage();
  }

 private:
  const char* tensorimpl_type_name() const override { return "FakeImpl"; }
  template <typename Version>
  c10::intrusive_ptr<TensorImpl> copy_with(Version&& version_counter, bool allow_tensor_metadata_change) const;
  void count(int64_t change);

  std::shared_ptr<SessionState> state_;
  std::shared_ptr<const Symbolic> symbolic_;
  /// What it was before: PyTorch's code holds references to sizes while it calls operators that assume them.
  std::vector<std::shared_ptr<const Symbolic>> former_;
  c10::intrusive_ptr<ValueIdentity> identity_;
  mutable at::Tensor known_;
  std::vector<graph::ValueId> known_from_;
  uint32_t known_at_ = 0;  // writes to the storage so far
  bool counted_ = true;
};

/// The fake behind `tensor`, or null. Fakes look like ordinary tensors to PyTorch, dispatch keys included (what our
/// kernel sees is up to the thread, see dispatch_key.h): only the type tells.
inline FakeImpl* as_fake(const at::TensorBase& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return typeid(*impl) == typeid(FakeImpl) ? static_cast<FakeImpl*>(impl) : nullptr;
}

}  // namespace magneto::fake
