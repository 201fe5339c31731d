#include "lower/pack.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/copy.h>
#include <c10/core/InferenceMode.h>

#include <cstring>
#include <unordered_map>

#include "graph/literal.h"

namespace magneto::lower {
namespace {

using graph::AtenArg;
using graph::AtenNode;

/// Something has no bytes, or the bytes are not what was asked for.
class Unpackable {};

/// Constants of more bytes are not looked at: reading them would cost more than lowering.
constexpr size_t kMostConstantBytes = 16 << 20;

bool has_text(const c10::IValue& value) {
  if (value.isList()) {
    const auto items = value.toListRef();
    return std::all_of(items.begin(), items.end(), has_text);
  }
  return value.isNone() || value.isBool() || value.isInt() || value.isDouble() || value.isComplexDouble() ||
         value.isString() || value.isDevice() || (value.isSymInt() && value.toSymInt().maybe_as_int());
}

/// A tensor whose elements are all there is to it.
bool is_plain_constant(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet kUnusual = c10::DispatchKeySet{c10::DispatchKey::Conjugate} |
                                           c10::DispatchKeySet(c10::DispatchKey::Negative) |
                                           c10::DispatchKeySet(c10::DispatchKey::Python);
  return tensor.layout() == at::kStrided && tensor.device().is_cpu() && !tensor.key_set().has_any(kUnusual) &&
         !tensor.requires_grad() && !c10::isQIntType(tensor.scalar_type());
}

/// What an operator's name does not tell: operators that are not PyTorch's own may be others in the next process.
std::string identity_of(const c10::OperatorHandle& op) {
  if (op.operator_name().name.starts_with("aten::")) return {};
  std::string text = c10::toString(op.schema());
  for (const at::Tag tag : op.getTags()) text += " " + std::to_string(static_cast<int>(tag));
  return text;
}

class Writer {
 public:
  static constexpr bool kReads = false;
  std::string out;

  /// Constants that are `captured`'s are written as such; without a graph all by their contents.
  explicit Writer(const graph::Graph* captured) {
    if (!captured) return;
    for (size_t i = 0; i < captured->values.size(); ++i) {
      const at::Tensor& constant = captured->values[i].constant;
      if (constant.defined()) captured_.emplace(constant.unsafeGetTensorImpl(), static_cast<int32_t>(i));
    }
    for (size_t i = 0; i < captured->aten_nodes.size(); ++i) {
      first_child_.emplace(captured->aten_nodes[i].torch_node, static_cast<int32_t>(i));
    }
  }

  /// The torch call that an operator belongs to, by an operator of the captured graph that does, too.
  void torch_node(int32_t node) {
    const auto found = first_child_.find(node);
    number(found == first_child_.end() ? int32_t{-1} : found->second);
  }

  void bytes(const void* data, size_t size) { out.append(static_cast<const char*>(data), size); }
  template <typename Number>
  void number(const Number& value) {
    bytes(&value, sizeof value);
  }
  void text(const std::string& value) {
    number(static_cast<uint64_t>(value.size()));
    out += value;
  }

  void tensor(const at::Tensor& value) {
    if (!value.defined()) return number(int32_t{-1});
    if (const auto found = captured_.find(value.unsafeGetTensorImpl()); found != captured_.end()) {
      return number(found->second);
    }
    if (!is_plain_constant(value)) throw Unpackable{};
    constant_bytes_ += value.nbytes();
    if (constant_bytes_ > kMostConstantBytes) throw Unpackable{};
    number(int32_t{-2});
    number(value.scalar_type());
    number(value.unsafeGetTensorImpl()->is_wrapped_number());
    for (const c10::IntArrayRef list : {value.sizes(), value.strides()}) {
      number(static_cast<uint64_t>(list.size()));
      bytes(list.data(), list.size() * sizeof(int64_t));
    }
    const at::Tensor dense = value.contiguous();
    bytes(dense.const_data_ptr(), dense.nbytes());
  }

 private:
  std::unordered_map<const c10::TensorImpl*, int32_t> captured_;
  std::unordered_map<int32_t, int32_t> first_child_;  // by torch node
  size_t constant_bytes_ = 0;
};

class Reader {
 public:
  static constexpr bool kReads = true;
  Reader(std::string_view rest, const graph::Graph& captured) : rest_(rest), captured_(captured) {}

  bool at_end() const { return rest_.empty(); }
  std::string_view take(size_t size) {
    if (size > rest_.size()) throw Unpackable{};
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  template <typename Number>
  void number(Number& value) {
    memcpy(&value, take(sizeof value).data(), sizeof value);
  }
  /// How many items follow: each of them takes a byte at least.
  size_t count() {
    uint64_t value = 0;
    number(value);
    if (value > rest_.size()) throw Unpackable{};
    return value;
  }
  void text(std::string& value) { value = take(count()); }
  void torch_node(int32_t& node) {
    int32_t child = -1;
    number(child);
    node = child < 0 ? -1 : captured_.aten_nodes.at(child).torch_node;
  }

  void tensor(at::Tensor& value) {
    int32_t which = 0;
    number(which);
    if (which == -1) return;
    if (which >= 0) {
      value = captured_.values.at(which).constant;
      return;
    }
    auto dtype = c10::ScalarType::Undefined;
    bool wrapped = false;
    number(dtype);
    number(wrapped);
    std::vector<int64_t> lists[2];
    for (std::vector<int64_t>& list : lists) {
      list.resize(count());
      for (int64_t& item : list) number(item);
    }
    const c10::InferenceMode no_inference(false);  // it outlives the mode in which it is first used
    const at::Tensor dense = at::detail::empty_cpu(lists[0], dtype);
    const std::string_view raw = take(dense.nbytes());
    if (!raw.empty()) memcpy(dense.mutable_data_ptr(), raw.data(), raw.size());
    value = dense;
    if (dense.strides() != c10::IntArrayRef(lists[1])) {
      value = at::detail::empty_strided_cpu(lists[0], lists[1], dtype);
      value.copy_(dense);
    }
    if (wrapped) value.unsafeGetTensorImpl()->set_wrapped_number(true);
  }

 private:
  std::string_view rest_;
  const graph::Graph& captured_;
};

// One function for both directions. The bindings name all fields, so that a new one does not compile until it is here.

template <typename Archive, typename Number>
  requires(std::is_arithmetic_v<Number> || std::is_enum_v<Number>)
void put(Archive& archive, Number& value) {
  archive.number(value);
}

template <typename Archive>
void put(Archive& archive, std::string& value) {
  archive.text(value);
}

template <typename Archive>
void put(Archive& archive, at::Tensor& value) {
  archive.tensor(value);
}

template <typename Archive, typename... Fields>
void all(Archive& archive, Fields&... fields) {
  (put(archive, fields), ...);
}

template <typename Archive, typename Item>
void put(Archive& archive, std::vector<Item>& items) {
  if constexpr (Archive::kReads) {
    items.resize(archive.count());
  } else {
    archive.number(static_cast<uint64_t>(items.size()));
  }
  for (Item& item : items) put(archive, item);
}

template <typename Archive>
void put(Archive& archive, c10::Device& device) {
  c10::DeviceType type = device.type();
  c10::DeviceIndex index = device.index();
  all(archive, type, index);
  if constexpr (Archive::kReads) device = c10::Device(type, index);
}

template <typename Archive>
void put(Archive& archive, shapes::Expr& expr) {
  std::string text;
  if constexpr (Archive::kReads) {
    archive.text(text);
    size_t position = 0;
    expr = shapes::parse_expr(text, position);
    if (position != text.size()) throw Unpackable{};
  } else {
    archive.text(shapes::text(expr));
  }
}

template <typename Archive>
void put(Archive& archive, shapes::Size& size) {
  bool is_static = size.is_static();
  int64_t hint = size.hint();
  all(archive, is_static, hint);
  shapes::Expr expr = is_static ? shapes::Expr() : size.expr();
  if (!is_static) put(archive, expr);
  if constexpr (Archive::kReads) size = is_static ? shapes::Size(hint) : shapes::Size(expr, hint);
}

template <typename Archive>
void put(Archive& archive, graph::TensorMeta& meta) {
  auto& [dtype, device, sizes, strides, storage_offset, requires_grad, wrapped, symbolic] = meta;
  bool has_symbols = symbolic.has_value();
  all(archive, dtype, device, sizes, strides, storage_offset, requires_grad, wrapped, has_symbols);
  if (!has_symbols) return;
  if constexpr (Archive::kReads) symbolic.emplace();
  auto& [all_sizes, all_strides, offset] = *symbolic;
  all(archive, all_sizes, all_strides, offset);
}

template <typename Archive>
void put(Archive& archive, graph::SymbolBinding& binding) {
  auto& [symbol, input, dim, range, hint] = binding;
  all(archive, symbol, input, dim, range.low, range.high, hint);
}

template <typename Archive>
void put(Archive& archive, graph::Value& value) {
  auto& [kind, meta, name, constant, producer] = value;
  all(archive, kind, meta, constant, producer);
}

template <typename Archive>
void put_literal(Archive& archive, c10::IValue& value, const c10::Type& type) {
  std::string text;
  if constexpr (Archive::kReads) {
    archive.text(text);
    graph::Scanner scanner(text, 0);
    value = graph::parse_literal(scanner, type);
  } else {
    if (!has_text(value)) throw Unpackable{};
    graph::print_literal(text, value, type);
    archive.text(text);
  }
}

template <typename Archive>
void put_arg(Archive& archive, AtenArg& arg, const c10::Type& type) {
  auto kind = static_cast<uint8_t>(arg.index());
  archive.number(kind);
  if constexpr (Archive::kReads) {
    if (kind == 0) arg = c10::IValue();
    if (kind == 1) arg = graph::kNoValue;
    if (kind == 2) arg = std::vector<graph::ValueId>();
    if (kind == 3) arg = graph::SizeArg();
    if (kind == 4) arg = std::shared_ptr<const graph::Region>();
    if (kind > 4) throw Unpackable{};
  }
  if (auto* constant = std::get_if<c10::IValue>(&arg)) {
    // A tensor argument that is not there has no type that a literal could be read by.
    const bool none = graph::is_tensor_type(type) || graph::is_tensor_list_type(type);
    if (!none) return put_literal(archive, *constant, type);
    if (!constant->isNone()) throw Unpackable{};
  } else if (auto* id = std::get_if<graph::ValueId>(&arg)) {
    archive.number(*id);
  } else if (auto* size = std::get_if<graph::SizeArg>(&arg)) {
    all(archive, size->sizes, size->is_list);
  } else if (auto* region = std::get_if<std::shared_ptr<const graph::Region>>(&arg)) {
    graph::Region own;  // without a torch level
    if constexpr (!Archive::kReads) {
      own = **region;
      for (AtenNode& node : own.graph.aten_nodes) node.torch_node = -1;
    }
    all(archive, own.name, own.graph);
    if constexpr (Archive::kReads) *region = std::make_shared<const graph::Region>(std::move(own));
  } else {
    put(archive, std::get<std::vector<graph::ValueId>>(arg));
  }
}

template <typename Archive>
void put_nodes(Archive& archive, std::vector<AtenNode>& nodes) {
  size_t count = nodes.size();
  if constexpr (Archive::kReads) {
    count = archive.count();
  } else {
    archive.number(static_cast<uint64_t>(count));
  }
  for (size_t i = 0; i < count; ++i) {
    if constexpr (Archive::kReads) {
      std::string name, overload, identity;
      all(archive, name, overload, identity);
      const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
      if (!op || identity != identity_of(*op)) throw Unpackable{};
      nodes.push_back({*op, std::vector<AtenArg>(op->schema().arguments().size())});
    } else {
      const c10::OperatorName& name = nodes[i].op.operator_name();
      archive.text(name.name);
      archive.text(name.overload_name);
      archive.text(identity_of(nodes[i].op));
    }
    auto& [op, args, results, torch_node] = nodes[i];
    const auto& arguments = op.schema().arguments();
    if (args.size() != arguments.size()) throw Unpackable{};
    for (size_t a = 0; a < args.size(); ++a) put_arg(archive, args[a], *arguments[a].real_type());
    put(archive, results);
    archive.torch_node(torch_node);
  }
}

template <typename Archive>
void put(Archive& archive, graph::Graph& graph) {
  auto& [values, inputs, torch_nodes, aten_nodes, outputs, symbols, without_torch_function] = graph;  // no torch level
  all(archive, values, inputs);
  put_nodes(archive, aten_nodes);
  put(archive, outputs);
  put(archive, symbols);
}

template <typename Archive>
void put(Archive& archive, passes::Functional::Write& write) {
  auto& [input, value] = write;
  all(archive, input, value);
}

template <typename Archive>
void put(Archive& archive, passes::Functional::Bump& bump) {
  auto& [value, count] = bump;
  all(archive, value, count);
}

template <typename Archive>
void put(Archive& archive, passes::Functional& functional) {
  auto& [graph, writes, bumps] = functional;
  all(archive, graph, writes, bumps);
}

template <typename Archive>
void put(Archive& archive, Buffer& buffer) {
  auto& [kind, value, dtype, device, sizes, strides, input, node, escapes] = buffer;
  all(archive, kind, value, dtype, device, sizes, strides, input, node, escapes);
}

template <typename Archive>
void put(Archive& archive, Place& place) {
  auto& [buffer, offset] = place;
  all(archive, buffer, offset);
}

template <typename Archive>
void put(Archive& archive, loops::Kernel& kernel) {
  std::string name = kernel.name, text;
  if constexpr (Archive::kReads) {
    all(archive, name, text);
    kernel = loops::parse(text);
    kernel.name = name;
  } else {
    text = loops::print(kernel, /*bare=*/true);
    all(archive, name, text);
  }
}

template <typename Archive>
void put(Archive& archive, Step& step) {
  auto& [kernel, call] = step;
  bool is_kernel = kernel != nullptr;
  archive.number(is_kernel);
  if (!is_kernel) return archive.number(call.node);
  if constexpr (Archive::kReads) kernel = std::make_unique<KernelStep>();
  auto& [loops, buffers, operators, value_operators, variant] = *kernel;
  all(archive, loops, buffers, operators, value_operators, variant);
}

template <typename Archive>
void put(Archive& archive, Choices& choices) {
  auto& [called, exact, small_product, threads] = choices;
  std::vector<int32_t> operators(called.begin(), called.end());
  bool limited = small_product.has_value();
  int64_t limit = small_product.value_or(0);
  all(archive, operators, exact, limited, limit, threads);
  if constexpr (Archive::kReads) {
    called.insert(operators.begin(), operators.end());
    if (limited) small_product = limit;
  }
}

template <typename Archive>
void put(Archive& archive, LoopProgram& program) {
  auto& [functional, buffers, places, steps, output_views, copies, cut, choices] = program;
  all(archive, functional, buffers, places, steps, output_views, copies, cut, choices);
}

/// A writer changes nothing, but shares its code with the reader, which does.
template <typename Whole>
std::optional<std::string> written(const Whole& whole, const graph::Graph* captured) {
  try {
    Writer writer(captured);
    put(writer, const_cast<Whole&>(whole));
    return std::move(writer.out);
  } catch (const Unpackable&) {
    return std::nullopt;
  }
}

}  // namespace

std::optional<std::string> pack(const graph::Graph& captured) { return written(captured, nullptr); }

std::optional<std::string> pack(const LoopProgram& program, const graph::Graph& captured) {
  return written(program, &captured);
}

std::optional<LoopProgram> unpack(std::string_view bytes, const graph::Graph& captured) {
  try {
    Reader reader(bytes, captured);
    LoopProgram program;
    put(reader, program);
    if (!reader.at_end()) return std::nullopt;
    return program;
  } catch (const Unpackable&) {
    return std::nullopt;
  } catch (const std::logic_error&) {  // a text that does not parse, a number out of range
    return std::nullopt;
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

}  // namespace magneto::lower
