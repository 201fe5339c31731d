// What a run may change before it raises, kept, so that it can be put back.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>
#include <vector>

#include "graph/undo.h"

namespace magneto::runtime {

class SavedState {
 public:
  /// `inputs` in graph.inputs order. Without `tensors`: the random state alone. Throws what PyTorch throws where memory
  /// runs out.
  SavedState(const graph::Undo& undo, const at::Tensor* const* inputs, bool tensors);
  SavedState() = default;
  void restore();
  /// What the tensors held, in the order of Undo::written; undefined where nothing was kept.
  std::vector<at::Tensor> contents() const;

 private:
  struct Kept {
    at::Tensor tensor;
    c10::intrusive_ptr<c10::TensorImpl> geometry;  // sizes, strides and storage as they were
    at::Tensor contents;                           // undefined: a second run writes the same
    uint32_t version = 0;
    decltype(torch::autograd::AutogradMeta::grad_fn_) history;
    uint32_t output_number = 0;
    bool requires_grad = false;
  };
  std::vector<Kept> tensors_;
  std::vector<std::pair<at::Generator, at::Generator>> generators_;  // and a copy
};

}  // namespace magneto::runtime
