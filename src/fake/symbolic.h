// Operators on tensors whose sizes are dynamic.
//
// The rule for plain numbers is followed with the sizes of this run: it says what is wrong, and gives dtypes, devices
// and which memory is shared. A symbolic rule then says what the results' sizes are in terms of the arguments', and
// asks whatever the operator asks of them, so that it is assumed. What the two say must agree. An operator without a
// symbolic rule has its arguments' sizes fixed to those of this run, and says so.
#pragma once

#include <ATen/DimVector.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "fake/fake_impl.h"

namespace magneto::fake {

using SymSizes = at::SymDimVector;

/// One call, as a symbolic rule sees it: arguments in schema order, and the results that the rule for plain numbers
/// has made, lists flattened.
class SymbolicCall {
 public:
  SymbolicCall(SessionState& state, std::span<const c10::IValue> args, std::span<const c10::IValue> results);

  size_t size() const { return args_.size(); }
  const c10::IValue& arg(size_t i) const { return args_[i]; }
  bool is_none(size_t i) const { return args_[i].isNone(); }
  const at::Tensor& tensor(size_t i) const { return args_[i].toTensor(); }
  std::vector<at::Tensor> tensors(size_t i) const;
  SymSizes sizes(size_t i) const;
  /// Undefined when the argument is None.
  at::Tensor optional_tensor(size_t i) const { return args_[i].isNone() ? at::Tensor() : args_[i].toTensor(); }
  bool boolean(size_t i) const { return args_[i].toBool(); }
  int64_t integer(size_t i) const { return args_[i].toInt(); }
  std::vector<int64_t> integers(size_t i) const { return args_[i].toIntVector(); }
  c10::SymInt symint(size_t i) const { return args_[i].toSymInt(); }
  SymSizes symints(size_t i) const;
  /// Data-dependent.
  bool is_unbacked(const c10::SymInt& size) const;

  size_t result_count() const { return results_.size(); }
  const at::Tensor& result(size_t k) const { return results_[k]; }
  /// A result with memory of its own, laid out in the order that it has in this run.
  bool dense(size_t k, at::ArrayRef<c10::SymInt> sizes);
  /// The same of the next one.
  bool add(at::ArrayRef<c10::SymInt> sizes) {
    if (added_ >= results_.size()) return false;
    return dense(added_++, sizes);
  }
  /// A view. False: this run's geometry is another one.
  bool view(size_t k, at::ArrayRef<c10::SymInt> sizes, at::ArrayRef<c10::SymInt> strides, c10::SymInt offset);

 private:
  std::optional<c10::SymInt> stride_of_operand(size_t dim, int64_t now, size_t rank) const;
  bool set(const at::Tensor& result, at::ArrayRef<c10::SymInt> sizes, at::ArrayRef<c10::SymInt> strides,
           c10::SymInt offset);

  SessionState& state_;
  std::span<const c10::IValue> args_;
  std::vector<at::Tensor> results_;
  size_t added_ = 0;
};

/// False: declined, for what it does not cover.
using SymbolicRule = bool (*)(SymbolicCall& call);

struct SymbolicRow {
  std::string_view op;
  SymbolicRule rule;
};

/// The rows of each family, of rules_<family>.cpp where a rule is written once for both, else of
/// symbolic_<family>.cpp. A new family: a row here.
#define MAGNETO_SYMBOLIC_FAMILIES(X) \
  X(view)                            \
  X(reduction)                       \
  X(factory)                         \
  X(indexing)                        \
  X(pointwise)                       \
  X(whole)                           \
  X(losses)                          \
  X(attention)                       \
  X(convolution)                     \
  X(norm)                            \
  X(matmul)                          \
  X(compute)                         \
  X(images)                          \
  X(gradients)                       \
  X(collectives)                     \
  X(linalg)

#define X(family) std::span<const SymbolicRow> symbolic_##family##_rules();
MAGNETO_SYMBOLIC_FAMILIES(X)
#undef X

/// The rule of an operator ("aten::mm"), or null.
SymbolicRule symbolic_rule_of(std::string_view op);
/// Elementwise: all tensors among the arguments broadcast.
bool broadcast_symbolically(SymbolicCall& call);

/// Sizes read in this scope are those of this run, and nothing is assumed of them.
class Hints {
 public:
  explicit Hints(SessionState& state, bool on = true)
      : state_(state), saved_(std::exchange(state.hinting, on || state.hinting)) {}
  ~Hints() { state_.hinting = saved_; }
  Hints(const Hints&) = delete;

 private:
  SessionState& state_;
  const bool saved_;
};

/// The strides of a contiguous tensor of these sizes, some of which may be 0.
SymSizes contiguous_strides(SessionState& state, at::ArrayRef<c10::SymInt> sizes);
/// What the stride in front of a dimension is, where `stride` is that of the dimension.
c10::SymInt next_stride(SessionState& state, const c10::SymInt& stride, const c10::SymInt& size);

/// Some size among the arguments differs from run to run.
bool has_symbolic(SessionState& state, std::span<const c10::IValue> args);
/// From here on they are all as in this run; those among the arguments become plain numbers.
void specialise(SessionState& state, std::span<c10::IValue> args);
/// The arguments with the sizes of this run, of which nothing is assumed.
std::vector<c10::IValue> with_hints(SessionState& state, std::span<const c10::IValue> args);
/// Follows the symbolic rule for results that the rule for plain numbers gave. False: it declined.
bool infer_symbolic(SessionState& state, SymbolicRule rule, std::span<const c10::IValue> args,
                    std::span<const c10::IValue> results);

/// Gives the results of an operator, in order, these sizes. False: they are others in this run.
bool give_sizes(SessionState& state, std::span<const SymSizes> sizes, std::span<const c10::IValue> args,
                std::span<const c10::IValue> results);

}  // namespace magneto::fake
