// Bools that the data say, and that a program goes by in many places: `has_padding = mask.any().item()`.
//
// What one is in this call, the operators that it follows from compute on this call's tensors. The capture goes on with
// that, and each run checks it (magneto::assume): where it is the other one, CPython runs the segment. Where that comes
// often, the next capture ends in front of the `item()`. `bool(mask.any())` is the same.
//
// A torch.amp.GradScaler asks whether all gradients are finite: that they are is assumed without computing them. It is
// so but for the few steps in which the scale is found, so each of the others is one graph, and these CPython runs,
// however many there are.
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <optional>
#include <set>

#include "capture/calls/native_mode.h"
#include "capture/capture.h"
#include "capture/interpreter/interp_frame.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/tried_numbers.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "fake/operator_facts.h"
#include "graph/aliases.h"
#include "graph/operator_run.h"
#include "python/imported.h"
#include "python/made_once.h"
#include "runtime/program/promise.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

/// More operators than these, and tensors of more elements, are not computed for the sake of a bool.
constexpr size_t kMostComputed = 64;
constexpr int64_t kMostElements = 1 << 20;

/// The operators that a value follows from. `of_state`: of nothing but modules' small buffers.
class Computation {
 public:
  explicit Computation(Capture& capture, bool of_state = false)
      : c(capture), of_state_(of_state), aliases_(capture.graph) {
    part_.values = capture.graph.values;
  }

  /// What `read` gives of the tensor in this call. Nothing: not to be had without an effect, or for little.
  template <typename T>
  std::optional<T> value(graph::ValueId id, std::optional<T> (*read)(const at::Tensor& value)) {
    if (!collect(id)) return {};
    part_.outputs = {id};
    const graph::OperatorRun::StandIns real = {
        .constant = [](const at::Tensor& constant) { return constant.clone(); },  // it may be written
        .size = [&](shapes::Expr size) { return c10::SymInt(c.session->sizes().example(size)); },
        .number = [](const at::Tensor& holder) { return c10::SymFloat(holder.item<double>()); }};
    const fake::Session::Pause pause;
    const at::NoGradGuard no_grad;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    try {
      return read(graph::OperatorRun(part_, real).run(inputs_).at(0));
    } catch (const c10::Error&) {  // the run will raise it
      return {};
    }
  }

 private:
  /// Backwards from the last operator: what makes a value that is needed, or writes its memory, needs its operands.
  bool collect(graph::ValueId id) {
    const auto& nodes = c.graph.aten_nodes;
    if (!need(id)) return false;
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
      const auto is_needed = [&](graph::ValueId result) { return needed_.contains(result); };
      if (!std::ranges::any_of(node->results, is_needed) && !writes_what_is_needed(*node)) continue;
      const fake::OperatorFacts& facts = fake::facts_of(node->op);
      const bool is_plain = node->op.operator_name().name.starts_with("aten::") && (facts.computes || facts.follows);
      if (!is_plain || graph::has_regions(*node) || part_.aten_nodes.size() == kMostComputed) return false;
      bool complete = true;
      graph::for_each_operand(*node, [&](graph::ValueId operand) { complete = complete && need(operand); });
      if (!complete) return false;
      part_.aten_nodes.push_back(*node);
    }
    std::ranges::reverse(part_.aten_nodes);
    return std::ranges::all_of(needed_, [&](graph::ValueId each) {
      const graph::Value& value = c.graph.values[each];
      const bool is_made = value.kind == graph::ValueKind::Result && value.producer >= 0;  // in this graph
      return is_made || value.kind == graph::ValueKind::Constant || add_input(each);
    });
  }

  /// False: it is too large, or the segment writes memory of the program's for it.
  bool need(graph::ValueId id) {
    if (!needed_.insert(id).second) return true;
    groups_.insert(aliases_.group(id));
    const bool writes_input = aliases_.written(id) && aliases_.input(id);
    return !writes_input && c10::multiply_integers(c.graph.values[id].meta.sizes) <= kMostElements;
  }

  bool writes_what_is_needed(const graph::AtenNode& node) const {
    bool writes = false;
    for (size_t i = 0; i < node.args.size(); ++i) {
      if (!graph::writes_argument(node, i)) continue;
      graph::for_each_tensor(node.args[i], [&](graph::ValueId id) { writes |= groups_.contains(aliases_.group(id)); });
    }
    return writes;
  }

  bool add_input(graph::ValueId id) {
    const auto found = c.tensors.inputs.find(id);
    if (found == c.tensors.inputs.end() || !is_tensor(found->second.real.get())) return false;
    const at::Tensor& real = unpack_tensor(found->second.real.get());
    if (fake::is_fake(real) || real.key_set().has(c10::DispatchKey::Python) || real.layout() != c10::kStrided) {
      return false;
    }
    if (of_state_ && !is_small_buffer(*found->second.source, real)) return false;
    part_.inputs.push_back(id);
    inputs_.push_back(real);
    return true;
  }

  Capture& c;
  const bool of_state_;
  const graph::Aliases aliases_;
  graph::Graph part_;
  std::vector<at::Tensor> inputs_;
  std::set<graph::ValueId> needed_;
  std::set<int32_t> groups_;  // of aliases
};

PyObject* assume_operator() {
  static constinit MadeOnce<PyObject> overload;
  return overload.get([] {
    static constinit Imported ops("torch", "ops");
    const Ref space = checked(PyObject_GetAttrString(ops.get(), "magneto"));
    const Ref packet = checked(PyObject_GetAttrString(space.get(), "assume"));
    return checked(PyObject_GetAttrString(packet.get(), "default")).release();
  });
}

void assume(Capture& c, PyObject* condition, const std::string& what) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("magneto::assume", "")
                                    .typed<void(const at::Tensor&, std::string_view)>();
  const Ref text = checked(PyUnicode_FromStringAndSize(what.data(), static_cast<Py_ssize_t>(what.size())));
  PyObject* args[] = {condition, text.get()};
  c.torch.record(graph::TorchNode::Kind::CallFunction, assume_operator(), args, nullptr, [&] {
    operation.call(unpack_tensor(condition), what);
    return Py_NewRef(Py_None);
  });
}

std::optional<bool> read_bool(const at::Tensor& value) {
  if (value.numel() != 1 || value.scalar_type() != at::kBool) return {};
  return value.item<bool>();
}

std::optional<int64_t> read_count(const at::Tensor& value) { return value.count_nonzero().item<int64_t>(); }

}  // namespace

std::optional<int64_t> count_of_data(Capture& c, graph::ValueId mask) {
  if (transform_depth() > 0) return {};
  return Computation(c).value(mask, read_count);
}

bool decides_step(const Capture& c) {
  static constinit Imported method("torch.amp.grad_scaler", "GradScaler._maybe_opt_step");
  if (!c.options.assumes_bools || !c.frame) return false;
  const auto is_of_method = [&](const InterpFrame* frame) {
    return frame && PyFunction_Check(method.get()) &&
           reinterpret_cast<PyObject*>(frame->info->code) == PyFunction_GET_CODE(method.get());
  };
  const bool is_generator = PyUnicode_CompareWithASCIIString(c.frame->info->code->co_name, "<genexpr>") == 0;
  return is_of_method(is_generator ? c.frame->caller : c.frame);  // the generator is one of the numbers
}

void assume_step(Capture& c, PyObject* number) {
  static constinit Imported eq("torch", "eq");
  static PyObject* const zero = PyLong_FromLong(0);
  const Ref sum = c.numbers.tensor_of_data_float(number);
  assume(c, c.torch.call_torch(eq.get(), {{sum.get(), zero}}).get(), runtime::kSteps);
}

Ref truth_of_state(Capture& c, PyObject* object) {
  if (!is_fake_tensor(object) || transform_depth() > 0 || c.torch.is_overridden({&object, 1})) return {};
  const at::Tensor& tensor = unpack_tensor(object);
  if (tensor.numel() != 1 || fake::known_value(tensor)) return {};
  if (tensor.scalar_type() == at::kBool) return bool_of_data(c, object, /*of_state=*/true);
  const graph::ValueId id = c.session->value_of(tensor);
  if (id == graph::kNoValue || c.tensors.inputs.find(id) == c.tensors.inputs.end()) return {};
  static constinit Imported ne("torch", "ne");
  static PyObject* const zero = PyLong_FromLong(0);
  return bool_of_data(c, c.torch.call_torch(ne.get(), {{object, zero}}).get(), /*of_state=*/true);
}

Ref bool_of_data(Capture& c, PyObject* object, bool of_state) {
  if (!c.options.assumes_bools || !is_fake_tensor(object) || transform_depth() > 0) return {};
  if (c.mode.backwards_run) return {};  // where CPython could run nothing instead
  const at::Tensor& tensor = unpack_tensor(object);
  if (tensor.scalar_type() != at::kBool || tensor.numel() != 1 || fake::known_value(tensor)) return {};
  if (c.torch.is_overridden({&object, 1})) return {};
  const graph::ValueId id = c.session->value_of(tensor);
  if (id == graph::kNoValue) return {};
  const std::optional<bool> now = Computation(c, of_state).value(id, read_bool);
  if (!now) return {};

  static constinit Imported logical_not("torch", "logical_not");
  const Ref condition = *now ? Ref::borrow(object) : c.torch.call_torch(logical_not.get(), {{object}});
  const std::string what =
      (of_state ? runtime::kNoted : std::string("a bool that the data say is ")) + (*now ? "True" : "False");
  assume(c, condition.get(), what);
  c.feedback.checks_data_sizes = true;
  return Ref::borrow(*now ? Py_True : Py_False);
}

}  // namespace magneto::capture
