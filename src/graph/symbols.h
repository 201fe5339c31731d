// The symbols of a graph whose sizes are dynamic: their numbers in one run, and what the graph is then.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "shapes/size.h"

namespace magneto::graph {

/// The symbols' numbers in one run, by id.
class SymbolValues {
 public:
  /// True if that is another value than before.
  bool set(int32_t symbol, int64_t value) {
    const size_t place = shapes::Expr::place(symbol);
    const bool is_new = values_.size() <= place;
    if (is_new) values_.resize(place + 1);
    return std::exchange(values_[place], value) != value || is_new;
  }
  /// What the tensor says, where the graph has bound a symbol to it. True as above.
  bool read(const SymbolBinding& binding, const at::Tensor& tensor);
  int64_t operator()(shapes::Expr size) const;
  const int64_t* data() const { return values_.data(); }
  bool operator==(const SymbolValues&) const = default;

 private:
  std::vector<int64_t> values_;
};

/// Those that a run finds in its inputs.
class SymbolReader {
 public:
  explicit SymbolReader(const Graph& graph);
  /// `inputs`: in the order of graph.inputs.
  SymbolValues read(const at::Tensor* const* inputs) const;
  /// The same into `values`, those of an earlier run or none. True: they are others now.
  bool update(const at::Tensor* const* inputs, SymbolValues& values) const;
  bool empty() const { return places_.empty(); }

 private:
  struct Place {
    SymbolBinding binding;
    size_t input;  // position in graph.inputs
  };
  std::vector<Place> places_;
};

/// What an operator is given in that run.
c10::IValue number_of(const SizeArg& arg, const SymbolValues& values);

/// The graph with numbers in place of its symbols.
Graph with_numbers(const Graph& graph, const SymbolValues& values);

/// Expressions that are numbers after all become such.
void fold_numbers(Graph& graph);

/// An argument that is a number or a list of numbers, or of sizes.
std::vector<shapes::Expr> exprs_of(const AtenArg& arg);

/// A tensor's geometry, for code that works for all its sizes.
shapes::Sizes sizes_of(const TensorMeta& meta);
shapes::Sizes strides_of(const TensorMeta& meta);
/// These sizes and strides are its own but for strides of dimensions of size one.
bool lies_so(const TensorMeta& meta, const std::vector<shapes::Expr>& sizes, const std::vector<shapes::Expr>& strides);
shapes::Size offset_of(const TensorMeta& meta);

/// Calls `visit` for each expression in the graph.
void for_each_size(Graph& graph, const std::function<void(shapes::Expr&)>& visit);

}  // namespace magneto::graph
