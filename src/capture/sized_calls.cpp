// Functions of torch that make plain numbers of what they are given. With numbers that follow from sizes, others that
// do the same are called.
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cmath>

#include "capture/capture.h"
#include "capture/handlers.h"
#include "python/imported.h"

namespace magneto::capture {

using guards::Arithmetic;

namespace {

/// magneto::linspace as the torch level calls it.
PyObject* linspace_of_sizes() {
  static PyObject* const overload = [] {
    static constinit Imported ops("torch", "ops");
    const Ref space = checked(PyObject_GetAttrString(ops.get(), "magneto"));
    const Ref packet = checked(PyObject_GetAttrString(space.get(), "linspace"));
    return checked(PyObject_GetAttrString(packet.get(), "default")).release();
  }();
  return overload;
}

// -- tensors of numbers ----------------------------------------------------------------------------------------------

/// What stands in the lists that a tensor is to be made of.
struct Numbers {
  bool plain = true;  // ints and floats only
  bool floats = false;
  int64_t count = 0;
};

/// Each is an operator of its own.
constexpr int64_t kMostNumbers = 64;

void add_numbers(PyObject* data, Numbers& numbers, int depth = 0) {
  if (PyTuple_Check(data) || PyList_CheckExact(data)) {
    if (depth > 8 || PySequence_Fast_GET_SIZE(data) == 0) numbers.plain = false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(data) && numbers.plain; ++i) {
      add_numbers(PySequence_Fast_GET_ITEM(data, i), numbers, depth + 1);
    }
    return;
  }
  PyObject* now = number_now(data);
  numbers.floats |= PyFloat_CheckExact(now);
  numbers.plain &= (PyFloat_CheckExact(now) || PyLong_CheckExact(now)) && ++numbers.count <= kMostNumbers;
}

/// The lengths of lists in lists, where each has the same.
bool is_regular(PyObject* data, std::vector<Py_ssize_t>& lengths, size_t depth = 0) {
  const bool list = PyTuple_Check(data) || PyList_CheckExact(data);
  const Py_ssize_t length = list ? PySequence_Fast_GET_SIZE(data) : -1;
  if (lengths.size() == depth) lengths.push_back(length);
  if (lengths[depth] != length) return false;
  for (Py_ssize_t i = 0; i < length; ++i) {
    if (!is_regular(PySequence_Fast_GET_ITEM(data, i), lengths, depth + 1)) return false;
  }
  return true;
}

/// What holds such numbers as they are, or as Python's conversions to C make them.
bool takes_numbers(at::ScalarType dtype, bool floats) {
  return c10::isFloatingType(dtype)
             ? dtype == at::kDouble || dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16
             : !floats && (dtype == at::kLong || dtype == at::kInt);
}

}  // namespace

Ref tensor_of_numbers(Capture& capture, PyObject* function, PyObject* self, const CallArgs& args) {
  const size_t data = self ? 1 : 0;
  if (args.positional() != data + 1 || !holds_size(args.values[data])) return capture.call_torch(function, args);
  PyObject *dtype = Py_None, *device = Py_None;
  for (size_t i = args.positional(); i < args.values.size(); ++i) {
    PyObject *name = args.keyword(i), *value = args.values[i];
    if (name == MAGNETO_STR("dtype")) {
      dtype = value;
    } else if (name == MAGNETO_STR("device")) {
      device = value;
    } else if (value != Py_False && value != Py_None) {
      return capture.call_torch(function, args);
    }
  }
  Numbers numbers;
  add_numbers(args.values[data], numbers);
  std::vector<Py_ssize_t> lengths;
  if (!numbers.plain || !is_regular(args.values[data], lengths)) return capture.call_torch(function, args);
  const bool has_dtype = THPDtype_Check(dtype);
  const at::ScalarType type = has_dtype        ? reinterpret_cast<THPDtype*>(dtype)->scalar_type
                              : self           ? THPVariable_Unpack(self).scalar_type()
                              : numbers.floats ? c10::get_default_dtype_as_scalartype()
                                               : at::kLong;
  if ((!has_dtype && dtype != Py_None) || !takes_numbers(type, numbers.floats) || !capture.makes_tensor_of_sizes()) {
    return capture.call_torch(function, args);
  }
  const Ref of_self = self && device == Py_None ? checked(PyObject_GetAttrString(self, "device")) : Ref();
  const Ref of_numbers = Ref::borrow(reinterpret_cast<PyObject*>(torch::getTHPDtype(type)));
  return capture.call_instead("tensor_of_sizes",
                              {{args.values[data], of_numbers.get(), of_self ? of_self.get() : device}});
}

namespace {

Ref handle_asarray(Capture& capture, const CallArgs& args) {
  static constinit Imported function("torch._C", "_VariableFunctionsClass.asarray");
  return tensor_of_numbers(capture, function.get(), nullptr, args);
}

Ref handle_new_tensor(Capture& capture, const CallArgs& args) {
  static constinit Imported function("torch._C", "TensorBase.new_tensor");
  const bool has_self = !args.values.empty() && is_tensor(args.values[0]);
  return has_self ? tensor_of_numbers(capture, function.get(), args.values[0], args)
                  : capture.call_torch(function.get(), args);
}

// -- attention -------------------------------------------------------------------------------------------------------

/// The square root of what `query` is long along its last dimension, and one divided by it.
Ref default_scale(Capture& capture, PyObject* query) {
  static constinit Imported root("math", "sqrt");
  static PyObject* const one = PyFloat_FromDouble(1);
  const std::vector<shapes::Expr> sizes = capture.session->sizes_of(THPVariable_Unpack(query));
  if (sizes.empty() || sizes.back().is_constant()) return {};
  const Ref length = capture.size_number(sizes.back());
  const Ref square_root = capture.unknown_function(root.get(), {{length.get()}});
  return square_root ? capture.unknown_operation(Arithmetic::TrueDivide, one, square_root.get()) : Ref();
}

/// A scale that is the one which it has anyway: that it is so is assumed, and not which number it is.
Ref handle_attention(Capture& capture, const CallArgs& given) {
  static constinit Imported function("torch._C._nn", "scaled_dot_product_attention");
  CallArgs args = given;
  const bool has_query = !args.values.empty() && args.positional() > 0 && is_fake_tensor(args.values[0]);
  for (size_t i = args.positional(); has_query && i < args.values.size(); ++i) {
    PyObject* scale = args.values[i];
    if (args.keyword(i) != MAGNETO_STR("scale") || !is_symbolic_float(scale) || holder_of_float(scale)) continue;
    const Ref usual = default_scale(capture, args.values[0]);
    if (!usual || PyFloat_AsDouble(number_now(usual.get())) != PyFloat_AsDouble(number_now(scale))) continue;
    const Ref same = capture.unknown_operation(Arithmetic::Equal, scale, usual.get());
    if (same && capture.truth(same.get())) args.values[i] = Py_None;
  }
  return capture.call_torch(function.get(), args);
}

}  // namespace

PyObject* with_sizes(PyObject* callable, const CallArgs& args) {
  if (c_function_name(callable) != "linspace" || std::ranges::none_of(args.values, is_unknown_number)) return callable;
  for (size_t i = args.positional(); i < args.values.size(); ++i) {
    const PyObject* name = args.keyword(i);
    if (name == MAGNETO_STR("out") || name == MAGNETO_STR("requires_grad")) return callable;
  }
  return linspace_of_sizes();
}

std::span<const HandlerRow> sized_handlers() {
  static constexpr HandlerRow rows[] = {
      {"torch._C._VariableFunctionsClass.asarray", handle_asarray},
      {"torch._C.TensorBase.new_tensor", handle_new_tensor},
      {"torch._C._nn.scaled_dot_product_attention", handle_attention},
  };
  return rows;
}

}  // namespace magneto::capture
