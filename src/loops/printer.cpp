// The text form of kernels. What the machine code does not depend on (names, origins) is left out of the bare form.
#include <charconv>
#include <cmath>

#include "loops/ir.h"

namespace magneto::loops {
namespace {

void print_quoted(std::string& out, std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

/// The shortest spelling that reads back as the same number of that dtype.
void print_number(std::string& out, Dtype dtype, double number) {
  if (std::isnan(number)) {
    out += "nan";
    return;
  }
  if (std::isinf(number)) {
    out += number < 0 ? "-inf" : "inf";
    return;
  }
  char digits[40];
  const auto end = dtype == Dtype::F64 ? std::to_chars(digits, digits + sizeof digits, number).ptr
                                       : std::to_chars(digits, digits + sizeof digits, static_cast<float>(number)).ptr;
  out.append(digits, end);
}

std::string value(ValueId id) { return std::string("%") + std::to_string(id); }

class Printer {
 public:
  Printer(const Kernel& kernel, bool bare) : kernel_(kernel), bare_(bare) {}

  std::string run() {
    out_ += "kernel ";
    print_quoted(out_, bare_ ? std::string_view("") : std::string_view(kernel_.name));
    out_ += " {\n";
    if (!bare_) {
      for (const std::string& origin : kernel_.origins) {
        out_ += "  origin ";
        print_quoted(out_, origin);
        out_ += '\n';
      }
    }
    if (!kernel_.symbols.empty()) {
      out_ += "  symbols";
      for (const Symbol& symbol : kernel_.symbols) {
        out_ += &symbol == kernel_.symbols.data() ? " " : ", ";
        print_symbol(symbol);
      }
      out_ += '\n';
    }
    for (size_t i = 0; i < kernel_.buffers.size(); ++i) print_buffer(i);
    if (!kernel_.parallel.empty()) {
      out_ += "  parallel";
      print_loops(kernel_.parallel);
      out_ += '\n';
    }
    for (const Block& block : kernel_.blocks) {
      out_ += block.is_stage() ? "  stage" : "  row";
      print_loops(block.loops);
      out_ += " {\n";
      for (const Instruction& instruction : block.code) print_instruction(instruction);
      out_ += "  }\n";
    }
    out_ += "}\n";
    return std::move(out_);
  }

 private:
  void print_buffer(size_t i) {
    static constexpr const char* kRoles[] = {"in", "out", "inout", "scratch"};
    const Buffer& buffer = kernel_.buffers[i];
    out_ += "  b" + std::to_string(i) + " " + kRoles[static_cast<size_t>(buffer.role)] + " ";
    out_ += dtype_text(buffer.dtype);
    out_ += std::string("[") + text(buffer.size) + "]";
    if (!bare_ && !buffer.name.empty()) {
      out_ += ' ';
      print_quoted(out_, buffer.name);
    }
    out_ += '\n';
  }

  /// `s0`, a size, or `s0 in -8..` with what is known of it.
  void print_symbol(const Symbol& symbol) {
    out_ += text(Expr::symbol(symbol.id));
    const auto [low, high] = symbol.range;
    if (low == Symbol::kSizes.low && high == Symbol::kSizes.high) return;
    out_ += " in ";
    if (low != INT64_MIN) out_ += std::to_string(low);
    out_ += "..";
    if (high != INT64_MAX) out_ += std::to_string(high);
  }

  void print_loops(const std::vector<Loop>& loops) {
    for (const Loop& loop : loops) {
      out_ += (&loop == loops.data() ? " i" : ", i") + std::to_string(loop.variable) + std::string(" < ") +
              text(loop.extent);
    }
  }

  void print_element(const Instruction& instruction) {
    out_ += std::string("b") + std::to_string(instruction.buffer) + std::string("[") + text(instruction.index) + "]";
  }

  void print_mask(ValueId mask) {
    if (mask != kNoValue) out_ += " if " + value(mask);
  }

  void print_instruction(const Instruction& instruction) {
    out_ += "    ";
    if (instruction.result != kNoValue) {
      out_ += value(instruction.result) + ":";
      out_ += dtype_text(instruction.dtype);
      out_ += " = ";
    }
    out_ += facts(instruction.op).text;
    out_ += ' ';
    switch (instruction.op) {
      case Op::Constant:
        if (is_float(instruction.dtype)) {
          print_number(out_, instruction.dtype, instruction.number);
        } else {
          out_ += std::to_string(instruction.integer);
        }
        break;
      case Op::Index:
        out_ += text(instruction.index);
        break;
      case Op::Load:
        print_element(instruction);
        print_mask(instruction.operands[0]);
        if (instruction.operands[0] != kNoValue) out_ += " else " + value(instruction.operands[1]);
        break;
      case Op::Store:
      case Op::StoreAdd:
        print_element(instruction);
        out_ += ", " + value(instruction.operands[0]);
        print_mask(instruction.operands[1]);
        break;
      case Op::Bounds:
        out_ += value(instruction.operands[0]) + std::string(" < ") + text(instruction.index) + " ";
        print_quoted(out_, message(instruction.message));
        print_mask(instruction.operands[1]);
        break;
      default:
        for (int i = 0; i < facts(instruction.op).operands; ++i) {
          if (i) out_ += ", ";
          out_ += value(instruction.operands[i]);
        }
    }
    out_ += '\n';
  }

  std::string_view message(int32_t number) const {
    return number >= 0 && static_cast<size_t>(number) < kernel_.messages.size()
               ? std::string_view(kernel_.messages[number])
               : std::string_view("?");
  }

  const Kernel& kernel_;
  bool bare_;
  std::string out_;
};

}  // namespace

std::string print(const Kernel& kernel, bool bare) { return Printer(kernel, bare).run(); }

}  // namespace magneto::loops
