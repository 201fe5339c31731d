// Makes an object file from the code generator executable: a small linker for what LLVM writes for one kernel.
//
// It is ours, and not LLVM's, so that code from a cache runs without loading LLVM at all.
#pragma once

#include <cstddef>
#include <string_view>

namespace magneto::codegen {

/// One object file in memory, relocated; readable and executable, not writable. Freed with it.
class LoadedObject {
 public:
  /// Throws std::runtime_error for anything that is not such an object file: it may come from a damaged cache.
  explicit LoadedObject(std::string_view object);
  ~LoadedObject();
  LoadedObject(const LoadedObject&) = delete;
  LoadedObject& operator=(const LoadedObject&) = delete;

  /// The address of a function that the object defines; throws std::runtime_error if it does not.
  void* symbol(std::string_view name) const;
  size_t size() const { return size_; }
  /// Bytes of that function's code.
  size_t entry_size() const { return entry_size_; }

 private:
  void load(std::string_view object);
  void release();

  std::string_view object_;  // during load only
  char* memory_ = nullptr;
  size_t size_ = 0;
  void* entry_ = nullptr;
  size_t entry_size_ = 0;
};

}  // namespace magneto::codegen
