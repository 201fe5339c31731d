// Calls: which callable is interpreted, recorded, run natively, or ends the segment.
#include "capture/calls/calls.h"

#include <Python.h>
#include <structmember.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "autograd/nodes.h"
#include "capture/calls/callbacks.h"
#include "capture/calls/deferred.h"
#include "capture/calls/handlers.h"
#include "capture/calls/native_functions.h"
#include "capture/capture.h"
#include "capture/exits/exit_builder.h"
#include "capture/interpreter/errors.h"
#include "capture/interpreter/frames.h"
#include "capture/interpreter/object_protocol.h"
#include "capture/marks.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/symbols.h"
#include "capture/numpy/numpy_capture.h"
#include "capture/torch/gradients.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/modules.h"
#include "capture/world/world.h"
#include "python/abi/private.h"
#include "python/abi/types.h"
#include "python/bind.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

using guards::Source;

namespace {

enum class Treatment : uint8_t {
  Interpret,
  Whole,
  TorchCall,
  Sized,
  OfSizes,
  Native,
  Members,
  AutogradFunction,
  Gradient,
  Check,
  Log,
  Draw,
  Seed,
  Checkpoint,
  Hook,
  NestedInt,
  NamedTuple,
  Decorator,
  Once,
  True,
  False,
  None,
  Instead,
  Substitute,
  Forbidden,
  Break
};

struct FunctionRow {
  const char* module;
  const char* qualname;
  Treatment treatment;
  const char* note;
};

constexpr FunctionRow kFunctions[] = {
#define X(module, qualname, treatment, note) {module, qualname, Treatment::treatment, note},
#include "capture/calls/functions.def"
#undef X
};

struct Decision {
  Treatment treatment = Treatment::Interpret;
  BreakReason reason = BreakReason::None;
  /// Of Instead: the function's name. Of Once: the attribute's.
  const char* named = nullptr;
  /// Of Substitute: the function.
  PyObject* substitute = nullptr;
};

/// Users' own marks (marks.h), by callable; held for the process's life.
std::unordered_map<PyObject*, Decision>& user_marks() {
  static auto* marks = new std::unordered_map<PyObject*, Decision>;
  return *marks;
}

/// "package.*": the package itself too, and all below it.
bool names_module(std::string_view pattern, std::string_view module) {
  if (!pattern.ends_with(".*")) return pattern == module;
  const std::string_view package = pattern.substr(0, pattern.size() - 2);
  return module.starts_with(package) && (module.size() == package.size() || module[package.size()] == '.');
}

Decision decide(PyObject* function) {
  auto marked = user_marks().find(function);
  if (marked != user_marks().end()) return marked->second;
  static auto* known = new std::unordered_map<PyObject*, Decision>;  // by code object, which the map keeps alive
  PyObject* code = PyFunction_GET_CODE(function);
  auto found = known->find(code);
  if (found != known->end()) return found->second;
  Decision decision;
  std::string_view module = module_of(PyFunction_GET_GLOBALS(function));
  if (module == "_py_warnings") module = "warnings";  // where 3.14 has them
  const char* qualname = PyUnicode_AsUTF8(reinterpret_cast<PyCodeObject*>(code)->co_qualname);
  for (const FunctionRow& row : kFunctions) {
    if (!names_module(row.module, module)) continue;
    if (std::strcmp(row.qualname, "*") != 0 && std::strcmp(row.qualname, qualname) != 0) continue;
    decision.treatment = row.treatment;
    if (row.treatment == Treatment::Break) decision.reason = reason_named(row.note);
    if (row.treatment == Treatment::Instead || row.treatment == Treatment::Once) decision.named = row.note;
    break;
  }
  Py_INCREF(code);
  (*known)[code] = decision;
  return decision;
}

/// What the program says of a mark, by magneto.disable(reason=...), or of a break, by magneto.graph_break(msg).
std::string why_marked(PyObject* function, const CallArgs& args) {
  PyObject* attributes = reinterpret_cast<PyFunctionObject*>(function)->func_dict;
  PyObject* said = attributes ? PyDict_GetItemString(attributes, "_torchdynamo_disable_msg") : nullptr;
  if (said == Py_True) said = args.values.empty() ? nullptr : args.values[0];
  return said && PyUnicode_CheckExact(said) ? std::string(" (") + PyUnicode_AsUTF8(said) + ")" : "";
}

/// Of a function that PyTorch has marked as disabled, and for which there is a way all the same: torch.manual_seed as
/// torch._dynamo leaves it, torch.utils.checkpoint.
std::optional<Decision> decide_disabled(PyObject* function) {
  PyObject* attributes = reinterpret_cast<PyFunctionObject*>(function)->func_dict;
  PyObject* wrapped = attributes ? PyDict_GetItemString(attributes, "__wrapped__") : nullptr;
  if (!wrapped || !PyFunction_Check(wrapped)) return std::nullopt;
  const Decision decision = decide(wrapped);
  const bool has_way = decision.treatment == Treatment::Seed || decision.treatment == Treatment::Checkpoint;
  return has_way ? std::optional(decision) : std::nullopt;
}

/// What PyTorch's compiler, where it has been used in the process, keeps to itself of the optimizers.
bool is_kept_from_compiler(PyObject* function) {
  const char* name = PyUnicode_AsUTF8(reinterpret_cast<PyFunctionObject*>(function)->func_name);
  return module_of(PyFunction_GET_GLOBALS(function)).starts_with("torch.optim.") &&
         (std::strcmp(name, "_init_group") == 0 || std::string_view(name).starts_with("_fused_"));
}

/// What PyTorch itself marks as disabled for reasons that are not ours, and a row tells to interpret. Null: it is none.
Ref disabled_inside(Capture& capture, PyObject* function) {
  auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function));
  const auto is_in = [&](const char* name) { return PyUnicode_CompareWithASCIIString(code->co_qualname, name) == 0; };
  const bool marked = is_in("_disable_dynamo.<locals>.inner");
  if (!marked && !is_in("DisableContext.__call__.<locals>._fn")) return {};
  Ref inside = capture.attributes.lookup_attr(function, MAGNETO_STR("__wrapped__"));
  if (!inside || !PyFunction_Check(inside.get())) return {};
  if (!marked) return is_kept_from_compiler(inside.get()) ? inside : Ref();
  return decide(inside.get()).treatment == Treatment::Interpret ? inside : Ref();
}

/// True if a method of a logger gets past the logger's level. Asking fills the logger's own memo of its levels, which
/// the interpreted method then reads under guards: setting a level anywhere empties it.
bool log_is_written(PyObject* function, const CallArgs& args) {
  static constexpr std::pair<const char*, long> levels[] = {
      {"debug", 10}, {"info", 20}, {"warning", 30}, {"warn", 30}, {"error", 40}, {"exception", 40}, {"critical", 50}};
  if (args.positional() == 0) return true;
  const char* name = PyUnicode_AsUTF8(reinterpret_cast<PyFunctionObject*>(function)->func_name);
  for (const auto& [method, level] : levels) {
    if (std::strcmp(method, name) != 0) continue;
    Ref enabled = checked(PyObject_CallMethod(args.values[0], "isEnabledFor", "l", level));
    return enabled.get() != Py_False;
  }
  return true;
}

/// Functions of PyTorch that compute something else when they hear that they are being compiled.
bool does_as_in_eager(const InterpFrame& asking) {
  const std::string_view module = module_of(asking.globals);
  // Module._call_impl leaves hooks out that run whatever happens.
  if (module == "torch.nn.modules.module") return true;
  const auto is_named = [&](const char* name) {
    return PyUnicode_CompareWithASCIIString(asking.info->code->co_name, name) == 0;
  };
  // A rate that is a tensor is multiplied in a step of its own, which rounds.
  if (module == "torch.optim.sgd") return is_named("_multi_tensor_sgd");
  // An optimizer's step stays a tensor of float32, where eager computes with Python's floats.
  return module == "torch.optim.optimizer" && (is_named("_get_value") || is_named("_stack_if_compiling"));
}

}  // namespace

PyObject* (*original_of_compiled)(PyObject*) = nullptr;

static uint64_t marks = 0;
static void mark(PyObject* callable, Decision decision) {
  ++marks;
  user_marks()[Py_NewRef(callable)] = decision;
}
uint64_t marks_made() { return marks; }

void mark_allow_in_graph(PyObject* function) { mark(function, {Treatment::TorchCall}); }
void mark_constant_result(PyObject* function) { mark(function, {Treatment::Native}); }
void mark_disabled(PyObject* callable) { mark(callable, {Treatment::Break, BreakReason::DisabledFunction}); }
void mark_forbidden(PyObject* callable) { mark(callable, {Treatment::Forbidden}); }
void mark_substituted(PyObject* callable, PyObject* substitute) {
  mark(callable, {Treatment::Substitute, BreakReason::None, nullptr, Py_NewRef(substitute)});
}

/// Thread's regions of errors_on_break, the innermost last.
static std::vector<bool>& break_regions() {
  static thread_local std::vector<bool> regions;
  return regions;
}

PyObject* errors_on_break(PyObject*, PyObject* on) {
  std::vector<bool>& regions = break_regions();
  if (on != Py_None) {
    regions.push_back(on == Py_True);
  } else if (!regions.empty()) {
    regions.pop_back();
  }
  Py_RETURN_NONE;
}

bool BreakRegions::is_error() { return !break_regions().empty() && break_regions().back(); }
BreakRegions::BreakRegions() : before_(break_regions()) {}
BreakRegions::~BreakRegions() { break_regions() = std::move(before_); }

std::string callable_name(PyObject* callable) {
  SavedError saved;
  std::string text;
  Ref qualname = Ref::steal(PyObject_GetAttrString(callable, "__qualname__"));
  Ref module = Ref::steal(PyObject_GetAttrString(callable, "__module__"));
  PyErr_Clear();
  if (module && PyUnicode_Check(module.get())) text = std::string(PyUnicode_AsUTF8(module.get())) + ".";
  if (qualname && PyUnicode_Check(qualname.get())) return text + PyUnicode_AsUTF8(qualname.get());
  return std::string("an object of type ") + Py_TYPE(callable)->tp_name;
}

namespace {

/// For the program that marked it: no part of what the captured function does.
Ref forbidden_error(PyObject* callable) {
  PyErr_Format(PyExc_AssertionError, "Attempt to trace forbidden callable %R", callable);
  return take_error();
}

}  // namespace

Ref Calls::call(PyObject* callable, std::initializer_list<PyObject*> args) {
  CallArgs call_args;
  call_args.values = args;
  return call(callable, std::move(call_args));
}

/// What the user said of an object: marks of functions are asked where those are interpreted.
Ref Calls::call_marked(PyObject* callable, CallArgs& args) {
  if (PyFunction_Check(callable)) return {};
  const auto marked = user_marks().find(callable);
  if (marked == user_marks().end()) return {};
  if (const Source* source = c.world.source_of(callable)) c.guards.identity(source, callable);
  switch (marked->second.treatment) {
    case Treatment::Break:
      c.side_exit(marked->second.reason, "call of " + callable_name(callable));
    case Treatment::Substitute:
      return inline_function(marked->second.substitute, args);
    case Treatment::Forbidden:
      c.errors.interrupt = forbidden_error(callable);
      throw Interrupted{};
    default:
      return {};
  }
}

// -- Python functions ------------------------------------------------------------------------------------------------

void World::register_closure(PyObject* function, const Source* source) {
  PyObject* closure = PyFunction_GET_CLOSURE(function);
  if (!closure || !source) return;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(closure); ++i) {
    PyObject* cell = PyTuple_GET_ITEM(closure, i);
    if (auto known = cell_contents.find(cell); known != cell_contents.end()) {
      if (source->kind != guards::SourceKind::Const || known->second->base->kind != guards::SourceKind::Const) {
        cell_aliases_.emplace_back(known->second, c.sources.closure_cell(source, i));
      }
      continue;
    }
    PyObject* name =
        PyTuple_GET_ITEM(decode(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function))).localsplus_names.get(),
                         decode(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function))).first_free + i);
    cell_contents[cell] = c.sources.closure(source, i, name);
    keep(Ref::borrow(cell));
  }
}

bool is_native_function(PyObject* function) {
  const Treatment treatment = decide(function).treatment;
  return treatment == Treatment::Native || treatment == Treatment::Members;
}

/// Default values come from outside with the function. Its guard holds the tuple and the dict that they are in; a dict
/// can change in place, so that what is taken from it has guards of its own.
void Calls::wrap_defaults(InterpFrame& callee) {
  PyObject* defaults = PyFunction_GET_DEFAULTS(callee.function.get());
  PyObject* kw_defaults = PyFunction_GET_KW_DEFAULTS(callee.function.get());
  if (!callee.function_source) return;
  const PyCodeObject* code = callee.info->code;
  const Py_ssize_t count = defaults ? PyTuple_GET_SIZE(defaults) : 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    const auto slot = static_cast<int32_t>(code->co_argcount - count + i);
    PyObject* value = callee.slots[slot];
    if (value != PyTuple_GET_ITEM(defaults, i) || is_scalar(value) || c.world.is_outside(value)) continue;
    callee.set_local(slot, c.world.wrap(value, c.sources.constant(value)));
  }
  if (!kw_defaults) return;
  for (int32_t slot = code->co_argcount; slot < code->co_argcount + code->co_kwonlyargcount; ++slot) {
    PyObject* name = PyTuple_GET_ITEM(callee.info->localsplus_names.get(), slot);
    PyObject* value = PyDict_GetItemWithError(kw_defaults, name);
    if (!value || value != callee.slots[slot]) continue;
    callee.set_local(slot, c.world.wrap(value, c.sources.dict_item(c.sources.constant(kw_defaults), name)));
  }
}

Ref Calls::call_polyfill(const char* name, const CallArgs& args) {
  const char* dot = std::strrchr(name, '.');
  const std::string module_name = "magneto." + (dot ? std::string(name, dot) : "_polyfills");
  const Ref module = [&] {
    const OwnCode own;
    return checked(PyImport_ImportModule(module_name.c_str()));
  }();
  Ref instead = checked(PyObject_GetAttrString(module.get(), dot ? dot + 1 : name));
  return inline_function(c.world.wrap(instead.get(), c.sources.constant(instead.get())).get(), args);
}

/// A side exit that the program asks for; not the calls of torch._dynamo.graph_break() around each step of PyTorch's
/// optimizers, which are there for what torch.compile makes of one graph of forward and step.
static Ref asked_break(Capture& c, BreakReason reason, PyObject* function, const CallArgs& args) {
  static constinit Imported breaks("magneto", "graph_break");
  const bool of_optimizer =
      function == breaks.get() && c.frame && module_of(c.frame->globals) == "torch.optim.optimizer";
  if (!of_optimizer) c.side_exit(reason, "call of " + callable_name(function) + why_marked(function, args));
  return Ref::borrow(Py_None);
}

/// What the call came to; null: it is a side exit.
static Ref or_exit(Capture& c, Ref result, BreakReason reason, PyObject* function) {
  if (!result) c.side_exit(reason, "call of " + callable_name(function));
  return result;
}

/// Dynamic sizes are among the arguments, or those of tensors are.
static bool is_given_sizes(Capture& c, Treatment treatment, const CallArgs& args) {
  if (c.feedback.plain_sizes) return false;
  return std::ranges::any_of(args.values, [&](PyObject* arg) {
    if (holds_size(arg)) return true;
    if (treatment != Treatment::OfSizes || !is_tensor_object(arg)) return false;
    const at::Tensor& tensor = unpack_tensor(arg);
    const auto varies = [](const c10::SymInt& size) { return size.is_heap_allocated(); };
    return tensor.layout() == c10::kStrided && std::ranges::any_of(tensor.sym_sizes(), varies);
  });
}

Ref Calls::inline_function(PyObject* function, const CallArgs& args) {
  Decision decision = decide(function);
  if (decision.reason == BreakReason::DisabledFunction) {
    if (Ref inside = disabled_inside(c, function)) return inline_function(inside.get(), args);
    decision = decide_disabled(function).value_or(decision);
  }
  if (decision.treatment == Treatment::Checkpoint && is_transforming()) {
    c.side_exit(BreakReason::OpaqueCall, "call of " + callable_name(function) + " inside a transform of torch.func");
  }
  switch (decision.treatment) {
    case Treatment::Sized:
    case Treatment::OfSizes:
      if (c.torch.is_overridden(args.values) || is_given_sizes(c, decision.treatment, args)) break;
      [[fallthrough]];
    case Treatment::TorchCall:
      if (c.torch.is_overridden(args.values) && module_of(PyFunction_GET_GLOBALS(function)) != "torch._ops") break;
      guard_native_function(c, function);
      return c.torch.call_torch(function, args);
    case Treatment::AutogradFunction:
      return is_of_transforms(args.values) ? apply_in_transforms(c, function, args)
                                           : c.gradients.apply_autograd_function(args);
    case Treatment::Gradient:
      return c.gradients.call_gradient(function, args);
    case Treatment::Check:
      if (Ref checked = c.symbols.check(function, args)) return checked;
      break;
    case Treatment::True:
      if (c.frame && does_as_in_eager(*c.frame)) return Ref::borrow(Py_False);
      has_said_compiling = true;
      return Ref::borrow(Py_True);
    case Treatment::False:
      return Ref::borrow(Py_False);
    case Treatment::None:
      return Ref::borrow(Py_None);
    case Treatment::Log:
      if (!log_is_written(function, args)) break;
      write_log(function, args);
      return Ref::borrow(Py_None);
    case Treatment::Draw:
      return or_exit(c, draw_by_function(c, function, args), BreakReason::OpaqueCall, function);
    case Treatment::Seed:
      return or_exit(c, seed_generators(c, function, args), BreakReason::OpaqueCall, function);
    case Treatment::Checkpoint:
      return or_exit(c, c.gradients.checkpoint(args), BreakReason::DisabledFunction, function);
    case Treatment::Hook:
      return or_exit(c, c.gradients.register_hook(args), BreakReason::AutogradCall, function);
    case Treatment::NestedInt:
      return c.tensors.nested_int(function, args);
    case Treatment::Decorator:
      if (Ref decorated = c.calls.classes.decorate(function, args)) return decorated;
      break;
    case Treatment::NamedTuple:
      return make_named_tuple(function, args);
    case Treatment::Instead:
    case Treatment::Substitute:
      if (!args.values.empty() && is_made_random(c, args.values[0])) break;  // what it draws is known
      if (const Source* source = c.world.source_of(function)) c.guards.function(source, function);
      return decision.named ? call_polyfill(decision.named, args) : inline_function(decision.substitute, args);
    case Treatment::Forbidden:
      c.errors.interrupt = forbidden_error(function);
      throw Interrupted{};
    case Treatment::Break:
      return asked_break(c, decision.reason, function, args);
    case Treatment::Native:
    case Treatment::Members:
      return run_native_function(function, args, decision.treatment == Treatment::Members);
    case Treatment::Once:
      call_once(function, args, decision.named);
      break;
    case Treatment::Interpret:
    case Treatment::Whole:
      break;
  }
  std::optional<NonResumable> whole;
  if (decision.treatment == Treatment::Whole || decision.treatment == Treatment::Once) whole.emplace(c);
  const bool is_of_torch = decision.treatment == Treatment::Sized || decision.treatment == Treatment::OfSizes;
  const OfTorch of_torch(c.symbols, is_of_torch);
  return interpret_function(function, args);
}

Ref Calls::interpret_function(PyObject* function, const CallArgs& args) {
  const CodeInfo& info = decode(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function)));
  const Source* source = c.world.source_of(function);
  if (source) c.guards.function(source, function);
  const int flags = info.code->co_flags;
  if (flags & CO_ASYNC_GENERATOR) {
    c.side_exit(BreakReason::Generator, "call of the asynchronous generator " + callable_name(function));
  }
  if (flags & (CO_GENERATOR | CO_COROUTINE)) {  // runs no code of the user until it is iterated
    c.world.register_closure(function, source);
    Ref generator = checked(PyObject_Vectorcall(function, args.values.data(), args.positional(), args.kwnames));
    c.callbacks.generators.push_back(checked(PyWeakref_NewRef(generator.get(), nullptr)));
    c.exits.note_allocation_site(generator.get());
    return generator;
  }
  InterpFrame callee;
  callee.info = &info;
  callee.function = Ref::borrow(function);
  callee.function_source = source;
  callee.globals = PyFunction_GET_GLOBALS(function);
  callee.builtins = reinterpret_cast<PyFunctionObject*>(function)->func_builtins;
  callee.storage.assign(info.nlocals + info.stack_size + 1, nullptr);
  callee.slots = callee.storage.data();
  if (!bind_arguments(function, args.values.data(), args.positional(), args.kwnames, callee.slots)) {
    // The arguments do not fit: CPython words the TypeError; the call fails before it runs any code.
    Ref impossible = Ref::steal(PyObject_Vectorcall(function, args.values.data(), args.positional(), args.kwnames));
    if (!impossible) throw PythonError{};
    c.abandon(BreakReason::OpaqueCall, "arguments of " + callable_name(function) + " could not be bound");
  }
  wrap_defaults(callee);
  c.world.register_closure(function, source);
  return c.frames.run(callee);
}

}  // namespace magneto::capture
