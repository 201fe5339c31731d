// How constants are spelled in the text form: Python's spelling where there is one, dtypes by their short name, layouts
// and memory formats by PyTorch's name. The type in the operator's schema says how a constant is read, so that an `int`
// that means a dtype prints as `f32`.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <string>
#include <string_view>

namespace magneto::graph {

/// Appends the spelling of `value`, an argument of type `type`. What can't be read back prints as `<kind>`.
void print_literal(std::string& out, const c10::IValue& value, const c10::Type& type);

/// Shortest spelling that reads back as the same number: `1.0`, `1e-05`, `inf`, `nan`.
void print_double(std::string& out, double number);
/// The same for a number that is a float, so that 0.1f prints as `0.1`.
void print_float(std::string& out, float number);

/// Double quotes, with \n, \t, \", \\ and \xNN for control characters. Other bytes stay as they are.
void print_quoted(std::string& out, std::string_view text);

/// Splits one line of the text form into tokens. Errors are std::invalid_argument that name the line and the column.
class Scanner {
 public:
  Scanner(std::string_view line, int number) : line_(line), number_(number) {}

  [[noreturn]] void fail(const std::string& cause) const;
  bool at_end() const { return position_ == line_.size(); }
  void skip_spaces();
  /// Takes `token` if it comes next (after spaces).
  bool take(std::string_view token);
  void expect(std::string_view token);
  /// Takes letters, digits and underscores; may be empty.
  std::string_view word();
  int64_t integer();
  double number();
  std::string quoted();
  char peek() const { return at_end() ? '\0' : line_[position_]; }
  size_t position() const { return position_; }
  void seek(size_t position) { position_ = position; }
  std::string_view rest() const { return line_.substr(position_); }

 private:
  /// The characters that a number may be made of.
  std::string_view number_text();

  std::string_view line_;
  int number_;
  size_t position_ = 0;
};

/// Reads a constant of type `type`.
c10::IValue parse_literal(Scanner& scanner, const c10::Type& type);

/// True for `Tensor` and `Tensor?`.
bool is_tensor_type(const c10::Type& type);
/// True for `Tensor[]`, `Tensor?[]` and `Tensor[]?`.
bool is_tensor_list_type(const c10::Type& type);

}  // namespace magneto::graph
