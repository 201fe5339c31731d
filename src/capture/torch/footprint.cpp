#include "capture/torch/footprint.h"

#include <algorithm>
#include <unordered_set>

#include "capture/calls/deferred.h"
#include "capture/numbers/numbers.h"
#include "capture/torch/gradients.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "graph/aliases.h"
#include "graph/text.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

constexpr size_t kMostObjects = 20'000;

bool has_no_parts(PyObject* object) {
  return !PyObject_IS_GC(object) || is_tensor(object) || PyType_Check(object) || PyModule_Check(object) ||
         PyCode_Check(object);
}

std::vector<PyObject*> referents_of(PyObject* object) {
  std::vector<PyObject*> found;
  const auto visit = [](PyObject* referent, void* list) {
    static_cast<std::vector<PyObject*>*>(list)->push_back(referent);
    return 0;
  };
  if (const traverseproc traverse = Py_TYPE(object)->tp_traverse) traverse(object, visit, &found);
  if (PyFunction_Check(object)) {  // what a module holds is from outside, and written to in overlays
    const auto* function = reinterpret_cast<PyFunctionObject*>(object);
    std::erase_if(found,
                  [&](PyObject* part) { return part == function->func_globals || part == function->func_builtins; });
  }
  return found;
}

}  // namespace

Snapshot::Snapshot(const Capture& capture, std::vector<PyObject*> roots) {
  std::unordered_set<PyObject*> seen;
  while (!roots.empty()) {
    PyObject* object = roots.back();
    roots.pop_back();
    const bool outside = capture.world.is_outside(object) || capture.world.cell_contents.contains(object);
    if (has_no_parts(object) || outside || !seen.insert(object).second) continue;
    if (seen.size() > kMostObjects) {
      unknown_ = "it can reach more than " + std::to_string(kMostObjects) + " objects";
      return;
    }
    if (PyIter_Check(object)) {
      unknown_ = "it can reach an iterator (" + std::string(Py_TYPE(object)->tp_name) + ")";
      return;
    }
    objects_.emplace_back(Ref::borrow(object), referents_of(object));
    const std::vector<PyObject*>& parts = objects_.back().second;
    roots.insert(roots.end(), parts.begin(), parts.end());
  }
}

std::string Snapshot::change() const {
  if (!unknown_.empty()) return unknown_;
  const auto changed = std::ranges::find_if(
      objects_, [](const auto& object) { return referents_of(object.first.get()) != object.second; });
  if (changed == objects_.end()) return {};
  return "it changes an object that was made before it (" + std::string(Py_TYPE(changed->first.get())->tp_name) + ")";
}

static int64_t drawn(const Capture& capture) {
  int64_t count = 0;
  for (const Numbers::Drawn& drawn : capture.numbers.draws) count += drawn.last;
  return count;
}

Footprint::Footprint(const Capture& capture)
    : session(capture.session->mark()),
      torch_nodes(capture.graph.torch_nodes.size()),
      symbols(capture.graph.symbols.size()),
      writes(capture.overlays.writes),
      deferred(capture.deferred.calls.size()),
      hooks(capture.gradients.hooks.size()),
      switched(capture.torch.switches.sets),
      draws(drawn(capture)) {}

std::string Footprint::change(const Capture& capture, const Snapshot& before) const {
  if (capture.overlays.writes != writes) return "it changes an object from outside";
  if (std::string change = before.change(); !change.empty()) return change;
  if (capture.deferred.calls.size() != deferred) return "it makes a call that is put off to the end";
  if (capture.gradients.hooks.size() != hooks) return "it registers a hook on a gradient";
  if (capture.torch.switches.sets != switched) return "it sets a switch of the process";
  if (drawn(capture) != draws) return "it draws a number from Python's generator";
  const graph::Graph& graph = capture.graph;
  const fake::Session::Mark now = capture.session->mark();
  size_t changes = session.metadata_changes + (now.as_views - session.as_views);
  for (const graph::ValueId id : changed_in_place(graph, session.aten_nodes)) {
    const bool is_own = static_cast<size_t>(id) >= session.values;
    changes += is_own && graph.values[id].kind == graph::ValueKind::Result;
  }
  if (now.metadata_changes > changes) {
    return "an in-place operator changes the sizes of a tensor that was there before it";
  }
  return {};
}

std::string Footprint::hidden_effect(const graph::Graph& graph) const {
  for (size_t i = session.aten_nodes; i < graph.aten_nodes.size(); ++i) {
    const graph::AtenNode& node = graph.aten_nodes[i];
    for (const graph::AtenArg& arg : node.args) {
      const auto* constant = std::get_if<c10::IValue>(&arg);
      if (constant && constant->isGenerator()) return "it draws from a generator of its own";
    }
    if (graph::writes_argument(node, 0) && !graph::writes_argument(node.op.schema(), 0)) {
      return graph::operator_text(node.op) + " changes a buffer";
    }
  }
  return {};
}

std::vector<graph::ValueId> changed_in_place(const graph::Graph& graph, size_t from) {
  std::vector<graph::ValueId> changed;
  for (size_t i = from; i < graph.aten_nodes.size(); ++i) {
    const graph::AtenNode& node = graph.aten_nodes[i];
    if (graph::changes_metadata(node.op)) changed.push_back(std::get<graph::ValueId>(node.args[0]));
  }
  return changed;
}

}  // namespace magneto::capture
