// One instruction, for real: what a side exit could not capture runs here on the user's own frame and objects.
#pragma once

#include "python/abi/frame.h"
#include "python/bytecode/code.h"

namespace magneto::dispatch {

enum class StepResult : uint8_t {
  Done,     // go on at `*next`
  Raised,   // the error indicator is set; the frame is as it was in front of the instruction
  NotOurs,  // an instruction that CPython itself should run, and the rest of the frame with it
};

/// Runs the instruction at `instr` on a frame whose state was set
/// with frame_set_running and which is the thread's current frame. `*depth` is the value stack's depth, updated.
StepResult step(Frame* frame, const CodeInfo& info, int32_t instr, int32_t* next, int32_t* depth);

}  // namespace magneto::dispatch
