// Methods of tensors that are more than one recorded operator.

#include "capture/calls/calls.h"
#include "capture/calls/handlers.h"
#include "capture/interpreter/object_protocol.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/symbols.h"
#include "capture/numbers/unknown_number.h"
#include "capture/torch/class_tensors.h"
#include "capture/torch/gradients.h"
#include "capture/torch/linear_maps.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "capture/world/containers.h"
#include "capture/world/world.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

/// While alive, `.item()` gives a number that the run finds.
class TakesNumbers {
 public:
  explicit TakesNumbers(fake::Session& session)
      : session_(session), before_(std::exchange(session.takes.numbers, true)) {}
  ~TakesNumbers() { session_.takes.numbers = before_; }
  TakesNumbers(const TakesNumbers&) = delete;

 private:
  fake::Session& session_;
  const bool before_;
};

/// Data-dependent numbers, one by one.
Ref list_of_data(Capture& capture, PyObject* tensor) {
  constexpr int64_t kMostItems = 256;
  const at::Tensor& values = unpack_tensor(tensor);
  const bool tries = capture.options.tries_data_sizes && !capture.feedback.ends_at_data_numbers && values.dim() == 1;
  if (capture.session->takes.numbers || tries) capture.symbols.require_length(tensor);
  if ((!capture.session->takes.numbers && !tries) || values.dim() > 1 || values.numel() > kMostItems ||
      !c10::isIntegralType(values.scalar_type(), /*includeBool=*/false)) {
    capture.side_exit(BreakReason::DataDependentValue, "call of torch._C.TensorBase.tolist");
  }
  const TakesNumbers scope(*capture.session);
  static PyObject* const item = PyObject_GetAttrString(tensor_class(), "item");
  if (values.dim() == 0) return capture.calls.call(item, {tensor});
  Ref list = checked(PyList_New(0));
  for (int64_t i = 0; i < values.numel(); ++i) {
    Ref one = capture.protocol.subscript(tensor, checked(PyLong_FromLongLong(i)).get());
    if (PyList_Append(list.get(), capture.calls.call(item, {one.get()}).get()) < 0) throw PythonError{};
  }
  return list;
}

/// A list of numbers, where the tensor's values follow from the code.
Ref handle_tolist(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 1, "tolist");
  const at::Tensor* known = fake::known_value(unpack_tensor(args.values[0]));
  if (!known) return list_of_data(capture, args.values[0]);
  fake::Session::Pause pause;
  Ref real = checked(tensor_object(*known));
  return checked(PyObject_CallMethod(real.get(), "tolist", nullptr));
}

/// `requires_grad_(requires_grad=True)` asks for what the tensor has already.
bool requires_grad_as_asked(const at::Tensor& tensor, const CallArgs& args) {
  if (args.values.size() == 1) return tensor.requires_grad();
  if (args.values.size() != 2) return false;
  PyObject* keyword = args.keyword(1);
  if (keyword && PyUnicode_CompareWithASCIIString(keyword, "requires_grad") != 0) return false;
  return args.values[1] == (tensor.requires_grad() ? Py_True : Py_False);
}

/// Of a tensor made in the segment: no operator, but a call that the torch level has to repeat.
Ref handle_requires_grad(Capture& capture, const CallArgs& args) {
  PyObject* tensor = args.values.at(0);
  if (capture.tensors.is_input(tensor) || holds_class_tensor(tensor)) {
    if (requires_grad_as_asked(unpack_tensor(tensor), args)) return Ref::borrow(tensor);
    const bool usual = args.values.size() == 1 || (args.values.size() == 2 && !args.kwnames);
    if (usual && capture.gradients.set_requires_grad(tensor, args.values.size() == 1 ? Py_True : args.values[1])) {
      return Ref::borrow(tensor);
    }
    capture.side_exit(BreakReason::AutogradCall, "requires_grad_() of a tensor from outside, or of a wrapper");
  }
  static PyObject* const method = PyObject_GetAttrString(tensor_class(), "requires_grad_");
  Ref result = capture.torch.record(
      graph::TorchNode::Kind::CallMethod, MAGNETO_STR("requires_grad_"), args.values, args.kwnames,
      [&] { return PyObject_Vectorcall(method, args.values.data(), args.positional(), args.kwnames); },
      /*always=*/true);
  if (const at::Tensor& leaf = unpack_tensor(tensor);
      is_fake_tensor(tensor) && leaf.requires_grad() && leaf.is_leaf()) {
    capture.session->leave_out_of_autocast_cache(leaf);
  }
  return result;
}

/// size(), numel() and their like: numbers that the program goes on with as they are, where they differ from run to
/// run.
Ref handle_size(Capture& capture, const CallArgs& given) {
  static PyObject* const method = PyObject_GetAttrString(tensor_class(), "size");
  Ref shape = is_fake_tensor(given.values.at(0)) ? capture.symbols.shape_of(unpack_tensor(given.values[0])) : Ref();
  if (!shape) return capture.torch.call_torch(method, given);
  if (given.values.size() == 1) return shape;
  CallArgs args = given;
  capture.numbers.specialize_all(args);
  const Py_ssize_t rank = PyTuple_GET_SIZE(shape.get());
  Ref dim = args.values.size() == 2 ? Ref::steal(PyNumber_Index(args.values[1])) : Ref();
  const Py_ssize_t index = dim ? PyLong_AsSsize_t(dim.get()) : rank;
  PyErr_Clear();
  if (index < -rank || index >= rank) return capture.torch.call_torch(method, args);  // an error
  return Ref::borrow(PyTuple_GET_ITEM(shape.get(), index < 0 ? index + rank : index));
}

template <const char* const& name>
Ref handle_numel(Capture& capture, const CallArgs& args) {
  static PyObject* const method = PyObject_GetAttrString(tensor_class(), name);
  const at::Tensor* tensor = is_fake_tensor(args.values.at(0)) ? &unpack_tensor(args.values[0]) : nullptr;
  if (args.values.size() != 1 || !tensor || !capture.symbols.shape_of(*tensor))
    return capture.torch.call_torch(method, args);
  shapes::Expr numel = 1;
  for (const shapes::Expr size : capture.session->sizes_of(*tensor)) numel = numel * size;
  return capture.symbols.size_number(numel);
}

constexpr const char* kNumel = "numel";
constexpr const char* kNelement = "nelement";

/// Of a tensor made in the segment: an operator. One from outside loses its history, or refuses to, being a view.
Ref handle_detach(Capture& capture, const CallArgs& args) {
  if (!args.values.empty() && capture.tensors.is_input(args.values[0])) {
    capture.side_exit(BreakReason::AutogradCall, "detach_() of a tensor from outside");
  }
  static PyObject* const method = PyObject_GetAttrString(tensor_class(), "detach_");
  return capture.torch.call_torch(method, args);
}

Ref handle_retain_grad(Capture& capture, const CallArgs& args) {
  if (args.values.size() == 1 && !args.kwnames && capture.gradients.retain_gradient(args.values[0])) {
    return Ref::borrow(Py_None);
  }
  capture.side_exit(BreakReason::AutogradCall, "call of torch._C.TensorBase.retain_grad");
}

Ref handle_push_saved_hooks(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "_push_saved_tensors_default_hooks");
  if (capture.gradients.push_saved_hooks(args.values[0], args.values[1])) return Ref::borrow(Py_None);
  capture.side_exit(BreakReason::AutogradCall, "hooks on saved tensors are turned on");
}

Ref handle_pop_saved_hooks(Capture& capture, const CallArgs& args) {
  check_count(args, 0, 0, "_pop_saved_tensors_default_hooks");
  if (capture.gradients.pop_saved_hooks()) return Ref::borrow(Py_None);
  capture.side_exit(BreakReason::AutogradCall, "hooks on saved tensors are turned off");
}

/// A tuple in place of a torch.Size would be data.
Ref handle_new(Capture& capture, const CallArgs& args) {
  static PyObject* const with_data = PyObject_GetAttrString(tensor_class(), "new");
  static PyObject* const with_size = PyObject_GetAttrString(tensor_class(), "new_empty");
  const bool size = args.values.size() == 2 && !args.kwnames && Py_TYPE(args.values[1]) == size_class();
  return capture.torch.call_torch(size ? with_size : with_data, args);
}

/// Lists of tensors by device and dtype, as foreach functions take them: PyTorch's own answer for stand-ins.
Ref group_tensors(Capture& capture, const CallArgs& args) {
  static constinit Imported group("torch._C", "_group_tensors_by_device_and_dtype");
  CallArgs given = args;
  capture.numbers.specialize_all(given);
  std::vector<Ref> held;
  for (PyObject*& value : given.values) {
    held.push_back(capture.containers.resolve_deep(value));
    value = held.back().get();
    capture.containers.refuse_opaque(value, 3);
  }
  return capture.calls.call_native(
      [&] { return PyObject_Vectorcall(group.get(), given.values.data(), given.positional(), given.kwnames); });
}

/// Nobody knows its memory while capturing. How large it is, is often passed on alone, to what wraps a tensor.
Ref handle_storage(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 1, "untyped_storage");
  static constinit Imported storage_type("torch", "UntypedStorage");
  static PyObject* const some = PyObject_CallNoArgs(storage_type.get());
  if (!is_fake_tensor(args.values[0]) || capture.feedback.needs_all) {
    capture.side_exit(BreakReason::DataAccess, "call of torch._C.TensorBase.untyped_storage");
  }
  return make_unknown(some, OfStorage{Ref::borrow(args.values[0]), /*size=*/false});
}

Ref handle_storage_size(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 1, "size");
  const Ref& tensor = meaning_of<OfStorage>(args.values[0])->tensor;
  const size_t bytes = unpack_tensor(tensor.get()).unsafeGetTensorImpl()->unsafe_storage().nbytes();
  return make_unknown(checked(PyLong_FromSize_t(bytes)).get(), OfStorage{tensor, /*size=*/true});
}

PyObject* read_offset(PyObject*, PyObject* const* args, Py_ssize_t) {
  return PyLong_FromLongLong(unpack_tensor(args[0]).storage_offset());
}

PyObject* offset_reader() {
  static PyMethodDef method = {"storage_offset",
                               reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&read_offset)), METH_FASTCALL,
                               nullptr};
  static PyObject* const function = checked(PyCFunction_New(&method, nullptr)).release();
  return function;
}

/// Where it begins in its memory: in that of a tensor from outside, of which each run asks that, or of another one that
/// the segment has made.
Ref handle_offset(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 1, "storage_offset");
  PyObject* const tensor = args.values[0];
  if (!is_fake_tensor(tensor) || is_transformed(tensor) || capture.gradients.data_of(tensor)) {
    capture.side_exit(BreakReason::OpaqueObject, "call of torch._C.TensorBase.storage_offset");
  }
  const auto memory = [](const at::Tensor& of) {
    return of.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  };
  const at::Tensor& fake = unpack_tensor(tensor);
  for (const auto& [real, stand_in] : capture.tensors.fake_of) {
    if (memory(unpack_tensor(stand_in.get())) != memory(fake)) continue;
    const TensorInput& input = capture.tensors.inputs.at(capture.session->value_of(unpack_tensor(stand_in.get())));
    if (input.array || input.number) continue;
    const Ref offset = checked(read_offset(nullptr, &real, 1));
    capture.guards.equals(capture.sources.call(offset_reader(), input.source, nullptr), offset.get());
  }
  const auto& geometry = capture.graph.values[capture.session->value_of(fake)].meta.symbolic;
  return geometry ? capture.symbols.size_number(geometry->storage_offset)
                  : checked(PyLong_FromLongLong(fake.storage_offset()));
}

}  // namespace

Ref seed_generators(Capture& capture, PyObject* function, const CallArgs& given) {
  static const auto operation =
      c10::Dispatcher::singleton().findSchemaOrThrow("magneto::manual_seed", "").typed<void(int64_t)>();
  static constinit Imported generator("torch._C", "default_generator");
  CallArgs args = given;
  capture.numbers.specialize_all(args);
  if (args.values.size() != 1 || !PyLong_CheckExact(args.values[0])) return {};
  int overflow = 0;
  const int64_t seed = PyLong_AsLongLongAndOverflow(args.values[0], &overflow);
  if (overflow) return {};
  capture.torch.record(graph::TorchNode::Kind::CallFunction, function, args.values, args.kwnames, [&] {
    operation.call(seed);
    return Py_NewRef(Py_None);
  });
  return capture.world.wrap(generator.get(), capture.sources.constant(generator.get()));
}

std::span<const HandlerRow> tensor_handlers() {
  static constexpr HandlerRow rows[] = {
      {"torch._C.TensorBase.tolist", handle_tolist},
      {"torch._C.TensorBase.size", handle_size},
      {"torch._C.TensorBase.numel", handle_numel<kNumel>},
      {"torch._C.TensorBase.nelement", handle_numel<kNelement>},
      {"torch._C.TensorBase.requires_grad_", handle_requires_grad},
      {"torch._C.TensorBase.retain_grad", handle_retain_grad},
      {"torch._C._autograd._push_saved_tensors_default_hooks", handle_push_saved_hooks},
      {"torch._C._autograd._pop_saved_tensors_default_hooks", handle_pop_saved_hooks},
      {"torch._C.TensorBase.new", handle_new},
      {"torch._C.Generator.manual_seed", seed_generator},
      {"torch._C.Generator.get_state", generator_state},
      {"torch._C.Generator.set_state", set_generator_state},
      {"torch._C.Generator.initial_seed", seed_of_generator},
      {"torch._C.TensorBase.detach_", handle_detach},
      {"magneto._C.copied_alone", handle_copied_alone},
      {"magneto._C.copied_plainly", handle_copied_plainly},
      {"torch._C.TensorBase.set_", set_memory},
      {"magneto._C.set_inference_mode", handle_inference_mode},
      {"magneto._C.enter_dispatch_mode", handle_enter_dispatch_mode},
      {"magneto._C.leave_dispatch_mode", handle_leave_dispatch_mode},
      {"magneto._C.linear_mark", make_linear_mark},
      {"magneto._C.linear_check", check_linear_mark},
      {"torch._C.TensorBase.storage_offset", handle_offset},
      {"torch._C.TensorBase.untyped_storage", handle_storage},
      {"magneto._C.UnknownNumber.nbytes", handle_storage_size},
      {"magneto._C.UnknownNumber.size", handle_storage_size},
      {"torch._C._VariableFunctionsClass.detach_", handle_detach},
      {"torch._C._enter_dual_level", enter_dual_level},
      {"torch._C._exit_dual_level", exit_dual_level},
      {"torch._C._group_tensors_by_device_and_dtype", group_tensors},
  };
  return rows;
}

}  // namespace magneto::capture
