// Which images lie channels-last.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace magneto::passes {

/// By value: images, channels first, that stand between convolutions which `prefer_channels_last` will turn, so that
/// what computes and reads them will have them channels-last. Empty: there is none.
std::vector<bool> channels_last_values(const graph::Graph& graph);

/// The strides of an image become those of channels-last ones; it begins at its memory's begin.
void turn(graph::TensorMeta& meta);

/// What copies a tensor to another memory format: clone(self, memory_format).
const c10::OperatorHandle& clone();

/// oneDNN does a convolution of these images, as PyTorch chooses: of one, small, PyTorch does it in a way of its own.
bool is_done_by_library(const graph::TensorMeta& input, const graph::TensorMeta& weight);

}  // namespace magneto::passes
