#include "graph/planted.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "graph/text.h"
#include "observe/faults.h"

namespace magneto::graph {
namespace {

bool has_operator(const Graph& graph, const std::string& name) {
  return std::ranges::any_of(graph.aten_nodes, [&](const AtenNode& node) { return operator_text(node.op) == name; });
}

c10::OperatorName name_of(const std::string& text) {
  const size_t dot = text.find('.');
  return {text.substr(0, dot), dot == std::string::npos ? "" : text.substr(dot + 1)};
}

}  // namespace

void swap_planted(Graph& graph, std::string_view place) {
  const std::string* fault = observe::fault_at(place);
  const size_t arrow = fault ? fault->find('>') : std::string::npos;
  if (arrow == std::string::npos) return;
  const c10::OperatorName from = name_of(fault->substr(0, arrow)), to = name_of(fault->substr(arrow + 1));
  for (AtenNode& node : graph.aten_nodes) {
    if (node.op.operator_name() != from) continue;
    node.op = c10::Dispatcher::singleton().findSchemaOrThrow(to.name.c_str(), to.overload_name.c_str());
    return;
  }
}

void fail_as_planted(const Graph& graph) {
  if (const std::string* op = observe::fault_at("lower.raise"); op && has_operator(graph, *op)) {
    throw std::logic_error("no rule for " + *op + ", a test says");
  }
  if (const std::string* op = observe::fault_at("lower.crash"); op && has_operator(graph, *op)) std::abort();
  if (const std::string* op = observe::fault_at("lower.hang"); op && has_operator(graph, *op)) {
    std::this_thread::sleep_for(std::chrono::hours(24));
  }
  if (const std::string* op = observe::fault_at("lower.memory"); op && has_operator(graph, *op)) {
    std::vector<std::unique_ptr<char[]>> held;
    constexpr size_t kPiece = size_t{64} << 20;
    for (;;) held.push_back(std::make_unique_for_overwrite<char[]>(kPiece));
  }
}

}  // namespace magneto::graph
