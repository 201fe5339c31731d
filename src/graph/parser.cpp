// Reads the text form of a graph, line by line: golden tests are text in, text out.
#include <ATen/ops/empty.h>

#include <charconv>
#include <map>
#include <stdexcept>

#include "graph/dtypes.h"
#include "graph/graph.h"
#include "graph/literal.h"
#include "graph/text.h"
#include "python/text.h"

namespace magneto::graph {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Graph run() {
    require_line("graph {");
    read_body();
    while (next_line()) fail("text after the graph's end");
    return std::move(graph_);
  }

 private:
  [[noreturn]] void fail(const std::string& cause) const { Scanner(line_, number_).fail(cause); }

  /// What stands between the braces of a graph or a region, and the second one.
  void read_body() {
    while (true) {
      if (!next_line()) fail("the graph has no end");
      if (line_.starts_with("region @")) {
        read_region();
      } else if (line_.starts_with('#')) {
        read_location();
      } else if (line_ == "{" || line_ == "{}" || line_.ends_with(" {") || line_.ends_with(" {}")) {
        // First, because a call's name may look like anything; no other line ends so.
        read_torch_node();
      } else if (line_.starts_with("return (")) {
        break;
      } else {
        read_definition(-1);
      }
    }
    Scanner scanner(line_, number_);
    scanner.expect("return (");
    if (!scanner.take(")")) {
      do {
        graph_.outputs.push_back(read_value(scanner));
      } while (scanner.take(","));
      scanner.expect(")");
    }
    end_of_line(scanner);
    require_line("}");
  }

  void read_region() {
    Scanner scanner(line_, number_);
    scanner.expect("region @");
    std::string name(scanner.word());
    if (name.empty()) scanner.fail("a region has a name");
    scanner.expect("{");
    end_of_line(scanner);
    Graph around = std::exchange(graph_, {});
    TorchNode location = std::exchange(location_, {});
    auto regions = std::exchange(regions_, {});
    read_body();
    auto region = std::make_shared<const Region>(Region{name, std::exchange(graph_, std::move(around))});
    location_ = std::move(location);
    regions_ = std::move(regions);
    if (!regions_.emplace(std::move(name), std::move(region)).second) fail("a region of that name exists already");
  }

  /// Steps to the next line that is not blank; spaces around it are dropped.
  bool next_line() {
    while (position_ < text_.size()) {
      const size_t end = std::min(text_.find('\n', position_), text_.size());
      line_ = text_.substr(position_, end - position_);
      position_ = end + 1;
      ++number_;
      const size_t first = line_.find_first_not_of(' ');
      if (first == std::string_view::npos) continue;
      line_ = line_.substr(first, line_.find_last_not_of(' ') - first + 1);
      return true;
    }
    return false;
  }

  void require_line(std::string_view expected) {
    if (!next_line()) fail("expected '" + std::string(expected) + "', found the end of the text");
    if (line_ != expected) fail("expected '" + std::string(expected) + "'");
  }

  void end_of_line(Scanner& scanner) {
    scanner.skip_spaces();
    if (!scanner.at_end()) scanner.fail("unexpected text at the end of the line");
  }

  /// `# file:line in function`; a lone `#` forgets it.
  void read_location() {
    std::string_view text = line_.substr(1);
    location_ = {};
    if (text.empty()) return;
    if (text.starts_with(' ')) text.remove_prefix(1);
    // The rightmost `:line in ` counts; files and functions may hold colons and ` in ` themselves.
    for (size_t in = text.rfind(" in "); in != std::string_view::npos && in > 0; in = text.rfind(" in ", in - 1)) {
      const size_t colon = text.rfind(':', in);
      if (colon == std::string_view::npos) break;
      const std::string_view number = text.substr(colon + 1, in - colon - 1);
      const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), location_.line);
      if (number.empty() || error != std::errc{} || end != number.data() + number.size()) continue;
      location_.file = text.substr(0, colon);
      location_.function = text.substr(in + 4);
      return;
    }
    fail("expected '# file:line in function'");
  }

  void read_torch_node() {
    const bool empty = line_.ends_with('}');
    std::string_view call = line_.substr(0, line_.size() - (empty ? 2 : 1));
    if (call.ends_with(' ')) call.remove_suffix(1);
    TorchNode node = location_;
    node.target = text_object(call);
    const auto index = static_cast<int32_t>(graph_.torch_nodes.size());
    graph_.torch_nodes.push_back(std::move(node));
    if (empty) return;
    while (true) {
      if (!next_line()) fail("a torch call's block has no end");
      if (line_ == "}") return;
      read_definition(index);
    }
  }

  /// One line that defines values: an input, a constant or an operator.
  void read_definition(int32_t torch_node) {
    Scanner scanner(line_, number_);
    std::vector<ValueId> results;
    std::vector<TensorMeta> metas;
    const bool has_results = scanner.peek() == '%' || line_.starts_with("None");
    if (has_results) {
      do {
        results.push_back(read_value(scanner));
        if (results.back() != kNoValue && scanner.take(":")) {
          value(results.back()).meta = read_type(scanner);
          fresh_.push_back(results.back());
        }
      } while (scanner.take(","));
      scanner.expect("=");
    }
    if (scanner.take("input ")) {
      Value& input = single(results, scanner);
      input.kind = ValueKind::Input;
      input.name = scanner.quoted();
      graph_.inputs.push_back(results[0]);
    } else if (scanner.take("constant ")) {
      Value& constant = single(results, scanner);
      constant.kind = ValueKind::Constant;
      constant.constant = read_constant(scanner, constant.meta);
    } else {
      read_operator(scanner, std::move(results), torch_node);
    }
    fresh_.clear();
    end_of_line(scanner);
  }

  Value& single(const std::vector<ValueId>& results, Scanner& scanner) {
    if (results.size() != 1 || fresh_.size() != 1)
      scanner.fail("an input or constant defines one value, with its type");
    return value(results[0]);
  }

  void read_operator(Scanner& scanner, std::vector<ValueId> results, int32_t torch_node) {
    const c10::OperatorHandle op = read_operator_name(scanner);
    AtenNode node{op, {}, std::move(results), torch_node};
    scanner.expect("(");
    bool first = true;
    for (const c10::Argument& argument : op.schema().arguments()) {
      if (!std::exchange(first, false) && !scanner.take(",")) {
        scanner.fail(operator_text(op) + " takes " + std::to_string(op.schema().arguments().size()) + " arguments; '" +
                     argument.name() + "' is missing");
      }
      node.args.push_back(read_aten_arg(scanner, *argument.real_type()));
    }
    scanner.expect(")");
    const auto producer = static_cast<int32_t>(graph_.aten_nodes.size());
    for (const ValueId id : fresh_) {
      Value& result = value(id);
      if (result.producer >= 0) scanner.fail("%" + std::to_string(id) + " is defined twice");
      result.producer = producer;
    }
    graph_.aten_nodes.push_back(std::move(node));
  }

  c10::OperatorHandle read_operator_name(Scanner& scanner) {
    scanner.skip_spaces();
    const std::string_view rest = scanner.rest();
    const std::string_view text = rest.substr(0, rest.find('('));
    const size_t dot = text.find('.');
    const size_t last = text.rfind('.');
    if (dot == std::string_view::npos || dot == last) scanner.fail("expected namespace.operator.overload(...)");
    std::string name(text.substr(0, dot));
    name += "::";
    name += text.substr(dot + 1, last - dot - 1);
    std::string overload(text.substr(last + 1));
    if (overload == "default") overload.clear();
    const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
    if (!op) scanner.fail("unknown operator '" + std::string(text) + "'");
    scanner.seek(scanner.position() + text.size());
    return *op;
  }

  AtenArg read_aten_arg(Scanner& scanner, const c10::Type& type) {
    scanner.skip_spaces();
    if (is_tensor_type(type)) return read_value(scanner);
    if (is_tensor_list_type(type)) {
      if (scanner.take("None")) return c10::IValue();
      std::vector<ValueId> ids;
      scanner.expect("[");
      if (scanner.take("]")) return ids;
      do {
        ids.push_back(read_value(scanner));
      } while (scanner.take(","));
      scanner.expect("]");
      return ids;
    }
    if (scanner.rest().starts_with('%')) return read_value(scanner);
    if (scanner.take("@")) {
      const auto region = regions_.find(std::string(scanner.word()));
      if (region == regions_.end()) scanner.fail("no region of that name stands in front");
      return region->second;
    }
    return parse_literal(scanner, type);
  }

  ValueId read_value(Scanner& scanner) {
    if (scanner.take("None")) return kNoValue;
    scanner.expect("%");
    const int64_t id = scanner.integer();
    // Each value takes several characters to define, so this also bounds the memory a text can ask for.
    if (id < 0 || id >= static_cast<int64_t>(text_.size())) scanner.fail("value number out of range");
    return static_cast<ValueId>(id);
  }

  Value& value(ValueId id) {
    if (static_cast<size_t>(id) >= graph_.values.size()) graph_.values.resize(id + 1);
    return graph_.values[id];
  }

  std::vector<int64_t> read_sizes(Scanner& scanner, const char* close) {
    std::vector<int64_t> sizes;
    if (scanner.take(close)) return sizes;
    do {
      sizes.push_back(scanner.integer());
    } while (scanner.take(","));
    scanner.expect(close);
    return sizes;
  }

  TensorMeta read_type(Scanner& scanner) {
    TensorMeta meta;
    scanner.skip_spaces();
    const std::string name(scanner.word());
    const auto dtype = dtype_of_name(name);
    if (!dtype) scanner.fail("unknown dtype '" + name + "'");
    meta.dtype = *dtype;
    scanner.expect("[");
    meta.sizes = read_sizes(scanner, "]");
    meta.strides = scanner.take("{") ? read_sizes(scanner, "}") : contiguous_strides(meta.sizes);
    if (scanner.take("+")) meta.storage_offset = scanner.integer();
    if (scanner.take("@")) {
      static const auto device_type = c10::DeviceObjType::get();
      meta.device = parse_literal(scanner, *device_type).toDevice();
    }
    meta.requires_grad = scanner.take("grad");
    meta.wrapped = scanner.take("wrapped");
    if (meta.wrapped && !meta.sizes.empty()) scanner.fail("only a tensor without dimensions can be a wrapped number");
    return meta;
  }

  /// The values of a constant; undefined when the text leaves them out (`...`).
  at::Tensor read_constant(Scanner& scanner, const TensorMeta& meta) {
    if (scanner.take("...")) return {};
    const at::Tensor tensor = at::empty(meta.sizes, at::TensorOptions(meta.dtype));
    void* data = tensor.unsafeGetTensorImpl()->mutable_data();
    scanner.expect("[");
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      if (i) scanner.expect(",");
      switch (meta.dtype) {
#define INTEGER(type, dtype)                                            \
  case c10::ScalarType::dtype:                                          \
    static_cast<type*>(data)[i] = static_cast<type>(scanner.integer()); \
    break;
        INTEGER(uint8_t, Byte)
        INTEGER(int8_t, Char)
        INTEGER(int16_t, Short)
        INTEGER(int32_t, Int)
        INTEGER(int64_t, Long)
#undef INTEGER
#define FLOAT(type, dtype)                                                                 \
  case c10::ScalarType::dtype:                                                             \
    static_cast<type*>(data)[i] = static_cast<type>(static_cast<float>(scanner.number())); \
    break;
        FLOAT(float, Float)
        FLOAT(c10::Half, Half)
        FLOAT(c10::BFloat16, BFloat16)
#undef FLOAT
        case c10::ScalarType::Double:
          static_cast<double*>(data)[i] = scanner.number();
          break;
        case c10::ScalarType::Bool:
          static_cast<bool*>(data)[i] = scanner.take("True");
          if (!static_cast<bool*>(data)[i]) scanner.expect("False");
          break;
        default:
          scanner.fail("constants of this dtype have no text form");
      }
    }
    scanner.expect("]");
    if (meta.wrapped) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    return tensor;
  }

  std::string_view text_;
  std::string_view line_;
  size_t position_ = 0;
  int number_ = 0;
  Graph graph_;
  std::map<std::string, std::shared_ptr<const Region>> regions_;
  /// Values that the current line defines.
  std::vector<ValueId> fresh_;
  /// Carries the last location comment.
  TorchNode location_;
};

}  // namespace

Graph parse(std::string_view text) { return Parser(text).run(); }

}  // namespace magneto::graph
