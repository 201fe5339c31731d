// What tests and tools reach of the passes and of lowering: text in, text out.
#include "api/bindings.h"
#include "lower/groups.h"
#include "lower/lowering.h"
#include "passes/passes.h"
#include "python/text.h"

namespace magneto {
namespace {

graph::Graph parse_sound(PyObject* text) {
  graph::Graph graph = graph::parse(text_argument(text));
  if (const auto violations = graph::verify(graph); !violations.empty()) {
    throw std::invalid_argument("unsound graph: " + violations.front());
  }
  return graph;
}

passes::Functional normal_form(PyObject* text) {
  graph::NoSink sink;
  return passes::normalise(parse_sound(text), {}, sink);
}

/// For tests: all inputs that require gradients are weights that nobody writes unnoticed.
std::vector<bool> weights_of(const graph::Graph& graph) {
  std::vector<bool> weights;
  for (const graph::ValueId id : graph.inputs) weights.push_back(graph.values[id].meta.requires_grad);
  return weights;
}

/// (text, pass): the graph after functionalisation and then that one pass; "" for all of them.
PyObject* passes_run(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    if (count != 2) throw std::invalid_argument("passes_run(text, pass)");
    const std::string_view pass = text_argument(args[1]);
    try {
      if (pass.empty()) return text_result(passes::print(normal_form(args[0])));
      passes::Functional functional = passes::functionalise(parse_sound(args[0]));
      if (pass != "functionalise") {
        const passes::Pass* found = passes::find_pass(pass);
        if (!found) throw std::invalid_argument("there is no pass " + std::string(pass));
        found->run(functional, weights_of(functional.graph));
      }
      if (const auto violations = passes::verify(functional); !violations.empty()) {
        throw std::logic_error(violations.front());
      }
      return text_result(passes::print(functional));
    } catch (const passes::Unsupported& refusal) {
      return text_result(std::string("unsupported: ") + refusal.what() + "\n");
    }
  });
}

PyObject* lower_expressions(PyObject*, PyObject* text) {
  return guarded([&] {
    lower::Lowering lowering(normal_form(text));
    lowering.run();
    std::vector<lower::NodeId> roots;
    for (const lower::Root& root : lowering.roots) roots.push_back(root.node);
    return text_result(lower::print(lowering.dag, roots));
  });
}

PyObject* lower_program(PyObject*, PyObject* text) {
  return guarded([&] {
    graph::NoSink sink;
    return text_result(lower::print(lower::lower(normal_form(text), sink)));
  });
}

PyObject* exact_operators(PyObject*, PyObject*) {
  return guarded([&] {
    std::string names;
    for (const std::string& name : lower::exact_operators()) names += name + "\n";
    return text_result(names);
  });
}

}  // namespace

PyMethodDef lower_test_methods[] = {
    {"passes_run", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(passes_run)), METH_FASTCALL,
     "A graph in text form after a pass."},
    {"exact_operators", exact_operators, METH_NOARGS, "Those whose generated code has eager's bits, a line each."},
    {"lower_expressions", lower_expressions, METH_O, "The tensor expressions of a graph in text form."},
    {"lower_program", lower_program, METH_O, "The kernels and calls that a graph in text form becomes."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace magneto
