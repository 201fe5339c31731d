// Backends that are Python callables: a torch.fx.GraphModule and example inputs in, a callable out.
#include <string>

#include "compiler/pipeline.h"
#include "graph/symbols.h"
#include "observe/stats.h"
#include "python/errors.h"
#include "python/imported.h"
#include "python/text.h"

namespace magneto::compiler {
namespace {

/// The numbers of the graph's symbols, then the tensors.
Ref example_inputs(const Request& request) {
  Ref inputs = checked(PyList_New(0));
  const auto add = [&](const Ref& input) {
    if (PyList_Append(inputs.get(), input.get()) < 0) throw PythonError{};
  };
  const graph::SymbolValues values = captured_sizes(request);
  for (const graph::SymbolBinding& symbol : request.graph.symbols_of(graph::ValueKind::Input)) {
    add(checked(PyLong_FromLongLong(values(shapes::Expr::symbol(symbol.symbol)))));
  }
  for (const Ref& input : request.inputs) add(input);
  return inputs;
}

/// It raised, or gave what can't be called: its name, what it was to compile, and its own line.
std::string backend_failure_text(const Request& request, PyObject* cause) {
  SavedError saved;
  static constinit Imported words("magneto._messages", "backend_failure");
  const Ref place = text_object(request.place);
  const Ref text = Ref::steal(PyObject_CallFunctionObjArgs(words.get(), request.callable, cause, place.get(), nullptr));
  if (text && PyUnicode_Check(text.get())) return std::string(text_argument(text.get()));
  PyErr_WriteUnraisable(nullptr);
  return std::string("the backend raised ") + Py_TYPE(cause)->tp_name;
}

/// The current error becomes the cause of a BackendFailed; KeyboardInterrupt and the like stay as they are.
void raise_backend_failed(const Request& request) {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return;
  Ref cause = take_error_with_traceback();
  dispatch::raise("BackendFailed", backend_failure_text(request, cause.get()));
  const Ref failed = take_error_with_traceback();
  PyException_SetCause(failed.get(), cause.release());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(failed.get())), failed.get());
}

}  // namespace

std::unique_ptr<runtime::Computation> call_backend(const Request& request) {
  const Ref inputs = example_inputs(request);
  Ref made = Ref::steal(PyObject_CallFunctionObjArgs(request.callable, request.module, inputs.get(), nullptr));
  if (made && !PyCallable_Check(made.get())) {
    PyErr_Format(PyExc_TypeError, "the backend returned %R, which can't be called", made.get());
    made = Ref();
  }
  if (!made) {
    raise_backend_failed(request);
    throw PythonError{};
  }
  return runtime::make_callable_computation(std::move(made), request.graph, /*users=*/true);
}

}  // namespace magneto::compiler
