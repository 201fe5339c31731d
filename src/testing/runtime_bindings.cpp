// What tests reach of the runtime: graphs as text, run on real tensors.
#include "api/bindings.h"
#include "compiler/cached_program.h"
#include "graph/capsule.h"
#include "graph/gm.h"
#include "graph/graph.h"
#include "lower/lowering.h"
#include "passes/passes.h"
#include "python/text.h"
#include "runtime/plan/torch_errors.h"
#include "runtime/program/aten_program.h"
#include "runtime/program/compiled_program.h"
#include "runtime/program/torch_program.h"
#include "support/gil.h"
#include "support/tensor_object.h"
#include "testing/failing_allocator.h"
#include "testing/recording_device.h"
#include "testing/test_graphs.h"

namespace magneto {
namespace {

std::string_view text_of(PyObject* text) {
  Py_ssize_t size = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(text, &size);
  if (!utf8) throw PythonError{};
  return {utf8, static_cast<size_t>(size)};
}

/// Runs `program` on a list of tensors, as plans do: without the GIL, errors and warnings as eager's.
template <typename Program>
PyObject* run_program(const Program& program, PyObject* inputs) {
  Ref items = checked(PySequence_Fast(inputs, "inputs must be a sequence of tensors"));
  const auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(items.get()));
  if (count != program.input_count()) {
    throw std::invalid_argument("the graph has " + std::to_string(program.input_count()) + " inputs, got " +
                                std::to_string(count));
  }
  std::vector<const at::Tensor*> tensors;
  for (size_t i = 0; i < count; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(items.get(), i);
    if (!is_tensor_object(item)) throw std::invalid_argument("input " + std::to_string(i) + " is no tensor");
    tensors.push_back(&unpack_tensor(item));
  }
  std::vector<at::Tensor> outputs(program.output_count());
  const bool ok = runtime::with_torch_errors([&] {
    const WithoutGil without_gil;
    program.run(tensors.data(), outputs.data());
  });
  if (!ok) return nullptr;
  Ref list = checked(PyList_New(static_cast<Py_ssize_t>(outputs.size())));
  for (size_t i = 0; i < outputs.size(); ++i)
    PyList_SET_ITEM(list.get(), i, checked(tensor_object(outputs[i])).release());
  return list.release();
}

constexpr const char* kAtenCapsule = "magneto.AtenProgram";

PyObject* aten_compile(PyObject*, PyObject* text) {
  return guarded([&] {
    auto program = std::make_unique<runtime::AtenProgram>(graph::parse(text_of(text)));
    Ref capsule = checked(PyCapsule_New(program.get(), kAtenCapsule, [](PyObject* self) {
      delete static_cast<runtime::AtenProgram*>(PyCapsule_GetPointer(self, kAtenCapsule));
    }));
    (void)program.release();  // the capsule owns it
    return capsule.release();
  });
}

const runtime::AtenProgram& program_of(PyObject* capsule) {
  void* pointer = PyCapsule_GetPointer(capsule, kAtenCapsule);
  if (!pointer) throw PythonError{};
  return *static_cast<runtime::AtenProgram*>(pointer);
}

PyObject* aten_call(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    if (count != 2) throw std::invalid_argument("aten_call(program, inputs)");
    return run_program(program_of(args[0]), args[1]);
  });
}

PyObject* aten_run(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    if (count != 2) throw std::invalid_argument("aten_run(text, inputs)");
    return run_program(runtime::AtenProgram(graph::parse(text_of(args[0]))), args[1]);
  });
}

/// (text, inputs) -> (outputs, what the device was asked for).
PyObject* recorded_run(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    if (count != 2) throw std::invalid_argument("recorded_run(text, inputs)");
    static const auto* device = new testing::RecordingDevice;
    graph::NoSink nobody;
    lower::LoopProgram loops =
        lower::lower(passes::normalise(graph::parse(text_of(args[0])), /*watched=*/{}, nobody), nobody);
    const runtime::CompiledProgram program(std::move(loops), *device);
    const Ref outputs = checked(run_program(program, args[1]));
    const std::vector<std::string> events = device->take();
    Ref list = checked(PyList_New(0));
    for (const std::string& event : events) {
      const Ref text = checked(PyUnicode_FromString(event.c_str()));
      if (PyList_Append(list.get(), text.get()) < 0) throw PythonError{};
    }
    return PyTuple_Pack(2, outputs.get(), list.get());
  });
}

PyObject* aten_print(PyObject*, PyObject* capsule) {
  return guarded([&] {
    const std::string text = program_of(capsule).print();
    return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
  });
}

PyObject* torch_graph(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    if (count != 6) throw std::invalid_argument("torch_graph(marker, inputs, constants, calls, outputs, mutated)");
    return graph::graph_capsule(runtime::torch_graph(args[0], args[1], args[2], args[3], args[4], args[5])).release();
  });
}

PyObject* torch_graph_module(PyObject*, PyObject* capsule) {
  return guarded([&] { return graph::graph_module(graph::graph_in(capsule)).release(); });
}

PyObject* torch_graph_print(PyObject*, PyObject* capsule) {
  return guarded([&] { return text_result(graph::print(graph::graph_in(capsule))); });
}

PyObject* torch_graph_run(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    if (count != 2) throw std::invalid_argument("torch_graph_run(graph, inputs)");
    const runtime::TorchProgram program(graph::graph_in(args[0]));
    Ref items = checked(PySequence_Fast(args[1], "inputs must be a sequence of tensors"));
    if (static_cast<size_t>(PySequence_Fast_GET_SIZE(items.get())) != program.input_count()) {
      throw std::invalid_argument("the graph has " + std::to_string(program.input_count()) + " inputs");
    }
    std::vector<Ref> outputs(program.output_count());
    program.run(PySequence_Fast_ITEMS(items.get()), outputs.data());
    Ref list = checked(PyList_New(static_cast<Py_ssize_t>(outputs.size())));
    for (size_t i = 0; i < outputs.size(); ++i) PyList_SET_ITEM(list.get(), i, outputs[i].release());
    return list.release();
  });
}

PyObject* program_key(PyObject*, PyObject*) {
  return guarded([] { return PyUnicode_FromString(runtime::program_key().c_str()); });
}

PyObject* fail_allocations(PyObject*, PyObject* args) {
  long long first = -1;
  int lasting = 0;
  if (!PyArg_ParseTuple(args, "Lp", &first, &lasting)) return nullptr;
  return PyLong_FromLongLong(runtime::fail_allocations(first, lasting != 0));
}

PyCFunction fast(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

}  // namespace

PyMethodDef runtime_test_methods[] = {
    {"aten_compile", aten_compile, METH_O, "Compiles the ATen level of a graph in text form into a program."},
    {"aten_call", fast(aten_call), METH_FASTCALL, "Runs a program on a list of tensors; returns the outputs."},
    {"aten_run", fast(aten_run), METH_FASTCALL, "Compiles a graph in text form and runs it once."},
    {"recorded_run", fast(recorded_run), METH_FASTCALL,
     "Lowers a graph in text form, runs it on a device that keeps a list: (outputs, what it was asked for)."},
    {"aten_print", aten_print, METH_O, "A program's steps, one per line."},
    {"program_key", program_key, METH_NOARGS, "What all programs in the cache on disk depend on, as text."},
    {"fail_allocations", fail_allocations, METH_VARARGS,
     "For tests: lets allocations of tensors' memory fail from (or only at) one on; counts them."},
    {"torch_graph", fast(torch_graph), METH_FASTCALL, "Builds a torch-level graph from a description, for tests."},
    {"torch_graph_module", torch_graph_module, METH_O, "The torch.fx.GraphModule of a torch-level graph."},
    {"torch_graph_print", torch_graph_print, METH_O, "The text form of a torch-level graph."},
    {"torch_graph_run", fast(torch_graph_run), METH_FASTCALL, "Runs a torch-level graph call by call."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace magneto
