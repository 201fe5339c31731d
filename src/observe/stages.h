// What a compile makes on its way, for people: who wants to see a stage's text gives the stages a sink.
#pragma once

#include <cstdint>
#include <string>

namespace magneto::graph {

enum class Stage : uint8_t {
#define X(name, artifact, file, title) name,
#include "observe/stages.def"
#undef X
};

struct StageFacts {
  const char *name, *artifact, *file, *title;
};
inline constexpr StageFacts kStages[] = {
#define X(name, artifact, file, title) {#name, artifact, file, title},
#include "observe/stages.def"
#undef X
};
inline const StageFacts& facts(Stage stage) { return kStages[static_cast<size_t>(stage)]; }

class StageSink {
 public:
  virtual ~StageSink() = default;
  virtual bool wanted(Stage stage) const = 0;
  virtual void take(Stage stage, const std::string& text) = 0;
  /// Wanted even where the cache on disk saves making it.
  virtual bool insists_on(Stage stage) const { return wanted(stage); }
  /// The program's texts are wanted later on, and how long its steps take.
  virtual bool watches() const { return false; }

  /// Texts are made only for who wants them: `make()` gives the text.
  template <typename Make>
  void offer(Stage stage, Make make) {
    if (wanted(stage)) take(stage, make());
  }
};

/// Wants nothing.
class NoSink final : public StageSink {
 public:
  bool wanted(Stage) const override { return false; }
  void take(Stage, const std::string&) override {}
};

}  // namespace magneto::graph
