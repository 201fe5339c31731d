#include "dispatch/repro.h"

#include <algorithm>
#include <string>
#include <vector>

#include "graph/capsule.h"
#include "graph/planted.h"
#include "python/errors.h"
#include "python/imported.h"
#include "python/text.h"
#include "runtime/joint_computation.h"
#include "support/settings.h"

namespace magneto::dispatch {
namespace {

void try_captured(const Context& context, const compiler::Request& request) {
  static constinit Imported after("magneto._debug.minify", "after_dynamo");
  const graph::SymbolValues values = compiler::captured_sizes(request);
  Ref inputs = checked(PyList_New(0));
  const auto add = [&](const Ref& input) {
    if (PyList_Append(inputs.get(), input.get()) < 0) throw PythonError{};
  };
  for (const graph::SymbolBinding& symbol : request.graph.symbols_of(graph::ValueKind::Input)) {
    add(checked(PyLong_FromLongLong(values(shapes::Expr::symbol(symbol.symbol)))));
  }
  for (const Ref& tensor : request.inputs) add(tensor);
  const bool called = context.backend->level == compiler::Backend::Level::Module;
  const Ref backend = called ? Ref::borrow(request.callable) : text_object(context.backend->name);
  checked_of_tool(PyObject_CallFunctionObjArgs(after.get(), request.module, inputs.get(), backend.get(),
                                               request.graph.symbols.empty() ? Py_False : Py_True, nullptr));
}

/// A list; None if there are other ones than the graph's.
Ref list_of(const graph::Graph& graph, const std::vector<Ref>& inputs) {
  if (inputs.size() != graph.inputs.size()) return Ref::borrow(Py_None);
  Ref list = checked(PyList_New(0));
  for (const Ref& input : inputs) {
    if (PyList_Append(list.get(), input.get()) < 0) throw PythonError{};
  }
  return list;
}

/// `saved`: of a backward, whose inputs are not there yet: what the forward gives, see magneto/_debug.
void try_operators(const graph::Graph& graph, const std::vector<Ref>& inputs, const std::string& place,
                   const Ref& saved = Ref::borrow(Py_None)) {
  static constinit Imported after("magneto._debug.minify_operators", "after_aot");
  const Ref given = list_of(graph, inputs);
  checked_of_tool(PyObject_CallFunctionObjArgs(after.get(), graph::graph_capsule(graph).get(), given.get(),
                                               text_object(place).get(), saved.get(), nullptr));
}

/// (forward, its inputs, [(whether it is an input, its position among them or among the results)...]).
Ref saved_of(const graph::Graph& forward, const std::vector<Ref>& inputs, const autograd::Backward& backward) {
  Ref places = checked(PyList_New(0));
  for (const graph::ValueId id : backward.saved) {
    const bool is_input = forward.values[id].kind == graph::ValueKind::Input;
    const auto& among = is_input ? forward.inputs : forward.outputs;
    const auto position = static_cast<Py_ssize_t>(std::ranges::find(among, id) - among.begin());
    const Ref place = checked(Py_BuildValue("(On)", is_input ? Py_True : Py_False, position));
    if (PyList_Append(places.get(), place.get()) < 0) throw PythonError{};
  }
  return checked(PyTuple_Pack(3, graph::graph_capsule(forward).get(), list_of(forward, inputs).get(), places.get()));
}

}  // namespace

void try_graph(const Context& context, const compiler::Request& request) {
  if (request.joint) {
    for (auto& backward : request.joint->backwards) graph::swap_planted(backward.graph, "backward");
  }
  if (settings().repro_after == "dynamo") try_captured(context, request);
  using Operators = compiler::Backend::Operators;
  const Operators operators = request.backend.operators;
  if (settings().repro_after != "aot" || operators == Operators::Called || operators == Operators::Users) return;
  if (!request.needs_grad) return try_operators(request.graph, request.inputs, request.place);
  if (!request.joint) return;
  const graph::Graph forward = runtime::forward_of(request.graph, *request.joint);
  try_operators(forward, request.inputs, request.place);
  // The tools run the forward for it, and no generator may move: where one draws, its backward gets random values.
  const bool draws = std::ranges::any_of(runtime::generators_of(request.graph), &at::Generator::defined);
  for (const auto& backward : request.joint->backwards) {
    const Ref saved = draws ? Ref::borrow(Py_None) : saved_of(forward, request.inputs, backward);
    try_operators(backward.graph, {}, "backward of " + request.place, saved);
  }
}

}  // namespace magneto::dispatch
