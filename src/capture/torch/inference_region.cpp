#include "capture/torch/inference_region.h"

#include <torch/csrc/autograd/variable.h>

#include "capture/calls/calls.h"
#include "capture/calls/handlers.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "python/imported.h"
#include "runtime/plan/inference_mode.h"
#include "support/tensor_object.h"

namespace magneto::capture {

Ref handle_inference_mode(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 1, "set_inference_mode");
  InferenceRegion& region = capture.torch.inference;
  const bool enabled = args.values[0] == Py_True;
  if (is_transforming() || enabled == region.open) {
    capture.side_exit(BreakReason::OpaqueCall, "inference mode is entered or left inside a transform");
  }
  if (enabled) region.entry = entry_of_region(capture.frame);
  runtime::set_inference_mode(enabled);
  region.open = enabled;
  static constinit Imported target("magneto._C", "set_inference_mode");
  graph::TorchNode node;
  node.target = Ref::borrow(target.get());
  node.args.push_back(capture.torch.py_arg(args.values[0]));
  capture.graph.torch_nodes.push_back(std::move(node));
  return Ref::borrow(Py_None);
}

bool is_view_of_inference_mode(const at::Tensor& tensor) {
  const auto* view = torch::autograd::impl::get_view_autograd_meta(tensor);
  return view && view->has_bw_view() && view->get_creation_meta() == torch::autograd::CreationMeta::INFERENCE_MODE;
}

}  // namespace magneto::capture
