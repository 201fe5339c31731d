// From graph to steps: where tensors live, when they die, and how each operator is called.
#include <ATen/EmptyTensor.h>
#include <ATen/ScalarOps.h>

#include <algorithm>
#include <stdexcept>

#include "compiler/regions.h"
#include "graph/aliases.h"
#include "graph/literal.h"
#include "graph/versions.h"
#include "ops/operator.h"
#include "runtime/program/dispatch_scope.h"
#include "runtime/program/program_steps.h"

namespace magneto::runtime {
namespace {

using graph::AtenArg;
using graph::AtenNode;
using graph::Graph;
using graph::kNoValue;
using graph::TensorMeta;
using graph::Value;
using graph::ValueId;
using graph::ValueKind;

bool is_plain(const TensorMeta& meta) {
  const bool known_device = meta.device.is_cpu() || meta.device.is_cuda();
  const bool strided = meta.strides.size() == meta.sizes.size();
  return known_device && strided && !c10::isComplexType(meta.dtype) && !c10::isQIntType(meta.dtype);
}

class Builder {
 public:
  explicit Builder(const Graph& graph)
      : graph_(graph), aliases_(graph), program_(graph), observed_(graph.values.size(), false) {}

  AtenProgram::Impl run() {
    scope_.enter(/*with_tracking=*/false);
    program_.input_count = graph_.inputs.size();
    program_.plain = std::all_of(graph_.values.begin(), graph_.values.end(),
                                 [](const Value& value) { return is_plain(value.meta); }) &&
                     std::none_of(graph_.aten_nodes.begin(), graph_.aten_nodes.end(), [](const AtenNode& node) {
                       return ops::operator_of(node.op).is(ops::marks_tensors);
                     });
    find_last_uses();
    place_values();
    find_observed();
    result_symbols_ = graph_.symbols_of(ValueKind::Result);
    program_.steps.reserve(graph_.aten_nodes.size());
    for (size_t i = 0; i < graph_.aten_nodes.size(); ++i) add_step(static_cast<int32_t>(i));
    for (const ValueId id : graph_.outputs) program_.outputs.push_back(places_[id]);
    return std::move(program_);
  }

 private:
  static constexpr int32_t kNever = -1;

  void find_last_uses() {
    last_use_.assign(graph_.values.size(), kNever);
    for (size_t i = 0; i < graph_.aten_nodes.size(); ++i) {
      graph::for_each_operand(graph_.aten_nodes[i], [&](ValueId id) { last_use_[id] = static_cast<int32_t>(i); });
    }
    for (const ValueId id : graph_.outputs) last_use_[id] = static_cast<int32_t>(graph_.aten_nodes.size());
  }

  void place_values() {
    places_.resize(graph_.values.size());
    for (size_t i = 0; i < graph_.inputs.size(); ++i) {
      places_[graph_.inputs[i]] = {Place::Input, false, static_cast<int32_t>(i)};
    }
    for (ValueId id = 0; id < static_cast<ValueId>(graph_.values.size()); ++id) {
      const Value& value = graph_.values[id];
      if (value.kind == ValueKind::Constant && last_use_[id] != kNever) {
        if (aliases_.needs_copy(id)) {
          places_[id] = {Place::Register, false, program_.register_count++};
          program_.copied_constants.push_back({value.constant, places_[id].index});
        } else {
          places_[id] = {Place::Constant, false, static_cast<int32_t>(program_.constants.size())};
          program_.constants.push_back(value.constant);
        }
      } else if (value.kind == ValueKind::Result && last_use_[id] != kNever) {
        places_[id] = {Place::Register, false, program_.register_count++};
      }
    }
  }

  /// Finds the tensors whose version counter or view metadata somebody outside can see: outputs, written values that
  /// share memory with inputs or outputs, and the views that lead to them.
  void find_observed() {
    for (const ValueId id : graph_.outputs) observed_[id] = true;
    for (size_t i = graph_.aten_nodes.size(); i-- > 0;) {
      const AtenNode& node = graph_.aten_nodes[i];
      const auto& schema = node.op.schema();
      for (size_t a = 0; a < node.args.size(); ++a) {
        if (!graph::writes_argument(schema, a)) continue;
        graph::for_each_tensor(node.args[a], [&](ValueId id) {
          if (aliases_.input(id) || aliases_.output(id)) observed_[id] = true;
        });
      }
      const bool visible = std::any_of(node.results.begin(), node.results.end(),
                                       [&](ValueId id) { return id != kNoValue && observed_[id]; });
      if (!visible || !graph::effects_of(node.op).aliases) continue;
      for (size_t a = 0; a < node.args.size(); ++a) {
        if (!schema.arguments()[a].alias_info()) continue;
        graph::for_each_tensor(node.args[a], [&](ValueId id) { observed_[id] = true; });
      }
    }
  }

  /// The place of an operand of the node being added. The register is given up at its last mention.
  Operand operand(ValueId id) { return id == kNoValue ? Operand{Place::Register, false, -1} : places_[id]; }

  void add_step(int32_t index) {
    const AtenNode& node = graph_.aten_nodes[index];
    Step step{node.op};
    step.node = index;
    const auto& arguments = node.op.schema().arguments();
    for (size_t i = 0; i < node.args.size(); ++i) {
      step.arguments.push_back(make_argument(node.args[i], *arguments[i].real_type()));
    }
    mark_last_uses(step, index);
    std::vector<ValueId> operands;
    graph::for_each_operand(node, [&](ValueId id) { operands.push_back(id); });
    for (const ValueId id : node.results) {
      const bool is_operand = std::find(operands.begin(), operands.end(), id) != operands.end();
      const bool kept = id != kNoValue && !is_operand && last_use_[id] != kNever;
      step.results.push_back(kept ? places_[id].index : -1);
    }
    for (const graph::SymbolBinding& symbol : result_symbols_) {
      const auto found = std::ranges::find(node.results, symbol.value);
      if (found != node.results.end()) step.symbols.emplace_back(found - node.results.begin(), symbol);
    }
    choose_mode(step, node, operands);
    if (step.mode == CallMode::Direct && step.symbols.empty()) {
      step.view = make_static_view(node, step);
      wrap_number(step);
      const bool sized = std::ranges::any_of(
          step.arguments, [](const Argument& argument) { return argument.kind == Argument::Kind::Size; });
      if (!step.view && !sized) step.typed = find_typed_call(step);
    }
    program_.steps.push_back(std::move(step));
  }

  Argument make_argument(const AtenArg& arg, const c10::Type& type) {
    Argument argument;
    if (const auto* constant = std::get_if<c10::IValue>(&arg)) {
      argument.constant = *constant;
    } else if (const auto* id = std::get_if<ValueId>(&arg)) {
      if (*id == kNoValue) {
        const bool optional = type.kind() == c10::TypeKind::OptionalType;
        argument.constant = optional ? c10::IValue() : c10::IValue(at::Tensor());
      } else {
        argument.kind = Argument::Kind::Tensor;
        argument.tensor = operand(*id);
        argument.as_number = !graph::is_tensor_type(type);
      }
    } else if (const auto* sizes = std::get_if<graph::SizeArg>(&arg)) {
      argument.kind = Argument::Kind::Size;
      argument.size = *sizes;
    } else if (const auto* region = std::get_if<std::shared_ptr<const graph::Region>>(&arg)) {
      argument.constant = compiler::call_region(**region);
    } else {
      // Tensor?[] wants a list of optional tensors, Tensor[] a list of tensors.
      const c10::Type* list = &type;
      while (list->kind() == c10::TypeKind::OptionalType) {
        list = list->castRaw<c10::OptionalType>()->getElementType().get();
      }
      const auto& element = *list->castRaw<c10::ListType>()->getElementType();
      argument.kind = element.kind() == c10::TypeKind::OptionalType ? Argument::Kind::OptionalTensorList
                                                                    : Argument::Kind::TensorList;
      for (const ValueId id : std::get<std::vector<ValueId>>(arg)) argument.list.push_back(operand(id));
    }
    return argument;
  }

  void mark_last_uses(Step& step, int32_t index) {
    // Backwards, so that of several mentions in one call only the last one gives the register up.
    std::vector<int32_t> given_up;
    const auto mark = [&](Operand& operand) {
      if (operand.place != Place::Register || operand.index < 0) return;
      if (std::find(given_up.begin(), given_up.end(), operand.index) != given_up.end()) return;
      if (last_use_of_register(operand.index) != index) return;
      operand.last_use = true;
      given_up.push_back(operand.index);
    };
    for (size_t i = step.arguments.size(); i-- > 0;) {
      Argument& argument = step.arguments[i];
      if (argument.kind == Argument::Kind::Tensor) mark(argument.tensor);
      for (size_t j = argument.list.size(); j-- > 0;) mark(argument.list[j]);
    }
  }

  int32_t last_use_of_register(int32_t index) {
    if (register_last_use_.empty()) {
      register_last_use_.assign(program_.register_count, kNever);
      for (size_t id = 0; id < places_.size(); ++id) {
        if (places_[id].place == Place::Register && places_[id].index >= 0) {
          register_last_use_[places_[id].index] = last_use_[id];
        }
      }
    }
    return register_last_use_[index];
  }

  void choose_mode(Step& step, const AtenNode& node, const std::vector<ValueId>& operands) {
    // An operator's key comes from its operands; a factory has none and is placed by its result.
    const auto add_key = [&](ValueId id) {
      const bool cuda = graph_.values[id].meta.device.is_cuda();
      step.keys = step.keys | c10::DispatchKeySet(cuda ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU);
    };
    for (const ValueId id : operands) add_key(id);
    for (const ValueId id : node.results) {
      if (operands.empty() && id != kNoValue) add_key(id);
    }
    const auto is_observed = [&](ValueId id) { return id != kNoValue && observed_[id]; };
    const graph::Effects effects = graph::effects_of(node.op);
    bool tracked = effects.aliases && std::any_of(node.results.begin(), node.results.end(), is_observed);
    std::vector<Operand> written;
    for (size_t i = 0; i < node.args.size(); ++i) {
      if (!graph::writes_argument(node.op.schema(), i)) continue;
      graph::for_each_tensor(node.args[i], [&](ValueId id) {
        if (!aliases_.input(id) && !aliases_.output(id)) return;
        tracked = true;
        written.push_back(places_[id]);
      });
    }
    // In inference mode composite operators are recorded whole; what they call must be tracked in its turn. So must
    // what custom operators call, as their kernels are written for the state that eager leaves them in.
    const bool composite = node.op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    const bool custom = !node.op.operator_name().name.starts_with("aten::");
    if (!program_.plain || step.keys.empty() || custom || (composite && (tracked || effects.aliases))) {
      step.mode = CallMode::Dispatched;
    } else if (tracked && node.op.hasKernelForDispatchKey(c10::DispatchKey::ADInplaceOrView)) {
      step.mode = CallMode::Tracked;
    } else {
      step.mode = CallMode::Direct;
      if (graph::moves_versions(node.op)) step.bumped = std::move(written);
    }
  }

  /// The Scalar overloads of arithmetic wrap their number as a tensor and call the Tensor overload at every run. Doing
  /// it once here gives the same call.
  void wrap_number(Step& step) {
    const c10::OperatorName& name = step.op.operator_name();
    if (name.overload_name != "Scalar" || !step.arguments[1].constant.isScalar()) return;
    if (!ops::operator_of(step.op).is(ops::wraps_number)) return;
    step.op = c10::Dispatcher::singleton().findSchemaOrThrow(name.name.c_str(), "Tensor");
    Argument number;
    number.kind = Argument::Kind::Tensor;
    number.tensor = {Place::Constant, false, static_cast<int32_t>(program_.constants.size())};
    program_.constants.push_back(at::native::wrapped_scalar_tensor(step.arguments[1].constant.toScalar()));
    step.arguments[1] = std::move(number);
  }

  /// Asks the operator itself for the geometry of its results, on a tensor without data. Null when this is no such
  /// view.
  std::unique_ptr<StaticView> make_static_view(const AtenNode& node, const Step& step) {
    // Under a dispatch mode (a capture, for one) operators would not be run but seen.
    if (!ops::operator_of(node.op).is(ops::fixed_view) || !scope_.is_plain()) return nullptr;
    const TensorMeta& source = graph_.values[std::get<ValueId>(node.args[0])].meta;
    auto view = std::make_unique<StaticView>(StaticView{source.sizes, source.strides, {}});
    try {
      torch::jit::Stack stack;
      stack.emplace_back(at::Tensor(at::detail::empty_strided_meta(source.sizes, source.strides, source.dtype)));
      for (size_t i = 1; i < step.arguments.size(); ++i) {
        if (step.arguments[i].kind != Argument::Kind::Constant) return nullptr;
        stack.push_back(step.arguments[i].constant);
      }
      node.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
      const auto add_result = [&](const at::Tensor& result) {
        view->results.push_back({result.sizes().vec(), result.strides().vec(), result.storage_offset()});
      };
      for (const c10::IValue& value : stack) {
        if (value.isTensor()) add_result(value.toTensor());
        if (!value.isTensorList()) continue;
        for (const at::Tensor& result : value.toTensorVector()) add_result(result);
      }
    } catch (const c10::Error&) {
      return nullptr;  // the call itself will raise, each time it runs
    }
    return view->results.size() == step.results.size() ? std::move(view) : nullptr;
  }

  DispatchScope scope_;
  const Graph& graph_;
  const graph::Aliases aliases_;
  AtenProgram::Impl program_;
  std::vector<bool> observed_;
  std::vector<graph::SymbolBinding> result_symbols_;
  std::vector<int32_t> last_use_;
  std::vector<int32_t> register_last_use_;
  std::vector<Operand> places_;
};

}  // namespace

AtenProgram::Impl build_program(const Graph& graph) {
  if (const auto violations = graph::verify(graph); !violations.empty()) {
    throw std::invalid_argument("unsound graph: " + violations.front());
  }
  return Builder(graph).run();
}

}  // namespace magneto::runtime
