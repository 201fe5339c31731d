#include "graph/literal.h"

#include <ATen/core/List.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>

#include <charconv>
#include <cmath>
#include <stdexcept>

#include "graph/dtypes.h"
#include "graph/graph.h"

namespace magneto::graph {
namespace {

using c10::IValue;
using c10::TypeKind;

/// PyTorch's constants that a schema passes as an int, by the name users write.
struct NamedConstant {
  TypeKind kind;
  int64_t value;
  std::string_view name;
};

constexpr NamedConstant named_constants[] = {
    {TypeKind::LayoutType, int64_t(c10::Layout::Strided), "strided"},
    {TypeKind::LayoutType, int64_t(c10::Layout::Sparse), "sparse_coo"},
    {TypeKind::LayoutType, int64_t(c10::Layout::SparseCsr), "sparse_csr"},
    {TypeKind::LayoutType, int64_t(c10::Layout::SparseCsc), "sparse_csc"},
    {TypeKind::LayoutType, int64_t(c10::Layout::SparseBsr), "sparse_bsr"},
    {TypeKind::LayoutType, int64_t(c10::Layout::SparseBsc), "sparse_bsc"},
    {TypeKind::LayoutType, int64_t(c10::Layout::Mkldnn), "mkldnn"},
    {TypeKind::LayoutType, int64_t(c10::Layout::Jagged), "jagged"},
    {TypeKind::MemoryFormatType, int64_t(c10::MemoryFormat::Contiguous), "contiguous_format"},
    {TypeKind::MemoryFormatType, int64_t(c10::MemoryFormat::Preserve), "preserve_format"},
    {TypeKind::MemoryFormatType, int64_t(c10::MemoryFormat::ChannelsLast), "channels_last"},
    {TypeKind::MemoryFormatType, int64_t(c10::MemoryFormat::ChannelsLast3d), "channels_last_3d"},
};

const c10::Type& without_optional(const c10::Type& type) {
  const c10::Type* inner = &type;
  while (inner->kind() == TypeKind::OptionalType) inner = inner->castRaw<c10::OptionalType>()->getElementType().get();
  return *inner;
}

/// The element type of a list; the type itself when it is none (values carry less than schemas know).
const c10::Type& element_type(const c10::Type& type) {
  const c10::Type& list = without_optional(type);
  return list.kind() == TypeKind::ListType ? *list.castRaw<c10::ListType>()->getElementType() : list;
}

template <typename Number>
void print_shortest(std::string& out, Number number) {
  if (std::isnan(number)) {
    out += std::signbit(number) ? "-nan" : "nan";
    return;
  }
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, number).ptr;
  const std::string_view text(buffer, end - buffer);
  out += text;
  if (text.find_first_of(".einf") == std::string_view::npos) out += ".0";
}

void print_named(std::string& out, int64_t value, TypeKind kind) {
  if (kind == TypeKind::ScalarTypeType) {
    out += dtype_name(static_cast<c10::ScalarType>(value));
    return;
  }
  for (const NamedConstant& row : named_constants) {
    if (row.kind == kind && row.value == value) {
      out += row.name;
      return;
    }
  }
  out += std::to_string(value);
}

template <typename List, typename Print>
void print_list(std::string& out, const List& list, Print print_item) {
  out += '[';
  bool first = true;
  for (const auto& item : list) {
    if (!std::exchange(first, false)) out += ", ";
    print_item(item);
  }
  out += ']';
}

template <typename Item>
c10::List<Item> parse_list(Scanner& scanner, auto parse_item) {
  c10::List<Item> list;
  scanner.expect("[");
  if (scanner.take("]")) return list;
  do {
    list.push_back(parse_item());
  } while (scanner.take(","));
  scanner.expect("]");
  return list;
}

bool parse_bool(Scanner& scanner) {
  if (scanner.take("True")) return true;
  if (scanner.take("False")) return false;
  scanner.fail("expected True or False");
}

c10::complex<double> parse_complex(Scanner& scanner) {
  scanner.expect("complex(");
  const double real = scanner.number();
  scanner.expect(",");
  const double imaginary = scanner.number();
  scanner.expect(")");
  return {real, imaginary};
}

at::Scalar parse_scalar(Scanner& scanner) {
  if (scanner.take("True")) return at::Scalar(true);
  if (scanner.take("False")) return at::Scalar(false);
  scanner.skip_spaces();
  if (scanner.rest().starts_with("complex(")) return at::Scalar(parse_complex(scanner));
  const size_t start = scanner.position();
  const double number = scanner.number();
  const size_t end = scanner.position();
  scanner.seek(start);
  const std::string_view text = scanner.rest().substr(0, end - start);
  if (text.find_first_of(".einf") == std::string_view::npos) return at::Scalar(scanner.integer());
  scanner.seek(end);
  return at::Scalar(number);
}

int64_t parse_named(Scanner& scanner, TypeKind kind) {
  scanner.skip_spaces();
  const std::string_view name = scanner.word();
  if (kind == TypeKind::ScalarTypeType) {
    if (const auto dtype = dtype_of_name(name)) return static_cast<int64_t>(*dtype);
    scanner.fail("unknown dtype '" + std::string(name) + "'");
  }
  for (const NamedConstant& row : named_constants) {
    if (row.kind == kind && row.name == name) return row.value;
  }
  scanner.fail("unknown layout or memory format '" + std::string(name) + "'");
}

IValue parse_literal_list(Scanner& scanner, const c10::TypePtr& item_type) {
  const c10::Type& item = without_optional(*item_type);
  switch (item.kind()) {
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return parse_list<int64_t>(scanner, [&] { return scanner.integer(); });
    case TypeKind::FloatType:
      return parse_list<double>(scanner, [&] { return scanner.number(); });
    case TypeKind::BoolType:
      return parse_list<bool>(scanner, [&] { return parse_bool(scanner); });
    case TypeKind::StringType:
      return parse_list<std::string>(scanner, [&] { return scanner.quoted(); });
    case TypeKind::ComplexType:
      return parse_list<c10::complex<double>>(scanner, [&] { return parse_complex(scanner); });
    default: {
      c10::impl::GenericList list(item_type);
      scanner.expect("[");
      if (scanner.take("]")) return list;
      do {
        list.push_back(parse_literal(scanner, *item_type));
      } while (scanner.take(","));
      scanner.expect("]");
      return list;
    }
  }
}

}  // namespace

bool is_tensor_type(const c10::Type& type) { return without_optional(type).kind() == TypeKind::TensorType; }

bool is_tensor_list_type(const c10::Type& type) {
  return without_optional(type).kind() == TypeKind::ListType && is_tensor_type(element_type(type));
}

void print_double(std::string& out, double number) { print_shortest(out, number); }

void print_float(std::string& out, float number) {
  std::string text;
  print_shortest(text, number);
  // The digits that identify a float among floats could, in principle, read back through a double as its neighbour.
  const bool exact = std::isnan(number) || static_cast<float>(std::strtod(text.c_str(), nullptr)) == number;
  exact ? void(out += text) : print_shortest(out, static_cast<double>(number));
}

void print_quoted(std::string& out, std::string_view text) {
  constexpr char digits[] = "0123456789abcdef";
  out += '"';
  for (const unsigned char byte : text) {
    if (byte == '"' || byte == '\\') {
      out += '\\';
      out += static_cast<char>(byte);
    } else if (byte == '\n') {
      out += "\\n";
    } else if (byte == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
    } else {
      out += static_cast<char>(byte);
    }
  }
  out += '"';
}

void print_literal(std::string& out, const IValue& value, const c10::Type& type) {
  if (value.isNone()) {
    out += "None";
  } else if (value.isBool()) {
    out += value.toBool() ? "True" : "False";
  } else if (value.isInt()) {
    print_named(out, value.toInt(), without_optional(type).kind());
  } else if (value.isDouble()) {
    print_double(out, value.toDouble());
  } else if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    out += "complex(";
    print_double(out, number.real());
    out += ", ";
    print_double(out, number.imag());
    out += ')';
  } else if (value.isString()) {
    print_quoted(out, value.toStringRef());
  } else if (value.isDevice()) {
    out += value.toDevice().str();
  } else if (value.isSymInt()) {
    const auto number = value.toSymInt().maybe_as_int();
    out += number ? std::to_string(*number) : "<SymInt>";
  } else if (value.isIntList()) {
    const TypeKind kind = element_type(type).kind();
    print_list(out, value.toIntList(), [&](int64_t item) { print_named(out, item, kind); });
  } else if (value.isDoubleList()) {
    print_list(out, value.toDoubleList(), [&](double item) { print_double(out, item); });
  } else if (value.isBoolList()) {
    print_list(out, value.toBoolList(), [&](bool item) { out += item ? "True" : "False"; });
  } else if (value.isList()) {
    print_list(out, value.toListRef(), [&](const IValue& item) { print_literal(out, item, element_type(type)); });
  } else {
    out += '<';
    out += value.tagKind();
    out += '>';
  }
}

IValue parse_literal(Scanner& scanner, const c10::Type& type) {
  scanner.skip_spaces();
  if (scanner.rest().starts_with('<')) {
    const auto end = scanner.rest().find('>');
    scanner.fail("the constant " + std::string(scanner.rest().substr(0, end + 1)) + " has no text form to read back");
  }
  if (type.kind() == TypeKind::OptionalType && scanner.take("None")) return {};
  const c10::Type& inner = without_optional(type);
  switch (inner.kind()) {
    case TypeKind::NoneType:
      scanner.expect("None");
      return {};
    case TypeKind::BoolType:
    case TypeKind::SymBoolType:
      return parse_bool(scanner);
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return scanner.integer();
    case TypeKind::FloatType:
    case TypeKind::SymFloatType:
      return scanner.number();
    case TypeKind::ComplexType:
      return parse_complex(scanner);
    case TypeKind::NumberType:
      return parse_scalar(scanner);
    case TypeKind::StringType:
      return scanner.quoted();
    case TypeKind::ScalarTypeType:
    case TypeKind::LayoutType:
    case TypeKind::MemoryFormatType:
      return parse_named(scanner, inner.kind());
    case TypeKind::DeviceObjType: {
      std::string name(scanner.word());
      if (scanner.take(":")) name += ":" + std::to_string(scanner.integer());
      try {
        return c10::Device(name);
      } catch (const c10::Error&) {
        scanner.fail("unknown device '" + name + "'");
      }
    }
    case TypeKind::ListType:
      return parse_literal_list(scanner, inner.castRaw<c10::ListType>()->getElementType());
    default:
      scanner.fail("a constant of type " + type.str() + " has no text form");
  }
}

// -- Scanner ---------------------------------------------------------------------------------------------------------

void Scanner::fail(const std::string& cause) const {
  throw std::invalid_argument("line " + std::to_string(number_) + ", column " + std::to_string(position_ + 1) + ": " +
                              cause);
}

void Scanner::skip_spaces() {
  while (position_ < line_.size() && line_[position_] == ' ') ++position_;
}

bool Scanner::take(std::string_view token) {
  skip_spaces();
  if (!rest().starts_with(token)) return false;
  position_ += token.size();
  return true;
}

void Scanner::expect(std::string_view token) {
  if (!take(token)) fail("expected '" + std::string(token) + "'");
}

std::string_view Scanner::word() {
  const size_t start = position_;
  const auto belongs = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  while (position_ < line_.size() && belongs(line_[position_])) ++position_;
  return line_.substr(start, position_ - start);
}

std::string_view Scanner::number_text() {
  skip_spaces();
  const size_t length = rest().find_first_not_of("0123456789+-.einfa");
  return rest().substr(0, length);
}

int64_t Scanner::integer() {
  skip_spaces();
  int64_t value = 0;
  const auto [end, error] = std::from_chars(rest().data(), rest().data() + rest().size(), value);
  if (error != std::errc{}) fail("expected an integer that fits 64 bits");
  position_ += end - rest().data();
  return value;
}

double Scanner::number() {
  const std::string_view text = number_text();
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  // Underflow and overflow are errors of from_chars; nothing that we print does either.
  if (error != std::errc{} || end != text.data() + text.size()) fail("expected a number");
  position_ += text.size();
  return value;
}

std::string Scanner::quoted() {
  expect("\"");
  std::string text;
  while (true) {
    if (at_end()) fail("string without its closing quote");
    char c = line_[position_++];
    if (c == '"') return text;
    if (c == '\\') {
      const char escape = at_end() ? '\0' : line_[position_++];
      if (escape == 'n') {
        c = '\n';
      } else if (escape == 't') {
        c = '\t';
      } else if (escape == '"' || escape == '\\') {
        c = escape;
      } else if (escape == 'x' && position_ + 2 <= line_.size()) {
        unsigned byte = 0;
        const char* start = line_.data() + position_;
        if (std::from_chars(start, start + 2, byte, 16).ptr != start + 2) fail("bad \\x escape");
        position_ += 2;
        c = static_cast<char>(byte);
      } else {
        fail("unknown escape in a string");
      }
    }
    text += c;
  }
}

}  // namespace magneto::graph
