// DistributedDataParallel around what is captured: its buckets cut the backward.
#pragma once

namespace magneto::autograd {
struct Joint;
}  // namespace magneto::autograd

namespace magneto::capture {

class Capture;

/// By config.optimize_ddp.
void cut_at_buckets(const Capture& capture, autograd::Joint& joint);

}  // namespace magneto::capture
