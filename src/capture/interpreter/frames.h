// The interpreted frames of a capture, from the one that the segment starts in.
//
// Invariant: `root` holds the user's own values in slots that are still `raw`, and the interpreter's in all others; an
// exit finds them as the current instruction found them.
#pragma once

#include <Python.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "capture/interpreter/interp_frame.h"
#include "guards/user_place.h"
#include "python/bytecode/code.h"
#include "python/ref.h"

namespace magneto::capture {

class Capture;

class Frames {
 public:
  explicit Frames(Capture& capture) : c(capture) {}
  Frames(const Frames&) = delete;

  /// `raise_first`: the current error is raised at the frame's instruction. (interpreter.cpp)
  Ref run(InterpFrame& frame, bool raise_first = false);
  /// "user.py:4 in forward"; empty where no frame runs.
  guards::UserPlace user_place() const;
  /// How the program came to the frame.
  static std::shared_ptr<const graph::CallSite> call_site(InterpFrame& frame);
  /// "at user.py:4 in forward".
  std::string user_line() const;
  Ref read_raw(int32_t slot);
  void note_site();
  void force_exit();
  void trace_instruction();

  std::vector<CodePlace> site;
  std::set<const CodeInfo*> codes;
  InterpFrame root;
  uint32_t steps = 0;  // instructions executed
  int32_t start_depth = 0;
  bool reading_start = true;  // the stack that the segment starts with is being read

 private:
  Capture& c;
  int64_t executed_ = 0;  // instructions, counted for exit_every
};

}  // namespace magneto::capture
