// DTensor: a wrapper whose operators PyTorch dispatches itself, in C++ and in Python that is no part of the program.
//
// A stand-in has the local tensor's stand-in, and the real description (mesh and placements), which guards compare.
// What an operator comes to is decided by PyTorch's own code, called for real: on descriptions, which hold no data.
// What that calls on local tensors, collectives included, is in the graph.
#pragma once

#include <functional>
#include <span>

#include "capture/capture.h"

namespace magneto::capture {

/// Sizes as numbers of this run.
void fix_sizes(std::span<c10::IValue> values);

/// Gives the stand-in what the tensor from outside has, under guards.
void fill_distributed(Capture& capture, PyObject* raw, PyObject* stand_in, const guards::Source* source);

/// What an operator with such tensors among its arguments gives. Null: it is to be a side exit, for the reason in
/// `why`.
Ref dispatch_distributed(Capture& capture, PyObject* op, PyObject* args, PyObject* kwargs, std::string& why);

/// The object, or what is in it, that PyTorch's code has made, is a stand-in from here on. True: there is one.
bool note_distributed(Capture& capture, PyObject* object);

/// Those with a history that are in the result of a torch call: the backward will ask for what they wrap. `forget`: the
/// call, in front of a side exit.
void pass_distributed(Capture& capture, PyObject* result, const std::function<void()>& forget);

/// With which each run makes one again: of a local tensor, its description and whether it requires gradients. Borrowed.
PyObject* distributed_maker();
PyObject* local_tensor_of(PyObject* tensor);
PyObject* description_of(PyObject* tensor);

}  // namespace magneto::capture
