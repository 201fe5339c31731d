// Values of this call: the operators of the segment that they follow from, run on the tensors of the call.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "capture/capture.h"
#include "graph/aliases.h"
#include "graph/operator_run.h"

namespace magneto::capture {

class Computation {
 public:
  /// Few operators on small tensors, without effects; the same from modules' small buffers alone; the same with
  /// fillings in place of floats; all that there are, those of libraries included, as in a draft.
  enum class Extent : uint8_t { Small, OfState, Filled, All };
  /// What stands in place of floats, whatever they follow from, and of the program's masks. Rising, Falling: tensors
  /// and their elements in their order, all positive, or all negative.
  enum class Filling : uint8_t { Zeros, Ones, Normal, Large, Negative, Rising, Falling };

  explicit Computation(Capture& capture, Extent extent = Extent::Small);
  Computation(Capture& capture, Filling filling) : Computation(capture, Extent::Filled) { filling_ = filling; }

  /// They may be read within a `Real`. Nothing: they are not to be had.
  std::optional<std::vector<at::Tensor>> values(const std::vector<graph::ValueId>& ids);
  /// What `read` gives of the tensor in this call.
  template <typename T>
  std::optional<T> value(graph::ValueId id, std::optional<T> (*read)(const at::Tensor& value)) {
    const Real real;
    const auto found = values({id});
    try {
      return found ? read(found->front()) : std::nullopt;
    } catch (const c10::Error&) {  // the run will raise it
      return {};
    }
  }
  /// What the expression is, whose symbols may be data-dependent.
  std::optional<int64_t> size(shapes::Expr size);

  /// Operators run on tensors of the program, as nothing of it: random numbers come as before behind it.
  class Real {
   public:
    Real();
    ~Real();
    Real(const Real&) = delete;

   private:
    struct Guards;
    std::unique_ptr<Guards> guards_;
  };

 private:
  bool collect(const std::vector<graph::ValueId>& ids);
  bool collect_operators();
  bool may_run(const graph::AtenNode& node) const;
  bool need(graph::ValueId id);
  bool need_symbols(const graph::AtenNode& node);
  bool need_symbols(shapes::Expr size);
  bool writes_what_is_needed(const graph::AtenNode& node) const;
  bool is_filled(graph::ValueId id) const;
  bool add_input(graph::ValueId id);
  bool add_filled(graph::ValueId id);
  /// The value that tells a data-dependent symbol.
  const graph::SymbolBinding* binding_of(shapes::Expr symbol) const;
  int64_t evaluate(shapes::Expr size);

  Capture& c;
  const Extent extent_;
  Filling filling_ = Filling::Zeros;
  const graph::Aliases aliases_;
  graph::Graph part_;
  std::optional<graph::OperatorRun> run_;
  std::vector<at::Tensor> inputs_;
  std::set<graph::ValueId> needed_;
  std::set<int32_t> groups_;  // of aliases
};

}  // namespace magneto::capture
