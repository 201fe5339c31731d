// Modes with a __torch_dispatch__ (torch.utils._python_dispatch.TorchDispatchMode) that the segment enters.
//
// While one is on, each operator that PyTorch would hand to it is handed to its __torch_dispatch__, which is
// interpreted without the mode, as PyTorch calls it: what that calls is in the graph. No segment ends inside: it ends
// in front of the call that entered the first mode, which CPython then makes.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "capture/capture.h"
#include "python/ref.h"

namespace magneto::capture {

class DispatchModes {
 public:
  explicit DispatchModes(Capture& capture) : c(capture) {}

  void enter(PyObject* mode);
  void leave();
  /// Operators go to a mode now.
  bool is_on() const { return !modes_.empty(); }
  /// Null: none has been entered, or all are left.
  const BreakSite* open_entry() const { return open_ > 0 ? &*entry_ : nullptr; }
  /// The innermost mode's __torch_dispatch__: function, types, args, kwargs.
  Ref ask(std::array<PyObject*, 4> args);

 private:
  Capture& c;
  std::vector<Ref> modes_;          // the innermost last; without those whose __torch_dispatch__ runs
  int32_t open_ = 0;                // with these
  std::optional<BreakSite> entry_;  // of the first
};

/// magneto._C.enter_dispatch_mode and leave_dispatch_mode.
Ref handle_enter_dispatch_mode(Capture& capture, const CallArgs& args);
Ref handle_leave_dispatch_mode(Capture& capture, const CallArgs& args);

}  // namespace magneto::capture
