#include "graph/kept_casts.h"

#include "ops/kinds.h"

namespace magneto::graph {

bool is_kept_cast(const AtenNode& node) { return ops::is_kind(ops::operator_of(node.op), ops::keeps_cast); }

void make_plain_cast(AtenNode& node) {
  static const auto cast = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_to_copy", "");
  node.op = cast;
  const c10::IValue none;  // layout, device, pinned memory and memory format stay as they are
  node.args = {node.args[0], node.args[2], none, none, none, c10::IValue(/*non_blocking=*/false), none};
}

}  // namespace magneto::graph
