// Data-dependent numbers over which a segment goes on by default, as their values might not matter.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "graph/graph.h"
#include "python/ref.h"

namespace magneto::capture {

class Capture;

/// What `tensor.item()` and `bool(tensor)` give of a bool in this call, which each run checks. Null: it is not to be
/// had, or not assumed. (data_bools.cpp)
/// `of_state`: nor where it follows from other tensors than modules' small buffers.
Ref bool_of_data(Capture& capture, PyObject* tensor, bool of_state = false);
/// That the condition holds is assumed, and each run checks it. (data_bools.cpp)
void assume_holds(Capture& capture, PyObject* condition, const std::string& what);
/// The same of `if tensor:`, where a module asks what it has noted (`if self.n_averaged > 0`): it hardly ever changes.
/// Of what the program is given, the segment ends there, and both ways go on.
Ref truth_of_state(Capture& capture, PyObject* tensor);
/// The same of one that asks for what is unusual (`if not isfinite(x).all():`): it is as it is for all usual numbers.
Ref usual_truth(Capture& capture, PyObject* tensor);

/// A torch.amp.GradScaler decides here whether the optimizer steps, by a float of the data; segments assume that it
/// does. (data_bools.cpp)
bool decides_step(const Capture& capture);
/// The float is zero, then: each run checks it.
void assume_step(Capture& capture, PyObject* number);

/// How many elements of the value are not zero in this call. Nothing: it is not to be had. (data_bools.cpp)
std::optional<int64_t> count_of_data(Capture& capture, graph::ValueId mask);

/// They matter after all, or something was raised, perhaps because of what stands for them: if there are any, the
/// segment is captured again, to end in front of what makes them (throws Retry).
void end_at_data_numbers(Capture& capture);

}  // namespace magneto::capture
