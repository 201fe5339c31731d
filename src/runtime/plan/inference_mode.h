// A region of torch.inference_mode that a captured program enters and leaves.
#pragma once

#include <ATen/core/Tensor.h>

namespace magneto::runtime {

/// Turns this thread's inference mode on, as c10::InferenceMode does, or back to how that found the thread. No guard
/// object: a run that raises in between leaves the thread's modes by ModesKeptOnError.
void set_inference_mode(bool enabled);

/// The tensor as one that was made in inference mode: its memory, sizes and strides, no history and no version. The
/// tensor itself if it is one.
at::Tensor as_inference(const at::Tensor& tensor);

}  // namespace magneto::runtime
