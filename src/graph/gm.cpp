#include "graph/gm.h"

#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <memory>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>

#include "graph/aliases.h"
#include "graph/operator_calls.h"
#include "graph/origins.h"
#include "graph/orphans.h"
#include "graph/torch_values.h"
#include "python/abi/paused_collector.h"
#include "python/text.h"
#include "support/tensor_object.h"

namespace magneto::graph {
namespace {

Ref attribute(PyObject* object, const char* name) { return checked(PyObject_GetAttrString(object, name)); }

Ref imported(const char* module, const char* name) {
  return attribute(checked(PyImport_ImportModule(module)).get(), name);
}

/// What building needs of Python: OBJECT(name, module, attribute), TEXT(name, text).
#define MAGNETO_FX_NAMES(OBJECT, TEXT)                                    \
  OBJECT(graph_class, "torch.fx", "Graph")                                \
  OBJECT(module_class, "torch.fx._lazy_graph_module", "_LazyGraphModule") \
  OBJECT(plain_class, "torch.fx", "GraphModule")                          \
  OBJECT(forget_with, "magneto._sources", "forget_with")                  \
  OBJECT(getitem, "operator", "getitem")                                  \
  OBJECT(call, "operator", "call")                                        \
  OBJECT(add, "operator", "add")                                          \
  OBJECT(mul, "operator", "mul")                                          \
  OBJECT(mod, "operator", "mod")                                          \
  OBJECT(floordiv, "operator", "floordiv")                                \
  OBJECT(min, "builtins", "min")                                          \
  OBJECT(max, "builtins", "max")                                          \
  OBJECT(script_function, "torch.jit", "ScriptFunction")                  \
  OBJECT(getline, "linecache", "getline")                                 \
  TEXT(meta, "meta")                                                      \
  TEXT(stack_trace, "stack_trace")                                        \
  TEXT(val, "val")                                                        \
  TEXT(symbol, "symbol")                                                  \
  TEXT(create_node, "create_node")                                        \
  TEXT(placeholder, "placeholder")                                        \
  TEXT(get_attr, "get_attr")                                              \
  TEXT(call_function, "call_function")                                    \
  TEXT(call_method, "call_method")                                        \
  TEXT(output, "output")                                                  \
  TEXT(clone, "clone")                                                    \
  TEXT(size, "size")                                                      \
  TEXT(item, "item")                                                      \
  TEXT(target_to_str, "_target_to_str")

/// These names, looked up once per process. torch.fx is not imported before the first graph.
class Fx {
 public:
  enum Name : uint8_t {
#define OBJECT(name, module, attribute) name,
#define TEXT(name, text) name,
    MAGNETO_FX_NAMES(OBJECT, TEXT) kNames
#undef OBJECT
#undef TEXT
  };

  const Ref& operator[](Name name) const { return named_[name]; }
  const Ref& no_args() const { return no_args_; }
  /// Constants of these types have a repr that generated code can evaluate.
  bool is_plain(PyTypeObject* type) const {
    return std::ranges::find(plain_types_, reinterpret_cast<PyObject*>(type), &Ref::get) != plain_types_.end();
  }

  static const Fx& get() {
    // Never freed: the interpreter may be gone when static objects are. Not a static with an initialiser:
    // python/imported.h tells why.
    static constinit const Fx* fx = nullptr;
    if (!fx) {
      auto made = std::make_unique<const Fx>();
      if (!fx) fx = made.release();
    }
    return *fx;
  }

 private:
  const std::array<Ref, kNames> named_ = {
#define OBJECT(name, module, attribute) imported(module, attribute),
#define TEXT(name, text) text_object(text),
      MAGNETO_FX_NAMES(OBJECT, TEXT)
#undef OBJECT
#undef TEXT
  };
  const std::array<Ref, 9> plain_types_ = {
      imported("builtins", "bool"),    imported("builtins", "int"), imported("builtins", "float"),
      imported("builtins", "complex"), imported("builtins", "str"), imported("torch", "dtype"),
      imported("torch", "device"),     imported("torch", "layout"), imported("torch", "memory_format")};
  const Ref no_args_ = checked(PyTuple_New(0));
};

/// `L['self']._modules['0'].weight` to `L_self_modules_0_weight`: what torch.compile's users expect to read.
std::string identifier(std::string_view name) {
  std::string out;
  for (const char c : name) {
    const bool keep = std::isalnum(static_cast<unsigned char>(c)) && static_cast<unsigned char>(c) < 0x80;
    if (keep) {
      out += c;
    } else if (out.empty() || out.back() != '_') {
      out += '_';
    }
  }
  // An underscore keeps it apart from keywords and from `self`.
  if (out.find('_') == std::string::npos) out += '_';
  if (std::isdigit(static_cast<unsigned char>(out[0]))) out.insert(0, "_");
  return out;
}

class ModuleBuilder {
 public:
  ModuleBuilder(const Graph& graph, bool annotated, const OperatorForm* form = nullptr)
      : graph_(graph),
        annotated_(annotated),
        form_(form),
        aliases_(graph),
        used_(values_used_by_torch(graph)),
        result_symbols_(graph.symbols_of(ValueKind::Result)),
        nodes_(graph.values.size()),
        fx_graph_(checked(PyObject_CallNoArgs(fx_[Fx::graph_class].get()))),
        attributes_(checked(PyDict_New())) {}

  Ref run() {
    add_symbol_placeholders();
    for (const ValueId id : graph_.inputs) add_placeholder(id);
    for (const TorchNode& node : graph_.torch_nodes) add_call(node);
    std::vector<Ref> outputs;
    for (const ValueId id : form_ ? form_->returned : graph_.outputs) outputs.push_back(value_node(id));
    for (size_t i = 0; form_ && i < form_->returned_symbols.size(); ++i) {
      outputs.push_back(size_node(shapes::Expr::symbol(form_->returned_symbols[i])));
    }
    Ref returned = checked(PyTuple_New(static_cast<Py_ssize_t>(outputs.size())));
    for (size_t i = 0; i < outputs.size(); ++i) PyTuple_SET_ITEM(returned.get(), i, outputs[i].release());
    create(fx_[Fx::output], fx_[Fx::output], checked(PyTuple_Pack(1, returned.get())));
    PyObject* args[] = {attributes_.get(), fx_graph_.get()};
    const Ref& module_class = form_ ? fx_[Fx::plain_class] : fx_[Fx::module_class];
    Ref module = checked(PyObject_Vectorcall(module_class.get(), args, 2, nullptr));
    checked(PyObject_CallOneArg(fx_[Fx::forget_with].get(), module.get()));
    return module;
  }

 private:
  Ref create(const Ref& op, const Ref& target, const Ref& args, PyObject* kwargs = Py_None, PyObject* name = Py_None) {
    if (name == Py_None) name = name_for(target);
    PyObject* call[] = {fx_graph_.get(), op.get(), target.get(), args.get(), kwargs, name};
    return checked(PyObject_VectorcallMethod(fx_[Fx::create_node].get(), call, 6, nullptr));
  }

  /// The name that fx would derive from a target, derived once for all its nodes; fx makes it unique.
  PyObject* name_for(const Ref& target) {
    Ref& name = node_names_[target.get()];
    if (!name && form_) name = operator_name(target);
    if (!name) name = checked(PyObject_CallMethodOneArg(fx_graph_.get(), fx_[Fx::target_to_str].get(), target.get()));
    return name.get();
  }

  /// "mul" of torch.ops.aten.mul.Tensor; null of what is no operator.
  static Ref operator_name(const Ref& target) {
    Ref name = Ref::steal(PyObject_GetAttrString(target.get(), "_opname"));
    PyErr_Clear();
    return name;
  }

  void add_symbol_placeholders() {
    for (const SymbolBinding& symbol : graph_.symbols_of(ValueKind::Input)) {
      const shapes::Expr expr = shapes::Expr::symbol(symbol.symbol);
      const bool is_named = form_ && !form_->symbols.empty();
      const std::string name = is_named ? form_->symbols.at(symbols_.size()) : shapes::text(expr);
      names_.insert(name);
      symbols_.push_back(
          create(fx_[Fx::placeholder], text_object(name), fx_.no_args(), Py_None, text_object(name).get()));
      sizes_[expr.identity()] = symbols_.back();
      if (form_) set_meta(symbols_.back(), fx_[Fx::val], checked(PyLong_FromLongLong(symbol.hint)));
    }
  }

  void add_placeholder(ValueId id) {
    std::string target = form_ ? graph_.values[id].name : identifier(graph_.values[id].name);
    const auto lowered = [&] {
      std::string name = target;
      for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      return name;
    };
    // fx makes names unique, but the parameters of `forward` are the targets, and share a scope with the names.
    while (!names_.insert(lowered()).second) target += '_';
    const std::string name = lowered();
    nodes_[id] = create(fx_[Fx::placeholder], text_object(target), fx_.no_args(), Py_None, text_object(name).get());
    annotate(nodes_[id], id);
  }

  /// The fx node that stands for a value; constants get theirs at the first use.
  Ref value_node(ValueId id) {
    if (id == kNoValue) return Ref::borrow(Py_None);
    Ref& node = nodes_[id];
    if (node) return node;
    const Value& value = graph_.values[id];
    if (value.kind != ValueKind::Constant) {
      throw std::invalid_argument("%" + std::to_string(id) + " is not made by any torch call");
    }
    node = attribute_node("_tensor_constant", checked(tensor_object(value.constant)));
    if (aliases_.needs_copy(id))
      node = create(fx_[Fx::call_method], fx_[Fx::clone], checked(PyTuple_Pack(1, node.get())));
    return node;
  }

  /// Stores `object` on the module and reads it with a get_attr node.
  Ref attribute_node(const char* prefix, const Ref& object) {
    Ref name = text_object(prefix + std::to_string(attribute_count_[prefix]++));
    if (PyDict_SetItem(attributes_.get(), name.get(), object.get()) < 0) throw PythonError{};
    return create(fx_[Fx::get_attr], name, fx_.no_args());
  }

  bool is_plain_constant(PyObject* object) const {
    if (object == Py_None || object == Py_Ellipsis) return true;
    if (fx_.is_plain(Py_TYPE(object))) return true;
    if (!PyTuple_CheckExact(object) && !PyList_CheckExact(object)) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      if (!is_plain_constant(PySequence_Fast_GET_ITEM(object, i))) return false;
    }
    return true;
  }

  Ref argument(const PyArg& arg) {
    if (arg.kind == PyArg::Kind::Region) {
      const Ref name = text_object(arg.region->name);
      const Ref module = form_ ? operators_of(*arg.region) : region_module(*arg.region);
      if (PyDict_SetItem(attributes_.get(), name.get(), module.get()) < 0) throw PythonError{};
      return create(fx_[Fx::get_attr], name, fx_.no_args());
    }
    return build_py_arg(
        arg, [&](ValueId id) { return value_node(id); },
        [&](PyObject* object) {
          return is_plain_constant(object) ? Ref::borrow(object)
                                           : attribute_node("_object_constant", Ref::borrow(object));
        },
        [&](shapes::Expr size) { return size_node(size); }, [&](ValueId id) { return number_node(id); });
  }

  /// A region as the graph around is shown: of operators.
  Ref operators_of(const Region& region) const {
    Graph graph = with_operators_as_calls(region.graph);
    for (size_t i = 0; i < graph.inputs.size(); ++i) graph.values[graph.inputs[i]].name = "arg" + std::to_string(i);
    const OperatorForm form{
        .returned = graph.outputs, .symbols = {}, .returned_symbols = {}, .origins = form_->origins};
    return ModuleBuilder(graph, /*annotated=*/false, &form).run();
  }

  /// The number in a tensor: what `item()` gave is one, an input holds one.
  Ref number_node(ValueId id) {
    Ref node = value_node(id);
    if (graph_.values[id].kind != ValueKind::Input) return node;
    return create(fx_[Fx::call_method], fx_[Fx::item], checked(PyTuple_Pack(1, node.get())));
  }

  /// A number, or the node that computes it from the symbols' placeholders.
  Ref size_node(shapes::Expr size) {
    using shapes::ExprKind;
    if (size.is_constant()) return checked(PyLong_FromLongLong(size.number()));
    if (size.kind() == ExprKind::Value) size = shapes::Expr::symbol(size.id());  // of a check
    Ref& known = sizes_[size.identity()];
    if (known) return known;
    const auto apply = [&](const Ref& function, const Ref& a, const Ref& b) {
      return create(fx_[Fx::call_function], function, checked(PyTuple_Pack(2, a.get(), b.get())));
    };
    Ref node;
    if (size.kind() == ExprKind::Sum) {
      for (size_t i = 0; i < size.operands().size(); ++i) {
        Ref term = size_node(size.operands()[i]);
        if (const int64_t factor = size.coefficients()[i]; factor != 1) {
          term = apply(fx_[Fx::mul], term, checked(PyLong_FromLongLong(factor)));
        }
        node = node ? apply(fx_[Fx::add], node, term) : term;
      }
      if (size.number() != 0) node = apply(fx_[Fx::add], node, checked(PyLong_FromLongLong(size.number())));
    } else {
      const Ref& function = size.kind() == ExprKind::Product    ? fx_[Fx::mul]
                            : size.kind() == ExprKind::FloorDiv ? fx_[Fx::floordiv]
                            : size.kind() == ExprKind::Mod      ? fx_[Fx::mod]
                            : size.kind() == ExprKind::Min      ? fx_[Fx::min]
                                                                : fx_[Fx::max];
      for (const shapes::Expr operand : size.operands()) {
        Ref next = size_node(operand);
        node = node ? apply(function, node, next) : next;
      }
    }
    return sizes_[size.identity()] = node;
  }

  /// False for functions of torch's modules that their name does not lead to (TorchScript functions, closures): fx
  /// prints the name of whatever says that it is torch's. They are called through an attribute of the module instead.
  bool has_name(const Ref& target) const {
    // Nor does fx find static methods of tensors: _make_subclass, which makes a parameter.
    auto* const builtin = reinterpret_cast<PyCFunctionObject*>(target.get());
    PyObject* const self = PyCFunction_Check(target.get()) ? builtin->m_self : nullptr;
    auto* const of_tensors = reinterpret_cast<PyTypeObject*>(tensor_class())->tp_base;
    if (self && PyType_Check(self) && PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(self), of_tensors)) return false;
    if (!PyFunction_Check(target.get()) &&
        reinterpret_cast<PyObject*>(Py_TYPE(target.get())) != fx_[Fx::script_function].get()) {
      return true;
    }
    Ref module_name = attribute(target.get(), "__module__");
    if (!PyUnicode_Check(module_name.get())) return true;
    const std::string_view prefix = PyUnicode_AsUTF8(module_name.get());
    if (prefix != "torch" && !prefix.starts_with("torch.")) return true;
    PyObject* module = PyImport_GetModule(module_name.get());
    Ref held = Ref::steal(module);
    Ref name = attribute(target.get(), "__name__");
    Ref found = module ? Ref::steal(PyObject_GetAttr(module, name.get())) : Ref();
    PyErr_Clear();
    if (found.get() == target.get()) return true;
    // Tensor's methods print as torch.Tensor.<name>.
    return prefix == "torch._tensor";
  }

  void add_call(const TorchNode& node) {
    Ref args = checked(PyTuple_New(static_cast<Py_ssize_t>(node.args.size())));
    for (size_t i = 0; i < node.args.size(); ++i) PyTuple_SET_ITEM(args.get(), i, argument(node.args[i]).release());
    Ref kwargs = Ref::borrow(Py_None);
    if (!node.kwargs.empty()) {
      kwargs = checked(PyDict_New());
      for (const auto& [name, arg] : node.kwargs) {
        if (PyDict_SetItem(kwargs.get(), text_object(name).get(), argument(arg).get()) < 0) throw PythonError{};
      }
    }
    const bool method = node.kind == TorchNode::Kind::CallMethod;
    Ref target = node.target;
    if (!method && !has_name(target)) {
      std::vector<PyObject*> items(PySequence_Fast_ITEMS(args.get()),
                                   PySequence_Fast_ITEMS(args.get()) + PyTuple_GET_SIZE(args.get()));
      Ref function = attribute_node("_function", target);
      Ref with_function = checked(PyTuple_New(PyTuple_GET_SIZE(args.get()) + 1));
      PyTuple_SET_ITEM(with_function.get(), 0, function.release());
      for (size_t i = 0; i < items.size(); ++i) PyTuple_SET_ITEM(with_function.get(), i + 1, Py_NewRef(items[i]));
      args = with_function;
      target = fx_[Fx::call];
    }
    const auto name_of = [&](const std::vector<int32_t>& path) {
      const auto named = std::ranges::find_if(
          node.results, [&](const TorchResult& result) { return result.path == path && !result.variable.empty(); });
      return named == node.results.end() ? Ref::borrow(Py_None) : text_object(named->variable);
    };
    Ref call =
        create(method ? fx_[Fx::call_method] : fx_[Fx::call_function], target, args, kwargs.get(), name_of({}).get());
    set_origin(call, node);
    // Results of one call share the getitems of their common path.
    std::map<std::vector<int32_t>, Ref> items{{{}, call}};
    for (const TorchResult& result : node.results) {
      if (result.value == kNoValue) continue;
      const bool says = std::ranges::count(result_symbols_, result.value, &SymbolBinding::value) > 0;
      if (!used_[result.value] && !says) {
        if (result.path.empty()) annotate(call, result.value);
        continue;
      }
      std::vector<int32_t> path;
      for (const int32_t index : result.path) {
        Ref outer = items.at(path);
        path.push_back(index);
        Ref& item = items[path];
        if (item) continue;
        item = create(fx_[Fx::call_function], fx_[Fx::getitem], checked(Py_BuildValue("(Oi)", outer.get(), index)),
                      Py_None, name_of(path).get());
        set_origin(item, node);
      }
      // Also for values that exist already: an in-place call's result is the newest name of what it changed.
      nodes_[result.value] = items.at(path);
      annotate(nodes_[result.value], result.value);
    }
    for (const TorchResult& result : node.results) add_symbols(result.value);
  }

  /// The numbers that a result says: itself (`item()`), or its sizes.
  void add_symbols(ValueId id) {
    for (const SymbolBinding& symbol : result_symbols_) {
      if (symbol.value != id) continue;
      Ref node = nodes_[id];
      if (symbol.dim >= 0) {
        node = create(fx_[Fx::call_method], fx_[Fx::size], checked(Py_BuildValue("(Oi)", node.get(), symbol.dim)));
      }
      const shapes::Expr expr = shapes::Expr::symbol(symbol.symbol);
      sizes_[expr.identity()] = node;
      if (form_) set_meta(node, fx_[Fx::symbol], text_object(shapes::text(expr)));
    }
  }

  /// What fx prints above the node's code; null when the line is not known.
  Ref stack_trace(const TorchNode& node) {
    if (node.file.empty()) return {};
    if (trace_ && traced_->line == node.line && traced_->file == node.file && traced_->function == node.function) {
      return trace_;
    }
    Ref line = checked(PyObject_CallFunction(fx_[Fx::getline].get(), "Oi", text_object(node.file).get(), node.line));
    Ref code = checked(PyObject_CallMethod(line.get(), "strip", nullptr));
    trace_ = checked(PyUnicode_FromFormat("  File \"%U\", line %d, in %U\n    %U\n", text_object(node.file).get(),
                                          node.line, text_object(node.function).get(), code.get()));
    traced_ = &node;
    return trace_;
  }

  void set_origin(const Ref& node, const TorchNode& call) {
    if (form_ && form_->origins) {
      form_->origins->describe(checked(PyObject_GetAttr(node.get(), fx_[Fx::meta].get())).get(), call);
      return;
    }
    if (const Ref trace = stack_trace(call)) set_meta(node, fx_[Fx::stack_trace], trace);
  }

  void set_meta(const Ref& node, const Ref& key, const Ref& value) {
    Ref meta = checked(PyObject_GetAttr(node.get(), fx_[Fx::meta].get()));
    if (PyObject_SetItem(meta.get(), key.get(), value.get()) < 0) throw PythonError{};
  }

  /// Notes what the tensor is, for people and for compilers of users.
  void annotate(const Ref& node, ValueId id) {
    const TensorMeta& tensor = graph_.values[id].meta;
    if (form_) {
      const at::TensorOptions options = at::TensorOptions(tensor.dtype).device(at::kMeta);
      set_meta(node, fx_[Fx::val], checked(tensor_object(at::empty_strided(tensor.sizes, tensor.strides, options))));
      if (form_->origins && tensor.symbolic) set_meta(node, text_object("sizes"), tuple(tensor.symbolic->sizes));
    }
    if (!annotated_) return;
    Ref sizes = tensor.symbolic ? tuple(tensor.symbolic->sizes) : tuple(tensor.sizes);
    Ref strides = tensor.symbolic ? tuple(tensor.symbolic->strides) : tuple(tensor.strides);
    Ref described = checked(Py_BuildValue("(sOOs)", std::string(dtype_name(tensor.dtype)).c_str(), sizes.get(),
                                          strides.get(), tensor.device.str().c_str()));
    set_meta(node, text_object("tensor"), described);
  }

  static Ref number(int64_t size) { return checked(PyLong_FromLongLong(size)); }
  /// Dynamic sizes as texts: "s0", "2*s1".
  static Ref number(shapes::Expr size) {
    return size.is_constant() ? number(size.number()) : text_object(shapes::text(size));
  }

  template <typename Size>
  static Ref tuple(const std::vector<Size>& sizes) {
    Ref items = checked(PyTuple_New(static_cast<Py_ssize_t>(sizes.size())));
    for (size_t i = 0; i < sizes.size(); ++i) PyTuple_SET_ITEM(items.get(), i, number(sizes[i]).release());
    return items;
  }

  const Fx& fx_ = Fx::get();
  const Graph& graph_;
  const bool annotated_;
  const OperatorForm* form_;
  const Aliases aliases_;
  const std::vector<bool> used_;
  const std::vector<SymbolBinding> result_symbols_;
  std::vector<Ref> nodes_;
  Ref fx_graph_;
  Ref attributes_;
  std::map<std::string, int> attribute_count_;
  std::unordered_map<const void*, Ref> sizes_;  // by expression
  std::vector<Ref> symbols_;                    // their placeholders
  std::unordered_set<std::string> names_;
  std::unordered_map<PyObject*, Ref> node_names_;  // by target
  Ref trace_;
  const TorchNode* traced_ = nullptr;
};

}  // namespace

Ref graph_module(const Graph& graph, bool annotated) {
  const PausedCollector paused;  // a graph module is made of many objects that live on
  return ModuleBuilder(graph, annotated).run();
}

Ref region_module(const Region& region) {
  if (!region.module) {
    Graph graph = region.graph;
    adopt_orphans(graph);
    region.module = graph_module(graph);
  }
  return region.module;
}

Ref operator_module(const Graph& graph, const OperatorForm& form) {
  const PausedCollector paused;
  return ModuleBuilder(graph, /*annotated=*/false, &form).run();
}

std::vector<std::string> returned_names(const Ref& module) {
  const Ref nodes = checked(PySequence_List(attribute(attribute(module.get(), "graph").get(), "nodes").get()));
  const Py_ssize_t count = PyList_GET_SIZE(nodes.get());
  const Ref args = attribute(PyList_GET_ITEM(nodes.get(), count - 1), "args");
  const Ref items = checked(PySequence_Fast(PyTuple_GET_ITEM(args.get(), 0), "a graph returns a tuple"));
  std::vector<std::string> names;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(items.get(), i);
    names.emplace_back(item == Py_None ? "" : text_argument(attribute(item, "name").get()));
  }
  return names;
}

Ref forward_of(const Ref& module) {
  const PausedCollector paused;
  checked(PyObject_CallMethod(Fx::get()[Fx::module_class].get(), "force_recompile", "O", module.get()));
  return attribute(module.get(), "forward");
}

}  // namespace magneto::graph
