// What tests and benchmarks reach of compiled callables.
#include "api/bindings.h"
#include "dispatch/compiled.h"
#include "dispatch/context.h"

namespace magneto {
namespace {

using dispatch::Report;

PyObject* capture_text(PyObject*, PyObject* args) {
  PyObject *callable, *call_args, *call_kwargs = nullptr;
  if (!PyArg_ParseTuple(args, "OO!|O!", &callable, &PyTuple_Type, &call_args, &PyDict_Type, &call_kwargs))
    return nullptr;
  return guarded([&]() -> PyObject* {
    const Report report = dispatch::reported_call(callable, call_args, call_kwargs);
    Ref segments = checked(PyList_New(0));
    for (size_t i = 0; i < report.plan_texts.size(); ++i) {
      Ref texts = checked(Py_BuildValue("(sss)", report.graph_texts[i].c_str(), report.guards[i].c_str(),
                                        report.plan_texts[i].c_str()));
      if (PyList_Append(segments.get(), texts.get()) < 0) throw PythonError{};
    }
    return segments.release();
  });
}

PyObject* time_guards(PyObject*, PyObject* args) {
  PyObject *compiled, *call_args;
  Py_ssize_t rounds, evicted = 0;
  if (!PyArg_ParseTuple(args, "OO!n|n", &compiled, &PyTuple_Type, &call_args, &rounds, &evicted)) return nullptr;
  return guarded([&] {
    return PyFloat_FromDouble(dispatch::time_guards(compiled, call_args, rounds, static_cast<size_t>(evicted)));
  });
}

}  // namespace

PyMethodDef dispatch_test_methods[] = {
    {"capture_text", capture_text, METH_VARARGS,
     "capture_text(callable, args, kwargs={}) -> [(graph, guards, plan)], one for each segment captured"},
    {"time_guards", time_guards, METH_VARARGS,
     "time_guards(compiled, args, rounds, evicted=0) -> seconds of one check of the guards, the least of `rounds`"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace magneto
