#include "codegen/cached_code.h"

#include <cstring>

#include "cache/cache.h"
#include "cache/identity.h"

namespace magneto::codegen {
namespace {

/// What the key has in common for all kernels; empty if the compiler can't be told from another one.
const std::string& common_key(const std::string& compiler) {
  static const std::string key = [&]() -> std::string {
    const std::string id = cache::build_id(compiler);
    if (id.empty()) {
      cache::say("Compiled code is not kept on disk: " + compiler + " has no build id.");
      return "";
    }
    // The compiler's build id stands for its own version and for LLVM's.
    return "kernel code, compiler " + id + ", PyTorch " MAGNETO_TORCH_VERSION ", machine" + cache::machine();
  }();
  return key;
}

/// The parts of an entry, each behind its length.
constexpr std::string FinishedCode::* kParts[] = {&FinishedCode::object, &FinishedCode::units, &FinishedCode::cost};

}  // namespace

std::optional<cache::Digest> key_of(const std::string& text, int options, const std::string& compiler) {
  if (!cache::enabled()) return std::nullopt;
  const std::string& common = common_key(compiler);
  if (common.empty()) return std::nullopt;
  return cache::Hasher().add(common).add("\n" + std::to_string(options) + "\n").add(text).finish();
}

std::optional<FinishedCode> find_kept(const std::string& text, int options, const std::string& compiler) {
  const auto key = key_of(text, options, compiler);
  const auto content = key ? cache::find(*key) : std::nullopt;
  if (!content) return std::nullopt;
  FinishedCode code;
  std::string_view rest = *content;
  for (const auto part : kParts) {
    uint64_t length = 0;
    if (rest.size() < sizeof length) return std::nullopt;
    memcpy(&length, rest.data(), sizeof length);
    rest.remove_prefix(sizeof length);
    if (rest.size() < length) return std::nullopt;
    code.*part = rest.substr(0, length);
    rest.remove_prefix(length);
  }
  return code;
}

void keep(const std::string& text, int options, const std::string& compiler, const FinishedCode& code) {
  const auto key = key_of(text, options, compiler);
  if (!key) return;
  std::string content;
  for (const auto part : kParts) {
    const uint64_t length = (code.*part).size();
    content.append(reinterpret_cast<const char*>(&length), sizeof length);
    content += code.*part;
  }
  cache::keep(*key, content);
}

}  // namespace magneto::codegen
