#include "compiler/decompose.h"

#include <ATen/ops/_local_scalar_dense_ops.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/reshape.h>
#include <ATen/ops/view_ops.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "fake/fake.h"
#include "fake/size_node.h"
#include "fake/sized_input.h"
#include "graph/aliases.h"
#include "graph/literal.h"
#include "graph/operator_calls.h"
#include "graph/results_of_call.h"
#include "graph/text.h"
#include "graph/torch_values.h"
#include "python/errors.h"
#include "python/imported.h"
#include "python/text.h"
#include "shapes/condition.h"
#include "shapes/environment.h"
#include "support/symbol_object.h"
#include "support/tensor_object.h"

namespace magneto::compiler {
namespace {

using graph::AtenNode;
using graph::Graph;
using graph::kNoValue;
using graph::ValueId;
using passes::Functional;
using passes::Unsupported;

/// What replaces operators.
class Table {
 public:
  explicit Table(PyObject* functions) : functions_(functions) {}

  /// The function for that operator, borrowed; null: it stays.
  PyObject* function_for(const graph::TorchNode& call) const {
    if (kept_.contains(call.target.get())) return nullptr;
    PyObject* function = PyDict_GetItemWithError(functions_, call.target.get());
    if (!function && PyErr_Occurred()) throw PythonError{};
    return function;
  }

  /// From here on that operator stays.
  void keep(const graph::TorchNode& call) { kept_.insert(call.target.get()); }

 private:
  PyObject* functions_;
  std::set<PyObject*> kept_;  // operators, which live for ever
};

/// It is one of PyTorch's own, which nobody who exports can change.
bool is_of_pytorch(PyObject* function) {
  const Ref module = Ref::steal(PyObject_GetAttrString(function, "__module__"));
  if (!module || !PyUnicode_Check(module.get())) {
    PyErr_Clear();
    return false;
  }
  return std::string_view(PyUnicode_AsUTF8(module.get())).starts_with("torch.");
}

/// What stands for a number of data in examples, where nothing follows from it.
constexpr double kSomeFloat = 1.5;

/// Runs a graph's operators on stand-ins, with functions in place of some, and so makes another graph.
class Decomposition {
 public:
  Decomposition(const Graph& old, Table& table)
      : old_(old), calls_(graph::with_operators_as_calls(old)), table_(table), stand_ins_(old.values.size()) {
    used_.resize(old.values.size());
    for (const AtenNode& node : old.aten_nodes) {
      graph::for_each_operand(node, [&](ValueId id) { used_[id] = true; });
    }
  }

  /// Sets what becomes of `wanted`. False: no operator is in the table.
  bool run(Graph& made, std::vector<ValueId>& wanted) {
    for (const ValueId id : wanted) {
      if (id != kNoValue) used_[id] = true;
    }
    const auto is_in = [&](const graph::TorchNode& call) { return table_.function_for(call) != nullptr; };
    if (!std::ranges::any_of(calls_.torch_nodes, is_in)) return false;
    made.torch_nodes = old_.torch_nodes;
    made_ = &made;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    std::vector<at::Tensor> examples;
    for (const ValueId id : old_.inputs) {
      const graph::TensorMeta& meta = old_.values[id].meta;
      examples.push_back(
          at::empty_strided(meta.sizes, meta.strides, at::TensorOptions(meta.dtype).device(meta.device)));
    }
    fake::Session session(made);
    session_ = &session;
    session.set_decomposes();
    session.set_exports();
    add_symbols();
    for (size_t i = 0; i < examples.size(); ++i) stand_ins_[old_.inputs[i]] = make_input(old_.inputs[i], examples[i]);
    for (size_t i = 0; i < old_.aten_nodes.size(); ++i) {
      session.torch_node = old_.aten_nodes[i].torch_node;
      PyObject* function = table_.function_for(calls_.torch_nodes[i]);
      const bool replaced = function && call_function_or_keep(function, i);
      if (!replaced) call_operator(old_.aten_nodes[i]);
      bind_found(old_.aten_nodes[i]);
      add_checks();
    }
    for (ValueId& id : wanted) id = id == kNoValue ? kNoValue : session.value_of(stand_in(id));
    if (!old_.symbols.empty()) bind_symbols(made);
    stand_ins_.clear();
    return true;
  }

  /// What the functions asked of sizes, in Python.
  std::vector<std::string> assumed;

 private:
  // -- sizes that vary

  /// With the numbers that they have: regions have the same ones.
  void add_symbols() {
    const auto is_own = [](const graph::AtenNode& node) {
      return node.op.operator_name().getNamespace() == "magneto";  // of data-dependent floats
    };
    if (!old_.symbols.empty() || std::ranges::any_of(old_.aten_nodes, is_own)) session_->use_symbols();
    if (old_.symbols.empty()) return;
    std::map<int32_t, const graph::SymbolBinding*> bindings;
    for (const graph::SymbolBinding& symbol : old_.symbols) {
      if (symbol.symbol >= 0) bindings[symbol.symbol] = &symbol;
      if (symbol.symbol < 0) add_example(symbol);
    }
    const int32_t count = bindings.empty() ? 0 : bindings.rbegin()->first + 1;
    for (int32_t id = 0; id < count; ++id) {
      const auto found = bindings.find(id);
      const graph::SymbolBinding binding =
          found == bindings.end() ? graph::SymbolBinding{id, kNoValue, -1} : *found->second;
      symbols_[id] = session_->sizes().symbol(hint_of(binding), binding.range);
    }
    const bool of_data = std::ranges::any_of(old_.symbols, [](const auto& symbol) { return symbol.symbol < 0; });
    session_->takes = {.numbers = of_data, .sizes = of_data};
    session_->set_in_general(true);
  }

  int64_t hint_of(const graph::SymbolBinding& symbol) const {
    if (symbol.value == kNoValue || symbol.dim < 0) return symbol.hint;
    return old_.values[symbol.value].meta.sizes[static_cast<size_t>(symbol.dim)];
  }

  /// What a data-dependent size was in the capture.
  void add_example(const graph::SymbolBinding& symbol) {
    const auto place = static_cast<size_t>(-1 - symbol.symbol);
    if (session_->examples.size() <= place) session_->examples.resize(place + 1, -1);
    for (const graph::Value& value : old_.values) {
      if (!value.meta.symbolic) continue;
      const auto& sizes = value.meta.symbolic->sizes;
      const auto dim = std::ranges::find(sizes, shapes::Expr::symbol(symbol.symbol));
      if (dim != sizes.end()) session_->examples[place] = value.meta.sizes[static_cast<size_t>(dim - sizes.begin())];
    }
  }

  shapes::Expr now(shapes::Expr size) const {
    return shapes::substitute(size, [&](shapes::Expr leaf) {
      const auto known = symbols_.find(leaf.id());
      if (known == symbols_.end()) throw Unsupported("decompositions, of a size that no input has");
      return std::optional(known->second);
    });
  }

  /// The sizes that data say in what the node has given.
  void bind_found(const AtenNode& node) {
    for (const graph::SymbolBinding& symbol : old_.symbols) {
      if (symbol.symbol >= 0 || symbol.dim < 0 || symbols_.contains(symbol.symbol)) continue;
      if (!std::ranges::count(node.results, symbol.value)) continue;
      symbols_[symbol.symbol] = session_->sizes_of(stand_in(symbol.value))[static_cast<size_t>(symbol.dim)];
    }
  }

  /// What operators and functions have asked of data-dependent sizes is checked in each run.
  void add_checks() {
    static const auto check = c10::Dispatcher::singleton()
                                  .findSchemaOrThrow("magneto::check", "")
                                  .typed<void(c10::SymInt, int64_t, std::string_view)>();
    for (const shapes::Relation& relation : session_->take_checks()) {
      const shapes::Expr original = session_->sizes().original(relation.difference);
      const shapes::Expr asked =
          shapes::substitute(original, [](shapes::Expr leaf) { return std::optional(shapes::Expr::value(leaf.id())); });
      check.call(session_->symint(asked), static_cast<int64_t>(relation.kind), shapes::text(relation));
    }
  }

  at::Tensor make_input(ValueId id, const at::Tensor& example) {
    const graph::Value& value = old_.values[id];
    if (!value.meta.symbolic) return session_->make_input(example, value.name);
    graph::SymbolicGeometry geometry = *value.meta.symbolic;
    for (shapes::Expr& size : geometry.sizes) size = now(size);
    for (shapes::Expr& stride : geometry.strides) stride = now(stride);
    geometry.storage_offset = 0;
    return fake::make_sized_input(*session_, example, value.name, std::move(geometry));
  }

  void bind_symbols(Graph& made) {
    const shapes::Environment& environment = session_->sizes();
    fake::settle_sizes(*session_, made);
    for (graph::SymbolBinding symbol : old_.symbols_of(graph::ValueKind::Input)) {
      const auto input = std::ranges::find(old_.inputs, symbol.value) - old_.inputs.begin();
      symbol.value = made.inputs[static_cast<size_t>(input)];
      made.symbols.push_back(symbol);
    }
    for (const shapes::Relation& relation : environment.guards()) assumed.push_back(shapes::condition(relation));
  }

  const at::Tensor& stand_in(ValueId id) {
    at::Tensor& tensor = stand_ins_[id];
    if (!tensor.defined() && old_.values[id].kind == graph::ValueKind::Constant) {
      tensor = session_->make_constant(old_.values[id].constant);
    }
    return tensor;
  }

  [[noreturn]] void refuse(const AtenNode& node, const std::string& why) {
    throw Unsupported("decompositions: " + graph::operator_text(node.op) + ": " + why);
  }

  void check(const AtenNode& node) {
    if (const auto refused = session_->take_refusal()) refuse(node, refused->op + " " + refused->message);
  }

  // -- as it is

  c10::IValue argument(const AtenNode& node, size_t i) {
    const graph::AtenArg& arg = node.args[i];
    const c10::TypePtr& type = node.op.schema().arguments()[i].type();
    if (const auto* constant = std::get_if<c10::IValue>(&arg)) return *constant;
    if (const auto* id = std::get_if<ValueId>(&arg)) {
      if (*id == kNoValue) return {};
      if (graph::is_tensor_type(*type)) return stand_in(*id);
      if (!c10::isFloatingType(old_.values[*id].meta.dtype)) refuse(node, "a number that only a run knows");
      return session_->symfloat(stand_in(*id), kSomeFloat);
    }
    if (const auto* sizes = std::get_if<graph::SizeArg>(&arg)) {
      std::vector<c10::SymInt> numbers;
      for (const shapes::Expr size : sizes->sizes) numbers.push_back(session_->symint(now(size)));
      return sizes->is_list ? c10::IValue(std::move(numbers)) : c10::IValue(numbers.front());
    }
    const auto* ids = std::get_if<std::vector<ValueId>>(&arg);
    if (!ids) refuse(node, "a branch");
    const c10::Type& element = *type->castRaw<c10::ListType>()->getElementType();
    if (element.kind() == c10::TypeKind::OptionalType) {
      c10::List<std::optional<at::Tensor>> list;
      for (const ValueId id : *ids) list.push_back(id == kNoValue ? std::nullopt : std::optional(stand_in(id)));
      return list;
    }
    c10::List<at::Tensor> list;
    for (const ValueId id : *ids) list.push_back(stand_in(id));
    return list;
  }

  /// A number is read (of an int: a symbol), or something is checked. False: it is another operator.
  bool call_own(const AtenNode& node) {
    const std::string& name = node.op.operator_name().name;
    if (name == "magneto::check") {
      const auto& asked = std::get<graph::SizeArg>(node.args[0]);
      const auto kind = static_cast<shapes::Relation::Kind>(std::get<c10::IValue>(node.args[1]).toInt());
      session_->assume_checked({kind, now(asked.sizes.front())});
      return true;
    }
    const auto symbol = std::ranges::find_if(old_.symbols, [&](const graph::SymbolBinding& each) {
      return each.dim < 0 && std::ranges::count(node.results, each.value);
    });
    if (name != "magneto::item" || symbol == old_.symbols.end()) return false;
    symbols_[symbol->symbol] =
        fake::expr_of(at::_ops::_local_scalar_dense::call(stand_in(std::get<ValueId>(node.args[0]))).toSymInt());
    return true;
  }

  /// A branch or a loop, whose functions have been taken apart before.
  bool call_regions(const AtenNode& node) {
    const auto is_region = [](const graph::AtenArg& arg) {
      return std::holds_alternative<std::shared_ptr<const graph::Region>>(arg);
    };
    if (std::ranges::none_of(node.args, is_region)) return false;
    AtenNode made = node;
    for (graph::AtenArg& arg : made.args) {
      if (auto* id = std::get_if<ValueId>(&arg)) *id = value_of(*id);
      if (auto* sizes = std::get_if<graph::SizeArg>(&arg))
        std::ranges::transform(sizes->sizes, sizes->sizes.begin(), [&](shapes::Expr size) { return now(size); });
      auto* ids = std::get_if<std::vector<ValueId>>(&arg);
      if (ids) std::ranges::transform(*ids, ids->begin(), [&](ValueId id) { return value_of(id); });
    }
    made.results.clear();
    made.torch_node = session_->torch_node;
    const fake::Session::Mark mark = session_->mark();
    std::vector<at::Tensor> like;
    for (const ValueId id : node.results) like.push_back(form_of(old_.values[id].meta));
    session_->rollback(mark);
    const std::vector<at::Tensor> results = session_->add_call(std::move(made), like);
    for (size_t i = 0; i < results.size(); ++i) stand_ins_[node.results[i]] = results[i];
    return true;
  }

  ValueId value_of(ValueId id) { return id == kNoValue ? kNoValue : session_->value_of(stand_in(id)); }

  at::Tensor form_of(const graph::TensorMeta& meta) {
    std::vector<c10::SymInt> sizes, strides;
    for (size_t dim = 0; dim < meta.sizes.size(); ++dim) {
      const auto& symbolic = meta.symbolic;
      sizes.push_back(symbolic ? session_->symint(now(symbolic->sizes[dim])) : c10::SymInt(meta.sizes[dim]));
      strides.push_back(symbolic ? session_->symint(now(symbolic->strides[dim])) : c10::SymInt(meta.strides[dim]));
    }
    return at::empty_strided_symint(sizes, strides, at::TensorOptions(meta.dtype).device(meta.device));
  }

  /// A view of what a function has laid out in another way: nothing is written, so that a copy does. False: it is none.
  bool reshape_of(const AtenNode& node, torch::jit::Stack& stack) {
    static const auto view =
        c10::Dispatcher::singleton().findSchemaOrThrow(at::_ops::view::name, at::_ops::view::overload_name);
    if (node.op != view) return false;
    stack.clear();
    const c10::IValue sizes = argument(node, 1);
    stack.push_back(at::reshape_symint(stand_in(std::get<ValueId>(node.args[0])), sizes.toSymIntVector()));
    return true;
  }

  void call_operator(const AtenNode& node) {
    if (call_own(node) || call_regions(node)) return;
    torch::jit::Stack stack;
    for (size_t i = 0; i < node.args.size(); ++i) stack.push_back(argument(node, i));
    try {
      try {
        node.op.callBoxed(stack);
      } catch (const c10::Error&) {
        check(node);
        if (!reshape_of(node, stack)) throw;
      }
    } catch (const c10::Error& error) {
      check(node);
      refuse(node, error.what_without_backtrace());
    }
    check(node);
    size_t next = 0;
    graph::for_each_tensor(stack, [&](const at::Tensor& tensor) {
      const ValueId id = node.results.at(next++);
      if (id != kNoValue) stand_ins_[id] = tensor;
    });
  }

  // -- by a function

  Ref object_of(const graph::PyArg& arg, const AtenNode& node) {
    return graph::build_py_arg(
        arg, [&](ValueId id) { return id == kNoValue ? Ref::borrow(Py_None) : checked(tensor_object(stand_in(id))); },
        [](PyObject* object) { return Ref::borrow(object); },
        [&](shapes::Expr size) { return checked(symint_of(session_->symint(now(size)))); },
        [&](ValueId) -> Ref { refuse(node, "a number that only a run knows"); });
  }

  /// False: it is PyTorch's, and does not work for sizes that vary. The operator stays.
  bool call_function_or_keep(PyObject* function, size_t index) {
    if (old_.symbols.empty() || !is_of_pytorch(function)) return call_function(function, index), true;
    const fake::Session::Mark mark = session_->mark();
    const auto forget = session_->remember_sizes();
    const size_t symbols = made_->symbols.size();
    bool fixes = false;
    session_->sizes().on_assume = [&](const shapes::Relation& relation) {
      fixes |= relation.kind == shapes::Relation::Kind::Zero;
    };
    try {
      call_function(function, index);
    } catch (const PythonError&) {
      PyErr_Clear();
      fixes = true;
    } catch (const Unsupported&) {
      fixes = true;
    }
    session_->sizes().on_assume = nullptr;
    if (!fixes) return true;
    forget();
    session_->rollback(mark);
    session_->take_refusal();
    made_->symbols.resize(symbols);
    table_.keep(calls_.torch_nodes[index]);
    return false;
  }

  void call_function(PyObject* function, size_t index) {
    const AtenNode& node = old_.aten_nodes[index];
    const graph::TorchNode& call = calls_.torch_nodes[index];
    const Ref args = checked(PyTuple_New(static_cast<Py_ssize_t>(call.args.size())));
    for (size_t i = 0; i < call.args.size(); ++i) {
      PyTuple_SET_ITEM(args.get(), i, object_of(call.args[i], node).release());
    }
    const Ref kwargs = checked(PyDict_New());
    for (const auto& [name, arg] : call.kwargs) {
      if (PyDict_SetItem(kwargs.get(), text_object(name).get(), object_of(arg, node).get()) < 0) throw PythonError{};
    }
    const Ref result = Ref::steal(PyObject_Call(function, args.get(), kwargs.get()));
    if (!result) failed(function, node);
    check(node);
    for (const graph::TorchResult& place : call.results) {
      if (place.value == kNoValue) continue;
      Ref object = result;
      for (const int32_t item : place.path) {
        object = Ref::steal(PySequence_GetItem(object.get(), item));
        if (!object) failed(function, node);
      }
      if (!is_tensor_object(object.get()) || session_->value_of(unpack_tensor(object.get())) == kNoValue)
        refuse(node, "the decomposition gives no tensor of its own");
      stand_ins_[place.value] = unpack_tensor(object.get());
      if (!used_[place.value]) continue;
      const graph::TensorMeta &meta = made_->values[session_->value_of(stand_ins_[place.value])].meta,
                              &want = old_.values[place.value].meta;
      if (meta.dtype != want.dtype || meta.sizes != want.sizes) {
        refuse(node, "the decomposition gives another shape or dtype than the operator");
      }
    }
  }

  /// The function raised: because stand-ins have no data, or by itself.
  [[noreturn]] void failed(PyObject* function, const AtenNode& node) {
    const Ref cause = take_error_with_traceback();
    PyException_SetTraceback(cause.get(), Py_None);  // its frames hold stand-ins
    check(node);
    static constinit Imported raise("magneto._aot", "raise_failed_decomposition");
    const Ref name = text_object(graph::operator_text(node.op));
    checked(PyObject_CallFunctionObjArgs(raise.get(), function, name.get(), cause.get(), nullptr));
    throw PythonError{};
  }

  const Graph& old_;
  const Graph calls_;
  Table& table_;
  std::vector<at::Tensor> stand_ins_;
  std::vector<bool> used_;  // by value
  std::map<int32_t, shapes::Expr> symbols_;
  fake::Session* session_ = nullptr;
  Graph* made_ = nullptr;
};

/// Once through. False: nothing to do.
bool decompose_once(Functional& functional, Table& table, std::vector<std::string>& assumed) {
  const Graph old = std::move(functional.graph);
  std::vector<ValueId> wanted = old.outputs;
  for (const Functional::Write& write : functional.writes) wanted.push_back(write.value);
  Graph made;
  Decomposition decomposition(old, table);
  if (!decomposition.run(made, wanted)) {
    functional.graph = old;
    return false;
  }
  assumed.insert(assumed.end(), decomposition.assumed.begin(), decomposition.assumed.end());
  const auto input = [&](ValueId id) {
    return made.inputs[static_cast<size_t>(std::ranges::find(old.inputs, id) - old.inputs.begin())];
  };
  for (Functional::Bump& bump : functional.bumps) {
    const auto output = std::ranges::find(old.outputs, bump.value);
    bump.value =
        output == old.outputs.end() ? input(bump.value) : wanted[static_cast<size_t>(output - old.outputs.begin())];
  }
  for (size_t i = 0; i < functional.writes.size(); ++i) {
    functional.writes[i] = {input(functional.writes[i].input), wanted[old.outputs.size() + i]};
  }
  wanted.resize(old.outputs.size());
  made.outputs = std::move(wanted);
  functional.graph = std::move(made);
  return true;
}

/// Functions may write what they have made.
void take_out_writes(Functional& functional) {
  const auto writes = [](const AtenNode& node) { return graph::effects_of(node.op).writes; };
  if (std::ranges::none_of(functional.graph.aten_nodes, writes)) return;
  const std::vector<ValueId> inputs = functional.graph.inputs, outputs = functional.graph.outputs;
  for (const Functional::Write& write : functional.writes) functional.graph.outputs.push_back(write.value);
  Functional again = passes::functionalise(std::move(functional.graph));
  if (!again.writes.empty()) throw Unsupported("a decomposition writes its argument");
  const auto now = [&](ValueId id) {
    const auto output = std::ranges::find(outputs, id) - outputs.begin();
    if (output < std::ssize(outputs)) return again.graph.outputs[static_cast<size_t>(output)];
    return again.graph.inputs[static_cast<size_t>(std::ranges::find(inputs, id) - inputs.begin())];
  };
  for (Functional::Bump& bump : functional.bumps) bump.value = now(bump.value);
  for (size_t i = 0; i < functional.writes.size(); ++i) {
    const auto input = static_cast<size_t>(std::ranges::find(inputs, functional.writes[i].input) - inputs.begin());
    functional.writes[i] = {again.graph.inputs[input], again.graph.outputs[outputs.size() + i]};
  }
  again.graph.outputs.resize(outputs.size());
  functional.graph = std::move(again.graph);
}

void replace_all(Functional& functional, Table& table, std::vector<std::string>& assumed);

/// The functions of branches and loops.
void replace_in_regions(Graph& graph, Table& table, std::vector<std::string>& assumed) {
  for (AtenNode& node : graph.aten_nodes) {
    for (graph::AtenArg& arg : node.args) {
      const auto* region = std::get_if<std::shared_ptr<const graph::Region>>(&arg);
      if (!region) continue;
      Functional inside;
      inside.graph = (*region)->graph;
      replace_all(inside, table, assumed);
      arg = std::make_shared<const graph::Region>(graph::Region{(*region)->name, std::move(inside.graph)});
    }
  }
}

/// Sizes of inputs that no operator reads are symbols, too: functions ask for them. Gives those that it has bound.
std::set<int32_t> bind_all_sizes(Graph& graph) {
  std::set<int32_t> bound;
  for (const ValueId input : graph.inputs) {
    const graph::TensorMeta& meta = graph.values[input].meta;
    for (size_t dim = 0; meta.symbolic && dim < meta.sizes.size(); ++dim) {
      int32_t id = -1;
      shapes::any_leaf(meta.symbolic->sizes[dim], [&](shapes::Expr leaf) { return id = leaf.id(), true; });
      const bool known = std::ranges::count(graph.symbols, id, &graph::SymbolBinding::symbol) > 0;
      if (id < 0 || known || meta.symbolic->sizes[dim] != shapes::Expr::symbol(id)) continue;
      graph.symbols.push_back({id, input, static_cast<int32_t>(dim), {0, INT64_MAX}, meta.sizes[dim]});
      bound.insert(id);
    }
  }
  return bound;
}

/// Of them, those that nothing reads now either.
void unbind_unread(Graph& graph, std::set<int32_t> bound) {
  for (const AtenNode& node : graph.aten_nodes) {
    for (const graph::AtenArg& arg : node.args) {
      const auto* sizes = std::get_if<graph::SizeArg>(&arg);
      if (!sizes) continue;
      for (const shapes::Expr size : sizes->sizes)
        shapes::any_leaf(size, [&](shapes::Expr leaf) { return bound.erase(leaf.id()), false; });
    }
  }
  std::erase_if(graph.symbols, [&](const graph::SymbolBinding& each) { return bound.contains(each.symbol); });
}

void replace_all(Functional& functional, Table& table, std::vector<std::string>& assumed) {
  replace_in_regions(functional.graph, table, assumed);
  const std::set<int32_t> bound = bind_all_sizes(functional.graph);
  constexpr int kTimes = 10;
  for (int i = 0; decompose_once(functional, table, assumed); ++i) {
    if (i == kTimes) throw Unsupported("decompositions that lead to each other");
    take_out_writes(functional);
  }
  passes::eliminate_dead(functional);
  unbind_unread(functional.graph, bound);
}

}  // namespace

Functional decompose(Functional functional, PyObject* functions, std::vector<std::string>* assumed) {
  if (!assumed && !functional.graph.symbols.empty()) throw Unsupported("decompositions, of a graph with dynamic sizes");
  std::vector<std::string> ignored;
  Table table(functions);
  replace_all(functional, table, assumed ? *assumed : ignored);
  std::vector<ValueId> outputs = functional.graph.outputs;
  std::ranges::sort(outputs);
  if (std::ranges::adjacent_find(outputs) != outputs.end()) throw Unsupported("two outputs are one value");
  return functional;
}

}  // namespace magneto::compiler
