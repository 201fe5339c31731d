#include "runtime/sized_computation.h"

#include <algorithm>

#include "runtime/plan/torch_errors.h"

namespace magneto::runtime {

namespace {

/// A size gets code of its own when it comes for the third time...
constexpr int kOften = 3;
/// ...and so many sizes at the most; the one that came longest ago gives way.
constexpr size_t kMostVariants = 16;
/// Sizes whose calls are counted.
constexpr size_t kMostCounted = 256;

class SizedComputation final : public TensorComputation {
 public:
  SizedComputation(const graph::Graph& graph, const graph::SymbolValues& values,
                   std::unique_ptr<TensorComputation> first, Specialise specialise)
      : graph_(graph), reader_(graph), specialise_(std::move(specialise)), plain_(make_aten_computation(graph)) {
    variants_.push_back({values, std::move(first)});
  }

  void compute(const at::Tensor* const* inputs, at::Tensor* outputs) const override {
    const graph::SymbolValues values = reader_.read(inputs);
    std::shared_ptr<const TensorComputation> computation;
    with_python([&] { computation = find(values); });
    (computation ? *computation : *plain_).compute(inputs, outputs);
  }
  size_t input_count() const override { return plain_->input_count(); }
  size_t output_count() const override { return plain_->output_count(); }
  std::string print() const override { return plain_->print(); }
  /// Always: the code for the next size may make something of weights.
  std::unique_ptr<TensorComputation> tensors_for_other_weights() const override {
    auto other = std::make_unique<SizedComputation>(*this);
    for (Variant& variant : other->variants_) {
      std::unique_ptr<TensorComputation> own = variant.computation->tensors_for_other_weights();
      if (own) variant.computation = std::move(own);
    }
    return other;
  }
  OnError on_error() const override { return OnError::Between; }  // of some variants

 private:
  struct Variant {
    graph::SymbolValues values;
    std::shared_ptr<const TensorComputation> computation;
  };

  /// Under the GIL. A variant lives on while a run of it goes on.
  std::shared_ptr<const TensorComputation> find(const graph::SymbolValues& values) const {
    const auto known = std::ranges::find(variants_, values, &Variant::values);
    if (known != variants_.end()) {
      if (known != variants_.begin()) std::rotate(variants_.begin(), known, known + 1);
      return variants_.front().computation;
    }
    const auto counted = std::ranges::find(counts_, values, &std::pair<graph::SymbolValues, int>::first);
    if (counted == counts_.end()) {
      if (counts_.size() == kMostCounted) counts_.erase(counts_.begin());
      counts_.emplace_back(values, 1);
      return nullptr;
    }
    if (++counted->second < kOften) return nullptr;
    counts_.erase(counted);
    std::shared_ptr<const TensorComputation> made = specialise_(graph::with_numbers(graph_, values));
    if (variants_.size() == kMostVariants) variants_.pop_back();
    variants_.insert(variants_.begin(), {values, made});
    return made;
  }

  const graph::Graph graph_;
  const graph::SymbolReader reader_;
  const Specialise specialise_;
  const std::shared_ptr<const TensorComputation> plain_;
  mutable std::vector<Variant> variants_;  // the last one used first
  mutable std::vector<std::pair<graph::SymbolValues, int>> counts_;
};

}  // namespace

std::unique_ptr<TensorComputation> make_sized_computation(const graph::Graph& graph, const graph::SymbolValues& values,
                                                          std::unique_ptr<TensorComputation> first,
                                                          Specialise specialise) {
  return std::make_unique<SizedComputation>(graph, values, std::move(first), std::move(specialise));
}

}  // namespace magneto::runtime
