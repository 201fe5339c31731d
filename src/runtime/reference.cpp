#include "runtime/reference.h"

#include <ATen/Context.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <string_view>

#include "graph/aliases.h"
#include "graph/capsule.h"
#include "graph/text.h"
#include "ops/library.h"
#include "python/errors.h"
#include "python/imported.h"
#include "python/text.h"
#include "runtime/joint_computation.h"
#include "runtime/plan/saved_state.h"
#include "runtime/plan/torch_errors.h"
#include "runtime/run_checks.h"
#include "support/tensor_object.h"

namespace magneto::runtime {
namespace {

/// What float64 would allow at least, whatever it says (UNITS in magneto/_debug/same.py).
constexpr Distance kRounding{.worst = 16, .mean = 4};

/// Operators of libraries may do more than compute (send, count, print): run twice they would do that twice.
std::string operator_to_leave_out(const graph::Graph& graph) {
  for (const graph::AtenNode& node : graph.aten_nodes) {
    if (ops::is_of_library(node.op)) return graph::operator_text(node.op);
  }
  return "";
}

graph::Undo all_changes(const graph::Graph& graph) {
  graph::Undo undo{.generators = generators_of(graph)};
  const graph::Aliases aliases(graph);
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    if (aliases.written(graph.inputs[i])) undo.written.push_back({.input = i, .contents = true});
  }
  return undo;
}

/// Outputs that hold memory as it was found, or bytes that only an operator's backward understands.
std::set<size_t> undefined_results(const graph::Graph& graph) {
  const graph::Aliases aliases(graph);
  std::set<size_t> results;
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const int32_t producer = graph.values[graph.outputs[i]].producer;
    if (producer < 0 || aliases.written(graph.outputs[i])) continue;
    const std::string& name = graph.aten_nodes[producer].op.operator_name().name;
    const bool workspace =
        name == "aten::mkldnn_rnn_layer" && graph.outputs[i] == graph.aten_nodes[producer].results.back();
    if (workspace || name.starts_with("aten::empty") || name.starts_with("aten::new_empty")) results.insert(i);
  }
  return results;
}

Ref list_of(const c10::SmallVectorImpl<at::Tensor>& tensors) {
  Ref list = checked(PyList_New(0));
  for (const at::Tensor& tensor : tensors) {
    Ref item = tensor.defined() ? checked(tensor_object(tensor.detach())) : Ref::borrow(Py_None);
    if (PyList_Append(list.get(), item.get()) < 0) throw PythonError{};
  }
  return list;
}

template <typename Tensors>
std::vector<const at::Tensor*> pointers_to(const Tensors& tensors) {
  std::vector<const at::Tensor*> pointers;
  for (const at::Tensor& tensor : tensors) pointers.push_back(&tensor);
  return pointers;
}

}  // namespace

Reference::Operators::Operators(const graph::Graph& graph)
    : program(graph),
      raising(graph::undo_of(graph)),
      all(all_changes(graph)),
      undefined(undefined_results(graph)),
      left_out(operator_to_leave_out(graph)) {}

const Reference::Operators& Reference::operators() const {
  std::call_once(once_, [this] { operators_ = std::make_unique<const Operators>(graph_); });
  return *operators_;
}

void Reference::run(const at::Tensor* const* inputs, at::Tensor* outputs) const {
  const Operators& with = operators();
  SavedState saved(with.raising, inputs, /*tensors=*/true);
  try {
    with.program.run(inputs, outputs);
  } catch (...) {
    saved.restore();
    throw;
  }
}

bool Reference::run_checked(const CompiledProgram& program, const at::Tensor* const* inputs,
                            at::Tensor* outputs) const {
  const bool verifies = is_verification_due() && budget_.allows();
  if (verifies && !operators().left_out.empty()) {
    ++run_checks().left_out;
    with_python([&] {
      static constinit Imported tell("magneto._debug.checks", "left_out");
      checked(PyObject_CallFunctionObjArgs(tell.get(), text_object(origin_.place).get(),
                                           text_object(operators().left_out).get(), nullptr));
    });
  } else if (verifies) {
    return run_verified(program, inputs, outputs);
  }
  if (run_checks().nan_watch) return run_watched(program, inputs, outputs);
  return program.run(inputs, outputs);
}

std::vector<at::Tensor> Reference::written(const at::Tensor* const* inputs) const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> copies;
  for (const graph::Undo::Written& one : operators().all.written) copies.push_back(inputs[one.input]->clone());
  return copies;
}

Reference::Tensors Reference::before(const at::Tensor* const* inputs, const std::vector<at::Tensor>& contents) const {
  Tensors given;
  for (size_t i = 0; i < graph_.inputs.size(); ++i) given.push_back(*inputs[i]);
  for (size_t i = 0; i < contents.size(); ++i) given[operators().all.written[i].input] = contents[i];
  return given;
}

std::vector<std::string> Reference::names() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < graph_.outputs.size(); ++i) {
    const int32_t producer = graph_.values[graph_.outputs[i]].producer;
    names.push_back("result " + std::to_string(i));
    if (producer < 0) continue;
    const std::string& known = origin_.operators[producer];
    names.back() += " (" + (known.empty() ? graph::operator_text(graph_.aten_nodes[producer].op) : known) + ")";
  }
  for (const graph::Undo::Written& one : operators().all.written) {
    names.push_back("input " + graph_.values[graph_.inputs[one.input]].name + " afterwards");
  }
  return names;
}

bool Reference::run_verified(const CompiledProgram& program, const at::Tensor* const* inputs,
                             at::Tensor* outputs) const {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  VerifyBudget::Duration run{0};
  const bool done = run_both(program, inputs, outputs, run);
  budget_.spent(run, Clock::now() - start - run);
  return done;
}

bool Reference::run_both(const CompiledProgram& program, const at::Tensor* const* inputs, at::Tensor* outputs,
                         VerifyBudget::Duration& run) const {
  const Operators& with = operators();
  Tensors want(graph_.outputs.size()), got(graph_.outputs.size());
  SavedState saved(with.all, inputs, /*tensors=*/true), drawn(with.all, inputs, /*tensors=*/false);
  const auto start = std::chrono::steady_clock::now();
  if (!program.run(inputs, got.data())) return false;
  run = std::chrono::steady_clock::now() - start;
  for (at::Tensor& after : written(inputs)) got.push_back(std::move(after));
  saved.restore();
  try {
    with.program.run(inputs, want.data());
  } catch (...) {
    saved.restore();  // CPython runs the segment, and raises at the program's line
    throw;
  }
  for (size_t i = 0; i < graph_.outputs.size(); ++i) outputs[i] = want[i];
  const at::NoGradGuard no_grad;
  for (const graph::Undo::Written& one : with.all.written) want.push_back(*inputs[one.input]);
  ++run_checks().verified;

  std::vector<Distance> distances;
  for (size_t i = 0; i < want.size(); ++i) {
    distances.push_back(with.undefined.contains(i) ? Distance() : distance(want[i], got[i]));
  }
  {
    const std::lock_guard lock(mutex_);
    known_.resize(want.size(), kRounding);
    if (std::ranges::equal(distances, known_, [](auto& found, auto& known) { return found.within(known); }))
      return true;
  }
  for (const size_t i : with.undefined) got[i] = want[i];
  SavedState after(with.all, inputs, /*tensors=*/false);
  drawn.restore();
  bool right = false;
  try {
    right = judge(before(inputs, saved.contents()), want, got);
  } catch (...) {
    after.restore();
    throw;
  }
  after.restore();
  if (!right) return true;
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < want.size(); ++i) {
    known_[i].worst = std::max(known_[i].worst, distances[i].worst);
    known_[i].mean = std::max(known_[i].mean, distances[i].mean);
  }
  return true;
}

bool Reference::judge(const Tensors& given, const Tensors& want, const Tensors& got) const {
  bool right = false;
  with_python([&] {
    static constinit Imported compare("magneto._debug.checks", "compare_runs");
    Ref labels = checked(PyList_New(0));
    for (const std::string& name : names()) {
      if (PyList_Append(labels.get(), text_object(name).get()) < 0) throw PythonError{};
    }
    Ref places = checked(PyList_New(0));
    for (const graph::Undo::Written& one : operators().all.written) {
      if (PyList_Append(places.get(), checked(PyLong_FromSize_t(one.input)).get()) < 0) throw PythonError{};
    }
    const bool draws = !operators().all.generators.empty();
    const Ref found = checked(PyObject_CallFunctionObjArgs(
        compare.get(), graph::graph_capsule(graph_).get(), list_of(given).get(), labels.get(), list_of(want).get(),
        list_of(got).get(), places.get(), draws ? Py_True : Py_False, nullptr));
    right = PyList_GET_SIZE(found.get()) == 0;
    if (right) return;
    ++run_checks().differences;
    static constinit Imported tell("magneto._debug.checks", "differs");
    checked_of_tool(PyObject_CallFunctionObjArgs(tell.get(), text_object(origin_.place).get(), found.get(), nullptr));
  });
  return right;
}

bool Reference::run_watched(const CompiledProgram& program, const at::Tensor* const* inputs,
                            at::Tensor* outputs) const {
  const Operators& with = operators();
  const bool tells = !told_nan_ || !told_infinity_;
  const std::vector<at::Tensor> contents = tells ? written(inputs) : std::vector<at::Tensor>();
  SavedState drawn(with.all, inputs, /*tensors=*/false);
  if (!program.run(inputs, outputs)) return false;
  Nonfinite found;
  const auto look = [&](const at::Tensor& tensor) {
    const Nonfinite in = nonfinite_in(tensor);
    found.nan |= in.nan;
    found.infinity |= in.infinity;
  };
  for (size_t i = 0; i < graph_.outputs.size(); ++i) {
    if (!with.undefined.contains(i)) look(outputs[i]);
  }
  for (const graph::Undo::Written& one : with.all.written) look(*inputs[one.input]);
  if (!found.nan && !found.infinity) return true;
  ++run_checks().nonfinite;
  if ((found.nan ? told_nan_ : told_infinity_).exchange(true) || !with.left_out.empty()) return true;
  SavedState after(with.all, inputs, /*tensors=*/false);
  drawn.restore();
  const std::string where = first_nonfinite(before(inputs, contents), found.nan);
  after.restore();
  with_python([&] {
    static constinit Imported tell("magneto._debug.checks", "nonfinite");
    checked(PyObject_CallFunctionObjArgs(tell.get(), text_object(origin_.place).get(), text_object(where).get(),
                                         found.nan ? Py_True : Py_False, nullptr));
  });
  return true;
}

namespace {

/// The first `count` operators, with all that they made as outputs.
graph::Graph beginning_of(const graph::Graph& whole, size_t count) {
  graph::Graph part = whole;
  part.aten_nodes.resize(count, whole.aten_nodes.front());
  part.outputs.clear();
  for (graph::ValueId id = 0; id < static_cast<graph::ValueId>(part.values.size()); ++id) {
    graph::Value& value = part.values[id];
    if (value.kind != graph::ValueKind::Result) continue;
    if (value.producer < static_cast<int32_t>(count)) {
      part.outputs.push_back(id);
    } else {  // a value that nothing makes is none
      value.kind = graph::ValueKind::Constant;
      value.producer = -1;
      value.constant = at::empty({0});
      value.meta = graph::meta_of(value.constant);
    }
  }
  return part;
}

}  // namespace

std::string Reference::first_nonfinite(const Tensors& given, bool nan) const {
  const at::NoGradGuard no_grad;
  const SavedState drawn(operators().all, pointers_to(given).data(), /*tensors=*/false);
  const auto is_odd = [&](const at::Tensor& tensor) {
    const Nonfinite in = nonfinite_in(tensor);
    return nan ? in.nan : in.infinity;
  };
  for (size_t i = 0; i < given.size(); ++i) {
    if (is_odd(given[i])) return "it came in with input " + graph_.values[graph_.inputs[i]].name;
  }
  const auto is_odd_after = [&](size_t count) {
    Tensors own = given;
    for (const graph::Undo::Written& one : operators().all.written) own[one.input] = given[one.input].clone();
    SavedState copy = drawn;
    copy.restore();
    const AtenProgram part(beginning_of(graph_, count));
    Tensors values(part.output_count());
    part.run(pointers_to(own).data(), values.data());
    return std::ranges::any_of(values, is_odd) || std::ranges::any_of(own, is_odd);
  };
  size_t without = 0, with = graph_.aten_nodes.size();
  if (!is_odd_after(with)) return "the captured operators, one by one, give none: generated code does";
  while (with - without > 1) {
    const size_t middle = (without + with) / 2;
    (is_odd_after(middle) ? with : without) = middle;
  }
  const std::string& known = origin_.operators[with - 1];
  return "first at " + (known.empty() ? graph::operator_text(graph_.aten_nodes[with - 1].op) : known);
}

}  // namespace magneto::runtime
