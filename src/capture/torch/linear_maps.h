// What torch.func.linearize gives: a function that pushes tangents forward through another one, from where that was
// called.
//
// PyTorch traces the function once; captures interpret it for each call of the map. That gives the same as long as the
// function has no effects, draws no random numbers, and reads what it read then: a mark is made in front of linearize's
// first call of it, and from there to the end of the last call of the map nothing may change that it can reach. Where
// something does, the capture begins anew, and linearize is a side exit.
#pragma once

#include <Python.h>

#include "capture/calls/call_args.h"
#include "python/ref.h"

namespace magneto::capture {

class Capture;

/// magneto._C.linear_mark(function, primals): a mark. None: linearize is to be a side exit.
Ref make_linear_mark(Capture& capture, const CallArgs& args);
/// magneto._C.linear_check(mark, given, results): None, where nothing has changed since the mark was made and the
/// results, tensors, are tensors of their own that need gradients only if those given do.
Ref check_linear_mark(Capture& capture, const CallArgs& args);
bool is_linear_mark(PyObject* object);
/// The map leaves the segment.
[[noreturn]] void refuse_linear_mark(Capture& capture, PyObject* mark);

}  // namespace magneto::capture
