// What the Python layer of the minifier (magneto/_debug) reaches of the core: graphs in capsules, and the reducer.
#include "api/bindings.h"

#include <ATen/EmptyTensor.h>

#include "compiler/pipeline.h"
#include "debug/graph_part.h"
#include "debug/reduce.h"
#include "graph/capsule.h"
#include "graph/gm.h"
#include "graph/operator_calls.h"
#include "graph/symbols.h"
#include "observe/limits.h"
#include "observe/stages.h"
#include "python/abi/frame.h"
#include "python/text.h"
#include "support/tensor_object.h"

namespace magneto {
namespace {

Ref list_of(const std::vector<debug::Index>& numbers) {
  Ref list = checked(PyList_New(static_cast<Py_ssize_t>(numbers.size())));
  for (size_t i = 0; i < numbers.size(); ++i) {
    PyList_SET_ITEM(list.get(), i, checked(PyLong_FromLong(numbers[i])).release());
  }
  return list;
}

std::vector<debug::Index> numbers_of(PyObject* list) {
  Ref items = checked(PySequence_Fast(list, "a list of numbers"));
  std::vector<debug::Index> numbers;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
    numbers.push_back(static_cast<debug::Index>(PyLong_AsLong(PySequence_Fast_GET_ITEM(items.get(), i))));
  }
  if (PyErr_Occurred()) throw PythonError{};
  return numbers;
}

/// True, False, or None: no more questions.
debug::Answer answer_of(const Ref& said) {
  if (said.get() == Py_None) return debug::Answer::Stop;
  const int yes = PyObject_IsTrue(said.get());
  if (yes < 0) throw PythonError{};
  return yes ? debug::Answer::Yes : debug::Answer::No;
}

/// (kept nodes, inputs, outputs, what each value is read as).
Ref tuple_of(const debug::Skeleton& skeleton, const debug::Part& part) {
  std::vector<debug::Index> kept;
  for (size_t i = 0; i < part.kept.size(); ++i) {
    if (part.kept[i]) kept.push_back(static_cast<debug::Index>(i));
  }
  return checked(PyTuple_Pack(4, list_of(kept).get(), list_of(part.inputs(skeleton)).get(), list_of(part.outputs).get(),
                              list_of(part.read_as).get()));
}

PyObject* reduce_graph(PyObject*, PyObject* args) {
  PyObject *nodes, *classes, *inputs, *outputs, *question;
  if (!PyArg_ParseTuple(args, "OOOOO", &nodes, &classes, &inputs, &outputs, &question)) return nullptr;
  return guarded([&] {
    debug::Skeleton skeleton;
    Ref items = checked(PySequence_Fast(nodes, "a list of nodes"));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
      PyObject *operands, *results;
      if (!PyArg_ParseTuple(PySequence_Fast_GET_ITEM(items.get(), i), "OO", &operands, &results)) throw PythonError{};
      skeleton.nodes.push_back({numbers_of(operands), numbers_of(results)});
    }
    skeleton.classes = numbers_of(classes);
    skeleton.inputs = numbers_of(inputs);
    skeleton.outputs = numbers_of(outputs);
    const debug::Part part = debug::reduce(skeleton, [&](const debug::Part& candidate) {
      return answer_of(checked(PyObject_CallObject(question, tuple_of(skeleton, candidate).get())));
    });
    return tuple_of(skeleton, part).release();
  });
}

/// Of a graph in a capsule: `question(part, inputs)` with the part in a capsule and the whole's values that its inputs
/// are. Gives both of the smallest part.
PyObject* reduce_operators(PyObject*, PyObject* args) {
  PyObject *capsule, *question;
  if (!PyArg_ParseTuple(args, "OO", &capsule, &question)) return nullptr;
  return guarded([&] {
    const graph::Graph& whole = graph::graph_in(capsule);
    const debug::Skeleton skeleton = debug::skeleton_of(whole);
    const auto both = [&](const debug::Part& part) {
      Ref graph = graph::graph_capsule(debug::graph_of(whole, skeleton, part));
      return checked(PyTuple_Pack(2, graph.get(), list_of(debug::inputs_of(whole, skeleton, part)).get()));
    };
    const debug::Part part = debug::reduce(skeleton, [&](const debug::Part& candidate) {
      if (!graph::verify(debug::graph_of(whole, skeleton, candidate)).empty()) return debug::Answer::No;
      return answer_of(checked(PyObject_CallObject(question, both(candidate).get())));
    });
    return both(part).release();
  });
}

std::vector<at::Tensor> tensors_in(PyObject* list) {
  Ref items = checked(PySequence_Fast(list, "a list of tensors"));
  std::vector<at::Tensor> tensors;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(items.get(), i);
    if (!is_tensor_object(item)) throw std::invalid_argument("input " + std::to_string(i) + " is no tensor");
    tensors.push_back(unpack_tensor(item));
  }
  return tensors;
}

/// Runs a computation on tensors.
Ref outputs_of(const runtime::TensorComputation& computation, PyObject* inputs) {
  Ref items = checked(PySequence_Fast(inputs, "a list of tensors"));
  if (static_cast<size_t>(PySequence_Fast_GET_SIZE(items.get())) != computation.input_count()) {
    throw std::invalid_argument("the graph has " + std::to_string(computation.input_count()) + " inputs");
  }
  (void)tensors_in(items.get());
  std::vector<PyObject*> outputs(computation.output_count(), nullptr);
  computation.run(PySequence_Fast_ITEMS(items.get()), outputs.data());
  Ref list = checked(PyList_New(static_cast<Py_ssize_t>(outputs.size())));
  for (size_t i = 0; i < outputs.size(); ++i) PyList_SET_ITEM(list.get(), i, outputs[i]);
  return list;
}

/// compute_operators(graph, inputs, compiled, values): the outputs, or the values of those numbers in their place.
PyObject* compute_operators(PyObject*, PyObject* args) {
  PyObject *capsule, *inputs, *values;
  int compiled = 0;
  if (!PyArg_ParseTuple(args, "OOpO", &capsule, &inputs, &compiled, &values)) return nullptr;
  return guarded([&]() -> PyObject* {
    graph::Graph graph = graph::graph_in(capsule);
    if (values != Py_None) graph.outputs = numbers_of(values);
    if (!compiled) return outputs_of(*runtime::make_aten_computation(graph), inputs).release();
    graph::NoSink sink;
    const compiler::Compiled made = compiler::compile_graph(graph, {}, sink);
    return outputs_of(*made.computation, inputs).release();
  });
}

PyObject* graph_text(PyObject*, PyObject* capsule) {
  return guarded([&] { return text_result(graph::print(graph::graph_in(capsule))); });
}

PyObject* graph_from_text(PyObject*, PyObject* text) {
  return guarded([&] { return graph::graph_capsule(graph::parse(text_argument(text))).release(); });
}

PyObject* operator_calls(PyObject*, PyObject* capsule) {
  return guarded(
      [&] { return graph::graph_module(graph::with_operators_as_calls(graph::graph_in(capsule)), true).release(); });
}

PyObject* with_numbers(PyObject*, PyObject* args) {
  PyObject *capsule, *inputs;
  if (!PyArg_ParseTuple(args, "OO", &capsule, &inputs)) return nullptr;
  return guarded([&] {
    const graph::Graph& graph = graph::graph_in(capsule);
    const std::vector<at::Tensor> tensors = tensors_in(inputs);
    std::vector<const at::Tensor*> given;
    for (const at::Tensor& tensor : tensors) given.push_back(&tensor);
    graph::SymbolValues values = graph::SymbolReader(graph).read(given.data());
    // Sizes that its operators say: as in the run that was captured.
    for (const graph::SymbolBinding& symbol : graph.symbols_of(graph::ValueKind::Result)) {
      values.set(symbol.symbol, symbol.hint);
    }
    return graph::graph_capsule(graph::with_numbers(graph, values)).release();
  });
}

/// Of each input: name, and a tensor without data that has its dtype and geometry.
PyObject* graph_inputs(PyObject*, PyObject* capsule) {
  return guarded([&] {
    const graph::Graph& graph = graph::graph_in(capsule);
    Ref list = checked(PyList_New(0));
    for (const graph::ValueId id : graph.inputs) {
      const graph::Value& value = graph.values[id];
      const at::Tensor meta =
          at::Tensor(at::detail::empty_strided_meta(value.meta.sizes, value.meta.strides, value.meta.dtype));
      Ref pair = checked(PyTuple_Pack(2, text_object(value.name).get(), checked(tensor_object(meta)).get()));
      if (PyList_Append(list.get(), pair.get()) < 0) throw PythonError{};
    }
    return list.release();
  });
}

/// record_numbers(on): from here on graphs, passes and kernels are numbered from 1, and their names kept.
PyObject* record_numbers(PyObject*, PyObject* on) {
  observe::numbers().records = PyObject_IsTrue(on) == 1;
  observe::numbers().reset();
  Py_RETURN_NONE;
}

PyObject* numbered(PyObject*, PyObject*) {
  return guarded([&] {
    const char* kinds[] = {"graph", "pass", "kernel"};
    Ref all = checked(PyDict_New());
    for (size_t i = 0; i < observe::kCountedKinds; ++i) {
      Ref names = checked(PyList_New(0));
      for (const std::string& name : observe::numbers().names[i]) {
        if (PyList_Append(names.get(), text_object(name).get()) < 0) throw PythonError{};
      }
      if (PyDict_SetItemString(all.get(), kinds[i], names.get()) < 0) throw PythonError{};
    }
    return all.release();
  });
}

/// The values that are inputs.
PyObject* input_values(PyObject*, PyObject* capsule) {
  return guarded([&] { return list_of(graph::graph_in(capsule).inputs).release(); });
}

PyObject* is_sized(PyObject*, PyObject* capsule) {
  return guarded([&] { return PyBool_FromLong(!graph::graph_in(capsule).symbols.empty()); });
}

PyObject* function_of(PyObject*, PyObject* frame) {
  if (!PyFrame_Check(frame)) return PyErr_Format(PyExc_TypeError, "function_of takes a frame, not %R", frame);
  return Py_NewRef(frame_function(frame_of_object(frame)));
}

}  // namespace

PyMethodDef debug_methods[] = {
    {"reduce_graph", reduce_graph, METH_VARARGS, "reduce_graph(nodes, classes, inputs, outputs, question): smaller"},
    {"reduce_operators", reduce_operators, METH_VARARGS, "reduce_operators(graph, question): a smaller ATen graph"},
    {"compute_operators", compute_operators, METH_VARARGS, "compute_operators(graph, inputs, compiled, values)"},
    {"graph_text", graph_text, METH_O, "The text form of a graph in a capsule."},
    {"graph_from_text", graph_from_text, METH_O, "A graph in a capsule, from its text form."},
    {"operator_calls", operator_calls, METH_O, "The torch.fx.GraphModule that calls a graph's ATen operators."},
    {"with_numbers", with_numbers, METH_VARARGS, "with_numbers(graph, inputs): without dynamic sizes."},
    {"graph_inputs", graph_inputs, METH_O, "Name and geometry of each input."},
    {"input_values", input_values, METH_O, "The numbers of the values that are a graph's inputs."},
    {"is_sized", is_sized, METH_O, "Whether a graph's sizes are dynamic."},
    {"function_of", function_of, METH_O, "The function that a frame runs."},
    {"record_numbers", record_numbers, METH_O, "Numbers graphs, passes and kernels from 1, and keeps their names."},
    {"numbered", numbered, METH_NOARGS, "The names of all that was numbered, by kind."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace magneto
