// DTensor: a wrapper whose operators PyTorch dispatches itself, in C++ and in Python that is no part of the program.
//
// A stand-in has the local tensor's stand-in, and the real description (mesh and placements), which guards compare.
// What an operator comes to is decided by PyTorch's own code, called for real: on descriptions, which hold no data.
// What that calls on local tensors, collectives included, is in the graph.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <span>
#include <string>
#include <utility>

#include "capture/capture.h"

namespace magneto::capture {

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

/// The local tensor of one with a history, which the graph gives: `to_local`.
Ref local_with_history(Capture& capture, PyObject* tensor);
/// In place, of a DTensor that the segment has made: autograd records that as it does for plain tensors.
bool writes_distributed(Capture& capture, const c10::OperatorHandle& op, std::span<const c10::IValue> values);

/// The function is PyTorch's own for such tensors, which is called for real.
bool is_of_distributed(PyObject* function);

/// A stand-in is in it.
bool keeps_mask(Capture& capture, PyObject* description);
/// A description without its sizes, if these are dynamic; None: they are not.
Ref without_sizes(Capture& capture, PyObject* description);
/// The sizes and the strides that are in it, as stand-ins of numbers.
std::pair<Ref, Ref> sizes_in(Capture& capture, PyObject* description);
/// Makes one of the local tensor, such a description, sizes, strides and whether it requires gradients, or None: it has
/// the history of its local tensor. Borrowed.
PyObject* sized_maker();
/// The same with the sizes in the description. Borrowed.
PyObject* distributed_maker();
PyObject* local_tensor_of(PyObject* tensor);
PyObject* description_of(PyObject* tensor);

}  // namespace magneto::capture
