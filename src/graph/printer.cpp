// The text form of a graph. `parser.cpp` reads it back; what is printed here must parse to a graph that prints the
// same.
//
// Nothing in here may call an operator: graphs are printed during captures, where every operator would be recorded.
#include <c10/core/ScalarType.h>

#include "graph/aliases.h"
#include "graph/graph.h"
#include "graph/literal.h"
#include "graph/text.h"

namespace magneto::graph {
namespace {

/// Constants up to this many elements print their values.
constexpr int64_t kPrintedElements = 16;

void print_sizes(std::string& out, const std::vector<int64_t>& sizes, char open, char close) {
  out += open;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (i) out += ", ";
    out += std::to_string(sizes[i]);
  }
  out += close;
}

void print_exprs(std::string& out, const std::vector<shapes::Expr>& sizes, char open, char close) {
  out += open;
  for (size_t i = 0; i < sizes.size(); ++i) out += (i ? ", " : "") + shapes::text(sizes[i]);
  out += close;
}

void print_symbolic(std::string& out, const SymbolicGeometry& geometry) {
  print_exprs(out, geometry.sizes, '[', ']');
  std::vector<shapes::Expr> contiguous(geometry.sizes.size());
  shapes::Expr next = 1;
  for (size_t i = geometry.sizes.size(); i-- > 0;) {
    contiguous[i] = next;
    next = next * geometry.sizes[i];
  }
  if (geometry.strides != contiguous) print_exprs(out, geometry.strides, '{', '}');
  if (!geometry.storage_offset.is_constant(0)) out += '+' + shapes::text(geometry.storage_offset);
}

void print_type(std::string& out, const TensorMeta& meta) {
  out += dtype_name(meta.dtype);
  if (meta.symbolic) {
    print_symbolic(out, *meta.symbolic);
  } else {
    print_sizes(out, meta.sizes, '[', ']');
    if (meta.strides != contiguous_strides(meta.sizes)) print_sizes(out, meta.strides, '{', '}');
    if (meta.storage_offset != 0) out += '+' + std::to_string(meta.storage_offset);
  }
  if (meta.device.type() != c10::DeviceType::CPU) out += " @" + meta.device.str();
  if (meta.requires_grad) out += " grad";
  if (meta.wrapped) out += " wrapped";
}

void print_value(std::string& out, ValueId id) {
  if (id == kNoValue) {
    out += "None";
  } else {
    out += '%' + std::to_string(id);
  }
}

void print_values(std::string& out, const std::vector<ValueId>& ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i) out += ", ";
    print_value(out, ids[i]);
  }
}

template <typename Element, typename Print>
void print_elements(std::string& out, const at::Tensor& tensor, Print print_element) {
  // Not data_ptr(): the storage of a constant may be a lazy copy, and reading must not make it a real one.
  const auto* data = static_cast<const Element*>(tensor.unsafeGetTensorImpl()->data());
  out += '[';
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    if (i) out += ", ";
    print_element(data[i]);
  }
  out += ']';
}

void print_constant(std::string& out, const at::Tensor& tensor) {
  const bool readable = tensor.defined() && tensor.layout() == at::kStrided && tensor.device().is_cpu() &&
                        tensor.numel() <= kPrintedElements && tensor.is_contiguous() &&
                        !tensor.key_set().has_any(c10::DispatchKeySet{c10::DispatchKey::Conjugate} |
                                                  c10::DispatchKeySet(c10::DispatchKey::Negative) |
                                                  c10::DispatchKeySet(c10::DispatchKey::Python));
  if (!readable) {
    out += "...";
    return;
  }
  switch (tensor.scalar_type()) {
#define INTEGER(type, dtype)   \
  case c10::ScalarType::dtype: \
    return print_elements<type>(out, tensor, [&](type element) { out += std::to_string(+element); });
    INTEGER(uint8_t, Byte)
    INTEGER(int8_t, Char)
    INTEGER(int16_t, Short)
    INTEGER(int32_t, Int)
    INTEGER(int64_t, Long)
#undef INTEGER
#define FLOAT(type, dtype)     \
  case c10::ScalarType::dtype: \
    return print_elements<type>(out, tensor, [&](type element) { print_float(out, static_cast<float>(element)); });
    FLOAT(float, Float)
    FLOAT(c10::Half, Half)
    FLOAT(c10::BFloat16, BFloat16)
#undef FLOAT
    case c10::ScalarType::Double:
      return print_elements<double>(out, tensor, [&](double element) { print_double(out, element); });
    case c10::ScalarType::Bool:
      return print_elements<bool>(out, tensor, [&](bool element) { out += element ? "True" : "False"; });
    default:
      out += "...";
  }
}

/// One line of text cannot hold a line break, whatever a file or a function is called.
void print_one_line(std::string& out, std::string_view text) {
  constexpr char digits[] = "0123456789abcdef";
  for (const unsigned char byte : text) {
    if (byte < 0x20 || byte == 0x7f) {
      out += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
    } else {
      out += static_cast<char>(byte);
    }
  }
}

/// `repr(object)`, cut to a length that keeps a line readable; never fails.
std::string short_repr(PyObject* object) {
  constexpr size_t longest = 120;
  SavedError saved;
  Ref text = Ref::steal(PyObject_Repr(object));
  Py_ssize_t size = 0;
  const char* utf8 = text ? PyUnicode_AsUTF8AndSize(text.get(), &size) : nullptr;
  std::string result = utf8 ? std::string(utf8, size) : '<' + std::string(Py_TYPE(object)->tp_name) + " object>";
  PyErr_Clear();
  // Addresses would make the text differ from run to run.
  for (size_t at; (at = result.find(" at 0x")) != std::string::npos;) {
    size_t end = at + 6;
    while (end < result.size() && std::isxdigit(static_cast<unsigned char>(result[end]))) ++end;
    result.erase(at, end - at);
  }
  if (result.size() > longest) {
    size_t end = longest;
    while ((static_cast<unsigned char>(result[end]) & 0xc0) == 0x80) --end;
    result.resize(end);
    result += "...";
  }
  return result;
}

void print_py_arg(std::string& out, const PyArg& arg) {
  const auto print_items = [&](const char* open, const char* close) {
    out += open;
    for (size_t i = 0; i < arg.items.size(); ++i) {
      if (i) out += ", ";
      print_py_arg(out, arg.items[i]);
    }
    out += close;
  };
  switch (arg.kind) {
    case PyArg::Kind::Value:
      return print_value(out, arg.value);
    case PyArg::Kind::Number:
      print_value(out, arg.value);
      out += ".item()";
      return;
    case PyArg::Kind::Const:
      return print_one_line(out, arg.object ? callable_or_repr(arg.object.get()) : "None");
    case PyArg::Kind::Size:
      out += shapes::text(arg.size);
      return;
    case PyArg::Kind::Region:
      out += arg.region->name;
      return;
    case PyArg::Kind::Tuple:
      if (arg.object) print_one_line(out, callable_or_repr(arg.object.get()));
      return print_items("(", arg.items.size() == 1 ? ",)" : ")");
    case PyArg::Kind::List:
      return print_items("[", "]");
    case PyArg::Kind::Slice:
      return print_items("slice(", ")");
    case PyArg::Kind::Dict:
      out += '{';
      for (size_t i = 0; i < arg.items.size(); ++i) {
        if (i) out += ", ";
        PyObject* key = arg.object && i < static_cast<size_t>(PyTuple_GET_SIZE(arg.object.get()))
                            ? PyTuple_GET_ITEM(arg.object.get(), i)
                            : Py_None;
        print_one_line(out, short_repr(key));
        out += ": ";
        print_py_arg(out, arg.items[i]);
      }
      out += '}';
      return;
  }
}

void print_torch_call(std::string& out, const TorchNode& node) {
  if (node.kind == TorchNode::Kind::CallFunction && node.target && PyUnicode_Check(node.target.get())) {
    // A parsed graph: the whole call as it was printed.
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(node.target.get(), &size);
    if (!text) PyErr_Clear();
    const std::string_view call(text ? text : "<str>", text ? size : 5);
    const bool looks_like_comment = call.starts_with('#');
    if (looks_like_comment) out += "\\x23";
    return print_one_line(out, call.substr(looks_like_comment));
  }
  size_t first = 0;
  if (node.kind == TorchNode::Kind::CallMethod) {
    if (!node.args.empty()) print_py_arg(out, node.args[first++]);
    out += '.';
    const char* name =
        node.target && PyUnicode_Check(node.target.get()) ? PyUnicode_AsUTF8(node.target.get()) : nullptr;
    if (!name) PyErr_Clear();
    print_one_line(out, name ? name : "<method>");
  } else {
    print_one_line(out, node.target ? callable_or_repr(node.target.get()) : "<call>");
  }
  out += '(';
  bool comma = false;
  for (size_t i = first; i < node.args.size(); ++i) {
    if (std::exchange(comma, true)) out += ", ";
    print_py_arg(out, node.args[i]);
  }
  for (const auto& [name, arg] : node.kwargs) {
    if (std::exchange(comma, true)) out += ", ";
    print_one_line(out, name);
    out += '=';
    print_py_arg(out, arg);
  }
  out += ')';
}

void print_aten_arg(std::string& out, const AtenArg& arg, const c10::Type& type) {
  if (const auto* constant = std::get_if<c10::IValue>(&arg)) return print_literal(out, *constant, type);
  if (const auto* id = std::get_if<ValueId>(&arg)) return print_value(out, *id);
  if (const auto* sizes = std::get_if<SizeArg>(&arg)) {
    if (sizes->is_list) return print_exprs(out, sizes->sizes, '[', ']');
    out += shapes::text(sizes->sizes[0]);
    return;
  }
  if (const auto* region = std::get_if<std::shared_ptr<const Region>>(&arg)) {
    out += '@' + (*region)->name;
    return;
  }
  out += '[';
  print_values(out, std::get<std::vector<ValueId>>(arg));
  out += ']';
}

class Printer {
 public:
  explicit Printer(const Graph& graph) : graph_(graph), printed_(graph.values.size(), false) {}

  std::string run() {
    out_ = "graph {\n";
    for_each_region(graph_, [&](const Region& region) { print_region(region); });
    for (const ValueId id : graph_.inputs)
      define(id, [&](const Value& value) {
        out_ += "input ";
        print_quoted(out_, value.name);
      });
    for (ValueId id = 0; id < static_cast<ValueId>(graph_.values.size()); ++id) {
      if (graph_.values[id].kind == ValueKind::Constant)
        define(id, [&](const Value& value) {
          out_ += "constant ";
          print_constant(out_, value.constant);
        });
    }
    // Torch nodes in order; each brings its children. Operators outside any torch node stand between them.
    size_t next = 0;
    const auto& nodes = graph_.aten_nodes;
    const auto print_outside = [&] {
      while (next < nodes.size() && nodes[next].torch_node < 0) print_node(nodes[next++], "  ");
    };
    for (int32_t i = 0; i < static_cast<int32_t>(graph_.torch_nodes.size()); ++i) {
      print_outside();
      const TorchNode& torch_node = graph_.torch_nodes[i];
      print_location(torch_node);
      out_ += "  ";
      print_torch_call(out_, torch_node);
      out_ += " {";
      if (next == nodes.size() || nodes[next].torch_node != i) {
        out_ += "}\n";
        continue;
      }
      out_ += '\n';
      while (next < nodes.size() && nodes[next].torch_node == i) print_node(nodes[next++], "    ");
      out_ += "  }\n";
    }
    // What is left (`verify` says why: children out of place).
    while (next < nodes.size()) print_node(nodes[next++], "  ");
    out_ += "  return (";
    print_values(out_, graph_.outputs);
    out_ += ")\n}\n";
    return std::move(out_);
  }

  std::vector<std::string> aten_lines() {
    for (ValueId id = 0; id < static_cast<ValueId>(graph_.values.size()); ++id) {
      printed_[id] = graph_.values[id].kind != ValueKind::Result;
    }
    std::vector<std::string> lines;
    for (const AtenNode& node : graph_.aten_nodes) {
      print_node(node, "");
      out_.pop_back();
      lines.push_back(std::exchange(out_, {}));
    }
    return lines;
  }

  std::vector<std::string> torch_lines() {
    std::vector<std::string> lines;
    for (const TorchNode& node : graph_.torch_nodes) {
      for (const TorchResult& result : node.results) {
        if (!out_.empty()) out_ += ", ";
        print_result(result.value);
      }
      if (!node.results.empty()) out_ += " = ";
      print_torch_call(out_, node);
      lines.push_back(std::exchange(out_, {}));
    }
    return lines;
  }

 private:
  /// As a graph, further in.
  void print_region(const Region& region) {
    const std::string text = Printer(region.graph).run();
    const size_t begin = std::string_view("graph").size();
    out_ += "  region @" + region.name;
    for (size_t i = begin; i < text.size(); ++i) {
      out_ += text[i];
      if (text[i] == '\n' && i + 1 < text.size()) out_ += "  ";
    }
  }

  /// With its type where it is new.
  void print_result(ValueId id) {
    print_value(out_, id);
    if (id == kNoValue || id >= static_cast<ValueId>(graph_.values.size()) || printed_[id]) return;
    out_ += ": ";
    print_type(out_, graph_.values[id].meta);
    printed_[id] = true;
  }

  template <typename Print>
  void define(ValueId id, Print print_definition) {
    const Value& value = graph_.values[id];
    out_ += "  %" + std::to_string(id) + ": ";
    print_type(out_, value.meta);
    out_ += " = ";
    print_definition(value);
    out_ += '\n';
    printed_[id] = true;
  }

  void print_location(const TorchNode& node) {
    std::string location = "  #";
    if (!node.file.empty()) {
      location += ' ';
      print_one_line(location, node.file);
      location += ':' + std::to_string(node.line) + " in ";
      print_one_line(location, node.function);
    }
    location += '\n';
    // Printed where it changes; a lone `#` ends the reach of the one before.
    if (location == location_) return;
    location_ = std::move(location);
    out_ += location_;
  }

  void print_node(const AtenNode& node, const char* indent) {
    out_ += indent;
    for (size_t i = 0; i < node.results.size(); ++i) {
      if (i) out_ += ", ";
      print_result(node.results[i]);
    }
    if (!node.results.empty()) out_ += " = ";
    out_ += operator_text(node.op);
    out_ += '(';
    const auto& arguments = node.op.schema().arguments();
    for (size_t i = 0; i < node.args.size(); ++i) {
      if (i) out_ += ", ";
      const c10::Type& type = i < arguments.size() ? *arguments[i].real_type() : *c10::NoneType::get();
      print_aten_arg(out_, node.args[i], type);
    }
    out_ += ")\n";
  }

  const Graph& graph_;
  std::vector<bool> printed_;
  std::string location_ = "  #\n";
  std::string out_;
};

}  // namespace

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

std::string origin_text(const Graph& graph, const AtenNode& node) {
  std::string text = operator_text(node.op);
  // A program from the cache has the calls' numbers, not the calls.
  if (node.torch_node < 0 || static_cast<size_t>(node.torch_node) >= graph.torch_nodes.size()) return text;
  const TorchNode& call = graph.torch_nodes[node.torch_node];
  return call.file.empty() ? text
                           : text + " at " + call.file + ":" + std::to_string(call.line) + " in " + call.function;
}

std::string callable_or_repr(PyObject* object) {
  // Only for callables that are known to be plain: asking anything else for its name could run user code.
  const bool plain = PyType_Check(object) || PyFunction_Check(object) || PyCFunction_Check(object) ||
                     Py_TYPE(object) == &PyMethodDescr_Type || Py_TYPE(object) == &PyWrapperDescr_Type;
  if (!plain) return short_repr(object);
  SavedError saved;
  const auto attribute = [&](const char* name) -> std::string {
    Ref value = Ref::steal(PyObject_GetAttrString(object, name));
    const char* text = value && PyUnicode_Check(value.get()) ? PyUnicode_AsUTF8(value.get()) : nullptr;
    PyErr_Clear();
    return text ? text : "";
  };
  std::string name = attribute("__qualname__");
  std::string module = attribute("__module__");
  if (name.starts_with("_VariableFunctionsClass.")) {
    // torch.add and its like: static methods of a class that nobody knows.
    name = "torch." + name.substr(name.find('.') + 1);
    module.clear();
  } else if (module == "builtins") {
    module.clear();
  } else if (module == "_operator") {
    module = "operator";
  }
  if (!module.empty()) name = module + '.' + name;
  const auto usual = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.' || c == '<' || c == '>'; };
  if (!name.empty() && std::all_of(name.begin(), name.end(), usual)) return name;
  std::string quoted;
  print_quoted(quoted, name);
  return quoted;
}

std::string print(const Graph& graph) { return Printer(graph).run(); }
std::vector<std::string> torch_lines(const Graph& graph) { return Printer(graph).torch_lines(); }
std::vector<std::string> aten_lines(const Graph& graph) { return Printer(graph).aten_lines(); }

std::string type_text(const TensorMeta& meta) {
  std::string text;
  print_type(text, meta);
  return text;
}

}  // namespace magneto::graph
