// Custom autograd functions. Where nothing needs gradients, one is its forward, interpreted like any function. Else the
// graph keeps the call as one node, with the forward's operators as its children, so that autograd finds the backward.
#include "capture/torch/autograd_functions.h"

#include <torch/csrc/autograd/python_function.h>

#include <algorithm>
#include <span>

#include "autograd/engine.h"
#include "autograd/nodes.h"
#include "capture/calls/calls.h"
#include "capture/calls/deferred.h"
#include "capture/calls/native_mode.h"
#include "capture/capture.h"
#include "capture/exits/exit_builder.h"
#include "capture/interpreter/errors.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/symbols.h"
#include "capture/torch/class_tensors.h"
#include "capture/torch/gradients.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "python/abi/private.h"
#include "python/abi/types.h"
#include "python/bind.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

bool holds(std::span<PyObject* const> objects, PyObject* object) {
  return std::ranges::find(objects, object) != objects.end();
}

/// The result is an argument that `forward` has not marked as changed.
bool is_given_back(PyObject* result, const CallArgs& args, PyObject* dirty) {
  if (!is_tensor(result) || !holds(args.values, result)) return false;
  const bool marked = dirty && PyTuple_CheckExact(dirty);
  return !marked || !holds({&PyTuple_GET_ITEM(dirty, 0), static_cast<size_t>(PyTuple_GET_SIZE(dirty))}, result);
}

/// Among what `save_for_backward` of the context was given.
bool is_saved(PyObject* context, PyObject* value) {
  const Ref saved = Ref::steal(PyObject_GetAttr(context, MAGNETO_STR("to_save")));
  if (!saved) PyErr_Clear();
  if (!saved || !PyTuple_Check(saved.get())) return false;
  return holds({&PyTuple_GET_ITEM(saved.get(), 0), static_cast<size_t>(PyTuple_GET_SIZE(saved.get()))}, value);
}

/// What autograd gives for a result of `forward` that is an argument it has not marked as changed: a view of it, which
/// is none of autograd's where the argument needs gradients and they are off.
Ref result_of_apply(Capture& capture, PyObject* result, const CallArgs& args, PyObject* dirty) {
  if (!is_given_back(result, args, dirty)) return Ref::borrow(result);
  static PyObject* const view_as =
      lookup_in_type(reinterpret_cast<PyTypeObject*>(tensor_class()), MAGNETO_STR("view_as"));
  static PyObject* const detach =
      lookup_in_type(reinterpret_cast<PyTypeObject*>(tensor_class()), MAGNETO_STR("detach"));
  CallArgs self;
  self.values = {result};
  if (unpack_tensor(result).requires_grad()) return capture.torch.call_torch(detach, self);
  self.values.push_back(result);
  return capture.torch.call_torch(view_as, self);
}

/// The arguments behind the class as Function.apply binds them to `forward` where there is a setup_context: all by
/// position, defaults filled in. The class stays in front.
CallArgs bound_to(Capture& capture, PyObject* forward, const CallArgs& args) {
  const auto refuse = [&]() {
    capture.side_exit(BreakReason::AutogradCall, "the arguments of " + callable_name(forward) + " could not be bound");
  };
  if (!PyFunction_Check(forward)) refuse();
  const CodeInfo& info = decode(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(forward)));
  const PyCodeObject* code = info.code;
  if (code->co_kwonlyargcount > 0 || (code->co_flags & CO_VARKEYWORDS)) refuse();
  std::vector<PyObject*> slots(info.nlocals);
  if (!bind_arguments(forward, args.values.data() + 1, args.positional() - 1, nullptr, slots.data())) refuse();
  CallArgs bound;
  bound.values = {args.values[0]};
  bound.values.insert(bound.values.end(), slots.begin(), slots.begin() + code->co_argcount);
  if (code->co_flags & CO_VARARGS) {
    PyObject* rest = slots[code->co_argcount];
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rest); ++i) bound.values.push_back(PyTuple_GET_ITEM(rest, i));
    capture.world.keep(Ref::borrow(rest));
  }
  for (PyObject* slot : slots) capture.world.keep(Ref::steal(slot));
  for (size_t i = 1; i < bound.values.size(); ++i) {
    if (!holds(args.values, bound.values[i]) && !is_scalar(bound.values[i]))
      refuse();  // a default: its parts would need guards
  }
  return bound;
}

}  // namespace

Ref native_apply(PyObject* cls) {
  static constinit Imported base("torch._C", "_FunctionBase");
  PyObject* descriptor = PyDict_GetItemString(type_dict(base.type()), "apply");
  return checked(Py_TYPE(descriptor)->tp_descr_get(descriptor, nullptr, cls));
}

namespace {

/// Tensors, numbers and constants; tuples and slices of them; lists and dicts of them that the segment has made.
/// Autograd sees only the tensors among the arguments themselves.
bool is_plain_argument(Capture& capture, PyObject* argument) {
  if (capture.calls.classes.is_any(argument)) return false;  // each run makes its own
  if (is_tensor(argument) || is_scalar(argument) || is_unknown_number(argument) || is_identity_constant(argument)) {
    return true;
  }
  const auto is_plain = [&](PyObject* item) { return is_plain_argument(capture, item); };
  if (PySlice_Check(argument)) {
    const auto* slice = reinterpret_cast<PySliceObject*>(argument);
    return is_plain(slice->start) && is_plain(slice->stop) && is_plain(slice->step);
  }
  if (PyTuple_CheckExact(argument) || Py_TYPE(argument) == size_class() ||
      (PyList_CheckExact(argument) && !capture.world.is_outside(argument))) {
    PyObject** items = PySequence_Fast_ITEMS(argument);
    return std::all_of(items, items + PySequence_Fast_GET_SIZE(argument), is_plain);
  }
  if (!PyDict_CheckExact(argument) || capture.world.is_outside(argument)) return false;
  PyObject *key, *value;
  Py_ssize_t position = 0;
  while (PyDict_Next(argument, &position, &key, &value)) {
    if (!is_scalar(key) || !is_plain(value)) return false;
  }
  return true;
}

/// The containers in a plain argument, and what they hold.
void list_contents(PyObject* argument, std::vector<PyObject*>& contents) {
  contents.push_back(argument);
  if (PyTuple_CheckExact(argument) || PyList_CheckExact(argument)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(argument); ++i) {
      list_contents(PySequence_Fast_GET_ITEM(argument, i), contents);
    }
  } else if (PyDict_CheckExact(argument)) {
    PyObject *key, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(argument, &position, &key, &value)) {
      contents.push_back(key);
      list_contents(value, contents);
    }
  }
  contents.push_back(nullptr);
}

std::vector<PyObject*> contents_of(std::span<PyObject* const> arguments) {
  std::vector<PyObject*> contents;
  for (PyObject* argument : arguments) list_contents(argument, contents);
  return contents;
}

}  // namespace

/// C++ calls the forward back, which is interpreted on stand-ins. Its modules, functions and other objects are
/// constants of what the graph calls.
Ref Gradients::record_autograd_function(const CallArgs& args) {
  PyObject* owner = args.values[0];
  const std::span<PyObject* const> rest = std::span(args.values).subspan(1);
  const Ref bound = checked(PyDict_New());
  std::vector<Ref> readable;
  std::vector<PyObject*> operands;
  for (size_t i = 0; i < rest.size(); ++i) {
    if (is_plain_argument(c, rest[i])) {
      readable.push_back(c.containers.readable(rest[i]));
      operands.push_back(readable.back().get());
      continue;
    }
    const Ref constant = constant_function(c, rest[i]);
    if (!constant) {
      c.side_exit(BreakReason::AutogradCall,
                  std::string("a custom autograd function is applied to tensors that need gradients, and to an object "
                              "of type ") +
                      Py_TYPE(rest[i])->tp_name + " that is no constant");
    }
    if (PyDict_SetItem(bound.get(), checked(PyLong_FromSize_t(i)).get(), constant.get()) < 0) throw PythonError{};
  }
  c.attributes.load_attr(owner, MAGNETO_STR("forward"));  // for its guards
  static constinit Imported custom_function("magneto._forward", "custom_function");
  Ref target = checked(PyObject_CallFunctionObjArgs(custom_function.get(), owner, bound.get(), nullptr));
  Ref apply = native_apply(owner);
  const int64_t writes = c.overlays.writes;
  const size_t deferred = c.deferred.calls.size();
  const auto index = static_cast<int32_t>(c.graph.torch_nodes.size());
  const size_t operators = c.graph.aten_nodes.size();
  const std::vector<PyObject*> contents = contents_of(rest);
  Ref result = c.torch.record(
      graph::TorchNode::Kind::CallFunction, target.get(), operands, nullptr,
      [&] {
        const CalledBack called_back(c.mode);
        return PyObject_Vectorcall(apply.get(), rest.data(), rest.size(), nullptr);
      },
      /*always=*/true);
  const bool puts_off = c.deferred.calls.size() != deferred;                       // a warning, say
  if (c.overlays.writes != writes || puts_off || contents_of(rest) != contents) {  // which the call would do again
    throw c.exits.restart_before(*c.frame, "a custom autograd function changes objects from outside");
  }
  if (std::ranges::none_of(operands, holds_class_tensor)) {
    c.graph.torch_nodes.resize(index + 1);
    for (size_t i = operators; i < c.graph.aten_nodes.size(); ++i) c.graph.aten_nodes[i].torch_node = index;
  }
  if (c.options.wants_backward) rehearse_backward(owner, result.get());
  return result;
}

std::string Gradients::why_opaque(PyObject* function) const {
  const auto known = std::ranges::find_if(c.feedback.opaque_backwards,
                                          [&](const auto& opaque) { return opaque.first.get() == function; });
  return known == c.feedback.opaque_backwards.end() ? std::string() : known->second;
}

void Gradients::retry_without(PyObject* function, std::string why) {
  c.feedback.opaque_backwards.emplace_back(Ref::borrow(function), std::move(why));
  throw Retry{};
}

/// The backward of a custom operator is no part of the program.
bool Gradients::is_operator_backward(Frame* real) const {
  if (!(c.mode.backwards_run || c.mode.torch_runs) || frame_code(real)->co_argcount < 1) return false;
  static constinit Imported node_class("torch.autograd.function", "BackwardCFunction");
  PyObject* self = frame_localsplus(real)[0];
  return self && PyObject_TypeCheck(self, node_class.type()) && autograd::belongs_to_operator(self);
}

std::string Gradients::interpret_backwards(const std::function<void()>& run) {
  const int64_t writes = c.overlays.writes;
  const size_t torch_nodes = c.graph.torch_nodes.size(), deferred = c.deferred.calls.size();
  std::string why;
  {
    std::optional<AboveClasses> above;
    if (!classes_.empty()) above.emplace(c);
    const CalledBack called_back(c.mode);
    c.mode.backwards_run = true;
    try {
      run();
    } catch (const std::exception& error) {  // what the engine makes of a Python exception among them
      const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
      why = of_torch ? of_torch->what_without_backtrace() : error.what();
    }
  }
  PyErr_Clear();
  c.graph.torch_nodes.resize(torch_nodes);
  if (const auto refused = c.session->take_refusal()) why = refused->op + ": " + refused->message;
  try {
    c.errors.check_sticky();
  } catch (const Restart&) {
    why = c.exits.restart.second.message;
  } catch (const Abandon& abandon) {
    why = abandon.message;
  }
  if (why.empty() && c.overlays.writes != writes) why = "it changes objects from outside";
  if (why.empty() && c.deferred.calls.size() != deferred) why = "it makes a call that is put off to the end";
  return why;
}

bool TensorMap::add_again(size_t first) {
  std::map<graph::ValueId, TensorInput> missing;
  std::erase_if(inputs, [&](const auto& input) {
    if (static_cast<size_t>(input.first) < first) return false;
    missing.insert(input);
    return true;
  });
  for (const auto& [id, input] : missing) {
    fake_of.erase(input.real.get());
    if (input.array) return false;
    if (input.number) {
      add_number_input(input.source, input.real);
    } else {
      wrap_tensor(input.real.get(), input.source);
    }
  }
  return true;
}

std::string Gradients::rehearse(const std::vector<at::Tensor>& results) {
  for (;;) {
    const size_t known = c.graph.values.size(), symbols = c.symbols.assumed.symbols.size();
    const auto is_new = [&](const auto& input) { return static_cast<size_t>(input.first) >= known; };
    bool alone = true;
    const std::string why = interpret_backwards([&] { alone = autograd::rehearse(*c.session, c.graph, results); });
    if (!why.empty()) return why;
    if (!alone) return "it finds sizes or numbers in data";
    if (std::ranges::none_of(c.tensors.inputs, is_new)) return {};
    if (c.symbols.assumed.symbols.size() != symbols)
      return "it reads tensors that it did not save and whose sizes change";
    if (!c.tensors.add_again(known)) return "it reads arrays";
  }
}

/// The joint graph runs the backward when the segment ends. Then it is too late for much that interpreting it may ask
/// for.
void Gradients::rehearse_backward(PyObject* function, PyObject* result) {
  if (!why_opaque(function).empty()) return;
  torch::autograd::variable_list results;
  PyObject* context = nullptr;
  const auto add = [&](PyObject* one) {
    if (!is_tensor(one)) return;
    const at::Tensor& tensor = unpack_tensor(one);
    const auto& node = tensor.grad_fn();
    if (!node || !autograd::is_python(*node)) return;
    PyObject* own = autograd::context_of(*node);
    if (autograd::function_of(own) != function || (context && own != context)) return;
    context = own;
    results.push_back(tensor);
  };
  if (PyTuple_Check(result)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(result); ++i) add(PyTuple_GET_ITEM(result, i));
  } else {
    add(result);
  }
  if (!context) return;
  const auto attributes = [&] {
    Ref own = checked(PyObject_GetAttr(context, MAGNETO_STR("__dict__")));
    return checked(PyDict_Copy(own.get()));
  };
  const Ref before = attributes();
  std::string why = rehearse(results);
  const Ref after = attributes();
  const auto same = [&] {
    if (PyDict_GET_SIZE(before.get()) != PyDict_GET_SIZE(after.get())) return false;
    Py_ssize_t position = 0;
    PyObject *name, *value;
    while (PyDict_Next(before.get(), &position, &name, &value)) {
      if (PyDict_GetItem(after.get(), name) != value) return false;
    }
    return true;
  };
  if (why.empty() && !same()) why = "its backward changes its context";
  if (!why.empty()) retry_without(function, std::move(why));
  rehearsed_.insert(context);
}

Ref Gradients::apply_autograd_function(const CallArgs& given) {
  CallArgs args = given;
  c.numbers.specialize_all(args);
  if (args.values.empty()) c.side_exit(BreakReason::AutogradCall, "a custom autograd function is applied to nothing");
  // Some versions of PyTorch take them where there is a setup_context, others raise.
  if (args.kwnames)
    c.side_exit(BreakReason::AutogradCall, "a custom autograd function is applied to keyword arguments");
  NonResumable scope(c);
  PyObject* owner = args.values[0];
  static constinit Imported plain_setup("torch.autograd.function", "_SingleLevelFunction.setup_context");
  Ref setup = c.attributes.load_attr(owner, MAGNETO_STR("setup_context"));
  const bool sets_up = setup.get() != plain_setup.get();
  Ref forward = c.attributes.load_attr(owner, MAGNETO_STR("forward"));
  if (sets_up) args = bound_to(c, forward.get(), args);
  bool needs_grad = false;
  Ref needs_input_grad = checked(PyTuple_New(std::max<Py_ssize_t>(0, args.values.size() - 1)));
  for (size_t i = 1; i < args.values.size(); ++i) {
    const bool needs = is_tensor(args.values[i]) && unpack_tensor(args.values[i]).requires_grad();
    needs_grad |= needs;
    PyTuple_SET_ITEM(needs_input_grad.get(), i - 1, PyBool_FromLong(needs));
  }
  static constinit Imported context_class("torch.autograd.function", "FunctionCtx");
  if (needs_grad && c.calls.classes.is_class(owner) && c.calls.classes.closes_over_values(owner)) {
    c.side_exit(BreakReason::AutogradCall, "a custom autograd function that the segment has made closes over values");
  }
  if (needs_grad && at::GradMode::is_enabled()) return record_autograd_function(args);
  Ref none = checked(PyTuple_New(0));
  Ref context =
      checked(PyBaseObject_Type.tp_new(reinterpret_cast<PyTypeObject*>(context_class.get()), none.get(), nullptr));
  if (PyObject_SetAttr(context.get(), MAGNETO_STR("needs_input_grad"), needs_input_grad.get()) < 0) {
    throw PythonError{};
  }
  CallArgs forward_args = args;
  if (sets_up) {
    forward_args.values.erase(forward_args.values.begin());
  } else {
    forward_args.values[0] = context.get();
  }
  Ref result = c.calls.call(forward.get(), std::move(forward_args));
  if (sets_up) {
    Ref inputs = checked(PyTuple_New(static_cast<Py_ssize_t>(args.values.size()) - 1));
    for (size_t i = 1; i < args.values.size(); ++i) {
      PyTuple_SET_ITEM(inputs.get(), i - 1, Py_NewRef(args.values[i]));
    }
    c.calls.call(setup.get(), {context.get(), inputs.get(), result.get()});
  }
  Ref dirty = Ref::steal(PyObject_GetAttr(context.get(), MAGNETO_STR("dirty_tensors")));
  if (!dirty) PyErr_Clear();
  const auto finished = [&](PyObject* value) {
    if (sets_up && is_given_back(value, args, dirty.get()) && is_saved(context.get(), value)) {
      throw c.exits.restart_before(*c.frame, "a custom autograd function saves an argument that it gives back");
    }
    return result_of_apply(c, value, args, dirty.get());
  };
  if (!PyTuple_CheckExact(result.get())) return finished(result.get());
  Ref values = c.containers.resolve(result.get());
  Ref all = checked(PyTuple_New(PyTuple_GET_SIZE(values.get())));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all.get()); ++i) {
    PyTuple_SET_ITEM(all.get(), i, finished(PyTuple_GET_ITEM(values.get(), i)).release());
  }
  return all;
}

}  // namespace magneto::capture
