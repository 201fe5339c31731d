// Reads the text form of kernels, line by line.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>

#include "loops/ir.h"

namespace magneto::loops {
namespace {

/// One line, from left to right.
class Scanner {
 public:
  Scanner(std::string_view line, int number) : line_(line), number_(number) {}

  [[noreturn]] void fail(const std::string& cause) const {
    throw std::invalid_argument("line " + std::to_string(number_) + ", column " + std::to_string(position_ + 1) + ": " +
                                cause);
  }

  void skip_spaces() {
    while (position_ < line_.size() && line_[position_] == ' ') ++position_;
  }
  bool at_end() {
    skip_spaces();
    return position_ >= line_.size();
  }
  bool starts_with(std::string_view token) {
    skip_spaces();
    return line_.substr(position_).starts_with(token);
  }
  bool take(std::string_view token) {
    if (!starts_with(token)) return false;
    position_ += token.size();
    return true;
  }
  void expect(std::string_view token) {
    if (!take(token)) fail("expected '" + std::string(token) + "'");
  }
  /// Letters, digits, `.` and `_`.
  std::string_view word() {
    skip_spaces();
    const size_t begin = position_;
    while (position_ < line_.size() && (std::isalnum(static_cast<unsigned char>(line_[position_])) ||
                                        line_[position_] == '.' || line_[position_] == '_')) {
      ++position_;
    }
    return line_.substr(begin, position_ - begin);
  }
  int64_t integer() { return number<int64_t>("expected an integer"); }
  int32_t id(int64_t limit) {
    const int64_t value = integer();
    if (value < 0 || value >= limit) fail("number out of range");
    return static_cast<int32_t>(value);
  }
  double real() {
    if (take("nan")) return std::numeric_limits<double>::quiet_NaN();
    if (take("inf")) return std::numeric_limits<double>::infinity();
    if (take("-inf")) return -std::numeric_limits<double>::infinity();
    return number<double>("expected a number");
  }
  Expr expr() {
    size_t position = position_;
    try {
      const Expr result = shapes::parse_expr(line_, position);
      position_ = position;
      return result;
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument("line " + std::to_string(number_) + ", " + error.what());
    }
  }
  std::string quoted() {
    expect("\"");
    std::string result;
    while (position_ < line_.size() && line_[position_] != '"') {
      char c = line_[position_++];
      if (c == '\\') {
        if (position_ >= line_.size()) break;
        c = line_[position_++];
        if (c == 'x') {
          unsigned byte = 0;
          const char* begin = line_.data() + position_;
          const char* limit = line_.data() + std::min(position_ + 2, line_.size());
          if (std::from_chars(begin, limit, byte, 16).ptr != begin + 2) fail("expected two hexadecimal digits");
          position_ += 2;
          c = static_cast<char>(byte);
        }
      }
      result += c;
    }
    expect("\"");
    return result;
  }

 private:
  template <typename Number>
  Number number(const char* expectation) {
    skip_spaces();
    Number value{};
    const auto [end, error] = std::from_chars(line_.data() + position_, line_.data() + line_.size(), value);
    if (error != std::errc{}) fail(expectation);
    position_ = static_cast<size_t>(end - line_.data());
    return value;
  }

  std::string_view line_;
  int number_;
  size_t position_ = 0;
};

template <typename Enum, typename Text>
std::optional<Enum> find_by_text(int count, std::string_view wanted, Text text) {
  for (int i = 0; i < count; ++i) {
    if (text(static_cast<Enum>(i)) == wanted) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

constexpr int kDtypeCount = 0
#define X(...) +1
#include "loops/dtypes.def"
#undef X
    ;
constexpr int kOpCount = 0
#define X(...) +1
#include "loops/ops.def"
#undef X
    ;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Kernel run() {
    Scanner first = require_line();
    first.expect("kernel");
    kernel_.name = first.quoted();
    first.expect("{");
    end(first);
    while (true) {
      Scanner line = require_line();
      if (line.take("}")) {
        end(line);
        break;
      }
      read_line(line);
      end(line);
    }
    if (next_line()) Scanner(line_, number_).fail("text after the kernel's end");
    return std::move(kernel_);
  }

 private:
  bool next_line() {
    while (position_ < text_.size()) {
      const size_t stop = std::min(text_.find('\n', position_), text_.size());
      line_ = text_.substr(position_, stop - position_);
      position_ = stop + 1;
      ++number_;
      const size_t first = line_.find_first_not_of(' ');
      if (first == std::string_view::npos || line_[first] == '#') continue;
      return true;
    }
    return false;
  }

  Scanner require_line() {
    if (!next_line()) Scanner({}, number_ + 1).fail("the kernel has no end");
    return Scanner(line_, number_);
  }

  static void end(Scanner& scanner) {
    if (!scanner.at_end()) scanner.fail("unexpected text at the end of the line");
  }

  /// Each of them takes several characters to define, so this also bounds the memory a text can ask for.
  int64_t limit() const { return static_cast<int64_t>(std::min<size_t>(text_.size(), 1 << 24)); }

  void read_line(Scanner& line) {
    if (line.take("origin ")) {
      kernel_.origins.push_back(line.quoted());
    } else if (line.take("symbols ")) {
      do {
        read_symbol(line);
      } while (line.take(","));
    } else if (line.take("parallel ")) {
      read_loops(line, kernel_.parallel);
    } else if (line.take("stage ")) {
      kernel_.blocks.emplace_back();
      read_loops(line, kernel_.blocks.back().loops);
      line.expect("{");
      end(line);
      read_code();
    } else if (line.take("row {")) {
      end(line);
      kernel_.blocks.emplace_back();
      read_code();
    } else if (line.take("b")) {
      read_buffer(line);
    } else {
      line.fail("expected a buffer, loops, a stage or a row");
    }
  }

  void read_symbol(Scanner& line) {
    const Expr leaf = line.expr();
    if (leaf.kind() != shapes::ExprKind::Symbol) line.fail("expected a symbol");
    Symbol symbol{leaf.id()};
    if (line.take("in ")) {
      symbol.range = {};
      if (!line.take("..")) {
        symbol.range.low = line.integer();
        line.expect("..");
      }
      if (!line.at_end() && !line.starts_with(",")) symbol.range.high = line.integer();
    }
    kernel_.symbols.push_back(symbol);
  }

  void read_buffer(Scanner& line) {
    if (line.integer() != static_cast<int64_t>(kernel_.buffers.size())) line.fail("buffers are numbered from b0 on");
    Buffer buffer{};
    static constexpr std::string_view kRoles[] = {"in", "out", "inout", "scratch"};
    const std::string_view role = line.word();
    const auto found = std::find(std::begin(kRoles), std::end(kRoles), role);
    if (found == std::end(kRoles)) line.fail("expected in, out, inout or scratch");
    buffer.role = static_cast<Role>(found - std::begin(kRoles));
    buffer.dtype = read_dtype(line);
    line.expect("[");
    buffer.size = line.expr();
    line.expect("]");
    if (!line.at_end()) buffer.name = line.quoted();
    kernel_.buffers.push_back(std::move(buffer));
  }

  static Dtype read_dtype(Scanner& line) {
    const std::string_view name = line.word();
    const auto dtype = find_by_text<Dtype>(kDtypeCount, name, dtype_text);
    if (!dtype) line.fail("unknown dtype '" + std::string(name) + "'");
    return *dtype;
  }

  void read_loops(Scanner& line, std::vector<Loop>& loops) {
    do {
      line.expect("i");
      const int32_t variable = line.id(limit());
      kernel_.variable_count = std::max(kernel_.variable_count, variable + 1);
      line.expect("<");
      loops.push_back({variable, line.expr()});
    } while (line.take(","));
  }

  void read_code() {
    while (true) {
      Scanner line = require_line();
      if (line.take("}")) {
        end(line);
        return;
      }
      kernel_.blocks.back().code.push_back(read_instruction(line));
      end(line);
    }
  }

  ValueId read_value(Scanner& line) {
    line.expect("%");
    return line.id(limit());
  }

  Instruction read_instruction(Scanner& line) {
    Instruction instruction{};
    line.skip_spaces();
    const bool defines = line.take("%");
    if (defines) {
      instruction.result = line.id(limit());
      kernel_.value_count = std::max(kernel_.value_count, instruction.result + 1);
      line.expect(":");
      instruction.dtype = read_dtype(line);
      line.expect("=");
    }
    const std::string_view name = line.word();
    const auto op = find_by_text<Op>(kOpCount, name, [](Op op) { return facts(op).text; });
    if (!op) line.fail("unknown instruction '" + std::string(name) + "'");
    instruction.op = *op;
    const bool stores = *op == Op::Store || *op == Op::StoreAdd;
    if (stores == defines) line.fail(std::string(name) + (stores ? " has no result" : " needs a result: %n:dtype ="));
    read_operands(line, instruction);
    if (instruction.result >= 0) note_dtype(instruction.result, instruction.dtype);
    return instruction;
  }

  void read_operands(Scanner& line, Instruction& instruction) {
    switch (instruction.op) {
      case Op::Constant:
        if (is_float(instruction.dtype)) {
          instruction.number = line.real();
          if (instruction.dtype != Dtype::F64) instruction.number = static_cast<float>(instruction.number);
        } else {
          instruction.integer = line.integer();
        }
        return;
      case Op::Index:
        instruction.index = line.expr();
        return;
      case Op::Load:
        read_element(line, instruction);
        if (line.take("if ")) {
          instruction.operands[0] = read_value(line);
          line.expect("else ");
          instruction.operands[1] = read_value(line);
        }
        return;
      case Op::Store:
      case Op::StoreAdd:
        read_element(line, instruction);
        line.expect(",");
        instruction.operands[0] = read_value(line);
        if (static_cast<size_t>(instruction.operands[0]) < dtypes_.size()) {
          instruction.dtype = dtypes_[instruction.operands[0]];
        }
        if (line.take("if ")) instruction.operands[1] = read_value(line);
        return;
      case Op::Bounds: {
        instruction.operands[0] = read_value(line);
        line.expect("<");
        instruction.index = line.expr();
        std::string message = line.quoted();
        const auto found = std::find(kernel_.messages.begin(), kernel_.messages.end(), message);
        instruction.message = static_cast<int32_t>(found - kernel_.messages.begin());
        if (found == kernel_.messages.end()) kernel_.messages.push_back(std::move(message));
        if (line.take("if ")) instruction.operands[1] = read_value(line);
        return;
      }
      default:
        for (int i = 0; i < facts(instruction.op).operands; ++i) {
          if (i) line.expect(",");
          instruction.operands[i] = read_value(line);
        }
    }
  }

  void read_element(Scanner& line, Instruction& instruction) {
    line.expect("b");
    instruction.buffer = line.id(static_cast<int64_t>(kernel_.buffers.size()));
    line.expect("[");
    instruction.index = line.expr();
    line.expect("]");
  }

  void note_dtype(ValueId value, Dtype dtype) {
    if (static_cast<size_t>(value) >= dtypes_.size()) dtypes_.resize(value + 1, Dtype::F32);
    dtypes_[value] = dtype;
  }

  std::string_view text_;
  size_t position_ = 0;
  std::string_view line_;
  int number_ = 0;
  Kernel kernel_;
  std::vector<Dtype> dtypes_;
};

}  // namespace

Kernel parse(std::string_view text) { return Parser(text).run(); }

}  // namespace magneto::loops
