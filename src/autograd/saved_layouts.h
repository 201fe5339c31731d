// What a backward is given of images lies in memory as the forward's kernels leave it.
#pragma once

#include "autograd/joint.h"
#include "graph/graph.h"

namespace magneto::autograd {

/// Images that the forward computes between convolutions are saved channels-last, as `passes::prefer_channels_last`
/// has them there, where nobody but the backwards sees them:
///     forward:   %9 = clone(%5, channels_last), saved in place of %5
///     backward:  %1 = clone(%0, contiguous) of what it is given, read in place of %0
/// Of these copies the halves' own passes leave none. Else each half would reorder each image. `forward`: of `joint`.
void save_channels_last(graph::Graph& forward, Joint& joint);

}  // namespace magneto::autograd
