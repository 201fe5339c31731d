// NumPy inside captured functions.
//
// An array from outside is itself until something is computed with it; then it is an input of the graph, by the tensor
// over its memory. For all other arrays a *stand-in* goes through the capture. What NumPy computes is written down as a
// text ("numpy.add(a0, 2.0)") and stays a call of NumPy in the graph: no operator of PyTorch gives the same bits and
// the same warnings. What it would give, dtype, strides and all, NumPy itself is asked, with arrays of zeros. A view is
// one in the graph as well, and made again by the same call where the segment hands it on: its base, its flags and
// whose memory it is are eager's. What needs an array's contents, or is not in numpy.def, is a side exit. Writes:
// array_writes.cpp.
#include "capture/numpy/arrays.h"

#include <structmember.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <sstream>
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

const at::Tensor& tensor_of(PyObject* stand_in) { return unpack_tensor(stand_in_of(stand_in).tensor); }

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

bool is_finite(PyObject* complex) {
  const Py_complex value = PyComplex_AsCComplex(complex);
  return std::isfinite(value.real) && std::isfinite(value.imag);
}

bool starts_with(const char* text, std::string_view start) { return std::string_view(text).starts_with(start); }

/// As Python reads it back; empty: it is no constant of those that calls of NumPy take.
std::string constant_text(PyObject* value) {
  PyTypeObject* type = Py_TYPE(value);
  if (value == Py_Ellipsis) return "...";
  if (value == Py_None || PyBool_Check(value) || PyUnicode_CheckExact(value) || PyBytes_CheckExact(value)) {
    return PyUnicode_AsUTF8(checked(PyObject_Repr(value)).get());
  }
  if (PyLong_CheckExact(value) || PyFloat_CheckExact(value)) return number_text(value);
  if (PyComplex_CheckExact(value)) return is_finite(value) ? number_text(value) : "";
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

/// A bool array as an index selects as many items as it holds true ones.
bool is_mask(PyObject* stand_in) { return tensor_of(stand_in).scalar_type() == at::kBool; }

}  // namespace

bool NumpyCapture::write_argument(PyObject* given, NumpyCall& call, bool arrays) {
  const Ref known_value = c.numbers.known(given);
  PyObject* value = known_value.get();
  if (is_array(value)) {
    if (!arrays) return false;
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

/// Where in its operand a view begins, in items; nothing: it lies elsewhere.
std::optional<int64_t> offset_in(PyObject* view, PyObject* operand) {
  const at::Tensor of = guards::tensor_of_array(operand);
  const auto* first = static_cast<const char*>(of.const_data_ptr());
  const auto* start = static_cast<const char*>(guards::tensor_of_array(view).const_data_ptr());
  int64_t last = 0;
  for (int64_t i = 0; i < of.dim(); ++i) last += (of.size(i) - 1) * of.stride(i);
  const auto item = static_cast<int64_t>(of.element_size());
  if (start < first || start >= first + (std::max<int64_t>(last, 0) + 1) * item) return std::nullopt;
  return (start - first) / item;
}

Ref list_of_ints(at::IntArrayRef numbers) {
  Ref made = checked(PyList_New(static_cast<Py_ssize_t>(numbers.size())));
  for (size_t i = 0; i < numbers.size(); ++i) {
    PyList_SET_ITEM(made.get(), i, checked(PyLong_FromLongLong(numbers[i])).release());
  }
  return made;
}

}  // namespace

Ref NumpyCapture::run(const NumpyCall& call) {
  static constinit Imported sample("magneto._numpy", "sample"), as_array("numpy", "asarray");
  std::vector<Ref> samples;
  PyObject* function = nullptr;
  Ref result;
  for (const Ref& array : call.arrays) {
    Ref stand_in = stand_in_for(array.get());
    samples.push_back(checked(PyObject_CallOneArg(as_array.get(), stand_in_of(stand_in.get()).sample)));
  }
  c.run_suspended([&] {
    function = runtime::numpy_function(call.text, call.arrays.size());
    std::vector<PyObject*> args = {function};
    for (const Ref& array : samples) args.push_back(array.get());
    result = Ref::steal(PyObject_Vectorcall(sample.get(), args.data(), args.size(), nullptr));
  });
  if (!result) {
    c.errors.check_interrupt();
    PyErr_Clear();
    c.side_exit(BreakReason::OpaqueCall, "NumPy raises or warns: " + call.text);
  }
  return result_of(call, function, result.get(), samples);
}

Ref NumpyCapture::result_of(const NumpyCall& call, PyObject* function, PyObject* result,
                            const std::vector<Ref>& samples) {
  const auto refuse = [&](const char* why) { c.side_exit(BreakReason::OpaqueCall, why + (": " + call.text)); };
  for (size_t i = 0; i < samples.size(); ++i) {
    if (result == samples[i].get() && guards::is_array(sample_of(call.arrays[i].get()))) return call.arrays[i];
  }
  if (PyTuple_Check(result) || PyList_CheckExact(result)) {
    Ref items = checked(PyList_New(0));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(result); ++i) {
      NumpyCall part{"(" + call.text + ")[" + std::to_string(i) + "]", call.arrays};
      Ref item = result_of(part, runtime::numpy_function(part.text, part.arrays.size()),
                           PySequence_Fast_GET_ITEM(result, i), samples);
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
  if (!guards::layout_of(array.get())) refuse("NumPy gives an array whose memory no tensor can show");
  const at::Tensor like = guards::tensor_of_array(array.get());
  Ref sizes = list_of_ints(like.sizes()), strides = list_of_ints(like.strides());
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto offset = offset_in(array.get(), samples[i].get());
    if (!offset) continue;
    const at::Tensor& of = tensor_of(stand_in_for(call.arrays[i].get()).get());
    if (call.arrays.size() != 1 || of.scalar_type() != like.scalar_type()) refuse("NumPy gives a view");
    static constinit Imported view("torch", "ops.magneto.view_as.default");
    Ref start = checked(PyLong_FromLongLong(*offset)), base = checked(tensor_object(of));
    CallArgs args{{base.get(), sizes.get(), strides.get(), start.get()}};
    Ref made = make_stand_in(c.torch.call_torch(view.get(), args), std::move(array), function,
                             checked(PyTuple_Pack(1, call.arrays[0].get())));
    views_[call.arrays[0].get()].push_back(made);
    return made;
  }
  static constinit Imported operation("torch", "ops.magneto.numpy.default");
  static PyObject* const array_maker = function_of(runtime::kArrayOfTensor);
  static PyObject* const number_maker = function_of(runtime::kNumberOfTensor);
  Ref text = checked(PyUnicode_FromString(call.text.c_str())), operands = checked(PyList_New(0));
  for (const Ref& value : call.arrays) {
    Ref stand_in = stand_in_for(value.get());
    if (PyList_Append(operands.get(), stand_in_of(stand_in.get()).tensor) < 0) throw PythonError{};
  }
  CallArgs args{{text.get(), operands.get(), sizes.get(), strides.get(),
                 reinterpret_cast<PyObject*>(torch::getTHPDtype(like.scalar_type()))}};
  Ref tensor = c.torch.call_torch(operation.get(), args);
  Ref parents = checked(PyTuple_Pack(1, tensor.get()));
  Ref made = make_stand_in(std::move(tensor), number ? Ref::borrow(result) : std::move(array),
                           number ? number_maker : array_maker, std::move(parents));
  stand_in_of(made.get()).exposed = true;  // to its maker
  return made;
}

// -- the table -------------------------------------------------------------------------------------------------------

namespace {

enum class NumpyKind : uint8_t { Function, Method, Ufunc };

struct NumpyRow {
  NumpyKind kind;
  const char* name;
  int arrays;
};

constexpr NumpyRow kNumpy[] = {
#define X(kind, name, arrays) {NumpyKind::kind, #name, arrays},
#include "capture/numpy/numpy.def"
#undef X
};

/// numpy, if the program has imported it. Borrowed.
PyObject* numpy_module() {
  static PyObject* found = nullptr;
  if (!found) found = PyDict_GetItemString(PyImport_GetModuleDict(), "numpy");
  return found;
}

/// By the object that is called.
const std::unordered_map<PyObject*, NumpyRow>& numpy_rows() {
  static constinit MadeOnce<const std::unordered_map<PyObject*, NumpyRow>> made;
  return *made.get([] {
    auto* map = new std::unordered_map<PyObject*, NumpyRow>;
    static constinit Imported arrays("numpy", "ndarray"), numbers("numpy", "generic");
    const auto add = [&](PyObject* owner, const NumpyRow& row) {
      Ref object = Ref::borrow(owner);
      std::istringstream path(row.name);  // linalg.norm
      for (std::string part; object && std::getline(path, part, '.');) {
        object = Ref::steal(PyObject_GetAttrString(object.get(), part.c_str()));
      }
      PyErr_Clear();  // another version of NumPy
      if (object) map->emplace(object.release(), row);
    };
    for (const NumpyRow& row : kNumpy) {
      if (row.kind == NumpyKind::Function) add(numpy_module(), row);
      if (row.kind == NumpyKind::Method) {
        add(arrays.get(), row);
        add(numbers.get(), row);
      }
    }
    PyObject *name, *object;
    Py_ssize_t position = 0;
    while (PyDict_Next(PyModule_GetDict(numpy_module()), &position, &name, &object)) {
      if (std::strcmp(Py_TYPE(object)->tp_name, "numpy.ufunc") != 0) continue;
      Ref inputs = attribute(object, "nin");
      map->emplace(Py_NewRef(object),
                   NumpyRow{NumpyKind::Ufunc, PyUnicode_AsUTF8(name), static_cast<int>(PyLong_AsLong(inputs.get()))});
    }
    return map;
  });
}

bool holds_array(PyObject* value, int depth = 2) {
  if (is_array(value)) return true;
  if (depth == 0 || (!PyTuple_CheckExact(value) && !PyList_CheckExact(value))) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i) {
    if (holds_array(PySequence_Fast_GET_ITEM(value, i), depth - 1)) return true;
  }
  return false;
}

/// Keywords of NumPy's functions that name no array to write to and no other kind of array.
bool is_harmless(PyObject* keyword) {
  static constexpr const char* refused[] = {"out", "where", "like", "subok", "buffer", "signature"};
  return std::ranges::none_of(refused,
                              [&](const char* name) { return PyUnicode_CompareWithASCIIString(keyword, name) == 0; });
}

/// np.asarray(tensor) and the like ask the tensor for its array.
bool takes_tensors(const NumpyRow& row) {
  const std::string_view name = row.name;
  return name == "array" || name == "asarray" || name == "asanyarray" || name == "ascontiguousarray";
}

}  // namespace

namespace {

/// The class of one of NumPy's numbers: np.float32.
bool is_number_class(PyObject* callable) {
  static constinit Imported number("numpy", "number"), boolean("numpy", "bool_");
  if (!PyType_Check(callable)) return false;
  auto* type = reinterpret_cast<PyTypeObject*>(callable);
  return type == boolean.type() ||
         (PyType_IsSubtype(type, number.type()) && !PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE));
}

}  // namespace

namespace {

/// numpy.add.reduce and its like, as functions of `rest`; `name` holds what the row calls it.
std::optional<NumpyRow> row_of_ufunc_method(PyObject* callable, const CallArgs& args, CallArgs& rest,
                                            std::string& name) {
  const bool bound = PyCFunction_CheckExact(callable);
  const bool unbound = Py_IS_TYPE(callable, &PyMethodDescr_Type) && args.positional() > 0;
  PyObject* receiver = bound ? PyCFunction_GET_SELF(callable) : unbound ? args.values[0] : nullptr;
  const auto ufunc = receiver ? numpy_rows().find(receiver) : numpy_rows().end();
  if (ufunc == numpy_rows().end() || ufunc->second.kind != NumpyKind::Ufunc || ufunc->second.arrays != 2) return {};
  const std::string method =
      bound ? reinterpret_cast<PyCFunctionObject*>(callable)->m_ml->ml_name : PyUnicode_AsUTF8(PyDescr_NAME(callable));
  if (method != "reduce" && method != "accumulate" && method != "outer") return {};
  rest = args;
  if (unbound) rest.values.erase(rest.values.begin());
  name = ufunc->second.name + ("." + method);
  return NumpyRow{NumpyKind::Function, name.c_str(), method == "outer" ? 2 : 1};
}

bool is_plain_number(PyObject* object) {
  return PyLong_CheckExact(object) || PyFloat_CheckExact(object) || PyBool_Check(object);
}

/// What a function gives for numbers, and lists and tuples of numbers: `numpy.prod(x.shape)`. Numbers that differ from
/// call to call are guarded by value. Null: it is given something else, or gives an array, which each run makes anew.
Ref number_of_numbers(Capture& capture, PyObject* function, CallArgs args) {
  std::vector<Ref> held, unknown;
  const auto is_number = [&](PyObject* value) {
    PyObject* now = number_now(value);
    if (now != value) unknown.push_back(Ref::borrow(value));
    return is_plain_number(now);
  };
  for (size_t i = 0; i < args.values.size(); ++i) {
    PyObject*& value = args.values[i];
    if (args.keyword(i) && value == Py_None) continue;
    if (is_number(value)) {
      value = number_now(value);
      continue;
    }
    const bool shape = Py_TYPE(value) == size_class();
    if (!PyList_CheckExact(value) && !PyTuple_CheckExact(value) && !shape) return {};
    const bool outside = shape && capture.world.is_outside(value);
    const Ref items = outside ? capture.containers.contents_of(value) : capture.containers.resolve_deep(value);
    held.push_back(checked(PySequence_List(items.get())));
    value = held.back().get();
    for (Py_ssize_t item = 0; item < PyList_GET_SIZE(value); ++item) {
      PyObject* number = PyList_GET_ITEM(value, item);
      if (!is_number(number)) return {};
      if (PyList_SetItem(value, item, Py_NewRef(number_now(number))) < 0) throw PythonError{};
    }
  }
  Ref result = Ref::steal(PyObject_Vectorcall(function, args.values.data(), args.positional(), args.kwnames));
  if (!result) PyErr_Clear();  // the run raises it, in its place
  if (!result || is_array(result.get()) || !is_value(result.get())) return {};
  for (const Ref& number : unknown) (void)capture.numbers.known(number.get());
  return result;
}

}  // namespace

Ref NumpyCapture::call_function(PyObject* callable, const CallArgs& given) {
  if (!numpy_module()) return {};
  if (is_number_class(callable) && given.values.size() == 1 && !given.kwnames) {
    const Ref value = c.numbers.known(given.values[0]);
    if (is_array(value.get())) return operation({value.get()}, constant_text(callable) + "($)");
    if (!is_value(value.get()) || !PyNumber_Check(value.get())) return {};
    return c.calls.call_native([&] { return PyObject_CallOneArg(callable, value.get()); });
  }
  static constinit Imported dtype("numpy", "dtype");
  if (callable == dtype.get() && given.values.size() == 1 && !given.kwnames &&
      !constant_text(given.values[0]).empty()) {
    return c.calls.call_native([&] { return PyObject_CallOneArg(callable, given.values[0]); });
  }
  const auto found = numpy_rows().find(callable);
  std::string name;
  CallArgs rest;
  std::optional<NumpyRow> of_method;
  if (found == numpy_rows().end()) {
    of_method = row_of_ufunc_method(callable, given, rest, name);
    if (!of_method) return {};
  }
  const NumpyRow& row = of_method ? *of_method : found->second;
  const CallArgs& args = of_method ? rest : given;
  // Of numbers a ufunc gives a number, now; and methods of other receivers are errors.
  const bool on_arrays = std::ranges::any_of(args.values, [](PyObject* value) { return holds_array(value); });
  if (row.kind == NumpyKind::Ufunc && (!on_arrays || args.positional() != static_cast<size_t>(row.arrays))) return {};
  if (row.kind == NumpyKind::Function && !on_arrays && !of_method) {
    if (Ref number = number_of_numbers(c, callable, args)) return number;
  }
  if (std::string_view(row.name) == "where" && args.values.size() != 3) return {};
  NumpyCall call;
  const bool method = row.kind == NumpyKind::Method;
  if (method) {
    if (args.positional() == 0 || !is_array(args.values[0]) || !write_argument(args.values[0], call, true)) return {};
    call.text += ".";
  } else {
    call.text = "numpy.";
  }
  call.text += std::string(row.name) + "(";
  PyObject* written = nullptr;
  for (size_t i = method; i < args.values.size(); ++i) {
    PyObject* keyword = args.keyword(i);
    PyObject* value = args.values[i];
    if (keyword) {
      const bool is_out = PyUnicode_CompareWithASCIIString(keyword, "out") == 0 && is_array(value);
      if (!is_out && !is_harmless(keyword)) return {};
      call.text += std::string(PyUnicode_AsUTF8(keyword)) + "=";
      if (is_out) {
        require_writable(written = value);
        write_argument(value, call, /*arrays=*/true);
        call.text += ".copy('K'), ";
        continue;
      }
    }
    Ref held;
    if (i == 0 && !keyword && takes_tensors(row) && is_fake_tensor(value)) {
      held = array_of_tensor(value);
      value = held.get();
    }
    if (!write_argument(value, call, !keyword && static_cast<int>(i) < row.arrays + method)) return {};
    call.text += ", ";
  }
  call.text += ")";
  Ref result = run(call);
  if (!written) return result;
  overwrite(written, result.get());
  return Ref::borrow(written);
}

Ref NumpyCapture::operation(std::initializer_list<PyObject*> operands, const std::string& form) {
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
  return run(call);
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
    if (!is_mask(stand_in_for(call.arrays[i].get()).get())) continue;
    c.side_exit(BreakReason::DataDependentValue, "an array is indexed by a mask");
  }
  return run(call);
}

Ref NumpyCapture::items(PyObject* array) {
  Ref stand_in = stand_in_for(array);
  if (stand_in_of(stand_in.get()).is_number || tensor_of(stand_in.get()).dim() == 0) {
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
  Ref tensor = Ref::borrow(stand_in.tensor);
  static constinit Imported detach("torch._C", "TensorBase.detach");
  if (std::exchange(stand_in.exposed, true)) tensor = c.torch.call_torch(detach.get(), {{stand_in.tensor}});
  array_by_tensor[tensor.get()] = Ref::borrow(array);
  c.world.keep(tensor);
  return tensor;
}

}  // namespace magneto::capture
