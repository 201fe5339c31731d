// Torch-level graphs described from Python, so that tests need no capture.
#pragma once

#include "graph/graph.h"
#include "python/ref.h"

namespace magneto::runtime {

/// `calls` is a list of (target, args, kwargs, results): a callable or the name of a method; Python arguments in which
/// an instance of `marker` stands for the value `marker.id`; and a list of (path, value number). Values 0.. are the
/// `inputs` (a list of (name, tensor)), then the `constants` (tensors). `mutated` lists values that calls write, as
/// the ATen level would say. Throws PythonError.
graph::Graph torch_graph(PyObject* marker, PyObject* inputs, PyObject* constants, PyObject* calls, PyObject* outputs,
                         PyObject* mutated);

}  // namespace magneto::runtime
