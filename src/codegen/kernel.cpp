// Compiling: one entry for each content, the library loaded when neither this process nor the cache on disk has it,
// threads for several kernels.
#include "codegen/kernel.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <unordered_map>

#include "cache/claim.h"
#include "codegen/cached_code.h"
#include "codegen/finished.h"
#include "codegen/llvm/library.h"
#include "codegen/object_loader.h"
#include "codegen/perf_map.h"

namespace magneto::codegen {

namespace {

shapes::Expr parse_fact(const std::string& text) {
  size_t position = 0;
  try {
    return shapes::parse_expr(text, position);
  } catch (const std::invalid_argument& error) {
    throw std::runtime_error(std::string("a kernel's kept facts are damaged: ") + error.what());
  }
}

}  // namespace

/// What one content compiles to.
class Code {
 public:
  /// `name`: of one of the kernels that it is the code of, for profilers.
  Code(const FinishedCode& code, const std::string& name)
      : object(code.object),
        units(parse_fact(code.units)),
        cost(parse_fact(code.cost)),
        entry(reinterpret_cast<Entry>(object.symbol("magneto_kernel"))) {
    note_code(object.symbol("magneto_kernel"), object.entry_size(), "magneto::" + name);
  }
  const LoadedObject object;
  const shapes::Expr units, cost;
  const Entry entry;
};

namespace {

/// The library's functions.
struct Library {
  decltype(&magneto_codegen_compile) compile;
  decltype(&magneto_codegen_part) part;
  decltype(&magneto_codegen_free) free;
};

template <typename Function>
void resolve(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  if (!function) throw std::runtime_error(std::string("libmagneto_codegen.so has no ") + name);
}

/// Beside the file that this function is in.
std::string library_path() {
  Dl_info self{};
  dladdr(reinterpret_cast<void*>(&library_path), &self);
  const std::string path = self.dli_fname ? self.dli_fname : "";
  return path.substr(0, path.rfind('/') + 1) + "libmagneto_codegen.so";
}

const Library& library() {
  static const Library loaded = [] {
    const std::string path = library_path();
    // Local and never closed: another LLVM may live in the process, and LLVM has destructors at exit.
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle) throw std::runtime_error(std::string("the code generator can't be loaded: ") + dlerror());
    decltype(&magneto_codegen_version) version = nullptr;
    resolve(handle, "magneto_codegen_version", version);
    if (version() != MAGNETO_CODEGEN_VERSION) throw std::runtime_error(path + " is of another version of Magneto");
    Library found{};
    resolve(handle, "magneto_codegen_compile", found.compile);
    resolve(handle, "magneto_codegen_part", found.part);
    resolve(handle, "magneto_codegen_free", found.free);
    return found;
  }();
  return loaded;
}

std::atomic<int64_t> requested{0}, compiled{0}, nanoseconds{0};

/// A compile's result, read once.
class Result {
 public:
  Result(const std::string& text, int options)
      : library_(library()), compiled_(library_.compile(text.data(), text.size(), options)) {
    if (const std::string_view error = part(MAGNETO_ERROR); !error.empty()) {
      const std::string message(error);
      library_.free(compiled_);
      throw std::runtime_error("a kernel can't be compiled: " + message + "\n" + text);
    }
  }
  ~Result() { library_.free(compiled_); }
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;

  std::string_view part(int which) const {
    size_t length = 0;
    const char* data = library_.part(compiled_, which, &length);
    return {data, length};
  }
  std::string text(int which) const { return std::string(part(which)); }

 private:
  const Library& library_;
  MagnetoCompiled* compiled_;
};

constexpr int kVariantBits[] = {0, MAGNETO_OTHER_LANES, MAGNETO_NARROW, MAGNETO_WIDE};
static_assert(std::size(kVariantBits) == std::size(kVariants));

int option_bits(const CompileOptions& options) {
  return static_cast<int>(options.target) << MAGNETO_TARGET_SHIFT | kVariantBits[options.variant];
}

FinishedCode ask_llvm(const std::string& text, int options) {
  const auto start = std::chrono::steady_clock::now();
  const Result result(text, options);
  FinishedCode code{result.text(MAGNETO_OBJECT), result.text(MAGNETO_UNITS), result.text(MAGNETO_COST)};
  nanoseconds += std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
  ++compiled;
  return code;
}

/// Null: there is none.
std::shared_ptr<const Code> cached_code(const std::string& text, int options, const std::string& name) {
  const auto code = find_kept(text, options, library_path());
  if (!code) return nullptr;
  try {
    return std::make_shared<const Code>(*code, name);
  } catch (const std::runtime_error&) {
    return nullptr;  // whole, but not for this build of ours: compiled again
  }
}

/// Code that is in use, by content. Code that nobody uses any more is freed; its entry stays until it is asked for
/// again or until the table has doubled.
class Table {
 public:
  std::shared_ptr<const Code> find(const std::string& key) {
    std::lock_guard lock(mutex_);
    const auto found = codes_.find(key);
    return found == codes_.end() ? nullptr : found->second.lock();
  }
  void put(const std::string& key, const std::shared_ptr<const Code>& code) {
    std::lock_guard lock(mutex_);
    codes_[key] = code;
    if (codes_.size() < limit_) return;
    std::erase_if(codes_, [](const auto& entry) { return entry.second.expired(); });
    limit_ = std::max<size_t>(256, codes_.size() * 2);
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<const Code>> codes_;
  size_t limit_ = 256;
};

Table& table() {
  static Table& instance = *new Table;
  return instance;
}

int64_t value_of(shapes::Expr expr, const loops::Kernel& kernel, const int64_t* symbols) {
  if (expr.is_constant()) return expr.number();
  return shapes::evaluate(expr, [&](shapes::Expr leaf) -> int64_t {
    const size_t position = kernel.position_of(leaf.id());
    return position == kernel.symbols.size() ? 0 : symbols[position];
  });
}

std::shared_ptr<const CompiledKernel> with_code(const loops::Kernel& kernel, std::shared_ptr<const Code> code) {
  auto finished = std::make_shared<CompiledKernel>();
  finished->entry = code->entry;
  finished->units = code->units;
  finished->cost = code->cost;
  finished->kernel = kernel;
  finished->code = std::move(code);
  return finished;
}

/// No kernel takes as long to make: a process that has not made its own by then stands still.
constexpr std::chrono::milliseconds kPatience{20'000};

/// Bytes below which handing work to another thread costs more than it saves.
constexpr int64_t kThreadBytes = 128 * 1024;

}  // namespace

int64_t CompiledKernel::units_of(const int64_t* symbols) const { return value_of(units, kernel, symbols); }

int64_t CompiledKernel::grain_of(const int64_t* symbols) const { return grain_for(value_of(cost, kernel, symbols)); }

int64_t grain_for(int64_t cost) { return std::max<int64_t>(1, kThreadBytes / std::max<int64_t>(1, cost)); }

std::vector<std::shared_ptr<const CompiledKernel>> compile(std::span<const loops::Kernel> kernels,
                                                           const CompileOptions& options,
                                                           std::span<const int32_t> variants,
                                                           const std::function<void(size_t, size_t)>& progress) {
  requested += static_cast<int64_t>(kernels.size());
  if (!runs_here(options.target)) {
    throw std::runtime_error(std::string("this CPU can't run code for ") + name_of(options.target));
  }
  std::vector<std::string> texts, keys;
  std::vector<int> bits;
  std::vector<std::shared_ptr<const Code>> codes(kernels.size());
  std::unordered_map<std::string, size_t> first;  // key -> the first kernel of that content
  std::vector<size_t> missing;
  for (size_t i = 0; i < kernels.size(); ++i) {
    if (const auto violations = loops::verify(kernels[i]); !violations.empty()) {
      throw std::invalid_argument("kernel \"" + kernels[i].name + "\": " + violations[0]);
    }
    texts.push_back(loops::print(kernels[i], /*bare=*/true));
    bits.push_back(option_bits({options.target, variants.empty() ? options.variant : variants[i]}));
    keys.push_back(std::to_string(bits[i]) + texts[i]);
    if (!first.emplace(keys[i], i).second) continue;
    codes[i] = table().find(keys[i]);
    if (!codes[i]) {
      codes[i] = cached_code(texts[i], bits[i], kernels[i].name);
      if (codes[i]) table().put(keys[i], codes[i]);
    }
    if (!codes[i]) missing.push_back(i);
  }

  // Those that another process makes now are looked at again when the others are done.
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::vector<size_t> elsewhere;
  std::exception_ptr failure;
  const auto make = [&](size_t i, std::chrono::milliseconds patience) {
    const auto key = key_of(texts[i], bits[i], library_path());
    std::optional<cache::Claim> claim;
    if (key) claim.emplace(*key);
    if (claim && claim->is_elsewhere()) {
      if (patience.count() == 0) return false;
      claim->wait(patience);
    }
    if (claim && claim->is_made()) codes[i] = cached_code(texts[i], bits[i], kernels[i].name);
    if (codes[i]) return true;
    const FinishedCode code = ask_llvm(texts[i], bits[i]);
    codes[i] = std::make_shared<const Code>(code, kernels[i].name);
    keep(texts[i], bits[i], library_path(), code);
    return true;
  };
  const auto work = [&](bool tells) {
    for (size_t at = next++; at < missing.size(); at = next++) {
      if (tells && progress) progress(at, missing.size());
      try {
        if (make(missing[at], {})) continue;
        const std::lock_guard lock(mutex);
        elsewhere.push_back(missing[at]);
      } catch (...) {
        const std::lock_guard lock(mutex);
        failure = std::current_exception();
      }
    }
  };
  const size_t wanted = std::min<size_t>({missing.size(), std::max(1u, std::thread::hardware_concurrency()), 16});
  {
    std::vector<std::jthread> threads;  // joined however this block is left: `progress` may throw
    try {
      for (size_t i = 1; i < wanted; ++i) threads.emplace_back(work, false);
    } catch (const std::system_error&) {
      // No more threads in this process: those there are do the work of all.
    }
    work(true);
  }
  if (failure) std::rethrow_exception(failure);
  for (const size_t i : elsewhere) make(i, kPatience);
  for (const size_t i : missing) table().put(keys[i], codes[i]);

  std::vector<std::shared_ptr<const CompiledKernel>> result;
  for (size_t i = 0; i < kernels.size(); ++i) {
    result.push_back(with_code(kernels[i], codes[first.at(keys[i])]));
  }
  return result;
}

FinishedCode generate(const loops::Kernel& kernel, const CompileOptions& options) {
  return ask_llvm(loops::print(kernel, /*bare=*/true), option_bits(options));
}

std::shared_ptr<const CompiledKernel> adopt(const loops::Kernel& kernel, const FinishedCode& code) {
  return with_code(kernel, std::make_shared<const Code>(code, kernel.name));
}

std::string content_of(const loops::Kernel& kernel, int32_t variant) {
  return std::to_string(option_bits({.variant = variant})) + loops::print(kernel, /*bare=*/true);
}

FinishedCode finished_code(const loops::Kernel& kernel, int32_t variant) {
  const std::string text = loops::print(kernel, /*bare=*/true);
  const int bits = option_bits({.variant = variant});
  if (auto kept = find_kept(text, bits, library_path())) return std::move(*kept);
  FinishedCode code = ask_llvm(text, bits);
  keep(text, bits, library_path(), code);
  return code;
}

std::shared_ptr<const Code> know(const std::string& content, const FinishedCode& code, const std::string& name) {
  if (std::shared_ptr<const Code> known = table().find(content)) return known;
  auto made = std::make_shared<const Code>(code, name);
  table().put(content, made);
  return made;
}

KernelTexts texts_of(const loops::Kernel& kernel, const CompileOptions& options) {
  const int lines = options.lines ? MAGNETO_LINES : 0;
  const Result result(loops::print(kernel), option_bits(options) | MAGNETO_TEXTS | lines);
  return {result.text(MAGNETO_SCHEDULE), result.text(MAGNETO_IR), result.text(MAGNETO_ASSEMBLY)};
}

CompileStats compile_stats() { return {requested, compiled, nanoseconds}; }

}  // namespace magneto::codegen
