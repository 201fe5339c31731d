// Python code that runs for the compiler itself.
#pragma once

#include "python/abi/frame.h"
#include "python/abi/paused_collector.h"

namespace magneto {

/// As CPython runs a frame.
PyObject* run_frame_plainly(PyThreadState* thread, Frame* frame, int throwflag);

/// While alive, what this thread asks Python for is for the compiler itself: the code that runs (of imports, of
/// modules'
/// `__getattr__`) is no part of the program that is captured, and no garbage is collected, whose finalisers would find
/// modules half made. Needs the GIL.
class OwnCode {
 public:
  OwnCode() : hook_(run_frame_plainly) {}

 private:
  const PausedCollector paused_;
  const FrameHook hook_;
};

}  // namespace magneto
