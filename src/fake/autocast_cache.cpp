#include "fake/autocast_cache.h"

#include <ATen/CachedTensorUtils.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/to_ops.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "fake/own_gradients.h"
#include "fake/session.h"
#include "graph/kept_casts.h"
#include "support/autocast_depth.h"

namespace magneto::fake {

void AutocastCasts::leave_to_session(const at::Tensor& leaf) {
  at::caching::set_cached_tensors_enabled(true);
  at::caching::add_cached_tensor(leaf);
  leaves_.push_back(leaf);
}

AutocastCasts::~AutocastCasts() {
  for (const at::Tensor& leaf : leaves_) at::caching::remove_cached_tensor(leaf);
}

AutocastCasts::Call::Call(AutocastCasts& casts) : casts_(casts), outer_(std::exchange(casts.dtypes_, {})) {
  if (!at::autocast::is_autocast_cache_enabled() || c10::InferenceMode::is_enabled()) return;
  for (const c10::DeviceType device : {at::kCPU, at::kCUDA}) {
    if (!at::autocast::is_autocast_enabled(device)) continue;
    casts.dtypes_.emplace_back(device, at::autocast::get_autocast_dtype(device));
  }
}

void AutocastCasts::stand_for(const at::Tensor& read, const at::Tensor& leaf) {
  read_for_.insert_or_assign(read.unsafeGetTensorImpl(), std::pair(read, leaf));
}

at::Tensor AutocastCasts::leaf_of(const at::Tensor& read) const {
  const auto found = read_for_.find(read.unsafeGetTensorImpl());
  const at::Tensor& leaf = found == read_for_.end() ? read : found->second.second;
  const bool is_leaf = leaf.requires_grad() && leaf.is_leaf() && !leaf.is_view();
  return is_leaf ? leaf : at::Tensor();
}

bool AutocastCasts::keeps(const at::Tensor& leaf, at::ScalarType dtype) const {
  const bool is_that = std::ranges::find(dtypes_, std::pair(leaf.device().type(), dtype)) != dtypes_.end();
  return is_that && leaf.scalar_type() == at::kFloat && leaf_of(leaf).defined();
}

at::Tensor AutocastCasts::cast(Session& session, const at::Tensor& read, const std::function<at::Tensor()>& cast) {
  const at::Tensor leaf = leaf_of(read);
  at::Tensor& kept = casts_[leaf.unsafeGetTensorImpl()];
  if (session.value_of(kept) == graph::kNoValue) {  // there is none, or it was taken back
    const at::AutoGradMode with_history(true);      // which later calls may need
    kept = record(session, read, leaf, cast);
    leave_to_session(read);  // it lives as long as its address stands for it
  }
  return kept;
}

at::Tensor AutocastCasts::record(Session& session, const at::Tensor& read, const at::Tensor& leaf,
                                 const std::function<at::Tensor()>& cast) {
  static const auto keep = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("magneto::cached_cast", "")
                               .typed<at::Tensor(const at::Tensor&, const at::Tensor&, at::ScalarType)>();
  // What others are given is an input; what the segment makes they may be given, but can't have cast.
  const graph::ValueId value = session.value_of(leaf);
  const bool is_input = value != graph::kNoValue && session.impl().graph.values[value].kind == graph::ValueKind::Input;
  if (!is_input || !shares_ || (asides_ > 0 && !is_in_outer_)) return cast();
  at::Tensor kept = keep.call(read, leaf, at::autocast::get_autocast_dtype(leaf.device().type()));
  if (!is_in_outer_) open_.push_back(session.value_of(kept));
  return kept;
}

void AutocastCasts::begin(bool shares) {
  shares_ = shares;
  is_in_outer_ = shares && autocast_depth() > 0;
}

void AutocastCasts::clear(graph::Graph& graph) {
  casts_.clear();
  has_left_outer_ |= is_in_outer_;
  is_in_outer_ = false;
  for (const graph::ValueId id : std::exchange(open_, {})) {
    if (static_cast<size_t>(id) >= graph.values.size() || graph.values[id].producer < 0) continue;  // taken back
    graph::AtenNode& node = graph.aten_nodes[graph.values[id].producer];
    if (graph::is_kept_cast(node)) graph::make_plain_cast(node);
  }
}

namespace {

at::Tensor to_dtype(c10::DispatchKeySet keys, const at::Tensor& self, at::ScalarType dtype, bool non_blocking,
                    bool copy, std::optional<at::MemoryFormat> format) {
  const auto call = [&] {
    return at::_ops::to_dtype::redispatch(keys & kBelowOwnGradients, self, dtype, non_blocking, copy, format);
  };
  Session* const session = Session::current();
  // In a call under autocast, its kernels alone call operators without it.
  const bool is_cast = session && !copy && !format && as_fake(self) && !keys.has_any(kTransformKeys) &&
                       !at::autocast::is_autocast_enabled(self.device().type()) &&
                       session->impl().casts.keeps(self, dtype);
  return is_cast ? session->impl().casts.cast(*session, self, call) : call();
}

}  // namespace

void register_autocast_casts(torch::Library& whole) { whole.impl("to.dtype", TORCH_FN(to_dtype)); }

}  // namespace magneto::fake
