// NumPy inside captured functions.
//
// An array from outside is itself until something is computed with it; then it is an input of the graph, by the tensor
// over its memory. For all other arrays a *stand-in* goes through the capture. What NumPy computes is written down as a
// text ("numpy.add(a0, 2.0)") and stays a call of NumPy in the graph: no operator of PyTorch gives the same bits and
// the same warnings. What it would give, dtype, strides and all, NumPy itself is asked, with arrays of zeros, or with
// the arrays themselves where their contents follow from constants: then what it gives is known. Views: views.cpp. What
// needs the contents of an array that is not known, or is not in numpy.def (functions.cpp), is a side exit. Writes:
// array_writes.cpp.
#include "capture/numpy/arrays.h"

#include <structmember.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>

#include "capture/calls/calls.h"
#include "capture/calls/handlers.h"
#include "capture/exits/exit_builder.h"
#include "capture/interpreter/errors.h"
#include "capture/numbers/numbers.h"
#include "capture/numpy/numpy_capture.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/containers.h"
#include "capture/world/world.h"
#include "guards/array.h"
#include "python/abi/private.h"
#include "python/imported.h"
#include "python/made_once.h"
#include "runtime/program/numpy_calls.h"
#include "support/tensor_object.h"

namespace magneto::capture {

using guards::Source;

namespace {

PyObject* function_of(PyMethodDef& definition) { return PyCFunction_NewEx(&definition, nullptr, nullptr); }

Ref attribute(PyObject* object, const char* name) { return checked(PyObject_GetAttrString(object, name)); }

}  // namespace

void NumpyCapture::array_is_read() {
  c.errors.interrupt_c_code(
      c.errors.sticky ? c.errors.sticky
                      : std::make_exception_ptr(c.exits.restart_before(*c.frame, "C code reads an array of NumPy")));
}

Ref NumpyCapture::stand_in_for(PyObject* value) {
  if (is_array_stand_in(value)) return Ref::borrow(value);
  Ref& known = arrays_[value];
  if (known) return known;
  const Source* source = c.world.source_of(value);
  Ref layout = source ? guards::layout_of(value) : Ref();
  if (!layout) c.side_exit(BreakReason::OpaqueObject, "an array is used whose memory no tensor can show");
  c.guards.array(source, layout.get());
  const at::Tensor real = guards::tensor_of_array(value);
  Ref real_object = checked(tensor_object(real));
  const at::Tensor fake = c.session->make_input(real, source->name());
  Ref tensor = checked(tensor_object(fake));
  c.tensors.inputs[c.session->value_of(fake)] = {real_object, source, /*number=*/false, /*array=*/true};
  c.tensors.fake_of[real_object.get()] = tensor;
  Ref sample = sample_like(real, is_writable(value));
  return known = make_stand_in(std::move(tensor), std::move(sample), nullptr, checked(PyTuple_Pack(1, value)));
}

// -- what is written down --------------------------------------------------------------------------------------------

namespace {

/// A number as Python reads it back, whatever stands in front of it.
std::string number_text(PyObject* number) {
  Ref repr = checked(PyObject_Repr(number));
  const std::string text = PyUnicode_AsUTF8(repr.get());
  if (PyFloat_CheckExact(number) && !std::isfinite(PyFloat_AS_DOUBLE(number))) return "float('" + text + "')";
  return text.starts_with('-') ? "(" + text + ")" : text;
}

bool starts_with(const char* text, std::string_view start) { return std::string_view(text).starts_with(start); }

}  // namespace

std::string constant_text(PyObject* value) {
  PyTypeObject* type = Py_TYPE(value);
  if (value == Py_Ellipsis) return "...";
  if (value == Py_None || PyBool_Check(value) || PyUnicode_CheckExact(value) || PyBytes_CheckExact(value)) {
    return PyUnicode_AsUTF8(checked(PyObject_Repr(value)).get());
  }
  if (PyLong_CheckExact(value) || PyFloat_CheckExact(value)) return number_text(value);
  if (PyComplex_CheckExact(value)) {  // `-0+1j` would lose a sign
    const Py_complex parts = PyComplex_AsCComplex(value);
    Ref real = checked(PyFloat_FromDouble(parts.real)), imag = checked(PyFloat_FromDouble(parts.imag));
    return "complex(" + number_text(real.get()) + ", " + number_text(imag.get()) + ")";
  }
  if (PyType_Check(value)) {
    auto* named = reinterpret_cast<PyTypeObject*>(value);
    for (PyTypeObject* plain : {&PyBool_Type, &PyLong_Type, &PyFloat_Type, &PyComplex_Type}) {
      if (named == plain) return plain->tp_name;
    }
    const bool of_numpy = !PyType_HasFeature(named, Py_TPFLAGS_HEAPTYPE) && starts_with(named->tp_name, "numpy.");
    return of_numpy ? named->tp_name : "";
  }
  if (is_value(value) && starts_with(type->tp_name, "numpy.")) {
    Ref number = checked(PyObject_CallMethod(value, "item", nullptr));
    return std::string(type->tp_name) + "(" + constant_text(number.get()) + ")";
  }
  static constinit Imported dtype("numpy", "dtype");
  if (PyObject_TypeCheck(value, dtype.type()) && attribute(value, "isbuiltin").get() != Py_False) {
    Ref name = attribute(value, "str");
    return "numpy.dtype(" + constant_text(name.get()) + ")";
  }
  return "";
}

bool NumpyCapture::is_known(PyObject* array) { return stand_in_of(stand_in_for(array).get()).known; }

bool NumpyCapture::is_unknown_mask(PyObject* array) {
  const Ref held = stand_in_for(array);
  const ArrayStandIn& stand_in = stand_in_of(held.get());
  Ref dtype = checked(PyObject_GetAttrString(stand_in.sample, "dtype"));
  Ref kind = checked(PyObject_GetAttrString(dtype.get(), "kind"));
  return !stand_in.known && PyUnicode_CompareWithASCIIString(kind.get(), "b") == 0;
}

bool NumpyCapture::write_argument(PyObject* given, NumpyCall& call, bool arrays) {
  const Ref known_value = c.numbers.known(given);
  PyObject* value = known_value.get();
  if (is_array(value)) {
    if (!arrays && (!is_array_stand_in(value) || !is_known(value))) return false;
    call.text += "a" + std::to_string(call.arrays.size());
    Ref array = stand_in_for(value);
    if (stand_in_of(array.get()).is_number) call.text += "[()]";
    call.arrays.push_back(Ref::borrow(value));
    return true;
  }
  if (PyTuple_CheckExact(value) || PyList_CheckExact(value)) {
    Ref items = c.containers.resolve(value);
    const bool tuple = PyTuple_CheckExact(value);
    call.text += tuple ? "(" : "[";
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
      if (!write_argument(PySequence_Fast_GET_ITEM(items.get(), i), call, arrays)) return false;
      call.text += ", ";
    }
    call.text += tuple ? ")" : "]";
    return true;
  }
  if (PySlice_Check(value)) {
    const auto* slice = reinterpret_cast<PySliceObject*>(value);
    call.text += "slice(";
    for (PyObject* part : {slice->start, slice->stop, slice->step}) {
      if (!write_argument(part, call, /*arrays=*/false)) return false;
      call.text += ", ";
    }
    call.text += ")";
    return true;
  }
  if (is_tensor(value) || c.world.is_opaque(value)) return false;
  const std::string text = constant_text(value);
  call.text += text;
  return !text.empty();
}

// -- calls -----------------------------------------------------------------------------------------------------------

namespace {

Ref list_of_ints(at::IntArrayRef numbers) {
  Ref made = checked(PyList_New(static_cast<Py_ssize_t>(numbers.size())));
  for (size_t i = 0; i < numbers.size(); ++i) {
    PyList_SET_ITEM(made.get(), i, checked(PyLong_FromLongLong(numbers[i])).release());
  }
  return made;
}

/// Python's own numbers, strings and None, and lists and tuples of them.
bool is_plain_data(PyObject* object) {
  if (!PyList_CheckExact(object) && !PyTuple_CheckExact(object)) return is_scalar(object);
  PyObject** const items = PySequence_Fast_ITEMS(object);
  return std::all_of(items, items + PySequence_Fast_GET_SIZE(object), is_plain_data);
}

}  // namespace

std::vector<Ref> NumpyCapture::samples_of(const NumpyCall& call) {
  static constinit Imported as_array("numpy", "asarray");
  std::vector<Ref> samples;
  for (const Ref& array : call.arrays) {
    Ref stand_in = stand_in_for(array.get());
    samples.push_back(checked(PyObject_CallOneArg(as_array.get(), stand_in_of(stand_in.get()).sample)));
  }
  return samples;
}

Ref NumpyCapture::run(const NumpyCall& call) {
  static constinit Imported sample("magneto._numpy", "sample"), exact("magneto._numpy", "exact");
  const std::vector<Ref> samples = samples_of(call);
  bool known = call.filled && std::ranges::all_of(call.arrays, [&](const Ref& array) { return is_known(array.get()); });
  PyObject* function = nullptr;
  Ref result;
  c.run_suspended([&] {
    function = runtime::numpy_function(call.text, call.arrays.size());
    std::vector<PyObject*> args = {function};
    for (const Ref& array : samples) args.push_back(array.get());
    if (known) {
      result = Ref::steal(PyObject_Vectorcall(exact.get(), args.data(), args.size(), nullptr));
      known = result.get() != Py_NotImplemented;
    }
    if (!known) result = Ref::steal(PyObject_Vectorcall(sample.get(), args.data(), args.size(), nullptr));
  });
  if (!result) {
    c.errors.check_interrupt();
    PyErr_Clear();
    c.side_exit(BreakReason::OpaqueCall, "NumPy raises or warns: " + call.text);
  }
  return result_of(call, function, result.get(), samples, known);
}

Ref NumpyCapture::result_of(const NumpyCall& call, PyObject* function, PyObject* result,
                            const std::vector<Ref>& samples, bool known) {
  const auto refuse = [&](const char* why) { c.side_exit(BreakReason::OpaqueCall, why + (": " + call.text)); };
  for (size_t i = 0; i < samples.size(); ++i) {
    if (result == samples[i].get() && guards::is_array(sample_of(call.arrays[i].get()))) return call.arrays[i];
  }
  if (known && is_plain_data(result)) return Ref::borrow(result);
  if (PyTuple_Check(result) || PyList_CheckExact(result)) {
    Ref items = checked(PyList_New(0));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(result); ++i) {
      NumpyCall part{"(" + call.text + ")[" + std::to_string(i) + "]", call.arrays};
      Ref item = result_of(part, runtime::numpy_function(part.text, part.arrays.size()),
                           PySequence_Fast_GET_ITEM(result, i), samples, known);
      if (PyList_Append(items.get(), item.get()) < 0) throw PythonError{};
    }
    if (PyList_CheckExact(result)) return items;
    Ref all = checked(PyList_AsTuple(items.get()));
    // Some functions of numpy.linalg give tuples with names.
    return PyTuple_CheckExact(result)
               ? all
               : checked(PyObject_CallObject(reinterpret_cast<PyObject*>(Py_TYPE(result)), all.get()));
  }
  static constinit Imported as_array("numpy", "asarray"), number_type("numpy", "generic");
  const bool number = PyObject_TypeCheck(result, number_type.type());
  if (!number && !guards::is_array(result)) refuse("NumPy gives neither arrays nor numbers of its own");
  Ref array = number ? checked(PyObject_CallOneArg(as_array.get(), result)) : Ref::borrow(result);
  for (const Ref& sample : samples) {
    if (number || !guards::shares_memory(result, sample.get())) continue;
    if (call.arrays.size() != 1) refuse("NumPy gives a view");
    return view_of(call, function, std::move(array));
  }
  if (!guards::layout_of(array.get())) refuse("NumPy gives an array whose memory no tensor can show");
  if (number && known) return Ref::borrow(result);
  Ref made = result_in_graph(call, number ? Ref::borrow(result) : std::move(array), number);
  stand_in_of(made.get()).known = known;
  return made;
}

Ref NumpyCapture::result_in_graph(const NumpyCall& given, Ref sample, bool number) {
  static constinit Imported operation("torch", "ops.magneto.numpy.default"), as_array("numpy", "asarray");
  static PyObject* const array_maker = function_of(runtime::kArrayOfTensor);
  static PyObject* const number_maker = function_of(runtime::kNumberOfTensor);
  const NumpyCall call = with_tensors(given);
  const at::Tensor like = guards::tensor_of_array(checked(PyObject_CallOneArg(as_array.get(), sample.get())).get());
  Ref sizes = list_of_ints(like.sizes()), strides = list_of_ints(like.strides());
  Ref text = checked(PyUnicode_FromString(call.text.c_str())), operands = checked(PyList_New(0));
  for (const Ref& value : call.arrays) {
    Ref stand_in = stand_in_for(value.get());
    if (PyList_Append(operands.get(), stand_in_of(stand_in.get()).tensor) < 0) throw PythonError{};
  }
  CallArgs args{{text.get(), operands.get(), sizes.get(), strides.get(),
                 reinterpret_cast<PyObject*>(torch::getTHPDtype(like.scalar_type()))}};
  Ref tensor = c.torch.call_torch(operation.get(), args);
  Ref parents = checked(PyTuple_Pack(1, tensor.get()));
  Ref made =
      make_stand_in(std::move(tensor), std::move(sample), number ? number_maker : array_maker, std::move(parents));
  stand_in_of(made.get()).exposed = true;  // to its maker
  return made;
}

// -- operators and items ---------------------------------------------------------------------------------------------

NumpyCall NumpyCapture::as_call(std::initializer_list<PyObject*> operands, const std::string& form) {
  NumpyCall call;
  const auto* operand = operands.begin();
  for (const char letter : form) {
    if (letter != '$') {
      call.text += letter;
    } else if (!write_argument(*operand++, call, true)) {
      c.side_exit(BreakReason::OpaqueObject,
                  std::string("an operator between an array and an object of type ") + Py_TYPE(operand[-1])->tp_name);
    }
  }
  return call;
}

Ref NumpyCapture::operation(std::initializer_list<PyObject*> operands, const std::string& form) {
  return run(as_call(operands, form));
}

Ref NumpyCapture::item(PyObject* array, PyObject* key) {
  NumpyCall call;
  write_argument(array, call, true);
  call.text += "[";
  if (!write_argument(key, call, true)) {
    c.side_exit(BreakReason::OpaqueObject,
                std::string("an array is indexed by an object of type ") + Py_TYPE(key)->tp_name);
  }
  call.text += "]";
  for (size_t i = 1; i < call.arrays.size(); ++i) {
    if (!is_unknown_mask(call.arrays[i].get())) continue;
    c.side_exit(BreakReason::DataDependentValue, "an array is indexed by a mask");
  }
  return run(call);
}

Ref NumpyCapture::items(PyObject* array) {
  Ref stand_in = stand_in_for(array);
  const ArrayStandIn& of = stand_in_of(stand_in.get());
  if (of.is_number || PyTuple_GET_SIZE(checked(PyObject_GetAttrString(of.sample, "shape")).get()) == 0) {
    c.side_exit(BreakReason::OpaqueIterator, "an array without dimensions is iterated over");
  }
  return checked(PySeqIter_New(stand_in.get()));
}

Ref NumpyCapture::attribute(PyObject* array, PyObject* name, bool* unbound) {
  static constexpr const char* constants[] = {"shape", "ndim", "size", "itemsize", "nbytes", "strides", "dtype"};
  static constexpr const char* views[] = {"T", "mT", "real", "imag"};
  const auto is_one_of = [&](std::span<const char* const> names) {
    return std::ranges::any_of(names,
                               [&](const char* other) { return PyUnicode_CompareWithASCIIString(name, other) == 0; });
  };
  Ref stand_in = stand_in_for(array);
  PyObject* sample = stand_in_of(stand_in.get()).sample;
  if (is_one_of(constants)) {
    Ref value = checked(PyObject_GetAttr(sample, name));
    const bool dtype = PyUnicode_CompareWithASCIIString(name, "dtype") == 0;
    return dtype ? c.world.wrap(value.get(), c.sources.constant(value.get())) : value;
  }
  const bool flags = PyUnicode_CompareWithASCIIString(name, "flags") == 0;
  if (flags && is_own(root_of(stand_in_of(stand_in.get())))) return checked(PyObject_GetAttr(sample, name));
  if (is_one_of(views)) return operation({array}, std::string("$.") + PyUnicode_AsUTF8(name));
  PyObject* found = lookup_in_type(Py_TYPE(sample), name);
  if (!found) return {};
  if (unbound && Py_TYPE(found) == &PyMethodDescr_Type) {
    *unbound = true;
    return c.world.wrap(found, c.sources.constant(found));
  }
  c.side_exit(BreakReason::OpaqueObject,
              std::string("the attribute ") + PyUnicode_AsUTF8(name) + " of an array of NumPy is read");
}

// -- tensors ---------------------------------------------------------------------------------------------------------

Ref NumpyCapture::array_of_tensor(PyObject* object) {
  const at::Tensor& tensor = unpack_tensor(object);
  static constinit Imported method("torch._C", "TensorBase.numpy");
  if (tensor.requires_grad() || !tensor.device().is_cpu() || tensor.layout() != at::kStrided || tensor.is_conj() ||
      tensor.is_neg()) {
    c.side_exit(BreakReason::DataAccess, "call of torch._C.TensorBase.numpy");
  }
  c.session->fix_sizes(tensor);
  Ref sample = sample_like(tensor, /*writable=*/true);
  if (!sample) c.side_exit(BreakReason::DataAccess, "call of torch._C.TensorBase.numpy");
  Ref made = make_stand_in(Ref::borrow(object), std::move(sample), method.get(), checked(PyTuple_Pack(1, object)));
  stand_in_of(made.get()).exposed = true;
  return made;
}

Ref NumpyCapture::tensor_of_array(PyObject* array) {
  Ref made = stand_in_for(array);
  ArrayStandIn& stand_in = stand_in_of(made.get());
  if (stand_in.is_number || !is_writable(stand_in.sample)) {
    c.side_exit(BreakReason::OpaqueObject, "a tensor over an array that may not be written");
  }
  if (!stand_in.tensor) return tensor_of_view(made.get());
  Ref tensor = Ref::borrow(stand_in.tensor);
  static constinit Imported detach("torch._C", "TensorBase.detach");
  if (std::exchange(stand_in.exposed, true)) tensor = c.torch.call_torch(detach.get(), {{stand_in.tensor}});
  array_by_tensor[tensor.get()] = Ref::borrow(array);
  c.world.keep(tensor);
  return tensor;
}

}  // namespace magneto::capture
