// The transforms of torch.func (vmap, grad) that are active while code is captured.
//
// PyTorch keeps them as a stack of levels of the thread. Interpreted code pushes and pops them for real, so that
// PyTorch's own rules run on stand-ins: a tensor of a level wraps one of the level below, and what reaches the
// stand-ins below all levels is what the graph has.
#pragma once

#include <Python.h>

#include <cstddef>
#include <span>

#include "capture/capture.h"
#include "python/ref.h"

namespace magneto::capture {

/// How many levels are active on this thread.
size_t transform_depth();

/// Leaves the levels above the first `depth`, and those of other kinds: of these a capture starts under none.
void leave_transforms(size_t depth);

/// Below all levels nothing needs gradients, whatever the mode inside says: a level was entered without them.
bool is_without_grad_below();

/// The object is a tensor of a level, also of one that has been left, or a container of one.
bool holds_transformed(PyObject* object);

/// Operators of the program mean more than they say: a level is active, one of forward-mode AD, or one of the older
/// vmap that torch.autograd.functional uses.
bool is_transforming();

/// A function of PyTorch is called for real: its Python code asks the levels for their rules, and the program's code
/// that these call is interpreted. (function_rules.cpp)
Ref call_in_transforms(Capture& capture, PyObject* function, const CallArgs& args);
/// torch.autograd.Function.apply is called with these inside a transform, or with what one that was left has given.
bool is_of_transforms(std::span<PyObject* const> args);
Ref apply_in_transforms(Capture& capture, PyObject* function, const CallArgs& args);

/// The call in the program's frame that enters a region which is not to be cut: PyTorch's functions around the entry
/// are called again as a whole.
BreakSite entry_of_region(const InterpFrame* frame);

/// A level of forward-mode AD. No segment ends inside: it ends in front of the call that entered the outermost one.
Ref enter_dual_level(Capture& capture, const CallArgs& args);
Ref exit_dual_level(Capture& capture, const CallArgs& args);
/// Null: none is active, but for those that transforms entered.
const BreakSite* entry_of_dual_level();

}  // namespace magneto::capture
