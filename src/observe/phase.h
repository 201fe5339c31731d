// One stage of a compile: timed, verified, shown.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "observe/stages.h"
#include "observe/times.h"

namespace magneto::observe {

/// A stage, as long as it lives or until it is done.
class PhaseScope {
 public:
  /// `name`: its row among the times; null: its time is that of the stage around it.
  PhaseScope(const char* name, graph::StageSink& sink) : sink_(sink) {
    if (name) time_.emplace(name);
  }

  /// What the stage has made, verified if its kind has a verifier. `who`: is blamed.
  template <typename Made>
  Made done(Made made, std::string_view who = {}) {
    check(made, who);
    if (time_) time_->end();
    return made;
  }

  /// The same, offered to who wants to see it.
  template <typename Made>
  Made done(Made made, graph::Stage shown, std::string_view who = {}) {
    made = done(std::move(made), who);
    sink_.offer(shown, [&] { return print(made); });
    return made;
  }

 private:
  template <typename Made>
  static void check(const Made& made, std::string_view who) {
    if constexpr (requires { verify(made); }) {
      const auto violations = verify(made);
      if (violations.empty()) return;
      throw std::logic_error((who.empty() ? "" : "pass " + std::string(who) + " broke the graph: ") +
                             violations.front());
    }
  }

  std::optional<runtime::StageTime> time_;
  graph::StageSink& sink_;
};

}  // namespace magneto::observe
