// A program that was compiled ahead of time: opened, and run on tensors. Needs no Python.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "aot/file.h"
#include "aot/manifest.h"
#include "lower/program.h"
#include "runtime/program/compiled_program.h"

namespace magneto::aot {

/// An argument is not what the program was compiled for: the message says which, and what it should be.
class BadArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// Calls from several threads at a time are fine, unless the program writes buffers.
class Program {
 public:
  /// Throws BadFile.
  explicit Program(const std::string& path);

  const Manifest& manifest() const { return manifest_; }
  /// What Python keeps of it.
  std::string_view text() const { return parts_.text; }
  /// Throws BadArgument, and what operators throw.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& arguments) const;

 private:
  void check_places() const;
  void make_states();
  void load_program();
  void check(const std::vector<at::Tensor>& arguments) const;
  bool holds(const Manifest::Condition& condition, const std::vector<at::Tensor>& arguments) const;
  at::Tensor laid_out(const at::Tensor& argument, size_t input, const graph::SymbolValues& sizes) const;

  const std::string path_;
  const Parts parts_;
  Manifest manifest_;
  std::vector<at::Tensor> states_;
  /// The strides that kernels know the inputs by.
  std::vector<shapes::Sizes> strides_;
  std::optional<graph::SymbolReader> reader_;
  std::optional<runtime::CompiledProgram> program_;
};

/// Equal in builds whose packed programs are alike.
std::string packed_layout();
/// Equal on machines that run each other's code.
std::string machine_digest();

}  // namespace magneto::aot
