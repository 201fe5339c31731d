// Functions of torch that make plain numbers of what they are given. With numbers that follow from sizes, others that
// do the same are called.
#include <ATen/autocast_mode.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "capture/calls/calls.h"
#include "capture/calls/handlers.h"
#include "capture/capture.h"
#include "capture/interpreter/object_protocol.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/symbols.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "capture/world/containers.h"
#include "fake/recurrent.h"
#include "python/abi/own_code.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

using guards::Arithmetic;

namespace {

/// torch.ops.magneto.X. Borrowed.
PyObject* own_operator(const std::string& name) {
  static auto* const known = new std::unordered_map<std::string, Ref>;
  Ref& packet = (*known)[name];
  if (!packet) {
    static constinit Imported ops("torch", "ops");
    const OwnCode own;
    const Ref space = checked(PyObject_GetAttrString(ops.get(), "magneto"));
    packet = checked(PyObject_GetAttrString(space.get(), name.c_str()));
  }
  return packet.get();
}

/// There is one of ours that takes sizes where that one takes numbers.
bool has_sized_operator(std::string_view name) {
  static const auto* const names = [] {
    constexpr std::string_view rows[] = {
#define ROW_call_sized(op, ...) op,
#include "ops/rows.def"
    };
    auto* const names = new std::unordered_set<std::string_view>;
    for (std::string_view row : rows) {
      row.remove_prefix(row.find("::") + 2);
      names->insert(row.substr(0, row.find('.')));
    }
    return names;
  }();
  return names->contains(name);
}

// -- tensors of numbers ----------------------------------------------------------------------------------------------

/// What stands in the lists that a tensor is to be made of.
struct NumberList {
  bool plain = true;  // ints and floats only
  bool floats = false;
  int64_t count = 0;
};

/// Each is an operator of its own.
constexpr int64_t kMostNumbers = 64;

void add_numbers(PyObject* data, NumberList& numbers, int depth = 0) {
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
  if (args.positional() != data + 1) return capture.torch.call_torch(function, args);
  PyObject* given = args.values[data];
  const Ref contents = is_builtin_container(given) ? capture.containers.resolve_deep(given) : Ref::borrow(given);
  if (!holds_size(contents.get())) return capture.torch.call_torch(function, args);
  PyObject *dtype = Py_None, *device = Py_None;
  for (size_t i = args.positional(); i < args.values.size(); ++i) {
    PyObject *name = args.keyword(i), *value = args.values[i];
    if (name == MAGNETO_STR("dtype")) {
      dtype = value;
    } else if (name == MAGNETO_STR("device")) {
      device = value;
    } else if (value != Py_False && value != Py_None) {
      return capture.torch.call_torch(function, args);
    }
  }
  NumberList numbers;
  add_numbers(contents.get(), numbers);
  std::vector<Py_ssize_t> lengths;
  if (!numbers.plain || !is_regular(contents.get(), lengths)) return capture.torch.call_torch(function, args);
  const bool has_dtype = THPDtype_Check(dtype);
  const at::ScalarType type = has_dtype        ? reinterpret_cast<THPDtype*>(dtype)->scalar_type
                              : self           ? unpack_tensor(self).scalar_type()
                              : numbers.floats ? c10::get_default_dtype_as_scalartype()
                                               : at::kLong;
  if ((!has_dtype && dtype != Py_None) || !takes_numbers(type, numbers.floats) ||
      !capture.symbols.makes_tensor_of_sizes()) {
    return capture.torch.call_torch(function, args);
  }
  const Ref of_self = self && device == Py_None ? checked(PyObject_GetAttrString(self, "device")) : Ref();
  const Ref of_numbers = Ref::borrow(reinterpret_cast<PyObject*>(torch::getTHPDtype(type)));
  return capture.calls.call_polyfill("tensor_of_sizes",
                                     {{contents.get(), of_numbers.get(), of_self ? of_self.get() : device}});
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
                  : capture.torch.call_torch(function.get(), args);
}

// -- attention -------------------------------------------------------------------------------------------------------

/// The square root of what `query` is long along its last dimension, and one divided by it.
Ref default_scale(Capture& capture, PyObject* query) {
  static constinit Imported root("math", "sqrt");
  static PyObject* const one = PyFloat_FromDouble(1);
  const std::vector<shapes::Expr> sizes = capture.session->sizes_of(unpack_tensor(query));
  if (sizes.empty() || sizes.back().is_constant()) return {};
  const Ref length = capture.symbols.size_number(sizes.back());
  const Ref square_root = capture.numbers.unknown_function(root.get(), {{length.get()}});
  return square_root ? capture.numbers.unknown_operation(Arithmetic::TrueDivide, one, square_root.get()) : Ref();
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
    const Ref same = capture.numbers.unknown_operation(Arithmetic::Equal, scale, usual.get());
    if (same && capture.protocol.truth(same.get())) args.values[i] = Py_None;
  }
  return capture.torch.call_torch(function.get(), args);
}

// -- recurrent layers ------------------------------------------------------------------------------------------------

/// The first argument is a tensor of the CPU like any other, and there are so many.
bool is_of_cpu(const CallArgs& args, size_t count) {
  return args.values.size() == count && args.positional() == count && is_fake_tensor(args.values[0]) &&
         unpack_tensor(args.values[0]).device().is_cpu() && !is_transforming() &&
         std::ranges::none_of(args.values, is_transformed);
}

/// (data, batch_sizes, hx, params, ...): of a packed sequence.
bool is_packed(const CallArgs& args) {
  return args.values.size() == 9 && is_of_cpu(args, 9) && is_fake_tensor(args.values[1]) &&
         !PyBool_Check(args.values[3]);
}

/// Of all sizes, with what only our own scans do: not of other devices, whose libraries have kernels.
bool is_sized_sequence(Capture& capture, const CallArgs& args) {
  if (!is_of_cpu(args, 9)) return false;
  const at::Tensor& input = unpack_tensor(args.values[0]);
  // Halves that nobody wants gradients of are oneDNN's.
  if (!c10::isFloatingType(input.scalar_type()) || (input.scalar_type() == at::kHalf && !at::GradMode::is_enabled())) {
    return false;
  }
  const std::vector<shapes::Expr> sizes = capture.session->sizes_of(input);
  return !std::ranges::all_of(sizes, [](shapes::Expr size) { return size.is_constant(); });
}

template <const char* function_name>
Ref handle_recurrent(Capture& capture, const CallArgs& args) {
  static constinit Imported function("torch._C", function_name);
  static const Ref name = checked(PyUnicode_InternFromString(std::strrchr(function_name, '.') + 1));
  if (is_packed(args)) {
    CallArgs given = args;
    given.values.insert(given.values.begin(), name.get());
    if (Ref results = capture.calls.call_polyfill("_recurrent.packed_recurrent", given); results.get() != Py_None) {
      return results;
    }
  } else if (is_sized_sequence(capture, args)) {
    const bool by_library = std::string_view(function_name).ends_with(".lstm") &&
                            fake::onednn_takes(unpack_tensor(args.values[0]).scalar_type());
    CallArgs given = args;
    const Ref library = boolean(by_library);
    given.values.insert(given.values.begin(), {name.get(), library.get()});
    if (Ref results = capture.calls.call_polyfill("_recurrent.recurrent", given); results.get() != Py_None) {
      return results;
    }
  }
  return capture.torch.call_torch(function.get(), args);
}

constexpr char kLstm[] = "_VariableFunctionsClass.lstm", kGru[] = "_VariableFunctionsClass.gru",
               kTanh[] = "_VariableFunctionsClass.rnn_tanh", kRelu[] = "_VariableFunctionsClass.rnn_relu";

/// Between padded batches and packed sequences.
template <const char* function_name, const char* polyfill, size_t count>
Ref handle_packing(Capture& capture, const CallArgs& args) {
  static constinit Imported function("torch._C", function_name);
  if (is_of_cpu(args, count)) {
    if (Ref results = capture.calls.call_polyfill(polyfill, args); results.get() != Py_None) return results;
  }
  return capture.torch.call_torch(function.get(), args);
}

/// (sequences, batch_first, padding_value, padding_side): of all lengths, and with a gradient that writes no views.
Ref handle_pad_sequence(Capture& capture, const CallArgs& args) {
  static constinit Imported function("torch._C", "_nn.pad_sequence");
  const auto is_usual = [](PyObject* sequence) {
    return is_fake_tensor(sequence) && !is_transformed(sequence) && unpack_tensor(sequence).dim() > 0;
  };
  if (args.values.size() == 4 && args.positional() == 4 && PyTuple_CheckExact(args.values[0]) && !is_transforming()) {
    const std::span<PyObject*> sequences(PySequence_Fast_ITEMS(args.values[0]), PyTuple_GET_SIZE(args.values[0]));
    if (!sequences.empty() && std::ranges::all_of(sequences, is_usual)) {
      Ref result = capture.calls.call_polyfill("_recurrent.pad_sequences", args);
      if (result.get() != Py_None) return result;
    }
  }
  return capture.torch.call_torch(function.get(), args);
}

constexpr char kPack[] = "_VariableFunctionsClass._pack_padded_sequence", kPackInstead[] = "_recurrent.pack_padded",
               kPad[] = "_VariableFunctionsClass._pad_packed_sequence", kPadInstead[] = "_recurrent.pad_packed";

/// Functions of PyTorch take a number for a list of equal ones, and None for an empty list; operators do not.
void give_lists(const std::string& op, CallArgs& args, std::vector<Ref>& made) {
  const auto schema = c10::Dispatcher::singleton().findSchema({op, ""});
  if (!schema) return;
  for (size_t i = 0; i < args.values.size(); ++i) {
    PyObject*& value = args.values[i];
    const std::vector<c10::Argument>& all = schema->schema().arguments();
    const auto argument = i < args.positional() ? all.begin() + static_cast<ptrdiff_t>(std::min(i, all.size()))
                                                : std::ranges::find(all, std::string(PyUnicode_AsUTF8(args.keyword(i))),
                                                                    &c10::Argument::name);
    if (argument == all.end() || !argument->N()) continue;
    if (value != Py_None && !PyLong_Check(number_now(value))) continue;
    const Py_ssize_t count = value == Py_None ? 0 : *argument->N();
    made.push_back(checked(PyTuple_New(count)));
    for (Py_ssize_t k = 0; k < count; ++k) PyTuple_SET_ITEM(made.back().get(), k, Py_NewRef(value));
    value = made.back().get();
  }
}

}  // namespace

bool is_transformed(PyObject* object) {
  if (is_unknown_number(object) || !is_tensor_object(object)) return false;  // which would fix a number
  const at::Tensor& tensor = unpack_tensor(object);
  return tensor._fw_grad(/*level=*/0).defined() ||
         tensor.key_set().has_any(
             c10::DispatchKeySet({c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchBatched}));
}

PyObject* with_sizes(PyObject* callable, CallArgs& args, std::vector<Ref>& made) {
  std::string name(c_function_name(callable));
  if (name.empty() && is_operator_type(Py_TYPE(callable))) {
    if (std::string op = operator_base_name(callable); op.starts_with("aten::")) name = op.substr(6);
  }
  const auto holds = [](PyObject* value) { return is_unknown_number(value) || holds_size(value); };
  if (!has_sized_operator(name) || std::ranges::none_of(args.values, holds)) return callable;
  if (std::ranges::any_of(args.values, is_transformed)) {
    for (PyObject*& value : args.values) {
      if (!is_unknown_number(value)) continue;
      made.push_back(Capture::current()->numbers.known(value));
      value = made.back().get();
    }
    return callable;
  }
  // Autocast knows ATen's operators only.
  if (at::autocast::is_autocast_enabled(at::kCPU) || at::autocast::is_autocast_enabled(at::kCUDA)) return callable;
  for (size_t i = args.positional(); i < args.values.size(); ++i) {
    const std::string_view keyword = PyUnicode_AsUTF8(args.keyword(i));
    if (keyword == "out" || keyword == "requires_grad" || keyword == "input") return callable;
  }
  give_lists("magneto::" + name, args, made);
  return own_operator(name);
}

std::span<const HandlerRow> sized_handlers() {
  static constexpr HandlerRow rows[] = {
      {"torch._C._VariableFunctionsClass.asarray", handle_asarray},
      {"torch._C.TensorBase.new_tensor", handle_new_tensor},
      {"torch._C._VariableFunctionsClass.lstm", handle_recurrent<kLstm>},
      {"torch._C._VariableFunctionsClass.gru", handle_recurrent<kGru>},
      {"torch._C._VariableFunctionsClass.rnn_tanh", handle_recurrent<kTanh>},
      {"torch._C._VariableFunctionsClass.rnn_relu", handle_recurrent<kRelu>},
      {"torch._C._VariableFunctionsClass._pack_padded_sequence", handle_packing<kPack, kPackInstead, 3>},
      {"torch._C._VariableFunctionsClass._pad_packed_sequence", handle_packing<kPad, kPadInstead, 5>},
      {"torch._C._nn.pad_sequence", handle_pad_sequence},
      {"torch._C._nn.scaled_dot_product_attention", handle_attention},
  };
  return rows;
}

}  // namespace magneto::capture
