// Sizes that differ from item to item of a batch: PyTorch's nested ints, which are torch.SymInt. One has no value, is
// equal to itself alone, and PyTorch knows it by a tensor (of jagged tensors, the one that says where items begin).
//
// Invariant: a nested int is itself in a capture, also as a size of a stand-in. Two from outside are equal where their
// tensors are one, which guards check. One that is handed on is asked for anew, with the tensor of each run.
#pragma once

#include <Python.h>

#include <cstdint>
#include <optional>

#include "python/ref.h"

namespace magneto::capture {

class Capture;

struct NestedInt {
  int64_t id;
  int64_t factor;
};

/// Nothing: another object.
std::optional<NestedInt> nested_int_of(PyObject* object);
/// `op`: Py_LT and its like. Null: none of the two is one, or the other is no whole number.
Ref compare_nested_ints(Capture& capture, int op, PyObject* left, PyObject* right);

}  // namespace magneto::capture
