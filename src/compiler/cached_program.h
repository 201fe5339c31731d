// The program of a captured graph in the cache on disk: a process that finds it runs no pass and lowers nothing.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "cache/claim.h"
#include "cache/digest.h"
#include "graph/graph.h"
#include "lower/program.h"

namespace magneto::runtime {

/// What the keys of all programs have in common: this build, PyTorch, the machine. Empty if this build can't be told
/// from another one; nothing is kept then.
const std::string& program_key();

class CachedProgram {
 public:
  /// `way`: whatever else the program depends on.
  CachedProgram(const graph::Graph& captured, const std::string& way);

  /// Where another process makes it now, this one waits for it, at most so long. Nothing: it is made anew, and then
  /// worth keeping; other processes wait until this object is gone.
  std::optional<lower::LoopProgram> find(std::chrono::milliseconds patience);
  void keep(const lower::LoopProgram& program) const;

 private:
  const graph::Graph& captured_;
  std::optional<cache::Digest> key_;
  std::optional<cache::Claim> claim_;
};

}  // namespace magneto::runtime
