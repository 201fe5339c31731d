// torch.inference_mode entered inside of what is captured.
#pragma once

#include <optional>

#include "capture/capture.h"
#include "python/ref.h"

namespace magneto::capture {

/// A region that the segment has entered: the mode is on for stand-ins as it is for tensors in a run, and results that
/// are made in it are inference tensors. No segment ends inside: it ends in front of the call that entered the region,
/// which CPython then makes.
struct InferenceRegion {
  bool open = false;
  std::optional<BreakSite> entry;  // of the last one

  /// Null: none is open.
  const BreakSite* open_entry() const { return open ? &*entry : nullptr; }
};

/// magneto._C.set_inference_mode.
Ref handle_inference_mode(Capture& capture, const CallArgs& args);

/// A view that was made in inference mode of a tensor from outside is left to CPython: what is written there raises
/// where gradients are needed.
bool is_view_of_inference_mode(const at::Tensor& tensor);

}  // namespace magneto::capture
