#include "graph/results_of_call.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "graph/literal.h"
#include "graph/text.h"

namespace magneto::graph {

namespace {

/// How many tensors the operator gives in the list that is its result `index`. With several lists: as many as are in
/// the argument `self` for the result `self_out`.
size_t length_of(const AtenNode& node, size_t index) {
  const auto& returns = node.op.schema().returns();
  const auto is_list = [](const c10::Argument& result) { return is_tensor_list_type(*result.type()); };
  if (std::ranges::count_if(returns, is_list) == 1) {
    const auto is_one = [](const c10::Argument& result) { return is_tensor_type(*result.type()); };
    return node.results.size() - static_cast<size_t>(std::ranges::count_if(returns, is_one));
  }
  const auto& arguments = node.op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() + "_out" != returns[index].name()) continue;
    if (const auto* ids = std::get_if<std::vector<ValueId>>(&node.args[i])) return ids->size();
    return 0;  // an empty list is a constant
  }
  throw std::invalid_argument("no script can say how long the lists are that " + operator_text(node.op) + " gives");
}

}  // namespace

std::vector<TorchResult> results_of(const AtenNode& node) {
  const auto& returns = node.op.schema().returns();
  std::vector<TorchResult> results;
  size_t next = 0;
  for (size_t i = 0; i < returns.size(); ++i) {
    std::vector<int32_t> path;
    if (returns.size() > 1) path.push_back(static_cast<int32_t>(i));
    const bool is_list = is_tensor_list_type(*returns[i].type());
    const size_t length = is_list ? length_of(node, i) : is_tensor_type(*returns[i].type());
    for (size_t k = 0; k < length && next < node.results.size(); ++k) {
      std::vector<int32_t> inner = path;
      if (is_list) inner.push_back(static_cast<int32_t>(k));
      results.push_back({std::move(inner), node.results[next++]});
    }
  }
  return results;
}

}  // namespace magneto::graph
