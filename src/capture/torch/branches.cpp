#include "capture/torch/branches.h"

#include <ATen/ops/clone.h>

#include <algorithm>
#include <unordered_set>

#include "capture/calls/calls.h"
#include "capture/calls/deferred.h"
#include "capture/calls/handlers.h"
#include "capture/exits/exit_builder.h"
#include "capture/interpreter/frames.h"
#include "capture/interpreter/object_protocol.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/symbols.h"
#include "capture/torch/gradients.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "fake/session.h"
#include "graph/aliases.h"
#include "graph/orphans.h"
#include "graph/text.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

// -- one branch --

/// What it can change: what it is given, and what has been written to objects from outside.
std::vector<PyObject*> Branch::reachable() const {
  std::vector<PyObject*> objects = {function_, operands_};
  for (const auto& overlay : capture_.overlays.all) {
    for (const auto& [name, value] : overlay->entries) {
      if (value) objects.push_back(value.get());
    }
  }
  return objects;
}

/// Stand-ins for what the operands are in some run.
Ref Branch::fresh_operands() {
  fresh_.clear();
  Ref made = checked(PyTuple_New(PySequence_Fast_GET_SIZE(operands_)));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(made.get()); ++i) {
    const at::Tensor& like =
        step_likes_.empty() ? unpack_tensor(PySequence_Fast_GET_ITEM(operands_, i)) : step_likes_[i];
    const size_t others = steps_ ? steps_->carried : SIZE_MAX, place = static_cast<size_t>(i);
    const std::string name =
        place < others ? "carried_" + std::to_string(place) : "slice_" + std::to_string(place - others);
    const at::Tensor tensor = capture_.session->make_tangent(like, name);
    if (!needs_grad_.empty() && needs_grad_[i]) tensor.set_requires_grad(true);
    fresh_.emplace_back(capture_.session->value_of(tensor), tensor);
    PyTuple_SET_ITEM(made.get(), i, checked(tensor_object(tensor)).release());
  }
  return made;
}

void Branch::interpret(PyObject* operands) {
  NonResumable scope(capture_);
  CallArgs args;
  args.values = {function_, operands};
  try {
    const Ref found = capture_.calls.call_polyfill("_control_flow.results_of_branch", args);
    leaves_ = Ref::borrow(PyTuple_GetItem(found.get(), 0));
    structure_ = Ref::borrow(PyTuple_GetItem(found.get(), 1));
    if (!leaves_ || !structure_) throw PythonError{};
  } catch (const Restart&) {
    throw Refused{capture_.exits.restart.second.message};
  } catch (const Abandon& abandon) {
    throw Refused{abandon.message};
  } catch (const PythonError&) {
    const Ref error = take_error();
    throw Refused{"it raises " + std::string(Py_TYPE(error.get())->tp_name)};
  }
}

void Branch::check(const Footprint& marks, const Snapshot& before) const {
  if (std::string change = marks.change(capture_, before); !change.empty()) throw Refused{std::move(change)};
  if (capture_.graph.symbols.size() != marks.symbols) throw Refused{"it finds a size or a number in data"};
  const graph::Graph& graph = capture_.graph;
  if (std::string effect = marks.hidden_effect(graph); !effect.empty()) throw Refused{std::move(effect)};
  const graph::Aliases aliases(graph);
  std::unordered_set<int32_t> around;
  for (size_t id = 0; id < graph.values.size(); ++id) {
    const auto value = static_cast<graph::ValueId>(id);
    if (marks.was_before(graph, value)) around.insert(aliases.group(value));
  }
  for (size_t i = marks.session.aten_nodes; i < graph.aten_nodes.size(); ++i) {
    const graph::AtenNode& node = graph.aten_nodes[i];
    for (size_t a = 0; a < node.args.size(); ++a) {
      if (!graph::writes_argument(node.op.schema(), a)) continue;
      graph::for_each_tensor(node.args[a], [&](graph::ValueId id) {
        if (around.contains(aliases.group(id))) {
          throw Refused{graph::operator_text(node.op) + " writes to a tensor that was there before it"};
        }
      });
    }
  }
}

void Branch::take(PyObject* leaves, const Footprint& marks) {
  results_.clear();
  constants_.clear();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(leaves); ++i) {
    PyObject* leaf = PyList_GET_ITEM(leaves, i);
    if (is_fake_tensor(leaf)) {
      results_.push_back(unpack_tensor(leaf));
      constants_.emplace_back();
    } else if (leaf == Py_None || PyBool_Check(leaf) || PyLong_CheckExact(leaf) || PyFloat_CheckExact(leaf) ||
               PyUnicode_CheckExact(leaf)) {
      if (is_unknown_number(leaf) || size_of_number(leaf)) throw Refused{"it gives a number that is no constant"};
      constants_.push_back(Ref::borrow(leaf));
    } else {
      throw Refused{"it gives an object of type " + std::string(Py_TYPE(leaf)->tp_name)};
    }
  }
  fake::Session& session = *capture_.session;
  for (const at::Tensor& result : results_) {
    if (capture_.graph.values[session.value_of(result)].meta.wrapped) throw Refused{"it gives a number as a tensor"};
  }
  for (size_t i = steps_ ? steps_->carried : SIZE_MAX; i < results_.size(); ++i) {
    results_[i] = results_[i].contiguous();  // as it is stacked
  }
  separate(results_, marks.session);
}

/// Makes the tensors tensors of their own: none is memory that was there before, or that of another one.
void Branch::separate(std::vector<at::Tensor>& tensors, const fake::Session::Mark& from) const {
  const graph::Graph& graph = capture_.graph;
  std::unordered_set<int32_t> taken;
  const graph::Aliases aliases(graph);
  const std::vector<graph::ValueId> changed = changed_in_place(graph, from.aten_nodes);  // sizes are to last
  for (size_t id = 0; id < graph.values.size(); ++id) {
    const bool before = id < from.values || graph.values[id].kind != graph::ValueKind::Result;
    if (before) taken.insert(aliases.group(static_cast<graph::ValueId>(id)));
  }
  for (at::Tensor& tensor : tensors) {
    const graph::ValueId value = capture_.session->value_of(tensor);
    const bool is_own = taken.insert(aliases.group(value)).second && std::ranges::find(changed, value) == changed.end();
    if (!is_own || !tensor.is_non_overlapping_and_dense()) tensor = at::clone(tensor);
  }
}

/// The fresh tensors become the first inputs. Their values go, and others may get their numbers: they are called
/// `carried_value(i)`.
static graph::ValueId carried_value(size_t i) { return -2 - static_cast<graph::ValueId>(i); }

void Branch::put_first(graph::Cut& cut, const graph::Graph& whole) const {
  std::vector<graph::ValueId> carried;
  for (const auto& [id, tensor] : fresh_) carried.push_back(id);
  std::vector<graph::ValueId> inputs = carried;
  std::ranges::copy_if(cut.inputs, std::back_inserter(inputs),
                       [&](graph::ValueId id) { return std::ranges::find(carried, id) == carried.end(); });
  graph::set_inputs(cut, whole, inputs);
  for (size_t i = 0; i < carried.size(); ++i) cut.inputs[i] = carried_value(i);
}

void Branch::differentiate(const Shared& shared, const fake::Session::Mark& from) {
  autograd::Operands operands = shared.operands;
  operands.insert(fresh_.begin(), fresh_.end());
  const autograd::RegionGradients made = autograd::differentiate(*capture_.session, results_, shared.needed, operands);
  no_backward_ = made.refusal;
  if (graph::is_random(forward_.graph)) no_backward_ = "a branch draws random numbers, which its backward repeats";
  gradients_ = made.gradients;
  if (!no_backward_.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<graph::ValueId> inputs;
  if (steps_) {
    cut_step(shared, made, from);
    return;
  }
  cut_backward(from);
  for (const auto& [id, tensor] : shared.operands) inputs.push_back(id);
  inputs.insert(inputs.end(), made.tangents.begin(), made.tangents.end());
  graph::set_inputs(backward_, capture_.graph, inputs);
}

void Branch::cut_backward(const fake::Session::Mark& from) {
  separate(gradients_, from);
  std::vector<graph::ValueId> given;
  for (const at::Tensor& gradient : gradients_) given.push_back(capture_.session->value_of(gradient));
  backward_ = graph::cut(capture_.graph, from.aten_nodes, given);
}

size_t Branch::trace(Shared& shared) {
  constexpr int kMostTries = 3;
  fake::Session& session = *capture_.session;
  const fake::AutocastCasts::Aside own_casts(session.impl().casts);
  for (int tries = 0;; ++tries) {
    const Footprint marks(capture_);
    const Snapshot before(capture_, reachable());
    autograd::Operands read;
    auto* const others = std::exchange(session.operands, &read);
    const auto restore = [&] { session.operands = others; };
    try {
      const Ref fresh = carried_ ? fresh_operands() : Ref::borrow(operands_);
      interpret(fresh.get());
      take(leaves_.get(), marks);
      check(marks, before);
      if (steps_) require_carried();
    } catch (...) {
      restore();
      throw;
    }
    restore();
    const auto is_new = [&](const auto& input) { return static_cast<size_t>(input.first) >= marks.session.values; };
    const auto roll_back = [&] {
      session.rollback(marks.session);
      capture_.graph.torch_nodes.resize(marks.torch_nodes);
      capture_.torch.last_guarded =
          std::min(capture_.torch.last_guarded, static_cast<int32_t>(marks.session.aten_nodes) - 1);
    };
    if (std::ranges::any_of(capture_.tensors.inputs,
                            is_new)) {  // inputs stay: they come before it, and it is interpreted again
      if (tries == kMostTries) throw Refused{"it reads other tensors each time"};
      roll_back();
      if (!capture_.tensors.add_again(marks.session.values)) throw Refused{"it reads an array of NumPy"};
      continue;
    }
    for (const auto& [id, tensor] : read) {
      const bool before = static_cast<size_t>(id) < marks.session.values;
      if (!before || capture_.graph.values[id].kind == graph::ValueKind::Constant) continue;
      shared.operands.emplace(id, tensor);
      if (others) others->emplace(id, tensor);  // what is around it reads that, too
    }
    shared.needed.resize(results_.size());
    std::vector<graph::ValueId> outputs;
    no_backward_.clear();
    for (size_t i = 0; i < results_.size(); ++i) {
      outputs.push_back(session.value_of(results_[i]));
      if (results_[i].requires_grad()) shared.needed[i] = true;
    }
    forward_ = graph::cut(capture_.graph, marks.session.aten_nodes, outputs);
    if (carried_) put_first(forward_, capture_.graph);
    if (std::ranges::find(shared.needed, true) != shared.needed.end()) {
      differentiate(shared, marks.session);
    }
    if (steps_) make_likes();
    roll_back();
    return shared.operands.size() + static_cast<size_t>(std::ranges::count(shared.needed, true));
  }
}

// -- torch.cond --

std::string Branch::difference(fake::Session& session, const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type()) {
    return std::string(c10::toString(a.scalar_type())) + " and " + c10::toString(b.scalar_type());
  }
  if (a.device() != b.device()) return a.device().str() + " and " + b.device().str();
  const auto text = [](const std::vector<shapes::Expr>& sizes) {
    std::string list = "[";
    for (const shapes::Expr size : sizes) list += (list.size() > 1 ? ", " : "") + shapes::text(size);
    return list + "]";
  };
  const auto sizes_a = session.sizes_of(a), sizes_b = session.sizes_of(b);
  if (sizes_a != sizes_b) return "sizes " + text(sizes_a) + " and " + text(sizes_b);
  const auto strides_a = session.strides_of(a), strides_b = session.strides_of(b);
  if (strides_a != strides_b) return "strides " + text(strides_a) + " and " + text(strides_b);
  return {};
}

void Branch::require_same(const Branch& other) const {
  CallArgs structures;
  structures.values = {structure_.get(), other.structure_.get()};
  const bool same = constants_.size() == other.constants_.size() &&
                    capture_.protocol.truth(capture_.calls.call_polyfill("_control_flow.are_same", structures).get());
  if (!same) throw Refused{"the branches give different structures"};
  size_t tensor = 0;
  for (size_t i = 0; i < constants_.size(); ++i) {
    const std::string which = "result " + std::to_string(i) + " of the branches: ";
    if (!constants_[i] != !other.constants_[i]) throw Refused{which + "a tensor and a constant"};
    if (!constants_[i]) {
      const std::string found = difference(*capture_.session, results_[tensor], other.results_[tensor]);
      if (!found.empty()) throw Refused{which + found};
      ++tensor;
    } else if (Py_TYPE(constants_[i].get()) != Py_TYPE(other.constants_[i].get()) ||
               PyObject_RichCompareBool(constants_[i].get(), other.constants_[i].get(), Py_EQ) != 1) {
      throw Refused{which + "different constants"};
    }
  }
}

std::shared_ptr<const graph::Region> Branch::make_region(graph::Cut cut, std::string name) {
  graph::adopt_orphans(cut.graph);
  capture_.torch.regions.push_back(
      std::make_shared<graph::Region>(graph::Region{std::move(name), std::move(cut.graph)}));
  return capture_.torch.regions.back();
}

/// Its region is given the operands behind what is carried.
void Branch::give(const graph::Graph& around, const std::vector<graph::ValueId>& operands, size_t carried) {
  std::vector<graph::ValueId> inputs;
  for (size_t i = 0; i < carried; ++i) inputs.push_back(carried_value(i));
  inputs.insert(inputs.end(), operands.begin(), operands.end());
  for (const graph::ValueId id : forward_.inputs) {
    if (std::ranges::find(inputs, id) == inputs.end()) throw Refused{"it reads the sizes of a tensor alone"};
  }
  graph::set_inputs(forward_, around, inputs);
}

/// The program's frame that calls the operator, whose own functions are those of one file.
static InterpFrame& program_frame(InterpFrame& operators) {
  InterpFrame* frame = &operators;
  while (frame->caller && frame->info->code->co_filename == operators.info->code->co_filename) frame = frame->caller;
  return *frame;
}

BreakSite Branch::site_of(InterpFrame& polyfill) {
  const InterpFrame& frame = program_frame(polyfill);
  return {frame.info->code, frame.pc};
}

/// The operator that `record` appends, and the torch call around it.
std::vector<at::Tensor> Branch::add_call(Capture& capture, const std::function<std::vector<at::Tensor>()>& record) {
  const auto index = static_cast<int32_t>(capture.graph.torch_nodes.size());
  capture.graph.torch_nodes.emplace_back();
  capture.session->torch_node = index;
  std::vector<at::Tensor> results = record();
  capture.session->torch_node = -1;
  if (capture.torch.is_guarded())
    capture.torch.last_guarded = static_cast<int32_t>(capture.graph.aten_nodes.size()) - 1;
  graph::TorchNode node = graph::operator_call(capture.graph.aten_nodes.back());
  InterpFrame& user = program_frame(*capture.frame);
  node.file = PyUnicode_AsUTF8(user.info->code->co_filename);
  node.function = PyUnicode_AsUTF8(user.info->code->co_qualname);
  node.line = user.instr().line;
  node.called_from = Frames::call_site(user);
  capture.graph.torch_nodes[index] = std::move(node);
  return results;
}

Ref Branch::record(Capture& capture, PyObject* pred, Branch& if_true, Branch& if_false, const Shared& shared) {
  fake::Session& session = *capture.session;
  std::vector<graph::ValueId> operands;
  autograd::RegionCall call{.node = {.op = c10::Dispatcher::singleton().findSchemaOrThrow("magneto::cond", "")},
                            .backward = {.op = c10::Dispatcher::singleton().findSchemaOrThrow("magneto::cond", "")}};
  bool needs_grad = false;
  for (const auto& [id, tensor] : shared.operands) {
    operands.push_back(id);
    call.operands.push_back(tensor);
    needs_grad |= at::GradMode::is_enabled() && tensor.requires_grad();
  }
  for (Branch* branch : {&if_true, &if_false}) {
    branch->give(capture.graph, operands, 0);
    if (call.refusal.empty()) call.refusal = branch->no_backward_;
  }
  const std::string number = std::to_string(capture.torch.region_calls++);
  if (graph::is_random(if_true.forward_.graph) || graph::is_random(if_false.forward_.graph)) {
    call.node.op = c10::Dispatcher::singleton().findSchemaOrThrow("magneto::cond", "random");
  }
  const auto true_region = if_true.make_region(std::move(if_true.forward_), "cond_true_" + number);
  const auto false_region = if_false.make_region(std::move(if_false.forward_), "cond_false_" + number);
  const graph::ValueId pred_value = session.value_of(unpack_tensor(pred));
  call.node.args = {pred_value, true_region, false_region, operands};
  call.arguments = {unpack_tensor(pred)};
  call.results = if_true.results_;
  call.results_need_grad = shared.needed;
  if (call.refusal.empty() && std::ranges::find(shared.needed, true) != shared.needed.end()) {
    call.backward.args = {pred_value,
                          if_true.make_region(std::move(if_true.backward_), "cond_true_" + number + "_backward"),
                          if_false.make_region(std::move(if_false.backward_), "cond_false_" + number + "_backward"),
                          std::vector<graph::ValueId>()};
    call.gradients = if_true.gradients_;
  }

  const std::vector<at::Tensor> results =
      add_call(capture, [&] { return autograd::record_call(session, std::move(call)); });
  if (needs_grad) {  // PyTorch's operator would compile the derivatives of its branches
    static constinit Imported function("magneto._control_flow", "run_cond");
    capture.graph.torch_nodes.back().target = Ref::borrow(function.get());
  }

  Ref leaves = checked(PyList_New(0));
  auto next = results.begin();
  for (const Ref& constant : if_true.constants_) {
    const Ref leaf = constant ? constant : checked(tensor_object(*next++));
    if (PyList_Append(leaves.get(), leaf.get()) < 0) throw PythonError{};
  }
  return leaves;
}

Ref Branch::conditional(Capture& capture, const CallArgs& args) {
  check_count(args, 4, 4, "conditional");
  PyObject* pred = args.values[0];
  const shapes::Relation* question = symbolic_bool_of(pred);
  const BreakSite site = site_of(*capture.frame);
  const bool is_plain =
      (question || is_fake_tensor(pred)) && transform_depth() == 0 && !capture.torch.is_overridden(args.values);
  if (!is_plain || capture.feedback.unconditional.contains(site)) return Ref::borrow(Py_None);
  try {
    Shared shared;
    Branch if_true(capture, args.values[1], args.values[3]);
    Branch if_false(capture, args.values[2], args.values[3]);
    while (if_true.trace(shared) != if_false.trace(shared)) {
    }
    if_true.require_same(if_false);
    const Ref open = question ? capture.symbols.tensor_of_question(*question) : Ref::borrow(pred);
    const Ref leaves = record(capture, open.get(), if_true, if_false, shared);
    return checked(PyTuple_Pack(2, leaves.get(), if_true.structure_.get()));
  } catch (const Refused& refused) {
    capture.feedback.unconditional.emplace(site, refused.why);
    throw Retry{};
  }
}

Ref Branch::taken(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 1, "branch_taken");
  PyObject* pred = args.values[0];
  const auto known = capture.feedback.unconditional.find(site_of(*capture.frame));
  const bool decides = is_fake_tensor(pred) && !fake::known_value(unpack_tensor(pred));
  if (!decides || known == capture.feedback.unconditional.end()) return boolean(capture.protocol.truth(pred));
  capture.side_exit(BreakReason::DataDependentBranch,
                    "torch.cond or torch.while_loop, not captured as graphs: " + known->second);
}

}  // namespace magneto::capture
