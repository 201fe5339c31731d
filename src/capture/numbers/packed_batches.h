// How many sequences are packed, which the first of the batch sizes says.
#pragma once

#include "python/ref.h"

namespace magneto::capture {

class Capture;

/// `batch_sizes[0]` in PyTorch's recurrent layers and our own: the number of sequences, where the segment packed them,
/// or one that guards read, of a packed sequence from outside. Null: it is another item.
Ref packed_batch(Capture& capture, PyObject* tensor, PyObject* key);

}  // namespace magneto::capture
