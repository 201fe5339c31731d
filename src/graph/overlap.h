// Tensors of which two elements are one place in memory: expanded ones, windows that `unfold` shows, as_strided.
#pragma once

#include "graph/graph.h"
#include "shapes/index_knowledge.h"

namespace magneto::graph {

/// What the graph knows of its symbols.
shapes::SymbolFacts facts_of(const Graph& graph);

/// It is not known that each element has a place of its own, whatever the symbols are.
bool may_overlap_itself(const TensorMeta& meta, const shapes::SymbolFacts& symbols);

}  // namespace magneto::graph
