// What tests and tools reach of the graph: text in, text out.
#include "api/bindings.h"
#include "graph/graph.h"
#include "python/text.h"

namespace magneto {
namespace {

PyObject* graph_roundtrip(PyObject*, PyObject* text) {
  return guarded([&] { return text_result(graph::print(graph::parse(text_argument(text)))); });
}

PyObject* graph_verify(PyObject*, PyObject* text) {
  return guarded([&] {
    const std::vector<std::string> violations = graph::verify(graph::parse(text_argument(text)));
    Ref list = checked(PyList_New(static_cast<Py_ssize_t>(violations.size())));
    for (size_t i = 0; i < violations.size(); ++i) {
      PyList_SET_ITEM(list.get(), i, checked(text_result(violations[i])).release());
    }
    return list.release();
  });
}

}  // namespace

PyMethodDef graph_test_methods[] = {
    {"graph_roundtrip", graph_roundtrip, METH_O, "Parses a graph's text form and prints it again."},
    {"graph_verify", graph_verify, METH_O, "The invariants that a graph in text form breaks, one line each."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace magneto
