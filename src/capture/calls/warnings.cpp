// warnings.warn: put off to the segment's end, where it is made for the program's own line.
//
// Whether a warning is shown is decided anew in each run, by the filters and registries that are there then. What has
// to be assumed is only that it is no error: that would be raised in its place, and the segment ends in front of it.
#include <Python.h>

#include <algorithm>

#include "capture/calls/calls.h"
#include "capture/calls/deferred.h"
#include "capture/calls/handlers.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "python/imported.h"

namespace magneto::capture {

namespace {

/// What `warnings.warn` found out of its caller: (text, category, file, line, globals).
enum Part { kText, kCategory, kFile, kLine, kGlobals };
PyObject* part(PyObject* warning, Part index) { return PyTuple_GET_ITEM(warning, index); }

Ref module_name(PyObject* warning) {
  PyObject* name = PyDict_GetItemWithError(part(warning, kGlobals), MAGNETO_STR("__name__"));
  return name && PyUnicode_Check(name) ? Ref::borrow(name) : checked(PyUnicode_FromString("<string>"));
}

/// A pattern of a filter: None, a text, or a compiled expression.
bool matches(PyObject* pattern, PyObject* text) {
  if (pattern == Py_None) return true;
  if (PyUnicode_CheckExact(pattern)) return PyUnicode_Compare(pattern, text) == 0;
  return PyObject_IsTrue(checked(PyObject_CallMethod(pattern, "match", "O", text)).get()) == 1;
}

/// What the first filter that fits says.
Ref find_action(PyObject* warning) {
  static constinit Imported module("warnings");
  const Ref filters = checked(PyObject_GetAttrString(module.get(), "filters"));
  const Ref rows = checked(PySequence_Tuple(filters.get()));
  const Ref name = module_name(warning);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows.get()); ++i) {
    PyObject* row = PyTuple_GET_ITEM(rows.get(), i);
    if (!PyTuple_Check(row) || PyTuple_GET_SIZE(row) != 5) continue;
    const Ref line = Ref::borrow(PyTuple_GET_ITEM(row, 4));
    if (PyObject_IsTrue(line.get()) == 1 && PyObject_RichCompareBool(line.get(), part(warning, kLine), Py_EQ) != 1) {
      continue;
    }
    if (PyObject_IsSubclass(part(warning, kCategory), PyTuple_GET_ITEM(row, 2)) != 1) continue;
    if (!matches(PyTuple_GET_ITEM(row, 1), part(warning, kText)) || !matches(PyTuple_GET_ITEM(row, 3), name.get())) {
      continue;
    }
    return Ref::borrow(PyTuple_GET_ITEM(row, 0));
  }
  return checked(PyObject_GetAttrString(module.get(), "defaultaction"));
}

PyObject* is_error(PyObject* warning, PyObject*) try {
  const Ref action = find_action(warning);
  return PyBool_FromLong(!PyUnicode_Check(action.get()) ||
                         PyUnicode_CompareWithASCIIString(action.get(), "error") == 0);
} catch (const PythonError&) {
  return nullptr;
}

PyObject* issue(PyObject* warning, PyObject*) try {
  static constinit Imported warn_explicit("_warnings", "warn_explicit");
  PyObject* registry_name = MAGNETO_STR("__warningregistry__");
  PyObject* globals = part(warning, kGlobals);
  Ref registry = Ref::borrow(PyDict_GetItemWithError(globals, registry_name));
  if (!registry) {
    registry = checked(PyDict_New());
    if (PyDict_SetItem(globals, registry_name, registry.get()) < 0) return nullptr;
  }
  const Ref name = module_name(warning);
  PyObject* args[] = {part(warning, kText), part(warning, kCategory),
                      part(warning, kFile), part(warning, kLine),
                      name.get(),           registry.get()};
  return PyObject_Vectorcall(warn_explicit.get(), args, std::size(args), nullptr);
} catch (const PythonError&) {
  return nullptr;
}

PyMethodDef is_error_definition = {"warning_is_error", is_error, METH_NOARGS, "Whether this warning would be raised."};
PyMethodDef issue_definition = {"issue_warning", issue, METH_NOARGS, "Issues this warning."};

/// warnings.warn(message, category=None, stacklevel=1). Empty: with other arguments.
struct WarnCall {
  PyObject* text = nullptr;
  PyObject* category = PyExc_UserWarning;
  long level = 1;
};

bool read_arguments(const CallArgs& args, WarnCall& call) {
  for (size_t i = 0; i < args.values.size(); ++i) {
    PyObject* value = args.values[i];
    PyObject* keyword = args.keyword(i);
    const auto is = [&](size_t position, const char* name) {
      return keyword ? PyUnicode_CompareWithASCIIString(keyword, name) == 0 : i == position;
    };
    if (is(0, "message") && PyUnicode_CheckExact(value)) {
      call.text = value;
    } else if (is(1, "category") && PyExceptionClass_Check(value) &&
               PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(value),
                                reinterpret_cast<PyTypeObject*>(PyExc_Warning))) {
      call.category = value;
    } else if (is(2, "stacklevel") && PyLong_CheckExact(value)) {
      call.level = PyLong_AsLong(value);
    } else if (value != Py_None || is(0, "message") || is(2, "stacklevel")) {
      return false;
    }
  }
  return call.text && call.level > 0 && !PyErr_Occurred();
}

/// The segment has set other filters, for now.
bool has_other_filters(Capture& capture) {
  if (capture.overlays.writes == 0) return false;
  static constinit Imported module("warnings");
  const Ref known = capture.world.wrap(module.get(), capture.sources.constant(module.get()));
  const Ref now = capture.attributes.load_attr(known.get(), MAGNETO_STR("filters"));
  const Ref real = checked(PyObject_GetAttrString(module.get(), "filters"));
  return now.get() != real.get() || capture.containers.has_shadow(real.get());
}

bool is_issue(const DeferredCall& call) {
  return PyCFunction_Check(call.function.get()) &&
         reinterpret_cast<PyCFunctionObject*>(call.function.get())->m_ml == &issue_definition;
}

Ref handle_filters_mutated(Capture& capture, const CallArgs&) {
  static constinit Imported function("warnings", "_filters_mutated");  // from 3.14 on it takes the filters' lock
  if (std::ranges::any_of(capture.deferred.calls, is_issue)) {
    capture.side_exit(BreakReason::InputOutput, "the filters of warnings are set behind a warning");
  }
  capture.deferred.call_at_end(Ref::borrow(function.get()));
  return Ref::borrow(Py_None);
}

Ref handle_warn(Capture& capture, const CallArgs& args) {
  WarnCall call;
  const InterpFrame* at = capture.frame;
  const bool readable = read_arguments(args, call);
  for (long level = call.level; readable && at && level > 1; --level) at = at->caller;
  if (!readable || !at) capture.side_exit(BreakReason::InputOutput, "call of _warnings.warn");
  const Ref line = checked(PyLong_FromLong(at->instr().line));
  const Ref warning =
      checked(PyTuple_Pack(5, call.text, call.category, at->info->code->co_filename, line.get(), at->globals));
  if (has_other_filters(capture)) {
    const Ref name = module_name(warning.get());
    const Ref action =
        capture.calls.call_polyfill("warning_action", CallArgs{{call.text, call.category, name.get(), line.get()}});
    if (PyUnicode_Check(action.get()) && PyUnicode_CompareWithASCIIString(action.get(), "ignore") == 0) {
      return Ref::borrow(Py_None);
    }
    capture.side_exit(BreakReason::InputOutput, "a warning is issued under filters that were set before");
  }
  const Ref asks = checked(PyCFunction_NewEx(&is_error_definition, warning.get(), nullptr));
  if (checked(PyObject_CallNoArgs(asks.get())).get() == Py_True) {
    capture.side_exit(BreakReason::InputOutput, "a warning is raised as an error");
  }
  capture.guards.state(asks.get(), {}, Py_False);
  capture.deferred.call_at_end(checked(PyCFunction_NewEx(&issue_definition, warning.get(), nullptr)));
  return Ref::borrow(Py_None);
}

}  // namespace

std::span<const HandlerRow> warning_handlers() {
  static constexpr HandlerRow rows[] = {{"_warnings.warn", handle_warn},
                                        {"_warnings._filters_mutated", handle_filters_mutated},
                                        {"_warnings._filters_mutated_lock_held", handle_filters_mutated}};
  return rows;
}

}  // namespace magneto::capture
