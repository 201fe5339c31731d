// The file of a program that was compiled ahead of time: magneto/_export/ahead.py writes it, docs/exported-programs.md
// describes it. It holds machine code: whoever opens one runs what its writer wrote.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace magneto::aot {

/// The file can't be used here: the message says why and what to do.
class BadFile : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A file in memory: what is written there is this process's own, and never reaches the file.
class Mapping {
 public:
  explicit Mapping(const std::string& path);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  char* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
};

/// The parts of a file, their checksum compared. The tensors' bytes are not read.
struct Parts {
  std::shared_ptr<const Mapping> mapping;
  /// Lines: manifest.h. A packed program; the code of its kernels; what Python keeps, as JSON.
  std::string_view manifest, program, kernels, text;
  size_t data = 0, data_size = 0;
};
/// Throws BadFile.
Parts read_parts(const std::string& path);

}  // namespace magneto::aot
