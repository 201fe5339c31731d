// Functions of PyTorch between tensors and arrays.
#include <cstring>

#include "capture/calls/handlers.h"
#include "capture/capture.h"
#include "capture/numpy/arrays.h"
#include "capture/numpy/numpy_capture.h"
#include "capture/torch/torch_calls.h"
#include "python/imported.h"

namespace magneto::capture {

namespace {

Ref plain_call(Capture& capture, const char* name, const CallArgs& args) {
  static constinit Imported functions("torch._C", "_VariableFunctionsClass");
  Ref function = checked(PyObject_GetAttrString(functions.get(), name));
  keep_forever(function.get());
  return std::strcmp(name, "from_numpy") == 0 ? capture.torch.call_torch(function.get(), args)
                                              : tensor_of_numbers(capture, function.get(), nullptr, args);
}

Ref handle_numpy(Capture& capture, const CallArgs& args) {
  if (args.values.size() != 1 || !is_fake_tensor(args.values[0])) {
    capture.side_exit(BreakReason::DataAccess, "call of torch._C.TensorBase.numpy");
  }
  return capture.numpy.array_of_tensor(args.values[0]);
}

Ref handle_from_numpy(Capture& capture, const CallArgs& args) {
  if (args.values.size() != 1 || !is_array(args.values[0])) return plain_call(capture, "from_numpy", args);
  return capture.numpy.tensor_of_array(args.values[0]);
}

/// The dtype asked for, or None; null: something else is.
PyObject* asked_dtype(const CallArgs& args) {
  if (args.values.size() == 1) return Py_None;
  if (args.values.size() != 2 || args.keyword(1) != MAGNETO_STR("dtype")) return nullptr;
  return args.values[1];
}

Ref handle_as_tensor(Capture& capture, const CallArgs& args) {
  PyObject* dtype = args.values.empty() || !is_array(args.values[0]) ? nullptr : asked_dtype(args);
  if (!dtype) return plain_call(capture, "as_tensor", args);
  Ref tensor = capture.numpy.tensor_of_array(args.values[0]);
  static constinit Imported to("torch._C", "TensorBase.to");
  return dtype == Py_None ? tensor : capture.torch.call_torch(to.get(), {{tensor.get(), dtype}});
}

Ref handle_tensor(Capture& capture, const CallArgs& args) {
  PyObject* dtype = args.values.empty() || !is_array(args.values[0]) ? nullptr : asked_dtype(args);
  if (!dtype) return plain_call(capture, "tensor", args);
  const Ref contents = capture.numpy.contents_of(args.values[0]);
  PyObject* const tensor = contents.get();
  static constinit Imported clone("torch._C", "TensorBase.clone"), to("torch._C", "TensorBase.to");
  if (dtype == Py_None) return capture.torch.call_torch(clone.get(), {{tensor}});
  static PyObject* const copy = Py_BuildValue("(s)", "copy");
  return capture.torch.call_torch(to.get(), {{tensor, dtype, Py_True}, copy});
}

}  // namespace

std::span<const HandlerRow> array_handlers() {
  static constexpr HandlerRow rows[] = {
      {"torch._C.TensorBase.numpy", handle_numpy},
      {"torch._C._VariableFunctionsClass.from_numpy", handle_from_numpy},
      {"torch._C._VariableFunctionsClass.as_tensor", handle_as_tensor},
      {"torch._C._VariableFunctionsClass.tensor", handle_tensor},
  };
  return rows;
}

}  // namespace magneto::capture
