// Native shape and dtype rules: one row per ATen operator, grouped by family in rules_*.cpp.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <span>
#include <string_view>
#include <vector>

namespace magneto::fake {

/// One operator call on fakes, as a rule sees it. Arguments are those of the schema, in order, defaults filled in.
class Call {
 public:
  explicit Call(std::span<const c10::IValue> args) : args_(args) {}

  size_t size() const { return args_.size(); }
  const c10::IValue& arg(size_t i) const { return args_[i]; }
  bool is_none(size_t i) const { return args_[i].isNone(); }
  const at::Tensor& tensor(size_t i) const { return args_[i].toTensor(); }
  /// Undefined when the argument is None.
  at::Tensor optional_tensor(size_t i) const { return args_[i].isNone() ? at::Tensor() : args_[i].toTensor(); }
  std::vector<at::Tensor> tensors(size_t i) const;
  std::vector<int64_t> ints(size_t i) const;  // int[] or SymInt[]; concrete
  int64_t integer(size_t i) const;
  bool boolean(size_t i) const { return args_[i].toBool(); }

  /// A new fake with its own storage. Strides: in elements; the first form is contiguous.
  at::Tensor empty(at::IntArrayRef sizes, c10::ScalarType dtype, c10::Device device) const;
  at::Tensor empty(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype, c10::Device device) const;
  /// A new fake that shares the storage of `base`; offset: from the start of the storage, in elements.
  at::Tensor view(const at::Tensor& base, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) const;
  /// The same, read as another dtype (view_as_real, view.dtype).
  at::Tensor view(const at::Tensor& base, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset,
                  c10::ScalarType dtype) const;

  /// Changes the geometry of `self` itself (unsqueeze_, as_strided_).
  void restride(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) const;

  /// Adds a result, in schema order. In-place operators return their argument itself.
  void result(c10::IValue value) { results_.push_back(std::move(value)); }
  std::vector<c10::IValue>& results() { return results_; }

 private:
  std::span<const c10::IValue> args_;
  std::vector<c10::IValue> results_;
};

/// Pushes the results; throws c10::Error with eager's message and type for arguments that eager refuses. A rule may
/// decline what it does not cover by returning false (the dispatcher's meta kernel takes over, counted).
using Rule = bool (*)(Call& call);

struct RuleRow {
  std::string_view op;  // "aten::add.Tensor"
  Rule rule;
};

/// The rows of each family. A new family: a file rules_<family>.cpp and a row here.
#define MAGNETO_RULE_FAMILIES(X) \
  X(pointwise)                   \
  X(reduction)                   \
  X(view)                        \
  X(matmul)                      \
  X(factory)                     \
  X(indexing)                    \
  X(norm)                        \
  X(convolution)                 \
  X(attention)                   \
  X(images)                      \
  X(losses)                      \
  X(random)                      \
  X(linalg)                      \
  X(collectives)                 \
  X(whole)

#define X(family) std::span<const RuleRow> family##_rules();
MAGNETO_RULE_FAMILIES(X)
#undef X

}  // namespace magneto::fake
