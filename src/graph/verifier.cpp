// The invariants that graph.h states, checked. Runs after each capture in strict mode and in tests.
#include "graph/verifier.h"

#include <ATen/core/jit_type.h>

#include <map>

#include "graph/aliases.h"
#include "graph/graph.h"
#include "graph/literal.h"
#include "graph/text.h"

namespace magneto::graph {
namespace {

class Verifier {
 public:
  explicit Verifier(const Graph& graph) : graph_(graph), defined_(graph.values.size(), false) {}

  std::vector<std::string> run(bool by_call) {
    check_values();
    for (size_t i = 0; i < graph_.aten_nodes.size(); ++i) check_node(static_cast<int32_t>(i));
    check_producers();
    check_regions();
    if (by_call) check_order_of_children();
    check_torch_nodes();
    check_outputs();
    return std::move(violations_);
  }

 private:
  void report(std::string line) { violations_.push_back(std::move(line)); }

  static std::string name(ValueId id) { return '%' + std::to_string(id); }
  std::string name(const AtenNode& node) const {
    return "operator " + std::to_string(&node - graph_.aten_nodes.data()) + " (" + operator_text(node.op) + ")";
  }

  bool in_range(ValueId id) const { return id >= 0 && id < static_cast<ValueId>(graph_.values.size()); }

  void check_values() {
    std::vector<bool> listed(graph_.values.size(), false);
    for (const ValueId id : graph_.inputs) {
      if (!in_range(id)) {
        report("input " + name(id) + " is no value");
        continue;
      }
      if (listed[id]) report("input " + name(id) + " is listed twice");
      if (graph_.values[id].kind != ValueKind::Input) report(name(id) + " is listed as an input but is none");
      listed[id] = defined_[id] = true;
    }
    for (ValueId id = 0; id < static_cast<ValueId>(graph_.values.size()); ++id) {
      const Value& value = graph_.values[id];
      const std::vector<int64_t>& strides = value.meta.strides;
      if (!strides.empty() && strides.size() != value.meta.sizes.size()) {
        report(name(id) + " has " + std::to_string(value.meta.sizes.size()) + " sizes but " +
               std::to_string(strides.size()) + " strides");
      }
      if (value.kind != ValueKind::Result && value.producer != -1)
        report(name(id) + " is no result but has a producer");
      if (value.kind != ValueKind::Constant) continue;
      defined_[id] = true;
      if (!value.constant.defined()) {
        report("constant " + name(id) + " has no tensor");
      } else if (meta_of(value.constant) != value.meta) {
        report("constant " + name(id) + " is not what its type says");
      }
    }
  }

  void check_node(int32_t index) {
    const AtenNode& node = graph_.aten_nodes[index];
    const c10::FunctionSchema& schema = node.op.schema();
    if (node.args.size() != schema.arguments().size()) {
      report(name(node) + " has " + std::to_string(node.args.size()) + " arguments, its schema " +
             std::to_string(schema.arguments().size()));
    }
    std::vector<ValueId> operands;
    for (size_t i = 0; i < std::min(node.args.size(), schema.arguments().size()); ++i) {
      check_kind(node, node.args[i], schema.arguments()[i]);
      for_each_tensor(node.args[i], [&](ValueId id) {
        if (!in_range(id)) return report(name(node) + " uses " + name(id) + ", which is no value");
        if (!defined_[id]) report(name(node) + " uses " + name(id) + " before its definition");
        operands.push_back(id);
      });
    }
    check_result_count(node, schema);
    for (const ValueId id : node.results) {
      if (id == kNoValue) continue;
      if (!in_range(id)) {
        report(name(node) + " gives " + name(id) + ", which is no value");
      } else if (!defined_[id]) {
        defined_[id] = true;
        if (graph_.values[id].producer != index)
          report(name(id) + " is made by " + name(node) + ", not by its producer");
      } else if (std::find(operands.begin(), operands.end(), id) == operands.end()) {
        report(name(node) + " gives " + name(id) + ", which exists already and is none of its operands");
      }
    }
    if (node.torch_node < -1 || node.torch_node >= static_cast<int32_t>(graph_.torch_nodes.size())) {
      report(name(node) + " belongs to torch call " + std::to_string(node.torch_node) + ", which does not exist");
    }
  }

  void check_kind(const AtenNode& node, const AtenArg& arg, const c10::Argument& argument) {
    const c10::Type& type = *argument.real_type();
    const bool optional = type.kind() == c10::TypeKind::OptionalType;
    bool fits = false;
    if (std::holds_alternative<std::shared_ptr<const Region>>(arg)) {
      fits = type.kind() == c10::TypeKind::AnyType;
    } else if (is_tensor_type(type)) {
      const auto* constant = std::get_if<c10::IValue>(&arg);
      fits = std::holds_alternative<ValueId>(arg) || (constant && optional && constant->isNone());
    } else if (is_tensor_list_type(type)) {
      const auto* constant = std::get_if<c10::IValue>(&arg);
      fits = std::holds_alternative<std::vector<ValueId>>(arg) || (constant && optional && constant->isNone());
    } else if (const auto* sizes = std::get_if<SizeArg>(&arg)) {
      fits = !sizes->sizes.empty();
    } else if (const auto* number = std::get_if<ValueId>(&arg)) {
      fits = in_range(*number) && graph_.values[*number].meta.sizes.empty();
    } else if (const auto* constant = std::get_if<c10::IValue>(&arg)) {
      fits = constant->isNone() ? optional : !constant->isTensor() && !constant->isTensorList();
      if (fits && !constant->isNone()) fits = constant_fits(*constant, type);
    }
    if (!fits) report(name(node) + ": argument '" + argument.name() + "' is no " + type.str());
  }

  static bool constant_fits(const c10::IValue& value, const c10::Type& type) {
    const c10::Type* inner = &type;
    while (inner->kind() == c10::TypeKind::OptionalType)
      inner = inner->castRaw<c10::OptionalType>()->getElementType().get();
    switch (inner->kind()) {
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        return value.isInt() || value.isSymInt();
      case c10::TypeKind::ScalarTypeType:
      case c10::TypeKind::LayoutType:
      case c10::TypeKind::MemoryFormatType:
        return value.isInt();
      case c10::TypeKind::FloatType:
        return value.isDouble() || value.isSymFloat();
      case c10::TypeKind::BoolType:
        return value.isBool() || value.isSymBool();
      case c10::TypeKind::NumberType:
        return value.isScalar();
      case c10::TypeKind::StringType:
        return value.isString();
      case c10::TypeKind::DeviceObjType:
        return value.isDevice();
      case c10::TypeKind::ListType:
        return value.isList();
      default:
        return true;
    }
  }

  void check_result_count(const AtenNode& node, const c10::FunctionSchema& schema) {
    size_t tensors = 0;
    bool lists = false;
    for (const c10::Argument& result : schema.returns()) {
      tensors += is_tensor_type(*result.real_type());
      lists |= is_tensor_list_type(*result.real_type());
    }
    if (lists ? node.results.size() < tensors : node.results.size() != tensors) {
      report(name(node) + " gives " + std::to_string(node.results.size()) + " tensors, its schema " +
             (lists ? "at least " : "") + std::to_string(tensors));
    }
  }

  void check_producers() {
    for (ValueId id = 0; id < static_cast<ValueId>(graph_.values.size()); ++id) {
      if (graph_.values[id].kind == ValueKind::Result && !defined_[id]) report(name(id) + " is made by no operator");
    }
  }

  /// Each is a sound graph, and is called by a name of its own.
  void check_regions() {
    std::map<std::string, const Region*> named;
    for_each_region(graph_, [&](const Region& region) {
      const auto [place, is_new] = named.emplace(region.name, &region);
      if (!is_new && place->second != &region) report("two regions are called @" + region.name);
      if (!is_new) return;
      for (const std::string& line : Verifier(region.graph).run(/*by_call=*/false)) {
        report("in region @" + region.name + ": " + line);
      }
    });
  }

  void check_order_of_children() {
    int32_t last = -1;
    std::vector<bool> closed(graph_.torch_nodes.size(), false);
    int32_t highest = -1;
    for (const AtenNode& node : graph_.aten_nodes) {
      const int32_t parent = node.torch_node;
      if (parent < -1 || parent >= static_cast<int32_t>(graph_.torch_nodes.size())) continue;
      if (parent != last && last >= 0) closed[last] = true;
      last = parent;
      if (parent < 0) continue;
      if (closed[parent]) {
        report("the children of torch call " + std::to_string(parent) + " are not contiguous at " + name(node));
        closed[parent] = false;  // once per gap
      } else if (parent < highest) {
        report("the children of torch call " + std::to_string(parent) + " stand after those of " +
               std::to_string(highest));
      }
      highest = std::max(highest, parent);
    }
  }

  void check_py_arg(size_t call, const PyArg& arg) {
    const bool tensor = arg.kind == PyArg::Kind::Value || arg.kind == PyArg::Kind::Number;
    if (tensor && !in_range(arg.value) && arg.value != kNoValue) {
      report("torch call " + std::to_string(call) + " uses " + name(arg.value) + ", which is no value");
    }
    for (const PyArg& item : arg.items) check_py_arg(call, item);
  }

  void check_torch_nodes() {
    for (size_t i = 0; i < graph_.torch_nodes.size(); ++i) {
      const TorchNode& node = graph_.torch_nodes[i];
      if (!node.target) report("torch call " + std::to_string(i) + " has no target");
      for (const PyArg& arg : node.args) check_py_arg(i, arg);
      for (const auto& [name, arg] : node.kwargs) check_py_arg(i, arg);
      for (const TorchResult& result : node.results) {
        if (!in_range(result.value)) {
          report("torch call " + std::to_string(i) + " gives " + name(result.value) + ", which is no value");
        }
      }
    }
  }

  void check_outputs() {
    std::vector<bool> seen(graph_.values.size(), false);
    for (const ValueId id : graph_.outputs) {
      if (!in_range(id) || !defined_[id]) {
        report("output " + name(id) + " is not defined");
        continue;
      }
      if (seen[id]) report("output " + name(id) + " is listed twice");
      seen[id] = true;
    }
  }

  const Graph& graph_;
  std::vector<bool> defined_;
  std::vector<std::string> violations_;
};

}  // namespace

std::vector<std::string> verify(const Graph& graph) { return Verifier(graph).run(/*by_call=*/true); }
std::vector<std::string> verify_operators(const Graph& graph) { return Verifier(graph).run(/*by_call=*/false); }

}  // namespace magneto::graph
