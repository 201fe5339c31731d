// torch.export: a captured graph becomes one of ATen operators without writes, and is handed to magneto/_export.py with
// what its inputs and results are. It is not run: what the program's call gets are tensors of the right form.
#include <algorithm>
#include <limits>
#include <optional>

#include "compiler/ahead.h"
#include "compiler/decompose.h"
#include "compiler/pipeline.h"
#include "compiler/size_names.h"
#include "graph/aliases.h"
#include "graph/gm.h"
#include "graph/operator_calls.h"
#include "graph/origins.h"
#include "passes/passes.h"
#include "python/imported.h"
#include "python/text.h"
#include "runtime/user_half.h"

namespace magneto::compiler {
namespace {

using graph::Graph;
using graph::ValueId;
using passes::Functional;

[[noreturn]] void refuse_export(const Request& request, const std::string& why) {
  static constinit Imported not_yet("magneto.exc", "NotYet");
  PyErr_Format(not_yet.get(), "torch.export.export of %s: %s", request.place.c_str(), why.c_str());
  throw PythonError{};
}

bool is_written(const Functional& functional, ValueId id) {
  return std::ranges::count(functional.writes, id, &Functional::Write::input) > 0;
}

/// What the program returns, after all writes.
ValueId result_of(const Request& request, const Functional& functional, ValueId output) {
  const auto write = std::ranges::find(functional.writes, output, &Functional::Write::input);
  if (write != functional.writes.end()) return write->value;
  const Graph& graph = functional.graph;
  for (ValueId id = output; graph.values[id].producer >= 0;) {
    const graph::AtenNode& node = graph.aten_nodes[static_cast<size_t>(graph.values[id].producer)];
    if (!graph::effects_of(node.op).aliases || !std::holds_alternative<ValueId>(node.args[0])) break;
    id = std::get<ValueId>(node.args[0]);
    if (is_written(functional, id))
      refuse_export(request, "it returns a view of an argument or buffer that it writes to");
  }
  return output;
}

template <typename Items, typename Make>
Ref list_of(const Items& items, Make make) {
  const Ref list = checked(PyList_New(0));
  for (const auto& item : items) {
    if (PyList_Append(list.get(), checked(make(item)).get()) < 0) throw PythonError{};
  }
  return list;
}

Py_ssize_t position(const Graph& graph, ValueId input) {
  return std::ranges::find(graph.inputs, input) - graph.inputs.begin();
}

/// (name, input, dimension or -1, low, high or None, number in the capture).
PyObject* symbol_of(const Graph& graph, const graph::SymbolBinding& symbol) {
  const std::string name = shapes::text(shapes::Expr::symbol(symbol.symbol));
  const bool open = symbol.range.high == std::numeric_limits<int64_t>::max();
  const Ref high = open ? Ref::borrow(Py_None) : checked(PyLong_FromLongLong(symbol.range.high));
  return Py_BuildValue("(sniLOL)", name.c_str(), position(graph, symbol.value), symbol.dim,
                       static_cast<long long>(symbol.range.low), high.get(), static_cast<long long>(symbol.hint));
}

/// Of a number that only data says: (name, low, high or None).
PyObject* found_number(const graph::SymbolBinding& symbol) {
  const std::string name = shapes::text(shapes::Expr::symbol(symbol.symbol));
  const bool open = symbol.range.high == std::numeric_limits<int64_t>::max();
  const bool any = symbol.range.low == std::numeric_limits<int64_t>::min();
  const Ref low = any ? Ref::borrow(Py_None) : checked(PyLong_FromLongLong(symbol.range.low));
  const Ref high = open ? Ref::borrow(Py_None) : checked(PyLong_FromLongLong(symbol.range.high));
  return Py_BuildValue("(sOO)", name.c_str(), low.get(), high.get());
}

/// (kind, question, answer, explanation, hint, code or None, offset, line).
PyObject* assumption_of(const graph::Assumption& made) {
  static constexpr const char* kKinds[] = {"data", "fake", "layout"};
  return Py_BuildValue("(sssssOii)", kKinds[static_cast<size_t>(made.kind)], made.question.c_str(), made.answer.c_str(),
                       made.explanation.c_str(), made.hint.c_str(), made.code ? made.code.get() : Py_None, made.offset,
                       made.line);
}

std::optional<int64_t> bound_of(PyObject* number) {
  if (number == Py_None) return std::nullopt;
  const int64_t bound = PyLong_AsLongLong(number);
  if (PyErr_Occurred()) throw PythonError{};
  return bound;
}

/// The callable's `named_sizes`: (argument, dimension, name, least, most) of each, the last two perhaps None.
std::vector<NamedSize> named_sizes(PyObject* callable) {
  const Ref rows = checked(PyObject_GetAttrString(callable, "named_sizes"));
  const Ref items = checked(PySequence_Fast(rows.get(), "named_sizes is a list"));
  std::vector<NamedSize> sizes;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
    const char *argument, *name;
    int dim;
    PyObject *low, *high;
    if (!PyArg_ParseTuple(PySequence_Fast_GET_ITEM(items.get(), i), "sisOO", &argument, &dim, &name, &low, &high))
      throw PythonError{};
    sizes.push_back({argument, dim, name, bound_of(low), bound_of(high)});
  }
  return sizes;
}

/// For a file, before anything is changed for torch.fx.
void hand_over_program(const Request& request) {
  if (checked(PyObject_GetAttrString(request.callable, "wants_program")).get() != Py_True) return;
  if (!request.graph.symbols_of(graph::ValueKind::Result).empty())
    refuse_export(request, "sizes or numbers that only data says");
  const Ahead made = compile_ahead(request);
  const Ref operators = list_of(made.operators, [](const std::string& name) { return text_object(name).release(); });
  const auto bytes = [](const std::string& text) {
    return checked(PyBytes_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
  };
  checked(PyObject_CallMethod(request.callable, "take_program", "OOO", bytes(made.program).get(),
                              bytes(made.kernels).get(), operators.get()));
}

}  // namespace

std::unique_ptr<runtime::Computation> compile_for_export(const Request& request) {
  Functional functional;
  std::vector<std::string> assumed;
  try {
    functional = passes::functionalise(request.graph);
    passes::eliminate_dead(functional);
    const Ref table = checked(PyObject_GetAttrString(request.callable, "decompositions"));
    if (PyDict_GET_SIZE(table.get())) functional = decompose(std::move(functional), table.get(), &assumed);
  } catch (const passes::Unsupported& refusal) {
    refuse_export(request, refusal.what());
  }
  Graph& graph = functional.graph;
  hand_over_program(request);
  graph::OperatorForm form;
  for (const Functional::Write& write : functional.writes) form.returned.push_back(write.value);
  for (const ValueId output : graph.outputs) form.returned.push_back(result_of(request, functional, output));
  const auto symbols = graph.symbols_of(graph::ValueKind::Input);
  for (const auto& symbol : symbols) form.symbols.push_back(shapes::text(shapes::Expr::symbol(symbol.symbol)));
  const Ref names = list_of(graph.inputs, [&](ValueId id) { return text_object(graph.values[id].name).release(); });
  for (size_t i = 0; i < graph.inputs.size(); ++i) graph.values[graph.inputs[i]].name = "arg" + std::to_string(i);
  const Ref inputs = list_of(request.inputs, [](const Ref& input) { return Py_NewRef(input.get()); });
  const Ref writes = list_of(functional.writes, [&](const Functional::Write& write) {
    return PyLong_FromSsize_t(position(graph, write.input));
  });
  const Ref found = list_of(graph.symbols_of(graph::ValueKind::Result), found_number);
  const Ref bound = list_of(symbols, [&](const graph::SymbolBinding& symbol) { return symbol_of(graph, symbol); });
  const Ref modules = checked(PyObject_GetAttrString(request.callable, "modules"));
  graph::Origins origins(modules.get());
  form.origins = &origins;
  Graph shown = graph;
  shown.outputs.clear();
  for (const ValueId id : form.returned) {
    if (!std::ranges::count(shown.outputs, id)) shown.outputs.push_back(id);
  }
  Ref module;
  try {
    module = graph::operator_module(graph::with_operators_as_calls(shown), form);
  } catch (const std::invalid_argument& error) {
    refuse_export(request, error.what());
  }
  runtime::UserHalf half;
  const Ref further = list_of(assumed, [](const std::string& text) { return text_object(text).release(); });
  const Ref drafted = list_of(request.assumptions, assumption_of);
  const std::string violated = violated_names(request.sizes, named_sizes(request.callable));
  half.callable = checked(PyObject_CallMethod(request.callable, "export", "OOOOOOOssO", module.get(), inputs.get(),
                                              names.get(), writes.get(), bound.get(), found.get(), further.get(),
                                              request.guards.c_str(), violated.c_str(), drafted.get()));
  half.name = "torch.export.export";
  half.returned = graph.outputs.size();
  for (size_t i = 0; i < graph.outputs.size(); ++i) half.outputs.push_back(static_cast<int32_t>(i));
  half.first_saved = graph.outputs.size();
  return runtime::make_user_computation(std::move(half), request.graph);
}

bool is_export(PyObject* compilers) { return checked(PyObject_GetAttrString(compilers, "exports")).get() == Py_True; }

bool is_draft(PyObject* compilers) { return checked(PyObject_GetAttrString(compilers, "drafts")).get() == Py_True; }

}  // namespace magneto::compiler
