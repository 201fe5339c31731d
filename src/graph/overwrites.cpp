#include "graph/overwrites.h"

#include "ops/operator.h"

namespace magneto::graph {

bool overwrites(const AtenNode& node) {
  if (!ops::operator_of(node.op).is(ops::overwrites)) return false;
  // What is put there may be added, if an argument says so.
  const auto& schema = node.op.schema().arguments();
  for (size_t i = 0; i < node.args.size(); ++i) {
    if (schema[i].name() != "accumulate") continue;
    const auto* accumulate = std::get_if<c10::IValue>(&node.args[i]);
    return accumulate && accumulate->isBool() && !accumulate->toBool();
  }
  return true;
}

}  // namespace magneto::graph
