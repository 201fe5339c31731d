// JSON, written piece by piece: what tools read of a compile (TORCH_TRACE, `python -m magneto report`).
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace magneto::graph {

/// Commas come by themselves. Bytes that are no UTF-8 stay as they are.
class Json {
 public:
  /// '[' or '{', and its end.
  Json& open(char bracket) {
    separate();
    out_ += bracket;
    return *this;
  }
  Json& close(char bracket) {
    out_ += bracket;
    return *this;
  }
  Json& key(std::string_view name) {
    add(name);
    out_ += ':';
    return *this;
  }
  Json& add(std::string_view text) {
    separate();
    out_ += '"';
    size_t written = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      if (byte >= 0x20 && byte != 0x7f && byte != '"' && byte != '\\') continue;
      out_.append(text, written, i - written);
      written = i + 1;
      if (byte == '"' || byte == '\\') {
        out_ += '\\';
        out_ += text[i];
      } else if (byte == '\n') {
        out_ += "\\n";
      } else {
        static constexpr char kDigits[] = "0123456789abcdef";
        out_ += "\\u00";
        out_ += kDigits[byte >> 4];
        out_ += kDigits[byte & 15];
      }
    }
    out_.append(text, written);
    out_ += '"';
    return *this;
  }
  Json& add(const char* text) { return add(std::string_view(text)); }
  Json& add(const std::string& text) { return add(std::string_view(text)); }
  template <std::integral Number>
  Json& add(Number number) {
    separate();
    if constexpr (std::same_as<Number, bool>) {
      out_ += number ? "true" : "false";
    } else {
      char digits[24];
      out_.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
    }
    return *this;
  }
  /// One decimal: of nanoseconds and the like.
  Json& add(double number) {
    separate();
    char digits[64];
    const auto end = std::to_chars(digits, digits + sizeof digits, number, std::chars_format::fixed, 1);
    if (end.ec == std::errc())
      out_.append(digits, end.ptr);
    else
      out_ += '0';
    return *this;
  }
  /// `[1, 2]` of anything that can be added.
  template <typename Items>
  Json& list(const Items& items) {
    open('[');
    for (const auto& item : items) add(item);
    return close(']');
  }
  template <typename Value>
  Json& field(std::string_view name, const Value& value) {
    return key(name).add(value);
  }

  std::string take() { return std::move(out_); }

 private:
  void separate() {
    if (!out_.empty() && out_.back() != '[' && out_.back() != '{' && out_.back() != ':') out_ += ',';
  }

  std::string out_;
};

}  // namespace magneto::graph
