// What has happened at which place of the program, counted, since the last reset: for who asks why
// (magneto/_history.py), and so that messages that repeat are folded. Written by captures, never by calls that hit.
#pragma once

#include <Python.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "python/bytecode/code.h"
#include "python/ref.h"

namespace magneto::dispatch {

/// X(event, what it is)
#define MAGNETO_EVENTS(X)                                                          \
  X(capture, "a segment was captured that begins here")                            \
  X(graph_break, "a segment ends here")                                            \
  X(recompile, "a segment that begins here was captured again; cause: the guard")  \
  X(fallback, "CPython runs the segment that begins here: it can't be captured")   \
  X(limit, "CPython runs new cases of the segment: there are too many captures")   \
  X(undone, "an operator raised; the run was undone, and CPython ran the segment") \
  X(skipped, "frames that are not captured by themselves")                         \
  X(no_joint, "the gradients of the segment that begins here are eager's; cause: why")

enum class Event : uint8_t {
#define X(event, doc) event,
  MAGNETO_EVENTS(X)
#undef X
};

class History {
 public:
  /// Counts; gives how often it has happened there, this time included. `example`: the text of the last time, where
  /// texts differ; of recompiles a line for each. `needed_at`: the user's line that needed the guard that failed.
  int64_t note(Event event, const CodePlace& place, const std::string& cause, std::string example = "",
               std::string needed_at = "");
  /// The functions that the capture of a segment went through, for `captured_in`.
  void captured(const CodePlace& start, const std::set<const CodeInfo*>& codes);

  /// [(event, file, function's first line, line, function, cause, example, count, needed_at)], in order of the first
  /// time.
  Ref rows() const;
  /// (captures that went through the code, where the last of them began), or None.
  Ref captured_in(const CodeInfo* info) const;

 private:
  struct Row {
    Event event;
    std::string file, function;
    int first_line, line;
    std::string cause, example, needed_at;
    int64_t count = 0;
  };
  using Key = std::tuple<Event, std::string, int, std::string, std::string>;
  std::vector<Row> rows_;
  std::map<Key, size_t> index_;
  std::map<const CodeInfo*, std::pair<int64_t, std::string>> captured_;
};

History& history();

/// "fn (playground.py:3)", the function by its qualified name.
std::string place_text(const CodePlace& place);

}  // namespace magneto::dispatch
