#include "graph/operator_key.h"

#include "graph/aliases.h"
#include "graph/literal.h"
#include "graph/text.h"

namespace magneto::graph {

std::string operator_key(const AtenNode& node, const std::function<ValueId(ValueId)>& name) {
  std::string key = operator_text(node.op);
  const auto& arguments = node.op.schema().arguments();
  for (size_t i = 0; i < node.args.size(); ++i) {
    key += ',';
    if (std::holds_alternative<std::shared_ptr<const Region>>(node.args[i])) return {};
    if (const auto* constant = std::get_if<c10::IValue>(&node.args[i])) {
      if (constant->isGenerator() || constant->isTensor()) return {};
      // 0.0 and -0.0, 1 and 1.0 and True print differently, as they must.
      print_literal(key, *constant, *arguments[i].real_type());
      continue;
    }
    if (const auto* sizes = std::get_if<SizeArg>(&node.args[i])) {
      for (const shapes::Expr size : sizes->sizes) key += shapes::text(size) + ';';
      continue;
    }
    key += '(';
    for_each_tensor(node.args[i], [&](ValueId id) { key += '%' + std::to_string(name(id)); });
    if (const auto* ids = std::get_if<std::vector<ValueId>>(&node.args[i])) {
      // Where the absent ones stand matters too.
      for (const ValueId id : *ids) key += id == kNoValue ? '-' : '+';
    }
    key += ')';
  }
  return key;
}

}  // namespace magneto::graph
