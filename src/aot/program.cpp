#include "aot/program.h"

#include <c10/core/DispatchKeySet.h>
#include <c10/core/InferenceMode.h>

#include <cstring>
#include <map>

#include "cache/digest.h"
#include "cache/identity.h"
#include "codegen/finished.h"
#include "graph/symbols.h"
#include "lower/pack.h"
#include "runtime/device/device.h"

namespace magneto::aot {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw BadFile(path + " is damaged (" + why + "): copy it again, or compile the program again.");
}

/// The codes of the kernels, each behind its length; they are found by `compile` while the result lives.
std::vector<std::shared_ptr<const codegen::Code>> know_codes(const lower::LoopProgram& program, std::string_view rest) {
  std::vector<std::shared_ptr<const codegen::Code>> codes;
  std::map<std::string, bool> seen;
  const auto text = [&] {
    uint64_t length = 0;
    if (rest.size() < sizeof length) throw std::runtime_error("a kernel without code");
    memcpy(&length, rest.data(), sizeof length);
    rest.remove_prefix(sizeof length);
    if (rest.size() < length) throw std::runtime_error("a kernel without code");
    std::string found(rest.substr(0, length));
    rest.remove_prefix(length);
    return found;
  };
  for (const lower::Step& step : program.steps) {
    if (!step.kernel) continue;
    std::string content = codegen::content_of(step.kernel->kernel, step.kernel->variant);
    if (!seen.emplace(content, true).second) continue;
    codegen::FinishedCode code;
    code.object = text();
    code.units = text();
    code.cost = text();
    codes.push_back(codegen::know(content, code, step.kernel->kernel.name));
  }
  return codes;
}

std::string shown(c10::ScalarType dtype) { return "torch." + std::string(c10::getDtypeNames(dtype).first); }

}  // namespace

std::string packed_layout() { return MAGNETO_PACKED_LAYOUT; }

std::string machine_digest() { return cache::hex(cache::Hasher().add(cache::machine()).finish()); }

Program::Program(const std::string& path) : path_(path), parts_(read_parts(path)) {
  try {
    manifest_ = parse_manifest(parts_.manifest);
  } catch (const std::invalid_argument& error) {
    fail(path_, error.what());
  }
  if (manifest_.layout != packed_layout() || manifest_.torch != MAGNETO_TORCH_VERSION) {
    throw BadFile(path_ + " was compiled by another build (" + manifest_.made_by + "; this is for torch " +
                  MAGNETO_TORCH_VERSION "): compile the program again with this one.");
  }
  check_places();
  make_states();
  load_program();
}

void Program::check_places() const {
  const auto check = [&](const Manifest::Place& place, bool is_result) {
    using Kind = Manifest::Kind;
    const size_t count = place.kind == Kind::Argument ? manifest_.arguments.size()
                         : place.kind == Kind::Tensor ? manifest_.states.size()
                                                      : SIZE_MAX;
    if (place.index >= count || (place.kind == Kind::Output && !is_result)) fail(path_, "a place that is not there");
  };
  for (const Manifest::Place& place : manifest_.inputs) check(place, false);
  for (const Manifest::Place& place : manifest_.results) check(place, true);
  for (const Manifest::Argument& argument : manifest_.arguments) {
    for (const int64_t size : argument.sizes) {
      if (size < 0 && static_cast<size_t>(-1 - size) >= manifest_.symbols.size()) fail(path_, "a size of no symbol");
    }
  }
  for (const size_t input : manifest_.written) {
    if (input >= manifest_.inputs.size()) fail(path_, "a written input that is not there");
  }
}

void Program::make_states() {
  const c10::InferenceMode no_inference(false);
  std::vector<at::Storage> storages;
  for (const auto& [place, bytes] : manifest_.storages) {
    if (place > parts_.data_size || bytes > parts_.data_size - place) fail(path_, "tensors that are not there");
    // Each keeps the file mapped.
    auto* kept = new std::shared_ptr<const Mapping>(parts_.mapping);
    at::DataPtr data(
        parts_.mapping->data() + parts_.data + place, kept,
        [](void* held) { delete static_cast<std::shared_ptr<const Mapping>*>(held); }, at::kCPU);
    storages.emplace_back(c10::Storage::use_byte_size_t(), bytes, std::move(data));
  }
  for (const Manifest::State& state : manifest_.states) {
    if (state.storage >= storages.size() || state.offset < 0) fail(path_, "a tensor without memory");
    int64_t last = 0;
    bool empty = false;
    for (size_t d = 0; d < state.sizes.size(); ++d) {
      if (state.sizes[d] < 0 || state.strides[d] < 0) fail(path_, "a tensor of no size");
      empty = empty || state.sizes[d] == 0;
      int64_t reach = 0;
      if (__builtin_mul_overflow(state.sizes[d] - 1, state.strides[d], &reach) ||
          __builtin_add_overflow(last, reach, &last)) {
        fail(path_, "a tensor of no size");
      }
    }
    const auto count = static_cast<uint64_t>(empty ? 0 : last + 1) + static_cast<uint64_t>(state.offset);
    const at::Storage& storage = storages[state.storage];
    if (count > storage.nbytes() / c10::elementSize(state.dtype)) fail(path_, "a tensor that is not in its memory");
    auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                     c10::scalarTypeToTypeMeta(state.dtype));
    impl->set_storage_offset(state.offset);
    impl->set_sizes_and_strides(state.sizes, state.strides);
    at::Tensor tensor(std::move(impl));
    if (state.requires_grad) tensor.set_requires_grad(true);
    states_.push_back(std::move(tensor));
  }
}

void Program::load_program() {
  std::optional<lower::LoopProgram> loops = lower::unpack(parts_.program, graph::Graph());
  if (!loops) {
    throw BadFile(
        path_ +
        " calls an operator that is not registered here: load the library that has it first (in Python import "
        "it).");
  }
  const graph::Graph& graph = loops->functional.graph;
  if (graph.inputs.size() != manifest_.inputs.size()) fail(path_, "a program with other inputs");
  for (const graph::ValueId input : graph.inputs) strides_.push_back(graph::strides_of(graph.values[input].meta));
  for (const Manifest::Place& place : manifest_.results) {
    if (place.kind == Manifest::Kind::Output && place.index >= graph.outputs.size()) fail(path_, "a missing result");
  }
  reader_.emplace(graph);
  try {
    // On another machine the kernels are compiled anew, for which it needs the code generator.
    const bool same = manifest_.machine == machine_digest();
    const auto codes = same ? know_codes(*loops, parts_.kernels) : std::vector<std::shared_ptr<const codegen::Code>>();
    program_.emplace(std::move(*loops), runtime::cpu_device());
  } catch (const std::runtime_error& error) {
    fail(path_, error.what());
  }
}

namespace {

[[noreturn]] void refuse_size(const std::string& place, int64_t size, const std::string& expected) {
  throw BadArgument("Expected input at " + place + " to be " + expected + ", but got " + std::to_string(size));
}

void check_size(const std::string& place, int64_t size, int64_t wanted) {
  if (size != wanted) refuse_size(place, size, "equal to " + std::to_string(wanted));
}

/// `found`: the symbol's size and where it was read first; negative: nowhere yet.
void check_size(const std::string& place, int64_t size, const Manifest::Symbol& range,
                std::pair<int64_t, std::string>& found) {
  const auto [low, high] = range;
  if (size < low) refuse_size(place, size, ">= " + std::to_string(low));
  if (high >= 0 && size > high) refuse_size(place, size, "<= " + std::to_string(high));
  if (found.first < 0) {
    found = {size, place};
  } else if (found.first != size) {
    refuse_size(place, size, "equal to " + found.second + ", which is " + std::to_string(found.first));
  }
}

}  // namespace

void Program::check(const std::vector<at::Tensor>& arguments) const {
  if (arguments.size() != manifest_.arguments.size()) {
    throw BadArgument("Expected " + std::to_string(manifest_.arguments.size()) + " tensors, got " +
                      std::to_string(arguments.size()));
  }
  std::vector<std::pair<int64_t, std::string>> symbols(manifest_.symbols.size(), {-1, ""});
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Manifest::Argument& expected = manifest_.arguments[i];
    const at::Tensor& tensor = arguments[i];
    const std::string input = "Expected input at " + expected.where;
    if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.device().is_cpu()) {
      throw BadArgument(input + " to be a dense tensor on the CPU, but got " +
                        (tensor.defined() ? "one on " + tensor.device().str() : "none"));
    }
    if (tensor.scalar_type() != expected.dtype) {
      throw BadArgument(input + " to have dtype " + shown(expected.dtype) + ", but got " + shown(tensor.scalar_type()));
    }
    if (tensor.dim() != static_cast<int64_t>(expected.sizes.size())) {
      throw BadArgument(input + " to have " + std::to_string(expected.sizes.size()) + " dimensions, got " +
                        std::to_string(tensor.dim()));
    }
    for (size_t d = 0; d < expected.sizes.size(); ++d) {
      const int64_t size = tensor.size(static_cast<int64_t>(d)), wanted = expected.sizes[d];
      const std::string place = expected.where + ".shape[" + std::to_string(d) + "]";
      if (wanted >= 0) {
        check_size(place, size, wanted);
      } else {
        const auto symbol = static_cast<size_t>(-1 - wanted);
        check_size(place, size, manifest_.symbols[symbol], symbols[symbol]);
      }
    }
  }
  for (const Manifest::Condition& condition : manifest_.conditions) {
    if (!holds(condition, arguments)) {
      throw BadArgument("Guard failed: " + condition.text + ": the program was exported for such sizes");
    }
  }
}

bool Program::holds(const Manifest::Condition& condition, const std::vector<at::Tensor>& arguments) const {
  using Function = int64_t (*)(int64_t, int64_t);
  static const std::map<std::string, Function> functions = {
      {"+", [](int64_t a, int64_t b) { return a + b; }},
      {"-", [](int64_t a, int64_t b) { return a - b; }},
      {"*", [](int64_t a, int64_t b) { return a * b; }},
      {"//", [](int64_t a, int64_t b) { return b == 0 ? 0 : a / b - (a % b != 0 && (a % b < 0) != (b < 0)); }},
      {"%", [](int64_t a, int64_t b) { return b == 0 ? 0 : (a % b + b) % b; }},
      {"==", [](int64_t a, int64_t b) { return int64_t{a == b}; }},
      {"!=", [](int64_t a, int64_t b) { return int64_t{a != b}; }},
      {"<", [](int64_t a, int64_t b) { return int64_t{a < b}; }},
      {"<=", [](int64_t a, int64_t b) { return int64_t{a <= b}; }},
      {">", [](int64_t a, int64_t b) { return int64_t{a > b}; }},
      {">=", [](int64_t a, int64_t b) { return int64_t{a >= b}; }},
      {"and", [](int64_t a, int64_t b) { return int64_t{a && b}; }},
      {"or", [](int64_t a, int64_t b) { return int64_t{a || b}; }},
  };
  std::vector<int64_t> stack;
  for (const std::string& word : condition.words) {
    if (const auto found = functions.find(word); found != functions.end() && stack.size() >= 2) {
      const int64_t right = stack.back();
      stack.pop_back();
      stack.back() = found->second(stack.back(), right);
    } else if (word == "not" && !stack.empty()) {
      stack.back() = !stack.back();
    } else if (const size_t dot = word.find('.'); word.starts_with('a') && dot != word.npos) {
      stack.push_back(arguments.at(std::stoull(word.substr(1))).size(std::stoll(word.substr(dot + 1))));
    } else {
      stack.push_back(std::stoll(word));
    }
  }
  return stack.size() == 1 && stack[0] != 0;
}

at::Tensor Program::laid_out(const at::Tensor& argument, size_t input, const graph::SymbolValues& sizes) const {
  std::vector<int64_t> strides;
  bool same = !argument.is_conj() && !argument.is_neg() && !argument._is_zerotensor();
  for (size_t d = 0; d < strides_[input].size(); ++d) {
    strides.push_back(sizes(strides_[input][d].expr()));
    const auto dim = static_cast<int64_t>(d);
    same = same && (argument.size(dim) <= 1 || argument.stride(dim) == strides[d]);
  }
  if (same || argument.numel() == 0) return argument;
  for (const size_t written : manifest_.written) {
    if (written == input) {
      throw BadArgument("Expected input at " + manifest_.arguments[manifest_.inputs[input].index].where +
                        ", which the program writes, to have the strides of the example");
    }
  }
  at::Tensor made = runtime::cpu_device().empty_strided(argument.sizes(), strides, argument.scalar_type());
  return made.copy_(argument);
}

std::vector<at::Tensor> Program::run(const std::vector<at::Tensor>& arguments) const {
  check(arguments);
  const c10::AutoGradMode no_grad(false);
  std::vector<const at::Tensor*> inputs;
  for (const auto& [kind, index] : manifest_.inputs) {
    inputs.push_back(kind == Manifest::Kind::Argument ? &arguments[index] : &states_[index]);
  }
  const graph::SymbolValues sizes = reader_->read(inputs.data());
  std::vector<at::Tensor> held(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (manifest_.inputs[i].kind != Manifest::Kind::Argument) continue;
    held[i] = laid_out(*inputs[i], i, sizes);
    inputs[i] = &held[i];
  }
  std::vector<at::Tensor> outputs(program_->output_count());
  if (!program_->run(inputs.data(), outputs.data())) {
    throw BadArgument(
        "The arguments share memory with one that the program writes, or are lazy, conjugate or of a tensor class: "
        "give "
        "plain tensors of their own");
  }
  std::vector<at::Tensor> results;
  for (const auto& [kind, index] : manifest_.results) {
    results.push_back(kind == Manifest::Kind::Output     ? outputs[index]
                      : kind == Manifest::Kind::Argument ? arguments[index]
                                                         : states_[index]);
  }
  return results;
}

}  // namespace magneto::aot
