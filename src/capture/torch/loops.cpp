// Functions that run again and again: while_loop, and the steps of scan and map.
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "capture/calls/handlers.h"
#include "capture/torch/branches.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "graph/aliases.h"
#include "support/tensor_object.h"

namespace magneto::capture {

// -- torch.while_loop --

Ref Branch::repeated(Capture& capture, const CallArgs& args) {
  check_count(args, 3, 3, "repeated");
  const BreakSite site = site_of(*capture.frame);
  PyObject* tensors = args.values[2];
  const bool is_plain = transform_depth() == 0 && !capture.torch.is_overridden(args.values);
  if (!is_plain || capture.feedback.unconditional.contains(site)) return Ref::borrow(Py_None);
  try {
    std::vector<at::Tensor> carried;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); ++i) {
      if (!is_fake_tensor(PyList_GET_ITEM(tensors, i))) throw Refused{"it carries what is no tensor"};
      carried.push_back(unpack_tensor(PyList_GET_ITEM(tensors, i)));
    }
    Shared shared;
    Branch condition(capture, args.values[0], tensors, /*carried=*/true);
    Branch body(capture, args.values[1], tensors, /*carried=*/true);
    body.begin_steps(carried, {});
    for (size_t known = SIZE_MAX; known != shared.operands.size();) {
      known = shared.operands.size();
      shared.needed.clear();
      condition.trace(shared);
      body.trace_steps(shared, carried);
    }
    condition.require_predicate();
    if (body.constants_.size() != carried.size()) {
      throw Refused{"body_fn does not give as many tensors as are carried"};
    }
    const std::vector<at::Tensor> results = record_loop(capture, condition, body, shared, carried);
    Ref list = checked(PyList_New(0));
    for (const at::Tensor& result : results) {
      if (PyList_Append(list.get(), checked(tensor_object(result)).get()) < 0) throw PythonError{};
    }
    return list;
  } catch (const Refused& refused) {
    capture.feedback.unconditional.emplace(site, refused.why);
    throw Retry{};
  }
}

std::vector<at::Tensor> Branch::record_loop(Capture& capture, Branch& condition, Branch& body, const Shared& shared,
                                            const std::vector<at::Tensor>& carried) {
  fake::Session& session = *capture.session;
  autograd::LoopCall call{.carried = carried,
                          .need_grad = body.needs_grad_,
                          .gradient_likes = body.steps_->gradient_likes,
                          .refusal = body.no_backward_};
  std::vector<graph::ValueId> operands, carried_ids;
  for (const auto& [id, tensor] : shared.operands) {
    operands.push_back(id);
    call.operands.push_back(tensor);
  }
  for (const at::Tensor& tensor : carried) carried_ids.push_back(session.value_of(tensor));
  for (Branch* branch : {&condition, &body}) branch->give(capture.graph, operands, carried.size());
  const bool random = graph::is_random(condition.forward_.graph) || graph::is_random(body.forward_.graph);
  if (random) call.refusal = "a loop draws random numbers, which its backward repeats";
  const std::string number = std::to_string(capture.torch.region_calls++);
  const std::string condition_name = "while_loop_cond_graph_" + number, body_name = "while_loop_body_graph_" + number;
  const bool needs_grad = std::ranges::find(call.need_grad, true) != call.need_grad.end();
  if (needs_grad && call.refusal.empty()) {
    std::vector<int64_t> read(body.steps_->read.begin(), body.steps_->read.end());
    call.backward = {condition.make_region(condition.forward_, condition_name + "_again"),
                     body.make_region(body.forward_, body_name + "_again"),
                     body.make_region(std::move(body.backward_), body_name + "_backward"),
                     c10::IValue(std::move(read))};
  }
  graph::AtenNode node{
      .op = c10::Dispatcher::singleton().findSchemaOrThrow("magneto::while_loop", random ? "random" : "")};
  node.args = {condition.make_region(std::move(condition.forward_), condition_name),
               body.make_region(std::move(body.forward_), body_name), carried_ids, operands};
  return add_call(capture, [&] { return autograd::record_loop(session, std::move(node), std::move(call)); });
}

/// It gives one tensor with one bool.
void Branch::require_predicate() const {
  const auto is_one = [](shapes::Expr size) { return size.is_constant() && size.number() == 1; };
  const bool is_single = results_.size() == 1 && constants_.size() == 1;
  if (!is_single || results_[0].scalar_type() != c10::kBool ||
      !std::ranges::all_of(capture_.session->sizes_of(results_[0]), is_one)) {
    throw Refused{"cond_fn does not give a tensor with one bool"};
  }
}

void Branch::require_like(const std::vector<at::Tensor>& carried) const {
  for (size_t i = 0; i < carried.size(); ++i) {
    const std::string found = difference(*capture_.session, carried[i], results_[i]);
    if (!found.empty()) throw Refused{"carried tensor " + std::to_string(i) + " and what takes its place: " + found};
  }
}

// -- scan and map --

void Branch::begin_steps(const std::vector<at::Tensor>& carried, const std::vector<at::Tensor>& xs) {
  steps_ = Steps{.carried = carried.size(), .count = xs.empty() ? c10::SymInt(0) : xs[0].sym_size(0)};
  step_likes_ = carried;
  const fake::Session::Mark before = capture_.session->mark();
  const bool grad = at::GradMode::is_enabled();
  for (const at::Tensor& tensor : carried) needs_grad_.push_back(grad && tensor.requires_grad());
  for (const at::Tensor& x : xs) {
    needs_grad_.push_back(grad && x.requires_grad());
    const at::NoGradGuard no_grad;
    step_likes_.push_back(x.select(0, 0));
  }
  capture_.session->rollback(before);
}

void Branch::require_carried() const {
  for (size_t i = 0; i < steps_->carried; ++i) {
    if (constants_.size() <= i || constants_[i]) throw Refused{"a step does not give as many tensors as are carried"};
  }
}

/// Until it is known what the steps read, and what of the carried requires gradients from some step on.
void Branch::trace_steps(Shared& shared, const std::vector<at::Tensor>& carried) {
  for (size_t known = SIZE_MAX;;) {
    shared.needed.assign(needs_grad_.begin(), needs_grad_.begin() + static_cast<std::ptrdiff_t>(carried.size()));
    const size_t found = trace(shared);
    require_like(carried);
    bool more = found != known;
    for (size_t i = 0; i < carried.size(); ++i) {
      more |= shared.needed[i] && !needs_grad_[i];
      needs_grad_[i] = shared.needed[i];
    }
    if (!more) return;
    known = found;
  }
}

/// The backward of a step. What it carries are the gradients of what the step carries, and the sums of those of the
/// operands; its slices are what was carried and those of the step, as far as it reads them, and the gradients of what
/// the step gave.
void Branch::cut_step(const Shared& shared, const autograd::RegionGradients& made, const fake::Session::Mark& from) {
  fake::Session& session = *capture_.session;
  std::vector<at::Tensor> state, sums, slices;
  auto gradient = gradients_.begin();
  const size_t carries = std::ranges::count(needs_grad_.begin(), needs_grad_.begin() + steps_->carried, true);
  std::vector<graph::ValueId> inputs(made.tangents.begin(),
                                     made.tangents.begin() + static_cast<std::ptrdiff_t>(carries));
  for (const auto& [id, operand] : shared.operands) {
    if (!operand.requires_grad()) continue;
    const at::Tensor sum = session.make_tangent(*gradient, "sum_" + std::to_string(sums.size()));
    inputs.push_back(session.value_of(sum));
    sums.push_back(at::add(sum, *gradient++));
  }
  for (size_t i = 0; i < fresh_.size(); ++i) {
    if (needs_grad_[i]) (i < steps_->carried ? state : slices).push_back(*gradient++);
  }
  gradients_ = std::move(state);
  gradients_.insert(gradients_.end(), sums.begin(), sums.end());
  const size_t whole = gradients_.size();
  gradients_.insert(gradients_.end(), slices.begin(), slices.end());
  cut_backward(from);
  steps_->read.clear();
  for (size_t i = 0; i < fresh_.size(); ++i) {
    if (std::ranges::find(backward_.inputs, fresh_[i].first) == backward_.inputs.end()) continue;
    steps_->read.push_back(i);
    inputs.push_back(fresh_[i].first);
  }
  inputs.insert(inputs.end(), made.tangents.begin() + static_cast<std::ptrdiff_t>(carries), made.tangents.end());
  for (const auto& [id, operand] : shared.operands) inputs.push_back(id);
  graph::set_inputs(backward_, capture_.graph, inputs);
  steps_->gradient_likes.assign(gradients_.begin(), gradients_.begin() + static_cast<std::ptrdiff_t>(whole));
  for (size_t i = whole; i < gradients_.size(); ++i) steps_->gradient_likes.push_back(stacked(gradients_[i]));
}

/// Like one of these for each step.
at::Tensor Branch::stacked(const at::Tensor& step) const {
  std::vector<c10::SymInt> sizes = {steps_->count};
  const c10::SymIntArrayRef own = step.sym_sizes();
  sizes.insert(sizes.end(), own.begin(), own.end());
  return at::empty_symint(sizes, step.options());
}

void Branch::make_likes() {
  steps_->likes.clear();
  for (size_t i = 0; i < results_.size(); ++i) {
    steps_->likes.push_back(i < steps_->carried ? results_[i] : stacked(results_[i]));
  }
  const bool is_scan = fresh_.size() > steps_->carried;
  for (const size_t i : steps_->read) {
    if (is_scan && i < steps_->carried) steps_->likes.push_back(stacked(step_likes_[i]));
  }
}

std::vector<at::Tensor> Branch::record_scan(Capture& capture, Branch& step, const Shared& shared,
                                            autograd::ScanCall call, bool reverse) {
  fake::Session& session = *capture.session;
  const Steps& steps = *step.steps_;
  std::vector<graph::ValueId> operands;
  for (const auto& [id, tensor] : shared.operands) {
    operands.push_back(id);
    call.operands.push_back(tensor);
  }
  step.give(capture.graph, operands, step.fresh_.size());
  const bool random = graph::is_random(step.forward_.graph);
  const std::string name = "scan_combine_graph_" + std::to_string(capture.torch.region_calls++);
  call.reverse = reverse;
  call.random = random;
  call.step = step.make_region(std::move(step.forward_), name);
  call.likes = steps.likes;
  call.carried_need_grad.assign(step.needs_grad_.begin(), step.needs_grad_.begin() + steps.carried);
  call.results_need_grad.assign(step.results_.size(), false);
  for (size_t i = 0; i < step.results_.size(); ++i) call.results_need_grad[i] = step.results_[i].requires_grad();
  call.refusal = step.no_backward_;
  if (call.refusal.empty() && std::ranges::find(call.results_need_grad, true) != call.results_need_grad.end()) {
    call.backward = step.make_region(std::move(step.backward_), name + "_backward");
    call.gradient_likes = steps.gradient_likes;
    call.read = steps.read;
  }
  return add_call(capture, [&] { return autograd::record_scan(session, std::move(call)); });
}

Ref Branch::scanned(Capture& capture, const CallArgs& args) {
  check_count(args, 5, 5, "scanned");
  const BreakSite site = site_of(*capture.frame);
  const bool is_plain = transform_depth() == 0 && !capture.torch.is_overridden(args.values);
  if (!is_plain || capture.feedback.unconditional.contains(site)) return Ref::borrow(Py_None);
  autograd::ScanCall call;
  const auto read = [&](PyObject* list, std::vector<at::Tensor>& tensors) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
      if (!is_fake_tensor(PyList_GET_ITEM(list, i))) throw Refused{"it is given what is no tensor"};
      tensors.push_back(unpack_tensor(PyList_GET_ITEM(list, i)));
    }
  };
  try {
    read(args.values[1], call.carried);
    read(args.values[2], call.xs);
    const shapes::Expr count = capture.session->sizes_of(call.xs.at(0)).at(0);
    if (count.is_constant() && count.number() < PyLong_AsLong(args.values[4])) return Ref::borrow(Py_None);
    const Ref operands = checked(PySequence_Concat(args.values[1], args.values[2]));
    Shared shared;
    Branch step(capture, args.values[0], operands.get(), /*carried=*/true);
    step.begin_steps(call.carried, call.xs);
    step.trace_steps(shared, call.carried);
    for (const Ref& constant : step.constants_) {
      if (constant && constant.get() != Py_None) throw Refused{"a step gives what is no tensor"};
    }
    const std::vector<at::Tensor> results =
        record_scan(capture, step, shared, std::move(call), args.values[3] == Py_True);
    Ref leaves = checked(PyList_New(0));
    auto next = results.begin();
    for (const Ref& constant : step.constants_) {
      const Ref leaf = constant ? constant : checked(tensor_object(*next++));
      if (PyList_Append(leaves.get(), leaf.get()) < 0) throw PythonError{};
    }
    return checked(PyTuple_Pack(2, leaves.get(), step.structure_.get()));
  } catch (const Refused& refused) {
    capture.feedback.unconditional.emplace(site, refused.why);
    throw Retry{};
  }
}

}  // namespace magneto::capture
