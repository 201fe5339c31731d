// torch.profiler.record_function: labels that a profiler shows, and no one else sees.
//
// While nothing records, the operator that opens a label gives a handle that is good for nothing: one handle serves all
// labels, and closing one does nothing. That nothing records is asked again in each run.
#include <ATen/record_function.h>

#include "capture/capture.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/world.h"
#include "python/imported.h"
#include "python/made_once.h"

namespace magneto::capture {

namespace {

PyObject* has_callbacks(PyObject*, PyObject*) { return PyBool_FromLong(at::hasCallbacks()); }

PyMethodDef has_callbacks_definition = {"records_functions", has_callbacks, METH_NOARGS,
                                        "Whether a profiler or another observer sees what operators run."};

/// The handle of a label that nobody sees.
PyObject* unseen_label(PyObject* open) {
  static constinit MadeOnce<PyObject> label;
  return label.get([open] { return checked(PyObject_CallFunction(open, "sO", "", Py_None)).release(); });
}

}  // namespace

Ref TorchCalls::profiler_label(PyObject* callable, const CallArgs& args) {
  const std::string name = operator_base_name(callable);
  if (!name.starts_with("profiler::_record_function_e") || args.kwnames || args.values.empty()) return {};
  static constinit Imported ops("torch", "ops");
  static constinit MadeOnce<PyObject> made;
  PyObject* const open = made.get([] {
    Ref space = checked(PyObject_GetAttrString(ops.get(), "profiler"));
    return checked(PyObject_GetAttrString(space.get(), "_record_function_enter_new")).release();
  });
  static PyObject* const asks = PyCFunction_NewEx(&has_callbacks_definition, nullptr, nullptr);
  if (at::hasCallbacks()) return {};
  PyObject* label = unseen_label(open);
  if (name.ends_with("_exit")) {
    return args.values[0] == label ? Ref::borrow(Py_None) : Ref();
  }
  c.guards.state(asks, {}, Py_False);
  return c.world.wrap(label, c.sources.constant(label));
}

}  // namespace magneto::capture
