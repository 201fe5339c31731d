// The transforms of torch.func (vmap, grad) that are active while code is captured.
//
// PyTorch keeps them as a stack of levels of the thread. Interpreted code pushes and pops them for real, so that
// PyTorch's own rules run on stand-ins: a tensor of a level wraps one of the level below, and what reaches the
// stand-ins below all levels is what the graph has.
#pragma once

#include <Python.h>

#include <cstddef>

namespace magneto::capture {

/// How many levels are active on this thread.
size_t transform_depth();

/// Leaves the levels above the first `depth`.
void leave_transforms(size_t depth);

/// Below all levels nothing needs gradients, whatever the mode inside says: a level was entered without them.
bool is_without_grad_below();

/// The object is a tensor of a level, also of one that has been left, or a container of one.
bool holds_transformed(PyObject* object);

}  // namespace magneto::capture
