// The symbols of a graph whose sizes differ from run to run: their numbers in one run, and what the graph is then.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "graph/graph.h"

namespace magneto::graph {

/// The symbols' numbers in one run, by id.
class SymbolValues {
 public:
  void set(int32_t symbol, int64_t value) {
    const size_t place = shapes::Expr::place(symbol);
    if (values_.size() <= place) values_.resize(place + 1);
    values_[place] = value;
  }
  /// What the tensor says, where the graph has bound a symbol to it.
  void read(const SymbolBinding& binding, const at::Tensor& tensor);
  int64_t operator()(shapes::Expr size) const;
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

/// Calls `visit` for each expression in the graph.
void for_each_size(Graph& graph, const std::function<void(shapes::Expr&)>& visit);

}  // namespace magneto::graph
