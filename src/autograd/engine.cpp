#include "autograd/engine.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>

#include "support/gil.h"

namespace magneto::autograd {

torch::autograd::variable_list run_engine(fake::Session& session, const torch::autograd::edge_list& roots,
                                          const torch::autograd::variable_list& tangents,
                                          const torch::autograd::edge_list& leaves) {
  const EngineScope scope(session);
  const WithoutGil no_gil;
  return torch::autograd::Engine::get_default_engine().execute(roots, tangents, /*keep_graph=*/true,
                                                               /*create_graph=*/false, /*accumulate_grad=*/false,
                                                               leaves);
}

bool rehearse(fake::Session& session, graph::Graph& graph, const torch::autograd::variable_list& results) {
  const fake::Session::Mark before = session.mark();
  torch::autograd::edge_list roots, leaves;
  torch::autograd::variable_list tangents;
  for (const at::Tensor& result : results) {
    roots.push_back(torch::autograd::impl::gradient_edge(result));
    tangents.push_back(session.make_tangent(result, "tangent"));
  }
  for (const torch::autograd::Edge& edge : roots.at(0).function->next_edges()) {
    if (edge.is_valid()) leaves.push_back(edge);
  }
  const size_t symbols = graph.symbols_of(graph::ValueKind::Result).size();
  run_engine(session, roots, tangents, leaves);
  const bool alone = graph.symbols_of(graph::ValueKind::Result).size() == symbols;
  session.rollback(before);
  return alone;
}

}  // namespace magneto::autograd
