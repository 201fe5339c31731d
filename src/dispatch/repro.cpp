#include "dispatch/repro.h"

#include "graph/capsule.h"
#include "graph/planted.h"
#include "python/imported.h"
#include "python/text.h"

namespace magneto::dispatch {

bool try_captured(const Context& context, const Ref& module, const Ref& inputs, bool dynamic) {
  static constinit Imported after("magneto._debug.minify", "after_dynamo");
  const Ref backend = context.backend_name.empty() ? context.backend : text_object(context.backend_name);
  return static_cast<bool>(Ref::steal(PyObject_CallFunctionObjArgs(
      after.get(), module.get(), inputs.get(), backend.get(), dynamic ? Py_True : Py_False, nullptr)));
}

void try_operators(const graph::Graph& graph, const std::vector<Ref>& inputs, const std::string& place) {
  if (settings().repro_after != "aot") return;
  static constinit Imported after("magneto._debug.minify_operators", "after_aot");
  Ref given = Ref::borrow(Py_None);
  if (inputs.size() == graph.inputs.size()) {
    given = checked(PyList_New(0));
    for (const Ref& input : inputs) {
      if (PyList_Append(given.get(), input.get()) < 0) throw PythonError{};
    }
  }
  checked(PyObject_CallFunctionObjArgs(after.get(), graph::graph_capsule(graph).get(), given.get(),
                                       text_object(place).get(), nullptr));
}

void try_joint(const graph::Graph& forward, autograd::Joint& joint, const std::vector<Ref>& inputs,
               const std::string& place) {
  for (autograd::Backward& backward : joint.backwards) graph::swap_planted(backward.graph, "backward");
  try_operators(forward, inputs, place);
  for (const autograd::Backward& backward : joint.backwards) try_operators(backward.graph, {}, "backward of " + place);
}

Ref backend_inputs(const graph::Graph& graph, const graph::SymbolValues& values, const std::vector<Ref>& tensors) {
  Ref inputs = checked(PyList_New(0));
  const auto add = [&](const Ref& input) {
    if (PyList_Append(inputs.get(), input.get()) < 0) throw PythonError{};
  };
  for (const graph::SymbolBinding& symbol : graph.symbols_of(graph::ValueKind::Input)) {
    add(checked(PyLong_FromLongLong(values(shapes::Expr::symbol(symbol.symbol)))));
  }
  for (const Ref& tensor : tensors) add(tensor);
  return inputs;
}

}  // namespace magneto::dispatch
