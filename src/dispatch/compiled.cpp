#include "dispatch/compiled.h"

#include <structmember.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "dispatch/block.h"
#include "dispatch/context.h"
#include "dispatch/driver.h"
#include "dispatch/eager.h"
#include "dispatch/observers.h"
#include "dispatch/report.h"
#include "dispatch/siblings.h"
#include "python/abi/dicts.h"
#include "python/abi/private.h"
#include "python/bind.h"
#include "python/imported.h"
#include "python/setting_values.h"
#include "python/text.h"

namespace magneto::dispatch {

namespace {

struct CompiledFunction {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* original;  // what the user gave
  PyObject* function;  // the Python function that runs
  PyObject* self;      // its first argument, or null
  PyObject* options;   // a dict: what it was compiled with
  PyObject* dict;
  PyObject* weakrefs;
  PyObject* forced;  // a dict: another backend -> the same, compiled with it
  const CodeInfo* info;
  Context* context;
};

extern PyTypeObject CompiledFunctionType;

PyObject* original_of(PyObject* callable) {
  if (Py_TYPE(callable) == &CompiledFunctionType) return reinterpret_cast<CompiledFunction*>(callable)->original;
  return nullptr;
}

/// With config.debug_function: CPython runs this one, and functions of that name that it calls run compiled.
PyObject* call_in_block(PyObject* self, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  const Ref alive = Ref::borrow(self);
  const Ref nothing = checked(PyTuple_New(0));
  enter_block(self, nothing.get(), Py_None);
  PyObject* result = PyObject_Vectorcall(reinterpret_cast<CompiledFunction*>(self)->original, args, nargs, kwnames);
  const SavedError saved;
  leave_block();
  return result;
}

/// The same callable, compiled with another backend. Null: with an error.
PyObject* with_backend(CompiledFunction* compiled, PyObject* backend) {
  if (!compiled->forced) compiled->forced = PyDict_New();
  PyObject* other = compiled->forced ? PyDict_GetItemWithError(compiled->forced, backend) : nullptr;
  if (other || PyErr_Occurred()) return other;
  Ref options = Ref::steal(PyDict_Copy(compiled->options));
  if (!options || PyDict_SetItemString(options.get(), "backend", backend) < 0) return nullptr;
  Ref made = Ref::steal(make_compiled(compiled->original, options.get()));
  if (!made || PyDict_SetItem(compiled->forced, backend, made.get()) < 0) return nullptr;
  return made.get();  // the dict has it
}

/// Under the stance "aot_eager_then_compile": the first call, by the operators one by one. What its capture learnt of
/// the arguments is kept, so that a size which differs in the next call is a symbol there.
PyObject* first_call(CompiledFunction* compiled, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  const Context::InFlight in_flight(*compiled->context);
  const Ref other = Ref::borrow(with_backend(compiled, MAGNETO_STR("aot_eager")));
  if (!other) return nullptr;
  PyObject* result = PyObject_Vectorcall(other.get(), args, nargsf, kwnames);
  const SavedError saved;
  compiled->context->learn_from(*reinterpret_cast<CompiledFunction*>(other.get())->context);
  return result;
}

PyObject* compiled_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  auto* compiled = reinterpret_cast<CompiledFunction*>(self);
  const size_t nargs = PyVectorcall_NARGS(nargsf);
  Context& context = *compiled->context;
  switch (how_to_run(PyThreadState_Get(), context.eager_calls)) {
    case Run::Eager:
      return PyObject_Vectorcall(compiled->original, args, nargs, kwnames);
    case Run::Refused:
      return nullptr;
    case Run::Compiled:
      break;
  }
  if (forced_backend() && PyDict_GetItemString(compiled->options, "backend") != forced_backend().get()) {
    const Ref other = Ref::borrow(with_backend(compiled, forced_backend().get()));
    return other ? PyObject_Vectorcall(other.get(), args, nargsf, kwnames) : nullptr;
  }
  if (stance() == Stance::AotEagerThenCompile && !context.backend->runs_captured() &&
      !context.find_segment(compiled->info->code, 0)) {
    return first_call(compiled, args, nargsf, kwnames);
  }
  const CodeInfo* info = compiled->info;
  if (reinterpret_cast<PyObject*>(info->code) !=
      PyFunction_GET_CODE(compiled->function)) {  // its __code__ was replaced
    try {
      info = compiled->info = &decode(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(compiled->function)));
    } catch (const PythonError&) {
      return nullptr;
    }
  }
  if (!is_named(info->code)) {
    report_skipped({info, 0}, kNotNamed);
    return call_in_block(self, args, nargs, kwnames);
  }
  const Context::InFlight in_flight(context);
  // The receiver goes in front.
  c10::SmallVector<PyObject*, 16> all;
  if (compiled->self) {
    const size_t total = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
    all.push_back(compiled->self);
    all.insert(all.end(), args, args + total);
    args = all.data();
  }
  const size_t given = nargs + (compiled->self != nullptr);
  c10::SmallVector<PyObject*, 48> localsplus(info->nlocals, nullptr);
  if (!bind_arguments(compiled->function, args, given, kwnames, localsplus.data())) {
    return PyObject_Vectorcall(compiled->function, args, given, kwnames);  // CPython words the TypeError
  }
  PyObject* result = nullptr;
  try {
    result = run_call(context, context.segment(*info, 0), compiled->function, *info, localsplus.data(), args, given,
                      kwnames);
  } catch (const PythonError&) {
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  for (PyObject* local : localsplus) Py_XDECREF(local);
  return result;
}

PyObject* compiled_get(PyObject* self, PyObject* instance, PyObject*) {
  if (!instance || instance == Py_None) return Py_NewRef(self);
  return PyMethod_New(self, instance);
}

int compiled_traverse(PyObject* self, visitproc visit, void* arg) {
  auto* compiled = reinterpret_cast<CompiledFunction*>(self);
  Py_VISIT(compiled->original);
  Py_VISIT(compiled->function);
  Py_VISIT(compiled->self);
  Py_VISIT(compiled->options);
  Py_VISIT(compiled->dict);
  Py_VISIT(compiled->forced);
  return compiled->context ? compiled->context->traverse(visit, arg) : 0;
}

int compiled_clear(PyObject* self) {
  auto* compiled = reinterpret_cast<CompiledFunction*>(self);
  delete std::exchange(compiled->context, nullptr);
  Py_CLEAR(compiled->original);
  Py_CLEAR(compiled->function);
  Py_CLEAR(compiled->self);
  Py_CLEAR(compiled->options);
  Py_CLEAR(compiled->dict);
  Py_CLEAR(compiled->forced);
  return 0;
}

void compiled_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  if (reinterpret_cast<CompiledFunction*>(self)->weakrefs) PyObject_ClearWeakRefs(self);
  compiled_clear(self);
  PyObject_GC_Del(self);
}

PyObject* compiled_repr(PyObject* self) {
  auto* compiled = reinterpret_cast<CompiledFunction*>(self);
  const std::string& name = compiled->context->name;
  return PyUnicode_FromFormat("<compiled %s%s%R>", name.c_str(), name.empty() ? "" : ": ", compiled->original);
}

/// Whether a name leads to the object, as that of a decorated function does.
bool has_name(PyObject* self, PyObject* module, PyObject* qualname) {
  if (!module || !qualname || !PyUnicode_Check(module) || !PyUnicode_Check(qualname)) return false;
  Ref found = Ref::steal(PyImport_GetModule(module));
  Ref names = Ref::steal(PyUnicode_Split(qualname, MAGNETO_STR("."), -1));
  for (Py_ssize_t i = 0; found && i < PyList_GET_SIZE(names.get()); ++i) {
    found = Ref::steal(PyObject_GetAttr(found.get(), PyList_GET_ITEM(names.get(), i)));
  }
  return found.get() == self;
}

/// Pickled and copied by name where the name leads here; else compiled anew from what was compiled.
PyObject* compiled_reduce(PyObject* self, PyObject*) {
  auto* compiled = reinterpret_cast<CompiledFunction*>(self);
  Ref module = Ref::steal(PyObject_GetAttrString(self, "__module__"));
  Ref qualname = Ref::steal(PyObject_GetAttrString(self, "__qualname__"));
  const bool named = has_name(self, module.get(), qualname.get());
  PyErr_Clear();
  if (named) return qualname.release();
  static constinit Imported compile("magneto._C", "compile");
  return Py_BuildValue("O(OO)", compile.get(), compiled->original, compiled->options);
}

/// What torch.jit.script compiles.
PyObject* compiled_scriptable(PyObject* self, PyObject*) {
  return Py_NewRef(reinterpret_cast<CompiledFunction*>(self)->original);
}

PyMemberDef compiled_members[] = {
    {"_torchdynamo_orig_callable", T_OBJECT, offsetof(CompiledFunction, original), READONLY, "what was compiled"},
    {"__dictoffset__", T_PYSSIZET, offsetof(CompiledFunction, dict), READONLY, nullptr},
    {nullptr},
};

PyMethodDef compiled_methods[] = {
    {"__reduce__", compiled_reduce, METH_NOARGS, nullptr},
    {"__prepare_scriptable__", compiled_scriptable, METH_NOARGS, nullptr},
    {nullptr},
};

/// What was compiled; functools.wraps sets it to what it is told that this one stands for.
PyObject* compiled_wrapped(PyObject* self, void*) {
  auto* compiled = reinterpret_cast<CompiledFunction*>(self);
  PyObject* set = compiled->dict ? PyDict_GetItemString(compiled->dict, "__wrapped__") : nullptr;
  return Py_NewRef(set ? set : compiled->original);
}

int set_compiled_wrapped(PyObject* self, PyObject* value, void*) {
  PyObject* dict = reinterpret_cast<CompiledFunction*>(self)->dict;
  return value ? PyDict_SetItemString(dict, "__wrapped__", value) : PyDict_DelItemString(dict, "__wrapped__");
}

PyGetSetDef compiled_getset[] = {
    {"__wrapped__", compiled_wrapped, set_compiled_wrapped, nullptr, nullptr},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr},
};

/// Attributes that the object itself lacks are the original's (__code__, __signature__...).
PyObject* compiled_getattro(PyObject* self, PyObject* name) {
  PyObject* value = PyObject_GenericGetAttr(self, name);
  if (value || !PyErr_ExceptionMatches(PyExc_AttributeError)) return value;
  PyErr_Clear();
  return PyObject_GetAttr(reinterpret_cast<CompiledFunction*>(self)->original, name);
}

PyTypeObject CompiledFunctionType = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0).tp_name = "magneto._C.CompiledFunction",
    .tp_basicsize = sizeof(CompiledFunction),
    .tp_dealloc = compiled_dealloc,
    .tp_vectorcall_offset = offsetof(CompiledFunction, vectorcall),
    .tp_repr = compiled_repr,
    .tp_call = PyVectorcall_Call,
    .tp_getattro = compiled_getattro,
    .tp_setattro = PyObject_GenericSetAttr,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_doc = "A compiled function or method; a descriptor as functions are.",
    .tp_traverse = compiled_traverse,
    .tp_clear = compiled_clear,
    .tp_weaklistoffset = offsetof(CompiledFunction, weakrefs),
    .tp_methods = compiled_methods,
    .tp_members = compiled_members,
    .tp_getset = compiled_getset,
    .tp_descr_get = compiled_get,
    .tp_dictoffset = offsetof(CompiledFunction, dict),
};

/// Calls go to the object in the instance's `_compiled`, without running Python.
PyObject* mixin_call(PyObject* self, PyObject* args, PyObject* kwargs) {
  static PyObject* const name = PyUnicode_InternFromString("_compiled");
  PyObject* dict = instance_dict(self);
  PyObject* compiled = dict ? PyDict_GetItemWithError(dict, name) : nullptr;
  if (!compiled) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_AttributeError, "this object has no _compiled to call");
    return nullptr;
  }
  Ref held = Ref::borrow(compiled);
  return PyVectorcall_Call(compiled, args, kwargs);
}

PyTypeObject CallMixinType = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0).tp_name = "magneto._C.CallMixin",
    .tp_basicsize = sizeof(PyObject),
    .tp_call = mixin_call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_doc = "Base of types whose call slot goes straight to `_compiled`.",
    .tp_new = PyType_GenericNew,
};

/// The Python function behind a callable, and its first argument. False with an error: nothing that we can run.
bool split_callable(PyObject* callable, Ref& function, Ref& self) {
  if (PyFunction_Check(callable)) {
    function = Ref::borrow(callable);
    return true;
  }
  if (PyMethod_Check(callable) && PyFunction_Check(PyMethod_GET_FUNCTION(callable))) {
    function = Ref::borrow(PyMethod_GET_FUNCTION(callable));
    self = Ref::borrow(PyMethod_GET_SELF(callable));
    return true;
  }
  PyObject* call =
      PyType_Check(callable) ? nullptr : lookup_in_type(Py_TYPE(callable), PyUnicode_InternFromString("__call__"));
  if (call && PyFunction_Check(call)) {
    function = Ref::borrow(call);
    self = Ref::borrow(callable);
    return true;
  }
  // C callables, partials and the like: through a function of our own.
  Ref module = Ref::steal(PyImport_ImportModule("magneto._forward"));
  function = module ? Ref::steal(PyObject_GetAttrString(module.get(), "forward")) : Ref();
  self = Ref::borrow(callable);
  return static_cast<bool>(function);
}

/// A backend's name, or a callable.
void set_backend(Context& context, PyObject* backend) {
  if (!PyUnicode_Check(backend)) {
    static constinit Imported compilers("magneto._aot", "Compilers");
    const int has_halves = PyObject_IsInstance(backend, compilers.get());
    if (has_halves < 0) throw PythonError{};
    context.backend = &compiler::callable_backend();
    if (has_halves > 0) {
      const Ref min_cut = checked(PyObject_GetAttrString(backend, "min_cut"));
      using Partition = compiler::Backend::Partition;
      context.backend = &compiler::compilers_backend(min_cut.get() == Py_True ? Partition::MinCut : Partition::AsEager);
    }
    context.backend_callable = Ref::borrow(backend);
    return;
  }
  context.backend = compiler::find_backend(text_argument(backend));
  if (!context.backend) throw std::invalid_argument("there is no backend " + std::string(text_argument(backend)));
}

/// The settings among what a callable was compiled with.
void read_settings(PyObject* options, OwnSettings& settings) {
  for (const SettingRow& row : setting_rows()) {
    if (row.use != SettingUse::Callable) continue;
    PyObject* value = PyDict_GetItemString(options, std::string(row.name).c_str());
    if (value) assign(settings.add(row), row, value);
  }
}

}  // namespace

Ref& forced_backend() {
  static auto* backend = new Ref;
  return *backend;
}

PyObject* make_compiled(PyObject* callable, PyObject* options) {
  Ref function, self;
  if (!split_callable(callable, function, self)) return nullptr;
  auto context = std::make_unique<Context>();
  if (self) {
    context->subject = Py_TYPE(self.get());
    context->instance = self.get();
  }
  context->fullgraph = PyDict_GetItemString(options, "fullgraph") == Py_True;
  PyObject* dynamic = PyDict_GetItemString(options, "dynamic");
  if (dynamic == Py_True || dynamic == Py_False) context->dynamic = dynamic == Py_True;
  context->shapes = PyDict_GetItemString(options, "shapes");
  if (context->shapes == Py_None) context->shapes = nullptr;
  if (PyObject* name = PyDict_GetItemString(options, "name"); name && PyUnicode_Check(name))
    context->name = PyUnicode_AsUTF8(name);
  if (PyObject* backend = PyDict_GetItemString(options, "backend")) set_backend(*context, backend);
  if (PyObject* own = PyDict_GetItemString(options, "options")) read_settings(own, context->settings);
  auto* compiled = PyObject_GC_New(CompiledFunction, &CompiledFunctionType);
  if (!compiled) return nullptr;
  compiled->vectorcall = compiled_call;
  compiled->original = Py_NewRef(callable);
  compiled->info = &decode(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function.get())));
  compiled->function = function.release();
  compiled->self = self.release();
  compiled->options = Py_NewRef(options);
  compiled->dict = PyDict_New();
  compiled->weakrefs = nullptr;
  compiled->forced = nullptr;
  context->owner = reinterpret_cast<PyObject*>(compiled);
  context->options = compiled->options;
  const bool isolated = PyDict_GetItemString(options, "isolate_recompiles") == Py_True;
  if (context->subject && !isolated) Siblings::join(*context, compiled->function);
  compiled->context = context.release();
  PyObject_GC_Track(compiled);
  for (const char* name : {"__name__", "__qualname__", "__module__", "__doc__"}) {
    Ref value = Ref::steal(PyObject_GetAttrString(callable, name));
    if (value) {
      PyDict_SetItemString(compiled->dict, name, value.get());
    } else {
      PyErr_Clear();
    }
  }
  return reinterpret_cast<PyObject*>(compiled);
}

double time_guards(PyObject* object, PyObject* args, Py_ssize_t rounds, size_t evicted) {
  auto* compiled = reinterpret_cast<CompiledFunction*>(object);
  if (Py_TYPE(object) != &CompiledFunctionType) throw std::invalid_argument("expected a compiled function");
  const Context::InFlight in_flight(*compiled->context);
  Segment& segment = compiled->context->segment(*compiled->info, 0);
  if (segment.entries.empty()) throw std::invalid_argument("nothing is captured");
  std::vector<PyObject*> all(compiled->self != nullptr, compiled->self);
  all.insert(all.end(), PySequence_Fast_ITEMS(args), PySequence_Fast_ITEMS(args) + PyTuple_Size(args));
  std::vector<PyObject*> locals(compiled->info->nlocals, nullptr);
  if (!bind_arguments(compiled->function, all.data(), all.size(), nullptr, locals.data())) {
    throw std::invalid_argument("the arguments do not fit");
  }
  guards::GuardProgram& guards = *segment.entries.front()->guards;
  const guards::Roots roots{compiled->function, locals.data(), nullptr};
  std::vector<char> other(evicted);
  double least = 1;
  bool holds = true;
  for (Py_ssize_t i = 0; i < rounds; ++i) {
    for (size_t at = 0; at < other.size(); at += 64) ++other[at];
    const auto begin = std::chrono::steady_clock::now();
    holds &= guards.check(roots) != nullptr;
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  for (PyObject* local : locals) Py_XDECREF(local);
  if (!holds) throw std::invalid_argument("the guards do not hold");
  return least;
}

Report reported_call(PyObject* callable, PyObject* args, PyObject* kwargs, bool wants_stages) {
  Ref options = checked(PyDict_New());
  Ref compiled = checked(make_compiled(callable, options.get()));
  Report report;
  report.wants_stages = wants_stages;
  context_of(compiled.get())->report = &report;
  Ref result = Ref::steal(PyObject_Call(compiled.get(), args, kwargs));
  context_of(compiled.get())->report = nullptr;  // also when the call raised: the report goes with this frame
  if (!result) throw PythonError{};
  return report;
}

bool is_compiled(PyObject* object) { return Py_TYPE(object) == &CompiledFunctionType; }

Context* context_of(PyObject* compiled) { return reinterpret_cast<CompiledFunction*>(compiled)->context; }

bool add_types(PyObject* module) {
  capture::original_of_compiled = original_of;
  subscribe_to_all();
  return PyModule_AddType(module, &CompiledFunctionType) == 0 && PyModule_AddType(module, &CallMixinType) == 0;
}

}  // namespace magneto::dispatch
