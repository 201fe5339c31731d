#include "graph/overlap.h"

#include <algorithm>

#include "graph/symbols.h"

namespace magneto::graph {

shapes::SymbolFacts facts_of(const Graph& graph) {
  shapes::SymbolFacts facts;
  for (const SymbolBinding& symbol : graph.symbols) facts.add(symbol.symbol, {symbol.range, symbol.hint});
  return facts;
}

bool may_overlap_itself(const TensorMeta& meta, const shapes::SymbolFacts& symbols) {
  const shapes::Sizes sizes = sizes_of(meta), strides = strides_of(meta);
  struct Dim {
    shapes::Size size, stride;
  };
  std::vector<Dim> dims;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return false;
    if (sizes[i] != 1) dims.push_back({sizes[i], strides[i]});
  }
  std::ranges::stable_sort(dims, {}, [](const Dim& dim) { return std::pair(dim.stride.hint(), dim.size.hint()); });
  const shapes::IndexKnowledge::Extent no_variables = [](int32_t) { return nullptr; };
  shapes::IndexKnowledge known(no_variables, symbols);
  // Each step leads past all that the dimensions with smaller steps reach.
  shapes::Expr reach(0);
  for (const auto& [size, stride] : dims) {
    if (!known.is_natural(stride.expr() - reach - 1)) return true;
    reach += stride.expr() * (size.expr() - 1);
  }
  return false;
}

}  // namespace magneto::graph
