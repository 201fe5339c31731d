#include "capture/torch/linear_maps.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "capture/calls/handlers.h"
#include "capture/capture.h"
#include "capture/interpreter/interp_frame.h"
#include "capture/torch/footprint.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "graph/aliases.h"
#include "graph/region.h"
#include "graph/text.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

constexpr const char* kMarkName = "magneto.linear_mark";

struct LinearMark {
  BreakSite site;
  Footprint marks;
  Snapshot before;
};

const LinearMark& mark_of(PyObject* object) {
  return *static_cast<LinearMark*>(PyCapsule_GetPointer(object, kMarkName));
}

/// The instruction of the program that calls linearize.
BreakSite site_of_linearize(const InterpFrame* frame) {
  const auto is_ours = [](PyObject* function) {
    PyObject* module = function && PyFunction_Check(function) ? PyFunction_GET_MODULE(function) : nullptr;
    return module && PyUnicode_Check(module) && std::string_view(PyUnicode_AsUTF8(module)).starts_with("magneto.");
  };
  while (frame->caller && is_ours(frame->function.get())) frame = frame->caller;
  return {frame->info->code, frame->pc};
}

/// PyTorch records operators, under which such modes leave what the operators came to.
bool has_modes() {
  return is_transforming() || at::autocast::is_autocast_enabled(at::kCPU) ||
         at::impl::PythonTorchFunctionTLS::stack_len() > 0;
}

/// What has been written to that was there before the mark; empty: nothing.
std::string written_since(const Capture& capture, const Footprint& marks) {
  const graph::Graph& graph = capture.graph;
  const graph::Aliases aliases(graph);
  std::unordered_set<int32_t> around;
  for (size_t id = 0; id < graph.values.size(); ++id) {
    const auto value = static_cast<graph::ValueId>(id);
    if (marks.was_before(graph, value)) around.insert(aliases.group(value));
  }
  std::string found;
  for (size_t i = marks.session.aten_nodes; i < graph.aten_nodes.size() && found.empty(); ++i) {
    const graph::AtenNode& node = graph.aten_nodes[i];
    if (node.op.hasTag(at::Tag::nondeterministic_seeded)) found = graph::operator_text(node.op) + " draws numbers";
    for (size_t a = 0; a < node.args.size(); ++a) {
      if (!graph::writes_argument(node.op.schema(), a)) continue;
      graph::for_each_tensor(node.args[a], [&](graph::ValueId id) {
        if (around.contains(aliases.group(id))) found = graph::operator_text(node.op) + " writes to a tensor";
      });
    }
  }
  return found;
}

/// Why they are not what PyTorch's map gives; empty: they are.
std::string fault_of(PyObject* given, PyObject* results) {
  bool needs_grad = false;
  std::unordered_set<const void*> memory;
  const auto storage = [](const at::Tensor& tensor) -> const void* {
    return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  };
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(given); ++i) {
    const at::Tensor& tensor = unpack_tensor(PySequence_Fast_GET_ITEM(given, i));
    needs_grad |= tensor.requires_grad();
    memory.insert(storage(tensor));
  }
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(results); ++i) {
    PyObject* const result = PySequence_Fast_GET_ITEM(results, i);
    if (!is_fake_tensor(result) || unpack_tensor(result)._is_zerotensor()) return "a result that does not depend on it";
    const at::Tensor& tensor = unpack_tensor(result);
    if (tensor.requires_grad() && !needs_grad) return "a result that needs gradients of something else";
    if (!memory.insert(storage(tensor)).second) return "results that share memory";
  }
  return {};
}

[[noreturn]] void refuse(Capture& capture, const LinearMark& mark, const std::string& why) {
  capture.feedback.unconditional.emplace(mark.site, why);
  throw Retry{};
}

}  // namespace

Ref make_linear_mark(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "linear_mark");
  const BreakSite site = site_of_linearize(capture.frame);
  PyObject* const primals = args.values[1];
  bool known = PyTuple_CheckExact(primals) && !has_modes() && !capture.feedback.unconditional.contains(site);
  if (!known) return Ref::borrow(Py_None);
  auto mark =
      std::make_unique<LinearMark>(LinearMark{site, Footprint(capture), Snapshot(capture, {args.values[0], primals})});
  Ref made = checked(PyCapsule_New(mark.get(), kMarkName, [](PyObject* capsule) {
    delete static_cast<LinearMark*>(PyCapsule_GetPointer(capsule, kMarkName));
  }));
  mark.release();
  return made;
}

Ref check_linear_mark(Capture& capture, const CallArgs& args) {
  check_count(args, 3, 3, "linear_check");
  const LinearMark& mark = mark_of(args.values[0]);
  if (has_modes()) refuse(capture, mark, "it is called under a mode or a transform");
  for (const std::string& why : {mark.marks.change(capture, mark.before), mark.marks.hidden_effect(capture.graph),
                                 written_since(capture, mark.marks), fault_of(args.values[1], args.values[2])}) {
    if (!why.empty()) refuse(capture, mark, why);
  }
  return Ref::borrow(Py_None);
}

bool is_linear_mark(PyObject* object) { return PyCapsule_IsValid(object, kMarkName) != 0; }

void refuse_linear_mark(Capture& capture, PyObject* mark) { refuse(capture, mark_of(mark), "the map is handed on"); }

}  // namespace magneto::capture
