#include "aot/manifest.h"

#include <sstream>
#include <stdexcept>

namespace magneto::aot {
namespace {

/// A line, word by word.
class Words {
 public:
  explicit Words(const std::string& line) : line_(line), in_(line) {}

  [[noreturn]] void fail() const { throw std::invalid_argument("the line \"" + line_ + "\""); }
  std::string word() {
    std::string found;
    if (!(in_ >> found)) fail();
    return found;
  }
  template <typename Number>
  Number number() {
    Number found;
    if (!(in_ >> found)) fail();
    return found;
  }
  std::vector<int64_t> numbers(size_t count) {
    std::vector<int64_t> found;
    for (size_t i = 0; i < count; ++i) found.push_back(number<int64_t>());
    return found;
  }
  size_t rank() {
    const auto count = number<size_t>();
    if (count > 64) fail();
    return count;
  }
  c10::ScalarType dtype() {
    const auto code = number<int>();
    if (code < 0 || code >= static_cast<int>(c10::ScalarType::NumOptions)) fail();
    return static_cast<c10::ScalarType>(code);
  }
  int64_t size() {
    const std::string text = word();
    try {
      return text.starts_with('s') ? -1 - std::stoll(text.substr(1)) : std::stoll(text);
    } catch (const std::logic_error&) {
      fail();
    }
  }
  std::string rest() {
    std::string found;
    std::getline(in_ >> std::ws, found);
    return found;
  }
  bool next(std::string& word) { return static_cast<bool>(in_ >> word); }

 private:
  const std::string& line_;
  std::istringstream in_;
};

Manifest::Place place_of(Words& words) {
  const std::string kind = words.word();
  const auto index = words.number<size_t>();
  if (kind == "output") return {Manifest::Kind::Output, index};
  if (kind == "argument") return {Manifest::Kind::Argument, index};
  if (kind == "tensor") return {Manifest::Kind::Tensor, index};
  words.fail();
}

Manifest::State state_of(Words& words) {
  Manifest::State state{.dtype = words.dtype(),
                        .requires_grad = words.number<bool>(),
                        .storage = words.number<size_t>(),
                        .offset = words.number<int64_t>(),
                        .sizes = {},
                        .strides = {},
                        .name = {}};
  const size_t rank = words.rank();
  state.sizes = words.numbers(rank);
  state.strides = words.numbers(rank);
  state.name = words.rest();
  return state;
}

Manifest::Argument argument_of(Words& words) {
  Manifest::Argument argument{.dtype = words.dtype(), .sizes = {}, .where = {}};
  for (size_t left = words.rank(); left > 0; --left) argument.sizes.push_back(words.size());
  argument.where = words.rest();
  return argument;
}

Manifest::Condition condition_of(Words& words) {
  Manifest::Condition condition;
  for (std::string word = words.word(); word != "#"; word = words.word()) condition.words.push_back(word);
  condition.text = words.rest();
  return condition;
}

void add(Manifest& all, const std::string& kind, Words& words) {
  if (kind == "made_by") {
    all.made_by = words.rest();
  } else if (kind == "layout") {
    all.layout = words.rest();
  } else if (kind == "torch") {
    all.torch = words.rest();
  } else if (kind == "machine") {
    all.machine = words.rest();
  } else if (kind == "storage") {
    const auto place = words.number<size_t>();
    all.storages.push_back({place, words.number<size_t>()});
  } else if (kind == "tensor") {
    all.states.push_back(state_of(words));
  } else if (kind == "symbol") {
    const auto low = words.number<int64_t>();
    all.symbols.push_back({low, words.number<int64_t>()});
  } else if (kind == "argument") {
    all.arguments.push_back(argument_of(words));
  } else if (kind == "condition") {
    all.conditions.push_back(condition_of(words));
  } else if (kind == "input") {
    all.inputs.push_back(place_of(words));
  } else if (kind == "result") {
    all.results.push_back(place_of(words));
  } else if (kind == "written") {
    all.written.push_back(words.number<size_t>());
  } else {
    words.fail();
  }
}

}  // namespace

Manifest parse_manifest(std::string_view text) {
  Manifest manifest;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    Words words(line);
    add(manifest, words.word(), words);
  }
  return manifest;
}

}  // namespace magneto::aot
