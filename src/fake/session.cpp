#include "fake/session.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/jit_type.h>
#include <c10/core/TensorOptions.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "fake/autograd_node.h"
#include "fake/class_dispatch.h"
#include "fake/copies.h"
#include "fake/dispatch_key.h"
#include "fake/fake.h"
#include "fake/size_node.h"
#include "fake/sized_input.h"
#include "fake/symbolic.h"

namespace magneto::fake {

namespace {

thread_local Session* current_session = nullptr;

/// Keys that a fake can carry. Whatever else a tensor has (sparse, quantised, nested, functorch's wrappers, Python
/// subclasses with __torch_dispatch__) changes what operators mean and is refused.
constexpr c10::DispatchKeySet kModelledKeys =
    c10::DispatchKeySet({c10::DispatchKey::Dense, c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::Conjugate,
                         c10::DispatchKey::Negative}) |
    c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset;

c10::DispatchKeySet backend_keys(c10::Device device) {
  return c10::DispatchKeySet(c10::computeDispatchKey(std::nullopt, std::nullopt, device));
}

}  // namespace

void give_earlier_history(const at::Tensor& stand_in) {
  auto history = make_autograd_node<torch::autograd::Error>("the backward of a captured segment ends at its inputs");
  history->add_input_metadata(stand_in);
  torch::autograd::impl::set_gradient_edge(stand_in, {std::move(history), 0});
}

// -- values ----------------------------------------------------------------------------------------------------------

Session::Impl::Impl(graph::Graph& graph) : graph(graph), state(std::make_shared<SessionState>()) {
  state->graph = &graph;
  state->serials.resize(graph.values.size());
}

Session::Impl::~Impl() {
  state->graph = nullptr;
  state->purpose.unasked.clear();  // they hold sizes, which hold the state
}

c10::intrusive_ptr<ValueIdentity> Session::Impl::identify(graph::ValueId value) {
  state->serials.resize(static_cast<size_t>(value) + 1);
  return c10::make_intrusive<ValueIdentity>(value, state->serials[value] = ++state->last_serial);
}

namespace {

graph::SymbolicGeometry geometry_of(const FakeImpl::Symbolic& symbolic) {
  graph::SymbolicGeometry geometry;
  for (const c10::SymInt& size : symbolic.sizes) geometry.sizes.push_back(expr_of(size));
  for (const c10::SymInt& stride : symbolic.strides) geometry.strides.push_back(expr_of(stride));
  geometry.storage_offset = expr_of(symbolic.offset);
  return geometry;
}

}  // namespace

graph::ValueId Session::Impl::add_result(FakeImpl& fake, int32_t producer) {
  graph::TensorMeta meta{.dtype = c10::typeMetaToScalarType(fake.dtype()),
                         .device = fake.device(),
                         .sizes = fake.sizes().vec(),
                         .strides = fake.strides().vec(),
                         .storage_offset = fake.storage_offset(),
                         .wrapped = fake.is_wrapped_number()};
  if (const FakeImpl::Symbolic* symbolic = fake.symbolic()) meta.symbolic = geometry_of(*symbolic);
  const graph::ValueId value = graph.add_result(std::move(meta), producer);
  fake.set_identity(identify(value));
  return value;
}

graph::ValueId Session::Impl::value_of(const FakeImpl& fake) const {
  const graph::ValueId value = &fake.state() == state.get() ? fake.value() : graph::kNoValue;
  TORCH_CHECK(value != graph::kNoValue,
              "magneto: a tensor of an earlier or abandoned part of a capture was used in this one");
  return value;
}

bool Session::Impl::was_changed(const FakeImpl& fake) const {
  if (metadata_changes_.empty() || metadata_changes_.back().value != graph::kNoValue) return false;
  return metadata_changes_.back().fake.lock().get() == &fake;
}

graph::ValueId Session::Impl::changed_as_view(FakeImpl& fake, int32_t producer) {
  metadata_changes_.back().value = value_of(fake);
  ++changes_as_views_;
  return add_result(fake, producer);
}

void Session::Impl::refuse(Refusal::Kind kind, const c10::OperatorHandle& op, const std::string& message) {
  std::string name = operator_name(op);
  state->refuse(kind, name, message);
  C10_THROW_ERROR(Error, name + ": " + message);
}

// -- tensors ---------------------------------------------------------------------------------------------------------

at::Tensor Session::Impl::empty(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype,
                                c10::Device device) {
  const caffe2::TypeMeta type = c10::scalarTypeToTypeMeta(dtype);
  const size_t nbytes = at::detail::computeStorageNbytes(sizes, strides, type.itemsize());
  auto impl = c10::make_intrusive<FakeImpl>(state, FakeImpl::make_storage(nbytes, device), backend_keys(device), type);
  if (sizes.size() != 1 || sizes[0] != 0) impl->set_sizes_and_strides(sizes, strides);
  return at::Tensor(std::move(impl));
}

at::Tensor Session::Impl::view(const at::Tensor& base, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset,
                               c10::ScalarType dtype) {
  auto impl = c10::make_intrusive<FakeImpl>(c10::TensorImpl::VIEW, state, c10::Storage(base.storage()), base.key_set(),
                                            c10::scalarTypeToTypeMeta(dtype));
  impl->set_sizes_and_strides(sizes, strides, offset);
  return at::Tensor(std::move(impl));
}

void Session::Impl::change_metadata(FakeImpl& fake, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) {
  if (fake.identity().use_count() > 1) {
    static constexpr const char* kMessage =
        "an in-place operator changes the shape of a tensor that shares its data with a detached one";
    state->refuse(Refusal::Kind::Unsupported, "", kMessage);
    C10_THROW_ERROR(Error, kMessage);
  }
  metadata_changes_.push_back(
      {c10::weak_intrusive_ptr<c10::TensorImpl>(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(&fake)),
       fake.sizes().vec(), fake.strides().vec(), fake.storage_offset(), graph::kNoValue});
  fake.set_sizes_and_strides(sizes, strides, offset);
}

const c10::Storage& Session::Impl::storage_for(const at::Tensor& real) {
  const c10::Storage& storage = real.storage();
  auto& entry = storages_[storage.unsafeGetStorageImpl()];
  if (!entry.second) entry = {storage, FakeImpl::make_storage(storage.nbytes(), real.device())};
  return entry.second;
}

at::Tensor Session::Impl::wrap(const at::Tensor& real, graph::ValueId value) {
  auto impl =
      c10::make_intrusive<FakeImpl>(c10::TensorImpl::VIEW, state, storage_for(real), real.key_set(), real.dtype());
  impl->set_sizes_and_strides(real.sizes(), real.strides(), real.storage_offset());
  if (real.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  if (!real.is_inference()) impl->set_version_counter(c10::VariableVersion(real._version()));
  impl->set_identity(identify(value));
  at::Tensor fake(std::move(impl));
  if (real.requires_grad()) {
    if (real.is_leaf()) {
      fake.set_requires_grad(true);
      casts.leave_to_session(fake);
    } else {
      give_earlier_history(fake);
      histories_[value] = std::make_shared<torch::autograd::Edge>(torch::autograd::impl::gradient_edge(fake));
    }
  }
  return fake;
}

namespace {

/// Why `real` can't have a fake; null if it can.
const char* not_modelled(const at::Tensor& real) {
  if (!real.has_storage()) return "tensors without storage (sparse, nested, wrapped) can't be captured";
  if ((real.key_set() - kModelledKeys).highestFunctionalityKey() != c10::DispatchKey::Undefined) {
    return "tensors other than plain dense ones (quantised, nested, wrapped by torch.func, subclasses) can't be "
           "captured";
  }
  return nullptr;
}

}  // namespace

// -- Session ---------------------------------------------------------------------------------------------------------

Session::Session(graph::Graph& graph) {
  TORCH_CHECK(!current_session, "magneto: a capture is already running on this thread");
  register_kernels();
  impl_ = std::make_unique<Impl>(graph);
  current_session = this;
  include_keys(true);
}

Session::~Session() {
  include_keys(false);
  current_session = nullptr;
  impl_->restore_transforms();
}

Session* Session::current() { return current_session; }

Session* exchange_current(Session* session) { return std::exchange(current_session, session); }

at::Tensor Session::make_input(const at::Tensor& real, std::string name) {
  if (const char* reason = not_modelled(real)) {
    impl_->state->refuse(Refusal::Kind::Unsupported, "", reason);
    C10_THROW_ERROR(Error, reason);
  }
  return impl_->wrap(real, impl_->graph.add_input(std::move(name), graph::meta_of(real)));
}

torch::autograd::Edge Session::history_of(graph::ValueId input, const at::Tensor& fake) const {
  const auto known = impl_->histories_.find(input);
  return known != impl_->histories_.end() ? *known->second : torch::autograd::impl::gradient_edge(fake);
}

at::Tensor Session::make_input(const at::Tensor& real, std::string name, const std::vector<shapes::Expr>& sizes) {
  const auto offset = shapes::Expr(real.storage_offset());
  at::Tensor tensor = make_sized_input(*this, real, std::move(name), {sizes, strides_in(real, sizes), offset});
  if (tensor.requires_grad() && tensor.is_leaf()) leave_out_of_autocast_cache(tensor);
  if (const auto history = impl_->histories_.find(value_of(tensor)); history != impl_->histories_.end()) {
    // What comes back as its gradient is compared with these sizes: as symbols, lest they be assumed.
    torch::autograd::Node& node = *history->second->function;
    node.clear_input_metadata();
    node.add_input_metadata(tensor);
  }
  return tensor;
}

at::Tensor Session::Impl::dense_like(const at::Tensor& other, graph::TensorMeta& meta) {
  const bool same_strides = other.is_non_overlapping_and_dense();
  meta = {.dtype = other.scalar_type(), .device = other.device()};
  {
    const Hints hints(*state);
    meta.sizes = other.sizes().vec();
    meta.strides = same_strides ? other.strides().vec() : c10::TensorType::contiguousStridesOf(meta.sizes);
  }
  at::Tensor made = empty(meta.sizes, meta.strides, meta.dtype, meta.device);
  if (const FakeImpl::Symbolic* symbolic = as_fake(other)->symbolic()) {
    auto own = std::make_shared<FakeImpl::Symbolic>();
    own->sizes = symbolic->sizes;
    own->strides = symbolic->strides;
    if (!same_strides) {
      const SymSizes contiguous = contiguous_strides(*state, own->sizes);
      own->strides.assign(contiguous.begin(), contiguous.end());
    }
    own->offset = 0;
    meta.symbolic = geometry_of(*own);
    as_fake(made)->set_symbolic(std::move(own));
  }
  return made;
}

at::Tensor Session::make_tangent(const at::Tensor& output, std::string name) {
  graph::TensorMeta meta;
  at::Tensor tangent = impl_->dense_like(output, meta);
  as_fake(tangent)->set_identity(impl_->identify(impl_->graph.add_input(std::move(name), std::move(meta))));
  return tangent;
}

std::vector<at::Tensor> Session::add_call(graph::AtenNode node, const std::vector<at::Tensor>& results) {
  const auto producer = static_cast<int32_t>(impl_->graph.aten_nodes.size());
  std::vector<at::Tensor> made;
  graph::TensorMeta meta;
  for (const at::Tensor& result : results) {
    made.push_back(impl_->dense_like(result, meta));
    const Hints hints(*impl_->state);
    node.results.push_back(impl_->add_result(*as_fake(made.back()), producer));
  }
  node.torch_node = torch_node;
  impl_->graph.aten_nodes.push_back(std::move(node));
  return made;
}

shapes::Expr Session::Impl::make_unbacked(shapes::Range range, const c10::OperatorHandle& op) {
  const Session& session = *Session::current();
  has_symbols = true;
  const size_t index = origins.size();
  const bool told = index < session.examples.size() && session.examples[index] >= 0;
  last_unbacked = told ? state->sizes.unbacked(range, session.examples[index]) : state->sizes.unbacked(range);
  const bool own = op.operator_name().name == "magneto::item";
  note_origin((own ? "Tensor.item" : operator_name(op)) + (session.place ? " " + session.place() : ""));
  return *last_unbacked;
}

void Session::Impl::note_origin(std::string origin) {
  origins.push_back(std::move(origin));
  state->origins = [](shapes::Expr expr) { return Session::current()->origins(expr); };
}

shapes::Expr Session::make_unbacked(int64_t now, shapes::Range range, std::string what) {
  impl_->note_origin(std::move(what));
  return impl_->state->sizes.unbacked(range, now);
}

std::string Session::origins(shapes::Expr expr) const {
  std::set<int32_t> found;
  shapes::any_leaf(impl_->state->sizes.original(expr), [&](shapes::Expr leaf) {
    if (leaf.id() < 0) found.insert(leaf.id());
    return false;
  });
  std::string text;
  for (auto id = found.rbegin(); id != found.rend(); ++id) {
    text += (text.empty() ? "" : ", ") + shapes::text(shapes::Expr::symbol(*id)) + " is of " + impl_->origins[-1 - *id];
  }
  return text;
}

bool Session::set_in_general(bool on) { return std::exchange(impl_->state->in_general, on); }
bool Session::exports() const { return impl_->state->purpose.exports; }
void Session::set_exports() { impl_->state->purpose.exports = true; }
void Session::set_decomposes() { impl_->state->purpose.decomposes = true; }

std::function<void()> Session::remember_sizes() const {
  return [state = impl_->state, sizes = impl_->state->sizes, checks = impl_->state->checks,
          answers = impl_->state->answers, layouts = impl_->state->layouts, unasked = impl_->state->purpose.unasked] {
    state->sizes = sizes;
    state->purpose.unasked = unasked;
    state->checks = checks;
    state->answers = answers;
    state->layouts = layouts;
  };
}

bool Session::has_checks() const { return !impl_->state->checks.empty(); }
std::vector<shapes::Relation> Session::take_checks() { return std::exchange(impl_->state->checks, {}); }

bool Session::assume_checked(const shapes::Relation& relation) {
  shapes::Environment& environment = sizes();
  if (const auto known = environment.decide(relation)) return *known;
  impl_->state->checks.push_back(relation);
  return environment.assume(relation);
}

shapes::Environment& Session::sizes() { return impl_->state->sizes; }
c10::SymFloat Session::symfloat(const at::Tensor& holder, double now) const {
  return to_symfloat(impl_->state, holder, now);
}

void Session::assume_floats(std::function<bool(const at::Tensor&)> assume) {
  impl_->state->assume_float = std::move(assume);
}

void Session::use_symbols() { impl_->has_symbols = true; }
c10::SymInt Session::symint(shapes::Expr size) const { return to_symint(impl_->state, size); }
std::vector<shapes::Expr> Session::sizes_of(const at::Tensor& tensor) const { return exprs_of(tensor.sym_sizes()); }
std::vector<shapes::Expr> Session::strides_of(const at::Tensor& tensor) const { return exprs_of(tensor.sym_strides()); }
bool Session::fix_sizes(const at::Tensor& tensor) {
  FakeImpl* fake = as_fake(tensor);
  return fake && fake->fix_sizes();
}
std::vector<shapes::Expr> Session::exprs_of(c10::SymIntArrayRef numbers) const {
  std::vector<shapes::Expr> exprs;
  for (const c10::SymInt& number : numbers) exprs.push_back(impl_->state->sizes.simplified(expr_of(number)));
  return exprs;
}

at::Tensor Session::make_constant(const at::Tensor& real) {
  at::Tensor& fake = impl_->constants_[real.unsafeGetTensorImpl()];
  if (!fake.defined()) {
    if (const char* reason = not_modelled(real)) {
      impl_->constants_.erase(real.unsafeGetTensorImpl());
      impl_->state->refuse(Refusal::Kind::Unsupported, "", reason);
      C10_THROW_ERROR(Error, reason);
    }
    fake = impl_->wrap(real, impl_->graph.add_constant(real));
  }
  return fake;
}

void Session::leave_out_of_autocast_cache(const at::Tensor& fake) { impl_->casts.leave_to_session(fake); }

graph::ValueId Session::value_of(const at::Tensor& tensor) const {
  FakeImpl* fake = tensor.defined() ? as_fake(tensor) : nullptr;
  return fake && &fake->state() == impl_->state.get() ? fake->value() : graph::kNoValue;
}

Session::Mark Session::mark() const {
  return {impl_->graph.values.size(), impl_->graph.inputs.size(), impl_->graph.aten_nodes.size(),
          impl_->metadata_changes_.size(), impl_->changes_as_views_};
}

void Session::rollback(const Mark& mark) {
  ask_about_copies(*impl_, mark.aten_nodes);  // what is taken out may run as a region
  graph::Graph& graph = impl_->graph;
  auto& changes = impl_->metadata_changes_;
  for (; changes.size() > mark.metadata_changes; changes.pop_back()) {
    if (auto fake = changes.back().fake.lock()) {
      fake->set_sizes_and_strides(changes.back().sizes, changes.back().strides, changes.back().offset);
      if (const graph::ValueId value = changes.back().value; value != graph::kNoValue) {
        as_fake(at::Tensor(fake))->set_identity(impl_->identify(value));
      }
    }
    impl_->changes_as_views_ -= changes.back().value != graph::kNoValue;
  }
  // Constants first: their fakes are about to lose their values.
  if (graph.values.size() > mark.values) {
    std::erase_if(impl_->constants_, [&](const auto& entry) {
      const graph::ValueId value = as_fake(entry.second)->value();
      return value == graph::kNoValue || static_cast<size_t>(value) >= mark.values;
    });
  }
  graph.aten_nodes.erase(graph.aten_nodes.begin() + mark.aten_nodes, graph.aten_nodes.end());
  graph.inputs.resize(mark.inputs);
  std::erase_if(graph.symbols, [&](const auto& symbol) { return static_cast<size_t>(symbol.value) >= mark.values; });
  graph.values.resize(mark.values);
  impl_->state->serials.resize(mark.values);
}

std::optional<Refusal> Session::take_refusal() {
  SessionState& state = *impl_->state;
  if (state.data_touched) state.refuse(Refusal::Kind::DataAccess, "", kDataAccess);
  state.data_touched = false;
  return std::exchange(state.refusal, std::nullopt);
}

bool Session::refused() const { return impl_->state->refusal.has_value() || impl_->state->data_touched; }

bool Session::set_engine_runs(bool runs) { return std::exchange(impl_->state->engine_runs, runs); }

std::shared_ptr<const int64_t> Session::alive_count() const { return {impl_->state, &impl_->state->alive}; }

struct Session::Pause::State {
  bool included = c10::impl::tls_is_dispatch_key_included(kFakeKey);
  BelowFake below;
  ~State() { include_keys(included); }
};

Session::Pause::Pause() : state_(std::make_unique<State>()) { include_keys(false); }
Session::Pause::~Pause() = default;

Session::Aside::Aside() : session_(exchange_current(nullptr)) { include_keys(false); }
Session::Aside::~Aside() {
  exchange_current(session_);
  include_keys(true);
}

}  // namespace magneto::fake
