// __torch_function__: classes and modes that say themselves what a call of torch means.
//
// PyTorch decides whether a call is handed on, and as what: the call is made on stand-ins, with a mode of ours on top
// of the thread's stack that notes what it is given and stops the call. What was noted is then interpreted, as PyTorch
// would have called it: the innermost mode first, then the classes of the arguments.
#include "capture/torch/torch_function.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <Python.h>
#include <torch/csrc/Device.h>

#include <algorithm>

#include "capture/calls/calls.h"
#include "capture/calls/handlers.h"
#include "capture/capture.h"
#include "capture/exits/exit_builder.h"
#include "capture/numbers/symbols.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/attributes.h"
#include "capture/world/world.h"
#include "python/abi/own_code.h"
#include "python/abi/private.h"
#include "python/abi/types.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

using at::impl::PythonTorchFunctionTLS;

bool is_users(PyObject* mode) { return !guards::device_of_context(mode); }

/// What stops a call that was noted.
PyObject* stop_class() {
  static PyObject* const type = PyErr_NewException("magneto.RedispatchedCall", PyExc_BaseException, nullptr);
  return type;
}

thread_local RedispatchedCall* noting = nullptr;

/// __torch_function__(func, types, args, kwargs) of the mode that notes calls.
PyObject* note_call(PyObject*, PyObject* given) {
  PyObject *function, *types, *args, *kwargs = nullptr;
  if (!PyArg_ParseTuple(given, "OOO|O", &function, &types, &args, &kwargs)) return nullptr;
  *noting = {Ref::borrow(function), Ref::borrow(types), Ref::borrow(args), Ref::borrow(kwargs)};
  PyErr_SetNone(stop_class());
  return nullptr;
}

PyObject* noting_mode() {
  static PyMethodDef methods[] = {{"__torch_function__", note_call, METH_VARARGS, nullptr}, {}};
  static PyType_Slot slots[] = {{Py_tp_methods, methods}, {}};
  static PyType_Spec spec = {"magneto.NotingMode", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT, slots};
  static PyObject* const mode = PyObject_CallNoArgs(checked(PyType_FromSpec(&spec)).release());
  return mode;
}

/// A mode's own calls of torch go to the modes around it.
class WithoutInnermostMode {
 public:
  WithoutInnermostMode() : mode_(PythonTorchFunctionTLS::pop_stack()) {}
  ~WithoutInnermostMode() { PythonTorchFunctionTLS::push_onto_stack(mode_); }
  WithoutInnermostMode(const WithoutInnermostMode&) = delete;
  PyObject* mode() const { return mode_->ptr(python_interpreter()); }

 private:
  std::shared_ptr<c10::SafePyObject> mode_;
};

bool has_users_mode() {
  return at::impl::torch_function_mode_enabled() && std::ranges::any_of(guards::function_modes(), is_users);
}

/// The object's class says what a call means. `depth`: of lists that PyTorch looks into.
bool overrides(Capture& capture, PyObject* object, int depth) {
  if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) {
    for (Py_ssize_t i = 0; depth > 0 && i < PySequence_Fast_GET_SIZE(object); ++i) {
      if (overrides(capture, PySequence_Fast_GET_ITEM(object, i), depth - 1)) return true;
    }
    return false;
  }
  PyTypeObject* type = Py_TYPE(object);
  if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) || is_exact_tensor_type(type) || PyType_Check(object)) {
    return false;
  }
  static constinit Imported none("torch._C", "_disabled_torch_function_impl");
  PyObject* method = lookup_in_type(type, MAGNETO_STR("__torch_function__"));
  if (method) capture.attributes.type_lookup(type, MAGNETO_STR("__torch_function__"));
  return method && method != none.get();
}

/// Numbers in place of what stands for them in calls of PyTorch.
Ref plain_argument(Capture& capture, PyObject* object) {
  if (const auto size = symint_value(object)) return capture.symbols.size_number(*size);
  if (!PyTuple_CheckExact(object) && !PyList_CheckExact(object)) return Ref::borrow(object);
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(object);
  Ref items = checked(PyTuple_New(count));
  bool changed = false;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(object, i);
    PyTuple_SET_ITEM(items.get(), i, plain_argument(capture, item).release());
    changed |= PyTuple_GET_ITEM(items.get(), i) != item;
  }
  if (!changed) return Ref::borrow(object);
  return PyTuple_CheckExact(object) ? items : checked(PySequence_List(items.get()));
}

}  // namespace

bool TorchCalls::is_overridden(std::span<PyObject* const> args) {
  if (has_users_mode()) return true;
  if (PythonTorchFunctionTLS::get_disabled_state() != at::impl::TorchFunctionDisabledState::ENABLED) return false;
  return std::ranges::any_of(args, [&](PyObject* arg) { return overrides(c, arg, 2); });
}

Ref run_noting(const std::function<PyObject*()>& run, RedispatchedCall& call) {
  struct Scope {
    RedispatchedCall* outer;
    explicit Scope(RedispatchedCall* call) : outer(std::exchange(noting, call)) {
      PythonTorchFunctionTLS::push_onto_stack(
          std::make_shared<c10::SafePyObject>(Py_NewRef(noting_mode()), python_interpreter()));
    }
    ~Scope() {
      PythonTorchFunctionTLS::pop_stack();
      noting = outer;
    }
  };
  const Scope scope(&call);
  Ref result = Ref::steal(run());
  if (call.function && !result) PyErr_Clear();
  return result;
}

Ref TorchCalls::function_mode(PyObject* mode) {
  const std::vector<PyObject*>& at_start = c.modes_at_start();
  return std::ranges::find(at_start, mode) == at_start.end() ? Ref::borrow(mode)
                                                             : c.world.wrap(mode, c.sources.constant(mode));
}

namespace {

/// Nobody takes the call: PyTorch raises for it. A side exit where a mode was asked, too, or it raises nothing.
void raise_for_nobody(const RedispatchedCall& call) {
  static constinit Imported again("magneto._overrides", "call_of_nobody");
  PyObject* const kwargs = call.kwargs ? call.kwargs.get() : Py_None;
  const OwnCode own;
  const Ref given = Ref::steal(PyObject_CallFunctionObjArgs(again.get(), call.function.get(), call.types.get(),
                                                            call.args.get(), kwargs, nullptr));
  if (given || !PyErr_ExceptionMatches(PyExc_TypeError)) {
    PyErr_Clear();
    return;
  }
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  Py_XDECREF(traceback);  // of our own code
  if (value && PyExceptionInstance_Check(value)) PyException_SetTraceback(value, Py_None);
  PyErr_Restore(type, value, nullptr);
  throw PythonError{};
}

}  // namespace

Ref TorchCalls::call_override(const RedispatchedCall& call, bool raises) {
  c.graph.without_torch_function = true;
  for (PyObject* mode : guards::function_modes()) {
    const std::optional<c10::Device> device = guards::device_of_context(mode);
    if (device && !device->is_cpu())
      c.side_exit(BreakReason::OpaqueCall, "a torch function mode in a device's context");
  }
  std::optional<NonResumable> scope;
  if (c.frame) scope.emplace(c);
  const Ref function =
      Py_TYPE(call.function.get()) == method_wrapper_type()  // Tensor.shape.__get__: made anew each time
          ? call.function
          : c.world.wrap(call.function.get(), c.sources.constant(call.function.get()));
  const Ref args = plain_argument(c, call.args.get());
  CallArgs given{{function.get(), call.types.get(), args.get()}};
  Ref kwargs;
  if (call.kwargs) {
    kwargs = checked(PyDict_New());
    PyObject *key, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(call.kwargs.get(), &position, &key, &value)) {
      if (PyDict_SetItem(kwargs.get(), key, plain_argument(c, value).get()) < 0) throw PythonError{};
    }
    given.values.push_back(kwargs.get());
  }
  if (has_users_mode()) {
    const WithoutInnermostMode scope_of_mode;
    const Ref mode = function_mode(scope_of_mode.mode());
    Ref result = c.calls.call(c.attributes.load_attr(mode.get(), MAGNETO_STR("__torch_function__")).get(), given);
    if (result.get() != Py_NotImplemented) return result;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(call.types.get()); ++i) {
    PyObject* type = PyTuple_GET_ITEM(call.types.get(), i);
    const Ref method =
        c.attributes.load_attr(c.world.wrap(type, c.sources.constant(type)).get(), MAGNETO_STR("__torch_function__"));
    PyObject* found = lookup_in_type(reinterpret_cast<PyTypeObject*>(type), MAGNETO_STR("__torch_function__"));
    if (PyFunction_Check(found)) {
      c.side_exit(BreakReason::OpaqueCall, "__torch_function__ of " + callable_name(type) + " is no class method");
    }
    Ref result = c.calls.call(method.get(), given);
    if (result.get() != Py_NotImplemented) return result;
  }
  if (raises && !has_users_mode()) raise_for_nobody(call);
  const std::string why = "no __torch_function__ takes the call of " + callable_name(function.get());
  if (!c.frame) c.side_exit(BreakReason::OpaqueCall, why);
  throw c.exits.restart_before(*c.frame, why);  // CPython asks them again
}

namespace {

Ref handle_mode(Capture& capture, PyObject* function, const CallArgs& args) {
  const Ref mode = checked(PyObject_Vectorcall(function, args.values.data(), args.positional(), args.kwnames));
  capture.world.keep(mode);
  return capture.torch.function_mode(mode.get());
}

Ref handle_pop(Capture& capture, const CallArgs& args) {
  static constinit Imported function("torch._C", "_pop_torch_function_stack");
  return handle_mode(capture, function.get(), args);
}

Ref handle_stack_at(Capture& capture, const CallArgs& args) {
  static constinit Imported function("torch._C", "_get_function_stack_at");
  return handle_mode(capture, function.get(), args);
}

/// The method of the first argument's own class.
Ref call_own(const char* name, const CallArgs& args) {
  PyObject* method = PyDict_GetItemString(type_dict(Py_TYPE(args.values[0])), name);
  return checked(PyObject_Vectorcall(method, args.values.data(), args.positional(), args.kwnames));
}

/// Of a context in which torch calls ask nobody. No plan can enter or leave one: it is all in a segment, or none of it.
template <const char* const& name>
Ref handle_context(Capture& capture, const CallArgs& args) {
  PyObject* context = args.values.at(0);
  if (capture.world.is_outside(context)) {
    capture.side_exit(BreakReason::OpaqueObject, std::string(name) + " of a " + Py_TYPE(context)->tp_name);
  }
  return call_own(name, args);
}

/// torch.device as a context manager, where it changes no result: a CPU's, among such. What a torch call is given does
/// not say on which device it makes tensors.
template <const char* const& name>
Ref handle_device_context(Capture& capture, const CallArgs& args) {
  PyObject* device = args.values.at(0);
  bool plain = THPDevice_Check(device) && reinterpret_cast<THPDevice*>(device)->device.is_cpu();
  for (PyObject* mode : guards::function_modes()) {
    const std::optional<c10::Device> other = guards::device_of_context(mode);
    plain &= other && other->is_cpu();
  }
  if (!plain) capture.side_exit(BreakReason::OpaqueObject, std::string("call of torch.device.") + name);
  return call_own(name, args);
}

constexpr const char* kEnter = "__enter__";
constexpr const char* kExit = "__exit__";

}  // namespace

std::span<const HandlerRow> torch_function_handlers() {
  static constexpr HandlerRow rows[] = {
      {"torch._C.DisableTorchFunctionSubclass.__enter__", handle_context<kEnter>},
      {"torch._C.DisableTorchFunctionSubclass.__exit__", handle_context<kExit>},
      {"torch._C.DisableTorchFunction.__enter__", handle_context<kEnter>},
      {"torch._C.DisableTorchFunction.__exit__", handle_context<kExit>},
      {"torch.device.__enter__", handle_device_context<kEnter>},
      {"torch.device.__exit__", handle_device_context<kExit>},
      {"torch._C._pop_torch_function_stack", handle_pop},
      {"torch._C._get_function_stack_at", handle_stack_at},
  };
  return rows;
}

}  // namespace magneto::capture
