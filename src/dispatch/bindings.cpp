// What the Python layer calls: compile, reset, stats, explain and the marks.
#include "api/bindings.h"

#include "cache/cache.h"
#include "capture/marks.h"
#include "dispatch/block.h"
#include "dispatch/compiled.h"
#include "dispatch/compiled_autograd.h"
#include "dispatch/context.h"
#include "dispatch/driver.h"
#include "dispatch/eager.h"
#include "dispatch/limits.h"
#include "dispatch/report.h"
#include "dispatch/trace.h"
#include "fake/meta_kernel.h"
#include "observe/history.h"
#include "observe/stats.h"
#include "observe/times.h"
#include "python/quiet_class.h"
#include "python/setting_values.h"
#include "python/text.h"
#include "runtime/plan/inference_mode.h"
#include "runtime/plan/plan.h"
#include "runtime/program/compiled_program.h"
#include "runtime/program/held_memory.h"
#include "runtime/run_checks.h"
#include "support/tensor_object.h"

namespace magneto {

namespace {

using dispatch::Report;

PyObject* compile(PyObject*, PyObject* args) {
  PyObject *callable, *options;
  if (!PyArg_ParseTuple(args, "OO!", &callable, &PyDict_Type, &options)) return nullptr;
  return guarded([&] { return dispatch::make_compiled(callable, options); });
}

PyObject* reset(PyObject*, PyObject*) {
  ++dispatch::reset_generation();
  dispatch::stats() = {};
  fake::python_meta_kernels().clear();
  runtime::stage_rows().clear();
  dispatch::history() = {};
  dispatch::forget_what_was_said();
  cache::reset_counters();
  runtime::RunsAsCaptured& runs = runtime::runs_as_captured();
  runtime::RunChecks& checks = runtime::run_checks();
  for (std::atomic<int64_t>* count : {&runs.overlapping, &runs.other_tensors, &runs.watched, &checks.verified,
                                      &checks.differences, &checks.left_out, &checks.nonfinite}) {
    *count = 0;
  }
  Py_RETURN_NONE;
}

/// A dict of figures, each added by its name.
class Figures {
 public:
  Figures& add(const char* name, int64_t number) { return put(name, checked(PyLong_FromLongLong(number))); }
  Figures& add(const char* name, const std::map<std::string, int64_t>& counts) {
    Figures inner;
    for (const auto& [key, count] : counts) inner.add(key.c_str(), count);
    return add(name, inner);
  }
  Figures& add(const char* name, const Figures& inner) { return put(name, inner.dict_); }
  PyObject* release() { return dict_.release(); }

 private:
  Figures& put(const char* name, const Ref& value) {
    if (PyDict_SetItemString(dict_.get(), name, value.get()) < 0) throw PythonError{};
    return *this;
  }

  Ref dict_ = checked(PyDict_New());
};

PyObject* stats(PyObject*, PyObject*) {
  return guarded([] {
    const dispatch::Stats& s = dispatch::stats();
    const cache::Counters disk = cache::counters();
    const runtime::HeldMemory& held = runtime::held_memory();
    const runtime::RunsAsCaptured& runs = runtime::runs_as_captured();
    const runtime::RunChecks& checks = runtime::run_checks();
    Figures figures;
#define COUNT(name, meaning) figures.add(#name, s.name);
#define TALLY(name, meaning) figures.add(#name, s.name);
#define FIGURE(name, expression, meaning) figures.add(#name, expression);
#include "observe/stats.def"
#undef COUNT
#undef TALLY
#undef FIGURE
    figures.add("memory", Figures()
                              .add("arenas", held.arenas.load())
                              .add("weights", held.weights.load())
                              .add("outputs", held.outputs.load()));
    figures.add("run_as_captured", Figures()
                                       .add("overlapping", runs.overlapping.load())
                                       .add("other_tensors", runs.other_tensors.load())
                                       .add("watched", runs.watched.load()));
    figures.add("checked_runs", Figures()
                                    .add("verified", checks.verified.load())
                                    .add("differences", checks.differences.load())
                                    .add("left_out", checks.left_out.load())
                                    .add("nonfinite", checks.nonfinite.load()));
    return figures.release();
  });
}

Ref list_of_refs(const std::vector<Ref>& items) {
  Ref list = checked(PyList_New(static_cast<Py_ssize_t>(items.size())));
  for (size_t i = 0; i < items.size(); ++i) PyList_SET_ITEM(list.get(), i, Py_NewRef(items[i].get()));
  return list;
}

PyObject* explain(PyObject*, PyObject* args) {
  PyObject *callable, *call_args, *call_kwargs;
  if (!PyArg_ParseTuple(args, "OO!O!", &callable, &PyTuple_Type, &call_args, &PyDict_Type, &call_kwargs))
    return nullptr;
  return guarded([&]() -> PyObject* {
    const Report report = dispatch::reported_call(callable, call_args, call_kwargs);
    Ref ops = checked(PyList_New(0));
    int64_t count = 0;
    for (const auto& graph : report.ops) {
      count += static_cast<int64_t>(graph.size());
      if (PyList_Append(ops.get(), list_of_refs(graph).get()) < 0) throw PythonError{};
    }
    Ref breaks = checked(PyList_New(0));
    for (const Report::Break& entry : report.breaks) {
      Ref stack = checked(PyList_New(0));
      for (const auto& [file, line, function] : entry.stack) {
        Ref frame = checked(Py_BuildValue("(sis)", file.c_str(), line, function.c_str()));
        if (PyList_Append(stack.get(), frame.get()) < 0) throw PythonError{};
      }
      Ref item = checked(Py_BuildValue("(sO)", entry.reason.c_str(), stack.get()));
      if (PyList_Append(breaks.get(), item.get()) < 0) throw PythonError{};
    }
    Ref guards = checked(PyList_New(0));
    for (const std::string& text : report.guards) {
      size_t begin = 0;
      while (begin < text.size()) {
        const size_t end = std::min(text.find('\n', begin), text.size());
        Ref line = checked(PyUnicode_FromStringAndSize(text.data() + begin, static_cast<Py_ssize_t>(end - begin)));
        if (end > begin && PyList_Append(guards.get(), line.get()) < 0) throw PythonError{};
        begin = end + 1;
      }
    }
    Ref peaks = checked(PyList_New(0));
    for (const int64_t bytes : report.planned_peaks) {
      if (PyList_Append(peaks.get(), checked(PyLong_FromLongLong(bytes)).get()) < 0) throw PythonError{};
    }
    return Py_BuildValue(
        "{s:N,s:n,s:n,s:L,s:N,s:N,s:N,s:N,s:{s:d,s:d}}", "graphs", list_of_refs(report.graphs).release(), "graph_count",
        report.graphs.size(), "graph_break_count", report.breaks.size(), "op_count", count, "break_reasons",
        breaks.release(), "ops_per_graph", ops.release(), "out_guards", guards.release(), "planned_peaks",
        peaks.release(), "compile_times", "capture", report.capture_seconds, "backend", report.backend_seconds);
  });
}

PyObject* set_reorderable_functions(PyObject*, PyObject* functions) {
  return guarded([&] {
    capture::set_reorderable_functions(functions);
    return Py_NewRef(Py_None);
  });
}

PyObject* debug_dump(PyObject*, PyObject* args) {
  PyObject *callable, *call_args, *call_kwargs;
  if (!PyArg_ParseTuple(args, "OO!O!", &callable, &PyTuple_Type, &call_args, &PyDict_Type, &call_kwargs))
    return nullptr;
  return guarded([&]() -> PyObject* {
    const Report report = dispatch::reported_call(callable, call_args, call_kwargs, /*wants_stages=*/true);
    Ref graphs = checked(PyList_New(0));
    for (const auto& stages : report.stages) {
      Ref texts = checked(PyDict_New());
      for (const auto& [name, text] : stages) {
        Ref value = text_object(text);
        if (PyDict_SetItemString(texts.get(), name.c_str(), value.get()) < 0) throw PythonError{};
      }
      if (PyList_Append(graphs.get(), texts.get()) < 0) throw PythonError{};
    }
    return graphs.release();
  });
}

PyObject* is_compiling(PyObject*, PyObject*) { return PyBool_FromLong(capture::Capture::current() != nullptr); }

PyObject* set_disabled(PyObject*, PyObject* on) {
  const bool previous = dispatch::disabled_on_this_thread();
  dispatch::disabled_on_this_thread() = PyObject_IsTrue(on) == 1;
  return PyBool_FromLong(previous);
}

PyObject* set_config(PyObject*, PyObject* args) {
  const char* name;
  PyObject* value;
  if (!PyArg_ParseTuple(args, "sO", &name, &value)) return nullptr;
  return guarded([&]() -> PyObject* {
    const SettingRow* row = find_setting(name);
    if (!row) throw std::invalid_argument(std::string("there is no setting ") + name);
    assign(settings(), *row, value);
    if (row->name.starts_with("disk_cache")) {
      const Settings& now = settings();
      cache::configure({now.disk_cache, now.disk_cache_dir, now.disk_cache_mb << 20, now.disk_cache_key_file});
    }
    runtime::configure_run_checks(settings());
    Py_RETURN_NONE;
  });
}

PyObject* setting_rows(PyObject*, PyObject*) {
  return guarded([] { return setting_table().release(); });
}

PyObject* backend_rows(PyObject*, PyObject*) {
  return guarded([]() -> PyObject* {
    Ref rows = checked(PyList_New(0));
    for (const compiler::Backend& backend : compiler::backends()) {
      Ref row = checked(Py_BuildValue("(sss)", backend.name, backend.aliases, backend.doc));
      if (PyList_Append(rows.get(), row.get()) < 0) throw PythonError{};
    }
    return rows.release();
  });
}

PyObject* run_backward(PyObject*, PyObject* args, PyObject* kwargs) {
  const Ref rest = Ref::steal(PyTuple_GetSlice(args, 1, PY_SSIZE_T_MAX));
  if (!rest || PyTuple_GET_SIZE(args) < 1) return nullptr;
  return guarded([&] { return dispatch::run_backward(PyTuple_GET_ITEM(args, 0), rest.get(), kwargs); });
}

PyObject* enter_compiled_autograd(PyObject*, PyObject* args) {
  PyObject *compiler, *dynamic;
  if (!PyArg_ParseTuple(args, "OO", &compiler, &dynamic)) return nullptr;
  dispatch::enter_compiled_autograd(compiler, dynamic == Py_None ? -1 : dynamic == Py_True);
  Py_RETURN_NONE;
}

PyObject* leave_compiled_autograd(PyObject*, PyObject*) {
  if (!dispatch::leave_compiled_autograd()) return nullptr;
  Py_RETURN_NONE;
}

PyObject* compile_all_backwards(PyObject*, PyObject* on) {
  dispatch::compile_all_backwards(on == Py_True);
  Py_RETURN_NONE;
}

PyObject* compiles_backwards(PyObject*, PyObject*) { return PyBool_FromLong(dispatch::compiles_backwards()); }

PyObject* set_stance(PyObject*, PyObject* number) {
  const long stance = PyLong_AsLong(number);
  if (PyErr_Occurred()) return nullptr;
  dispatch::stance() = static_cast<dispatch::Stance>(stance);
  Py_RETURN_NONE;
}

PyObject* compile_times(PyObject*, PyObject*) {
  return guarded([&]() -> PyObject* {
    const std::vector<runtime::StageRow> rows = runtime::stage_rows();  // making an object may run code of the program
    Ref times = checked(PyDict_New());
    for (const runtime::StageRow& row : rows) {
      Ref seconds = checked(PyList_New(0));
      for (const double each : row.seconds) {
        if (PyList_Append(seconds.get(), checked(PyFloat_FromDouble(each)).get()) < 0) throw PythonError{};
      }
      Ref peaks = checked(PyList_New(0));
      for (const int64_t each : row.peaks) {
        if (PyList_Append(peaks.get(), checked(PyLong_FromLongLong(each)).get()) < 0) throw PythonError{};
      }
      Ref both = checked(PyTuple_Pack(2, seconds.get(), peaks.get()));
      if (PyDict_SetItemString(times.get(), row.stage.c_str(), both.get()) < 0) throw PythonError{};
    }
    return times.release();
  });
}

PyObject* history(PyObject*, PyObject*) {
  return guarded([] { return dispatch::history().rows().release(); });
}

PyObject* captured_in(PyObject*, PyObject* code) {
  return guarded([&]() -> PyObject* {
    if (!PyCode_Check(code)) throw std::invalid_argument("expected a code object");
    return dispatch::history().captured_in(&decode(reinterpret_cast<PyCodeObject*>(code))).release();
  });
}

PyObject* runs_of(PyObject*, PyObject* compiled) {
  return guarded([&]() -> PyObject* {
    if (!dispatch::is_compiled(compiled)) throw std::invalid_argument("expected a compiled function");
    struct Row {
      CodePlace place;
      size_t captures;
      bool given_up;
      int64_t eager_runs;
    };
    // Read before any object is made: that may run code of the program.
    const dispatch::Context& context = *dispatch::context_of(compiled);
    const dispatch::EagerCalls calls = context.eager_calls;
    std::vector<Row> rows;
    context.for_each_segment([&](const auto& place, const dispatch::Segment& segment) {
      rows.push_back(
          {{&decode(place.first), place.second}, segment.entries.size(), segment.given_up, segment.eager_runs});
    });
    Ref segments = checked(PyList_New(0));
    for (const Row& row : rows) {
      Ref item = checked(Py_BuildValue("(OinOL)", row.place.info->code, row.place.line(), row.captures,
                                       row.given_up ? Py_True : Py_False, row.eager_runs));
      if (PyList_Append(segments.get(), item.get()) < 0) throw PythonError{};
    }
    return Py_BuildValue("({s:L,s:L,s:L,s:L}O)", "disabled", calls.disabled, "stance", calls.stance, "tracing",
                         calls.traced, "dispatch mode", calls.dispatch_mode, segments.get());
  });
}

PyObject* enter_block(PyObject*, PyObject* args) {
  PyObject *compiled, *skipped, *left_alone = Py_None;
  if (!PyArg_ParseTuple(args, "OO!|O", &compiled, &PyTuple_Type, &skipped, &left_alone)) return nullptr;
  return guarded([&]() -> PyObject* {
    dispatch::enter_block(compiled, skipped, left_alone);
    Py_RETURN_NONE;
  });
}

PyObject* calling(PyObject*, PyObject*) {
  PyObject* compiled = dispatch::Stepping::compiled();
  return Py_NewRef(compiled ? compiled : Py_None);
}

PyObject* leave_block(PyObject*, PyObject*) {
  if (!dispatch::leave_block()) return nullptr;
  Py_RETURN_NONE;
}

/// Captures run the callback (capture/comptime.cpp); nobody else does.
PyObject* comptime(PyObject*, PyObject*) { Py_RETURN_FALSE; }

/// Likewise (capture/torch/branches.cpp).
PyObject* not_captured(PyObject*, PyObject*) { Py_RETURN_NONE; }
PyObject* copied_alone(PyObject*, PyObject*) { Py_RETURN_FALSE; }

PyObject* copied_plainly(PyObject*, PyObject*) { Py_RETURN_FALSE; }

PyObject* make_class(PyObject*, PyObject* args) {
  PyObject *metaclass, *name, *bases, *names;
  if (!PyArg_ParseTuple(args, "O!UO!O!", &PyType_Type, &metaclass, &name, &PyTuple_Type, &bases, &PyDict_Type,
                        &names)) {
    return nullptr;
  }
  return quiet_class(reinterpret_cast<PyTypeObject*>(metaclass), name, bases, names).release();
}

PyObject* set_inference_mode(PyObject*, PyObject* enabled) {
  runtime::set_inference_mode(enabled == Py_True);
  Py_RETURN_NONE;
}
PyObject* linear_mark(PyObject*, PyObject*) { Py_RETURN_NONE; }
PyObject* linear_check(PyObject*, PyObject*) { Py_RETURN_NONE; }
PyObject* branch_taken(PyObject*, PyObject* pred) {
  const int taken = PyObject_IsTrue(pred);
  return taken < 0 ? nullptr : PyBool_FromLong(taken);
}

PyObject* largest(PyObject*, PyObject* numbers) {
  const Ref sorted = Ref::steal(PySequence_List(numbers));
  if (!sorted || PyList_Sort(sorted.get()) < 0) return nullptr;
  return PySequence_GetItem(sorted.get(), -1);
}

template <void (*mark)(PyObject*)>
PyObject* mark_function(PyObject*, PyObject* function) {
  mark(function);
  Py_RETURN_NONE;
}

PyObject* substitute(PyObject*, PyObject* args) {
  PyObject *callable, *substitute;
  if (!PyArg_ParseTuple(args, "OO!", &callable, &PyFunction_Type, &substitute)) return nullptr;
  capture::mark_substituted(callable, substitute);
  Py_RETURN_NONE;
}

PyObject* leave_frame(PyObject*, PyObject*) {
  if (dispatch::Stepping::compiled()) dispatch::leaves_frame() = true;
  Py_RETURN_NONE;
}

PyObject* set_compile_hooks(PyObject*, PyObject* args) {
  PyObject *start, *end;
  if (!PyArg_ParseTuple(args, "OO", &start, &end)) return nullptr;
  dispatch::compile_hooks() = {start == Py_None ? Ref() : Ref::borrow(start),
                               end == Py_None ? Ref() : Ref::borrow(end)};
  Py_RETURN_NONE;
}

PyObject* force_backend(PyObject*, PyObject* backend) {
  Ref& forced = dispatch::forced_backend();
  Ref before = forced ? forced : Ref::borrow(Py_None);
  forced = backend == Py_None ? Ref() : Ref::borrow(backend);
  return before.release();
}

PyObject* refuse_fx_tracing(PyObject*, PyObject* on) {
  return guarded([&] {
    const int refuses = PyObject_IsTrue(on);
    if (refuses < 0) throw PythonError{};
    dispatch::refuses_fx_tracing() = refuses != 0;
    return Ref::borrow(Py_None).release();
  });
}

/// A wrapper that CPython runs with compiled code off, and that captures stop in front of (functions.def has a row for
/// it: libraries make such wrappers in each call, and a mark would keep them all).
PyObject* disable(PyObject*, PyObject* args) {
  PyObject* function;
  int recursive;
  if (!PyArg_ParseTuple(args, "Op", &function, &recursive)) return nullptr;
  return guarded([&]() -> PyObject* {
    Ref module = checked(PyImport_ImportModule("magneto._forward"));
    return checked(PyObject_CallMethod(module.get(), "disabled", "OO", function, recursive ? Py_True : Py_False))
        .release();
  });
}

template <Ref (*get)()>
PyObject* traced(PyObject*, PyObject*) {
  return guarded([] { return get().release(); });
}

PyObject* forget_traced(PyObject*, PyObject*) {
  dispatch::forget_traced();
  Py_RETURN_NONE;
}

}  // namespace

PyMethodDef dispatch_methods[] = {
    {"compile", compile, METH_VARARGS, "compile(callable, options) -> CompiledFunction"},
    {"reset", reset, METH_NOARGS, "Forgets all captures and counters."},
    {"stats", stats, METH_NOARGS, "Counters as a dict."},
    {"explain", explain, METH_VARARGS, "explain(callable, args, kwargs) -> report dict"},
    {"debug_dump", debug_dump, METH_VARARGS, "debug_dump(callable, args, kwargs) -> [{stage: text}], one per graph"},
    {"set_reorderable_functions", set_reorderable_functions, METH_O,
     "The set of functions whose calls may be put off to a segment's end."},
    {"traced_guards", traced<dispatch::take_traced_guards>, METH_NOARGS,
     "[(compile id, JSON)]: guards that have not been written yet"},
    {"traced_graphs", traced<dispatch::take_traced_graphs>, METH_NOARGS,
     "[(compile id, GraphModule, JSON)]: graphs that have not been written yet"},
    {"traced_runs", traced<dispatch::traced_runs>, METH_NOARGS,
     "[(compile id, JSON)]: times of the steps of programs that are traced"},
    {"forget_traced", forget_traced, METH_NOARGS, "What was traced so far is another process's."},
    {"compile_times", compile_times, METH_NOARGS,
     "{stage: ([seconds of each run], [peaks of memory in bytes, if they were measured])}"},
    {"history", history, METH_NOARGS,
     "[(event, file, function's first line, line, function, cause, example, count)]: observe/history.h"},
    {"captured_in", captured_in, METH_O,
     "captured_in(code) -> (captures that went through it, where the last one began), or None"},
    {"runs_of", runs_of, METH_O,
     "runs_of(compiled) -> ({cause: calls left to CPython}, [(code, line, captures, given up, runs under CPython)])"},
    {"enter_block", enter_block, METH_VARARGS,
     "enter_block(compiled, skipped, left_alone=None): functions called from here on run as `compiled` would, except "
     "for those of files whose names begin with one of `skipped`, and for the code `left_alone`."},
    {"run_backward", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run_backward)),
     METH_VARARGS | METH_KEYWORDS,
     "run_backward(engine, ...): what autograd's `engine` gives for the rest of the arguments, by one program where "
     "compiled autograd is on."},
    {"enter_compiled_autograd", enter_compiled_autograd, METH_VARARGS,
     "enter_compiled_autograd(compiler, dynamic): backwards of this thread are compiled from here on, by a callable "
     "that "
     "gets a GraphModule, by the default backend (None), or not (False). Sizes are symbols at once (True), never "
     "(False), or as the settings say (None)."},
    {"leave_compiled_autograd", leave_compiled_autograd, METH_NOARGS, "Ends the innermost such block."},
    {"compile_all_backwards", compile_all_backwards, METH_O, "Those of all threads are, outside of such blocks."},
    {"compiles_backwards", compiles_backwards, METH_NOARGS, "Whether this thread's are."},
    {"calling", calling, METH_NOARGS, "The compiled callable, a frame of which CPython runs this for; or None."},
    {"leave_block", leave_block, METH_NOARGS, "Ends the innermost block of this thread."},
    {"repeated", not_captured, METH_VARARGS,
     "repeated(condition, body, carried) -> the tensors behind torch.while_loop in a capture; else None"},
    {"scanned", not_captured, METH_VARARGS,
     "scanned(combine, carried, xs, reverse, least) -> leaves and structure of what a scan gives in a capture; else "
     "None"},
    {"conditional", not_captured, METH_VARARGS,
     "conditional(pred, true_fn, false_fn, operands) -> leaves and structure of torch.cond's result in a capture, "
     "where "
     "the functions become graphs of their own; else None"},
    {"make_class", make_class, METH_VARARGS,
     "make_class(metaclass, name, bases, names) -> type.__new__ of them, without the hooks that it would call"},
    {"copied_plainly", copied_plainly, METH_VARARGS,
     "copied_plainly(tensor) -> whether a capture lets copy.copy make another tensor of its memory"},
    {"copied_alone", copied_alone, METH_VARARGS,
     "copied_alone(tensor, memo) -> whether a capture copies it by an operator"},
    {"enter_dispatch_mode", not_captured, METH_VARARGS,
     "enter_dispatch_mode(mode): operators go to its __torch_dispatch__ in a capture; else nothing"},
    {"leave_dispatch_mode", not_captured, METH_VARARGS, "leave_dispatch_mode(): the innermost one is left, likewise"},
    {"set_inference_mode", set_inference_mode, METH_O,
     "set_inference_mode(enabled): what entering torch.inference_mode inside, and leaving it, is in a graph"},
    {"linear_mark", linear_mark, METH_VARARGS,
     "linear_mark(function, primals) -> a mark in a capture that linearizes it, or None"},
    {"linear_check", linear_check, METH_VARARGS,
     "linear_check(mark, given, results): the capture begins anew where something has changed since"},
    {"branch_taken", branch_taken, METH_O, "branch_taken(pred) -> bool(pred)"},
    {"largest", largest, METH_O, "largest(numbers) -> max(numbers): in a capture without asking which one it is"},
    {"comptime", comptime, METH_O, "comptime(callback) -> whether a capture called it"},
    {"is_compiling", is_compiling, METH_NOARGS, "True inside a capture."},
    {"set_disabled", set_disabled, METH_O, "Turns compiled code off or on for this thread; gives the previous state."},
    {"set_config", set_config, METH_VARARGS, "set_config(name, value)"},
    {"setting_rows", setting_rows, METH_NOARGS,
     "[(name, default, minimum or None, use, environment, torch, doc)]: support/settings.def"},
    {"backend_rows", backend_rows, METH_NOARGS, "[(name, aliases, doc)]: compiler/backends.def, the default first"},
    {"set_stance", set_stance, METH_O, "The process's stance, by its number in magneto._stance.STANCES."},
    {"allow_in_graph", mark_function<capture::mark_allow_in_graph>, METH_O, "Calls become one node of the graph."},
    {"assume_constant_result", mark_function<capture::mark_constant_result>, METH_O, "Calls are run once, at capture."},
    {"disable", disable, METH_VARARGS, "disable(function, recursive) -> callable"},
    {"disallow_in_graph", mark_function<capture::mark_disabled>, METH_O, "Calls are a graph break."},
    {"forbid_in_graph", mark_function<capture::mark_forbidden>, METH_O, "A capture that calls it is an error."},
    {"substitute", substitute, METH_VARARGS, "substitute(callable, function): captures interpret `function` instead"},
    {"errors_on_break", capture::errors_on_break, METH_O,
     "errors_on_break(bool) begins a region in which breaks are errors, or are not; errors_on_break(None) ends it."},
    {"leave_frame", leave_frame, METH_NOARGS, "CPython runs the rest of the frame, a side exit of which calls this."},
    {"set_compile_hooks", set_compile_hooks, METH_VARARGS,
     "set_compile_hooks(start, end): called with each compile's id when it begins and ends; None: nothing is"},
    {"refuse_fx_tracing", refuse_fx_tracing, METH_O,
     "Whether a capture while torch.fx.symbolic_trace is at work is an error."},
    {"force_backend", force_backend, METH_O,
     "All compiled callables use that backend, None: each its own; gives what held before."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace magneto
