// torch.utils.checkpoint. Where there are no gradients it is the function that it calls. Else the graph has the call as
// one node, with the function's operators as its children: the torch level, which runs under autograd, makes the call
// itself, so that what it saves, recomputes and draws is PyTorch's own doing.

#include <algorithm>
#include <optional>

#include "capture/calls/callbacks.h"
#include "capture/calls/calls.h"
#include "capture/calls/native_mode.h"
#include "capture/capture.h"
#include "capture/exits/exit_builder.h"
#include "capture/numbers/numbers.h"
#include "capture/torch/autograd_functions.h"
#include "capture/torch/gradients.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/modules.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "graph/orphans.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

/// The arguments of a checkpoint, told apart.
struct Checkpoint {
  PyObject* function = nullptr;
  bool reentrant = false;
  PyObject* contexts = nullptr;  // what makes the contexts in which the function runs, and runs again; null: none
  CallArgs args;                 // the function's
  std::vector<Ref> held;
  Ref options = checked(PyDict_New());
};

/// Nothing for those that don't say which kind, or ask the reentrant one for what it hasn't got.
std::optional<Checkpoint> read(const CallArgs& given) {
  static constexpr std::string_view own[] = {"use_reentrant", "preserve_rng_state", "determinism_check", "debug",
                                             "early_stop"};
  Checkpoint result;
  if (given.positional() == 0) return std::nullopt;
  result.function = given.values[0];
  result.args.values.assign(given.values.begin() + 1, given.values.begin() + given.positional());
  Ref names = checked(PyList_New(0));
  for (size_t i = given.positional(); i < given.values.size(); ++i) {
    PyObject* value = given.values[i];
    const std::string_view name = PyUnicode_AsUTF8(given.keyword(i));
    if (name == "context_fn") {
      result.contexts = value;
      continue;
    }
    if (std::ranges::find(own, name) != std::end(own)) {
      if (!is_scalar(value)) return std::nullopt;
      if (PyDict_SetItem(result.options.get(), given.keyword(i), value) < 0) throw PythonError{};
      continue;
    }
    result.args.values.push_back(value);
    if (PyList_Append(names.get(), given.keyword(i)) < 0) throw PythonError{};
  }
  PyObject* kind = PyDict_GetItemString(result.options.get(), "use_reentrant");
  if (kind != Py_False && kind != Py_True) return std::nullopt;
  result.reentrant = kind == Py_True;
  const bool plain =
      PyList_GET_SIZE(names.get()) == 0 && !result.contexts && !PyDict_GetItemString(result.options.get(), "debug");
  if (result.reentrant && !plain) return std::nullopt;
  if (PyList_GET_SIZE(names.get()) > 0) {
    result.held.push_back(checked(PyList_AsTuple(names.get())));
    result.args.kwnames = result.held.back().get();
  }
  return result;
}

/// functools.partial, made in the segment: its function, and its arguments in front of the others.
void unfold_partial(Checkpoint& call) {
  while (std::string_view(Py_TYPE(call.function)->tp_name) == "functools.partial") {
    const auto part = [&](const char* name) {
      call.held.push_back(checked(PyObject_GetAttrString(call.function, name)));
      return call.held.back().get();
    };
    PyObject *bound = part("args"), *keywords = part("keywords");
    Ref named = checked(PyDict_Copy(keywords));
    for (size_t i = call.args.positional(); i < call.args.values.size(); ++i) {
      if (PyDict_SetItem(named.get(), call.args.keyword(i), call.args.values[i]) < 0) throw PythonError{};
    }
    call.args.values.resize(call.args.positional());
    call.args.values.insert(call.args.values.begin(), &PyTuple_GET_ITEM(bound, 0),
                            &PyTuple_GET_ITEM(bound, 0) + PyTuple_GET_SIZE(bound));
    PyObject *name, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(named.get(), &position, &name, &value)) call.args.values.push_back(value);
    call.held.push_back(checked(PySequence_Tuple(named.get())));
    call.args.kwnames = PyTuple_GET_SIZE(call.held.back().get()) ? call.held.back().get() : nullptr;
    call.held.push_back(std::move(named));
    call.function = part("func");
  }
}

/// The object itself, of which nothing that the segment has made is a part, under a guard; of a tuple that the segment
/// has made (`lists`: or a list, which nobody changes), one of such objects. Null: it is none.
Ref constant_object(Capture& capture, PyObject* object, bool lists) {
  if (capture.calls.classes.is_any(object)) return {};  // each run makes its own
  if (is_scalar(object) || is_identity_constant(object)) return Ref::borrow(object);
  if ((PyTuple_CheckExact(object) || (lists && PyList_CheckExact(object))) && !capture.world.is_outside(object)) {
    Ref constants = checked(PySequence_Tuple(object));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(constants.get()); ++i) {
      Ref constant = constant_object(capture, PyTuple_GET_ITEM(constants.get(), i), lists);
      if (!constant) return {};
      Py_SETREF(PyTuple_GET_ITEM(constants.get(), i), constant.release());
    }
    return constants;
  }
  if (is_tensor(object) || is_builtin_container(object) || !capture.world.is_outside(object)) return {};
  return Ref::borrow(capture.world.pinned(object));
}

/// A list that the segment has made, of such objects: one of its own. Else as constant_object.
Ref constant_argument(Capture& capture, PyObject* object) {
  if (!PyList_CheckExact(object) || capture.world.is_outside(object)) return constant_object(capture, object, false);
  const Ref items = constant_object(capture, object, true);
  return items ? checked(PySequence_List(items.get())) : Ref();
}

/// functools.partial, made in the segment, of a function and arguments that are constants.
Ref constant_partial(Capture& capture, PyObject* partial) {
  const auto part = [&](const char* name) { return checked(PyObject_GetAttrString(partial, name)); };
  const Ref of = part("func"), args = part("args"), keywords = part("keywords");
  Ref function = constant_function(capture, of.get());
  if (!function) return {};
  Ref values = checked(PyTuple_New(PyTuple_GET_SIZE(args.get()) + 1));
  PyTuple_SET_ITEM(values.get(), 0, function.release());
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args.get()); ++i) {
    Ref constant = constant_argument(capture, PyTuple_GET_ITEM(args.get(), i));
    if (!constant) return {};
    PyTuple_SET_ITEM(values.get(), i + 1, constant.release());
  }
  Ref named = checked(PyDict_New());
  PyObject *name, *value;
  Py_ssize_t position = 0;
  while (PyDict_Next(keywords.get(), &position, &name, &value)) {
    const Ref constant = constant_argument(capture, value);
    if (!constant) return {};
    if (PyDict_SetItem(named.get(), name, constant.get()) < 0) throw PythonError{};
  }
  return checked(PyObject_Call(reinterpret_cast<PyObject*>(Py_TYPE(partial)), values.get(), named.get()));
}

/// What each run hands on for the value: itself, where it is a tensor or the same in all runs; of a container that the
/// segment has made of such ones, one of its own, as it is now. Null: it is none.
Ref handed_on(Capture& capture, PyObject* value) {
  if (is_tensor(value) || is_scalar(value) || is_identity_constant(value)) return Ref::borrow(value);
  if (capture.world.is_outside(value)) return {};
  const bool is_shape = Py_TYPE(value) == size_class();
  if (is_shape || PyTuple_CheckExact(value) || PyList_CheckExact(value)) {
    const Ref items = checked(PySequence_List(value));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items.get()); ++i) {
      Ref item = handed_on(capture, PyList_GET_ITEM(items.get(), i));
      if (!item || PyList_SetItem(items.get(), i, item.release()) < 0) return {};
    }
    if (is_shape) return Ref::borrow(value);
    return PyList_CheckExact(value) ? items : checked(PyList_AsTuple(items.get()));
  }
  if (!PyDict_CheckExact(value)) return {};
  Ref copy = checked(PyDict_New());
  PyObject *name, *of_name;
  Py_ssize_t position = 0;
  while (PyDict_Next(value, &position, &name, &of_name)) {
    const Ref item = PyUnicode_CheckExact(name) ? handed_on(capture, of_name) : Ref();
    if (!item || PyDict_SetItem(copy.get(), name, item.get()) < 0) return {};
  }
  return copy;
}

/// What a run calls: the function, which has the arguments that are objects (a layer, its options) as parts of its own,
/// with the others.
struct Recorded {
  Ref function;
  CallArgs args;
  std::vector<Ref> held;
};

/// Nothing: it is no constant.
std::optional<Recorded> recorded(Capture& capture, const Checkpoint& call) {
  const auto& values = call.args.values;
  const size_t positional = call.args.positional();
  std::vector<Ref> given;
  for (PyObject* value : values) given.push_back(handed_on(capture, value));
  size_t bound = positional;
  while (bound > 0 && given[bound - 1]) --bound;
  Ref options = checked(PyDict_New()), names = checked(PyList_New(0));
  Recorded result;
  for (size_t i = bound; i < values.size(); ++i) {
    if (given[i]) result.args.values.push_back(given[i].get());
    if (i < positional) continue;
    PyObject* const name = call.args.keyword(i);
    if ((given[i] ? PyList_Append(names.get(), name) : PyDict_SetItem(options.get(), name, values[i])) < 0)
      throw PythonError{};
  }
  result.held = std::move(given);
  if (PyList_GET_SIZE(names.get()) > 0) {
    result.held.push_back(checked(PyList_AsTuple(names.get())));
    result.args.kwnames = result.held.back().get();
  }
  Ref function = Ref::borrow(call.function);
  if (bound > 0 || PyDict_GET_SIZE(options.get()) > 0) {
    static constinit Imported partial("functools", "partial");
    Ref parts = checked(PyTuple_New(static_cast<Py_ssize_t>(bound) + 1));
    PyTuple_SET_ITEM(parts.get(), 0, function.release());
    for (size_t i = 0; i < bound; ++i) PyTuple_SET_ITEM(parts.get(), i + 1, Py_NewRef(values[i]));
    function = checked(PyObject_Call(partial.get(), parts.get(), options.get()));
  }
  result.function = constant_function(capture, function.get());
  if (!result.function) return std::nullopt;
  return result;
}

/// False: some are no constants.
bool copy_defaults(Capture& capture, PyFunctionObject* of, PyObject* to) {
  if (of->func_defaults) {
    const Ref defaults = constant_object(capture, of->func_defaults, false);
    if (!defaults) return false;
    if (PyFunction_SetDefaults(to, defaults.get()) < 0) throw PythonError{};
  }
  if (!of->func_kwdefaults) return true;
  const Ref named = checked(PyDict_New());
  PyObject *name, *value;
  Py_ssize_t position = 0;
  while (PyDict_Next(of->func_kwdefaults, &position, &name, &value)) {
    const Ref constant = constant_object(capture, value, false);
    if (!constant) return false;
    if (PyDict_SetItem(named.get(), name, constant.get()) < 0) throw PythonError{};
  }
  if (PyFunction_SetKwDefaults(to, named.get()) < 0) throw PythonError{};
  return true;
}

}  // namespace

Ref constant_function(Capture& capture, PyObject* function) {
  if (std::string_view(Py_TYPE(function)->tp_name) == "functools.partial" && !capture.world.is_outside(function)) {
    return constant_partial(capture, function);
  }
  if (PyMethod_Check(function) && !capture.world.is_outside(function)) {
    const Ref self = constant_object(capture, PyMethod_GET_SELF(function), false);
    const Ref method = constant_object(capture, PyMethod_GET_FUNCTION(function), false);
    return self && method ? checked(PyMethod_New(method.get(), self.get())) : Ref();
  }
  if (!PyFunction_Check(function) || capture.world.is_outside(function)) {
    return constant_object(capture, function, false);
  }
  auto* made = reinterpret_cast<PyFunctionObject*>(function);
  Ref copy = checked(PyFunction_New(made->func_code, made->func_globals));
  if (!copy_defaults(capture, made, copy.get())) return {};
  if (!made->func_closure) return copy;
  const Py_ssize_t count = PyTuple_GET_SIZE(made->func_closure);
  Ref cells = checked(PyTuple_New(count));
  const bool of_torch = module_of(made->func_globals) == "torch.utils.checkpoint";  // checkpoint_sequential
  for (Py_ssize_t i = 0; i < count; ++i) {  // as they are now: a loop's variable goes on
    Ref contents = capture.world.read_cell(PyTuple_GET_ITEM(made->func_closure, i));
    const Ref constant = contents ? constant_object(capture, contents.get(), of_torch) : Ref();
    if (!constant) return {};
    PyTuple_SET_ITEM(cells.get(), i, checked(PyCell_New(constant.get())).release());
  }
  if (PyFunction_SetClosure(copy.get(), cells.get()) < 0) throw PythonError{};
  return copy;
}

namespace {

/// Of the operators of the graph from `first` on, those whose results the checkpoint's policy saves; no marks where it
/// has none. Nothing: it can't be asked, because `contexts` gives other contexts than those of PyTorch's policies, or
/// because it looks at an operator's arguments.
std::optional<std::vector<bool>> kept_by_policy(Capture& capture, PyObject* contexts, size_t first) {
  std::vector<bool> marks;
  if (!contexts || !capture.options.wants_backward) return marks;
  const auto& nodes = capture.graph.aten_nodes;
  Ref operators = checked(PyTuple_New(static_cast<Py_ssize_t>(nodes.size() - first)));
  for (size_t i = first; i < nodes.size(); ++i) {
    Ref overload = graph::overload_object(nodes[i].op);
    PyTuple_SET_ITEM(operators.get(), i - first,
                     capture.world.wrap(overload.get(), capture.sources.constant(overload.get())).release());
  }
  try {
    const Ref kept = capture.calls.call_polyfill("kept_by_policy", CallArgs{{contexts, operators.get()}});
    if (!PyList_Check(kept.get())) return std::nullopt;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(kept.get()); ++i) {
      marks.push_back(PyList_GET_ITEM(kept.get(), i) == Py_True);
    }
  } catch (const PythonError&) {
    PyErr_Clear();
    return std::nullopt;
  }
  return marks;
}

}  // namespace

Ref Gradients::checkpoint(const CallArgs& given) {
  std::optional<Checkpoint> call = read(given);
  if (!call) return {};
  if (call->reentrant) {
    const auto needs_gradient = [](PyObject* arg) { return is_tensor(arg) && unpack_tensor(arg).requires_grad(); };
    if (std::ranges::none_of(call->args.values, needs_gradient)) return {};  // PyTorch warns, at a line of its own
    if (!at::GradMode::is_enabled()) {
      call->args.values.insert(call->args.values.begin(), call->function);
      return c.calls.call_polyfill("checkpoint_without_gradients", call->args);
    }
  }
  if (!at::GradMode::is_enabled()) {
    if (call->contexts) {  // which eager makes all the same
      NonResumable scope(c);
      c.calls.call(call->contexts, CallArgs{});
    }
    return c.calls.call(call->function, call->args);
  }
  if (call->contexts) {
    const Ref contexts = constant_function(c, call->contexts);
    if (!contexts) return {};
    if (PyDict_SetItemString(call->options.get(), "context_fn", contexts.get()) < 0) throw PythonError{};
  }
  if (!c.world.is_outside(call->function) && !call->reentrant) unfold_partial(*call);
  c.numbers.specialize_all(call->args);
  const std::optional<Recorded> run = recorded(c, *call);
  if (!run || (call->reentrant && run->args.values.size() < call->args.values.size())) return {};
  static constinit Imported checkpointed("magneto._forward", "checkpointed"),
      reentrant("magneto._forward", "reentrant");
  const Ref target =
      checked(PyObject_CallFunctionObjArgs(checkpointed.get(), run->function.get(), call->options.get(), nullptr));
  const Ref apply = call->reentrant ? native_apply(checked(PyObject_CallNoArgs(reentrant.get())).get()) : Ref();
  NonResumable scope(c);
  const int64_t writes = c.overlays.writes;
  const auto index = static_cast<int32_t>(c.graph.torch_nodes.size());
  const size_t operators = c.graph.aten_nodes.size();
  const CallArgs& args = call->args;
  Ref result = c.torch.record(
      graph::TorchNode::Kind::CallFunction, target.get(), run->args.values, run->args.kwnames,
      [&] {
        const CalledBack called_back(c.mode);
        if (!call->reentrant) {
          return c.callbacks.call_from_c(call->function, args.values.data(), static_cast<Py_ssize_t>(args.positional()),
                                         args.kwnames);
        }
        std::vector<PyObject*> values = args.values;  // autograd calls it without gradients, and says what needs them
        values.insert(values.begin(), call->function);
        return PyObject_Vectorcall(apply.get(), values.data(), values.size(), nullptr);
      },
      /*always=*/true);
  if (const auto kept = kept_by_policy(c, call->contexts, operators)) {
    c.options.partition.checkpoints[target.get()] = *kept;
  } else {
    c.options.partition.unknown_policies = true;
  }
  if (c.overlays.writes != writes) {  // which the call would do again
    throw c.exits.restart_before(*c.frame, "a checkpointed function changes objects from outside");
  }
  c.graph.torch_nodes.resize(index + 1);
  for (size_t i = operators; i < c.graph.aten_nodes.size(); ++i) c.graph.aten_nodes[i].torch_node = index;
  return result;
}

}  // namespace magneto::capture
