// Autograd's engine, run on the stand-ins of a capture.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>

#include <utility>
#include <vector>

#include "fake/fake.h"
#include "fake/weighed_sizes.h"
#include "graph/graph.h"

namespace magneto::autograd {

/// The conditions of a usual backward: outside autocast, nothing of it recorded as a torch call.
class EngineScope {
 public:
  explicit EngineScope(fake::Session& session)
      : session_(session), torch_node_(std::exchange(session.torch_node, -1)), ran_(session.set_engine_runs(true)) {}
  ~EngineScope() {
    session_.set_engine_runs(ran_);
    session_.torch_node = torch_node_;
  }
  EngineScope(const EngineScope&) = delete;

 private:
  fake::Session& session_;
  const int32_t torch_node_;
  const bool ran_;
  const fake::Traced traced_{session_};
  const c10::impl::ExcludeDispatchKeyGuard no_autocast_{c10::autocast_dispatch_keyset};
};

/// Under these conditions. Gradients of `leaves`, undefined where there is none. Needs the GIL; throws what the engine
/// throws.
torch::autograd::variable_list run_engine(fake::Session& session, const torch::autograd::edge_list& roots,
                                          const torch::autograd::variable_list& tangents,
                                          const torch::autograd::edge_list& leaves);

/// Runs the backward of the custom function that made `results`, alone, for what that asks, and takes out of the graph
/// again what it adds, inputs too. False: it has found sizes or numbers in data.
bool rehearse(fake::Session& session, graph::Graph& graph, const torch::autograd::variable_list& results);

}  // namespace magneto::autograd
