// Custom autograd functions. Where nothing needs gradients, one is its forward, interpreted like any function. Else the
// graph keeps the call as one node, with the forward's operators as its children, so that autograd finds the backward.
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <span>

#include "capture/capture.h"
#include "python/imported.h"
#include "python/types.h"

namespace magneto::capture {

namespace {

/// What autograd gives for a result of `forward` that is an argument it has not marked as changed: a view of it.
Ref result_of_apply(Capture& capture, PyObject* result, const CallArgs& args, PyObject* dirty) {
  const auto holds = [&](std::span<PyObject* const> objects) {
    return std::find(objects.begin(), objects.end(), result) != objects.end();
  };
  if (!is_tensor(result) || !holds(args.values)) return Ref::borrow(result);
  if (dirty && PyTuple_CheckExact(dirty) &&
      holds(std::span(&PyTuple_GET_ITEM(dirty, 0), static_cast<size_t>(PyTuple_GET_SIZE(dirty))))) {
    return Ref::borrow(result);
  }
  static PyObject* const view_as =
      _PyType_Lookup(reinterpret_cast<PyTypeObject*>(THPVariableClass), MAGNETO_STR("view_as"));
  CallArgs self;
  self.values = {result, result};
  return capture.call_torch(view_as, self);
}

/// `cls.apply` of the C++ base, past the Python one.
Ref native_apply(PyObject* cls) {
  static constinit Imported base("torch._C", "_FunctionBase");
  PyObject* descriptor = PyDict_GetItemString(type_dict(base.type()), "apply");
  return checked(Py_TYPE(descriptor)->tp_descr_get(descriptor, nullptr, cls));
}

}  // namespace

/// C++ calls the forward back, which is interpreted on stand-ins.
Ref Capture::record_autograd_function(const CallArgs& args) {
  PyObject* owner = args.values[0];
  const std::span<PyObject* const> rest = std::span(args.values).subspan(1);
  const bool plain = std::ranges::all_of(
      rest, [](PyObject* arg) { return is_tensor(arg) || is_scalar(arg) || is_identity_constant(arg); });
  if (!plain) {
    side_exit(BreakReason::AutogradCall,
              "a custom autograd function is applied to tensors that need gradients, and to other objects");
  }
  load_attr(owner, MAGNETO_STR("forward"));  // for its guards
  static constinit Imported custom_function("magneto._forward", "custom_function");
  Ref target = checked(PyObject_CallOneArg(custom_function.get(), owner));
  Ref apply = native_apply(owner);
  const int64_t writes = writes_;
  const auto index = static_cast<int32_t>(graph.torch_nodes.size());
  const size_t operators = graph.aten_nodes.size();
  Ref result = record(
      graph::TorchNode::Kind::CallFunction, target.get(), rest, nullptr,
      [&] {
        const bool callbacks = std::exchange(callbacks_allowed_, true);
        const bool recording = std::exchange(recording_, false);
        const bool trusted = std::exchange(trusted_, false);
        PyObject* made = PyObject_Vectorcall(apply.get(), rest.data(), rest.size(), nullptr);
        callbacks_allowed_ = callbacks;
        recording_ = recording;
        trusted_ = trusted;
        return made;
      },
      /*always=*/true);
  if (writes_ != writes) {  // which the call would do again
    throw restart_before(*frame, "a custom autograd function changes objects from outside");
  }
  graph.torch_nodes.resize(index + 1);
  for (size_t i = operators; i < graph.aten_nodes.size(); ++i) graph.aten_nodes[i].torch_node = index;
  return result;
}

Ref Capture::apply_autograd_function(const CallArgs& given) {
  CallArgs args = given;
  know_all(args);
  bool needs_grad = false;
  Ref needs_input_grad = checked(PyTuple_New(std::max<Py_ssize_t>(0, args.values.size() - 1)));
  for (size_t i = 1; i < args.values.size(); ++i) {
    const bool needs = is_tensor(args.values[i]) && THPVariable_Unpack(args.values[i]).requires_grad();
    needs_grad |= needs;
    PyTuple_SET_ITEM(needs_input_grad.get(), i - 1, PyBool_FromLong(needs));
  }
  if (args.values.empty()) side_exit(BreakReason::AutogradCall, "a custom autograd function is applied to nothing");
  static constinit Imported context_class("torch.autograd.function", "FunctionCtx");
  PyObject* owner = args.values[0];
  static constinit Imported plain_setup("torch.autograd.function", "_SingleLevelFunction.setup_context");
  Ref setup = load_attr(owner, MAGNETO_STR("setup_context"));
  if (setup.get() != plain_setup.get()) {
    side_exit(BreakReason::AutogradCall, "a custom autograd function with setup_context is applied");
  }
  if (args.kwnames) side_exit(BreakReason::AutogradCall, "a custom autograd function is applied to keyword arguments");
  Uncuttable scope(*this);
  if (needs_grad && at::GradMode::is_enabled()) return record_autograd_function(args);
  Ref none = checked(PyTuple_New(0));
  Ref context =
      checked(PyBaseObject_Type.tp_new(reinterpret_cast<PyTypeObject*>(context_class.get()), none.get(), nullptr));
  if (PyObject_SetAttr(context.get(), MAGNETO_STR("needs_input_grad"), needs_input_grad.get()) < 0) {
    throw PythonError{};
  }
  Ref forward = load_attr(owner, MAGNETO_STR("forward"));
  CallArgs forward_args = args;
  forward_args.values[0] = context.get();
  Ref result = call(forward.get(), std::move(forward_args));
  Ref dirty = Ref::steal(PyObject_GetAttr(context.get(), MAGNETO_STR("dirty_tensors")));
  if (!dirty) PyErr_Clear();
  if (!PyTuple_CheckExact(result.get())) return result_of_apply(*this, result.get(), args, dirty.get());
  Ref values = resolve(result.get());
  Ref all = checked(PyTuple_New(PyTuple_GET_SIZE(values.get())));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all.get()); ++i) {
    PyTuple_SET_ITEM(all.get(), i,
                     result_of_apply(*this, PyTuple_GET_ITEM(values.get(), i), args, dirty.get()).release());
  }
  return all;
}

}  // namespace magneto::capture
