// `collections.namedtuple(...)` in the program: the capture makes a class as its own, and guards nothing of it but what
// the program reads of it, as of any class. In eager each run has one of its own, so that what a segment hands on (the
// class, and its instances) is made by the run: Rebuilder::build_named_tuple.
#include "capture/calls/calls.h"
#include "capture/capture.h"
#include "capture/interpreter/errors.h"
#include "capture/interpreter/interp_frame.h"
#include "capture/world/world.h"

namespace magneto::capture {

Ref Calls::make_named_tuple(PyObject* function, const CallArgs& args) {
  CallArgs with_module = args;
  Ref names = args.kwnames ? Ref::borrow(args.kwnames) : checked(PyTuple_New(0));
  PyObject* module = c.frame ? PyDict_GetItemWithError(c.frame->globals, MAGNETO_STR("__name__")) : nullptr;
  const int given = PySequence_Contains(names.get(), MAGNETO_STR("module"));
  if (given < 0) throw PythonError{};
  if (!given && module) {  // which namedtuple() else asks the frame that calls it for
    const Ref last = checked(PyTuple_Pack(1, MAGNETO_STR("module")));
    names = checked(PySequence_Concat(names.get(), last.get()));
    with_module.kwnames = names.get();
    with_module.values.push_back(module);
  }
  Ref made = run_native_function(function, with_module, /*members=*/false);
  const Ref defaults = checked(PyObject_GetAttrString(made.get(), "_field_defaults"));
  PyObject* value;
  for (Py_ssize_t position = 0; PyDict_Next(defaults.get(), &position, nullptr, &value);) {
    if (!is_scalar(value)) c.side_exit(BreakReason::OpaqueCall, "call of collections.namedtuple");
  }
  named_tuples.push_back(made);
  return c.world.wrap(made.get(), c.sources.constant(made.get()));
}

}  // namespace magneto::capture
