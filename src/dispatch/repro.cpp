#include "dispatch/repro.h"

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

/// `inputs`: none for a backward's.
void try_operators(const graph::Graph& graph, const std::vector<Ref>& inputs, const std::string& place) {
  static constinit Imported after("magneto._debug.minify_operators", "after_aot");
  Ref given = Ref::borrow(Py_None);
  if (inputs.size() == graph.inputs.size()) {
    given = checked(PyList_New(0));
    for (const Ref& input : inputs) {
      if (PyList_Append(given.get(), input.get()) < 0) throw PythonError{};
    }
  }
  checked_of_tool(PyObject_CallFunctionObjArgs(after.get(), graph::graph_capsule(graph).get(), given.get(),
                                               text_object(place).get(), nullptr));
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
  try_operators(runtime::forward_of(request.graph, *request.joint), request.inputs, request.place);
  for (const auto& backward : request.joint->backwards) {
    try_operators(backward.graph, {}, "backward of " + request.place);
  }
}

}  // namespace magneto::dispatch
