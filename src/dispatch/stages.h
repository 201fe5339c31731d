// Who sees the stages of a compile: TORCH_LOGS, the debug directory (TORCH_COMPILE_DEBUG), `magneto.debug_dump`,
// TORCH_TRACE.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dispatch/context.h"
#include "observe/stages.h"

namespace magneto::dispatch {

/// For one graph.
class Stages final : public graph::StageSink {
 public:
  /// `function`: the captured function's name, for the graph's folder.
  Stages(const Context& context, std::string function);
  bool wanted(graph::Stage stage) const override;
  void take(graph::Stage stage, const std::string& text) override;
  bool insists_on(graph::Stage stage) const override;
  bool watches() const override;

 private:
  static bool is_logged(graph::Stage stage);
  static bool is_traced(graph::Stage stage);
  void write(graph::Stage stage, const std::string& text);

  Report* report_;
  bool dump_;
  std::string function_, folder_;
};

}  // namespace magneto::dispatch
