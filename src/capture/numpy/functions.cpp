// Calls of NumPy: which are captured, by a table (numpy.def), and what their arguments may be.
#include <algorithm>
#include <cstring>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <unordered_map>

#include "capture/calls/calls.h"
#include "capture/calls/handlers.h"
#include "capture/capture.h"
#include "capture/interpreter/errors.h"
#include "capture/numbers/numbers.h"
#include "capture/numpy/arrays.h"
#include "capture/numpy/numpy_capture.h"
#include "capture/world/containers.h"
#include "capture/world/world.h"
#include "guards/array.h"
#include "python/imported.h"
#include "python/made_once.h"
#include "runtime/program/numpy_calls.h"
#include "support/tensor_object.h"

namespace magneto::capture {

enum class NumpyKind : uint8_t { Function, Method, Ufunc, Writer, InPlace, Layout, Sized, SizedMethod, Unfilled };

struct NumpyRow {
  NumpyKind kind;
  const char* name;
  int arrays;

  bool is_method() const {
    return kind == NumpyKind::Method || kind == NumpyKind::InPlace || kind == NumpyKind::SizedMethod;
  }
  bool writes() const { return kind == NumpyKind::Writer || kind == NumpyKind::InPlace; }
  bool needs_contents() const { return kind == NumpyKind::Sized || kind == NumpyKind::SizedMethod; }
};

namespace {

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
      if (!row.is_method()) add(numpy_module(), row);
      if (row.is_method()) add(arrays.get(), row);
      if (row.is_method() && !row.writes()) add(numbers.get(), row);
    }
    PyObject *name, *object;
    Py_ssize_t position = 0;
    while (PyDict_Next(PyModule_GetDict(numpy_module()), &position, &name, &object)) {
      if (std::strcmp(Py_TYPE(object)->tp_name, "numpy.ufunc") != 0) continue;
      Ref inputs = checked(PyObject_GetAttrString(object, "nin"));
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

template <size_t count>
bool is_one_of(PyObject* text, const char* const (&names)[count]) {
  return std::ranges::any_of(names,
                             [&](const char* name) { return PyUnicode_CompareWithASCIIString(text, name) == 0; });
}

/// Keywords of NumPy's functions that name no array to write to and no other kind of array.
bool is_harmless(PyObject* keyword) {
  static constexpr const char* refused[] = {"out", "like", "subok", "buffer", "signature"};
  return !is_one_of(keyword, refused);
}

/// Those whose value may be an array: what a call gives is laid out alike whatever that holds.
bool may_be_array(PyObject* keyword) {
  static constexpr const char* allowed[] = {"where", "weights", "min", "max", "a_min", "a_max", "prepend", "append"};
  return is_one_of(keyword, allowed);
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
  if (method != "reduce" && method != "accumulate" && method != "outer" && method != "at") return {};
  rest = args;
  if (unbound) rest.values.erase(rest.values.begin());
  name = ufunc->second.name + ("." + method);
  if (method == "at") return NumpyRow{NumpyKind::Writer, name.c_str(), 3};
  return NumpyRow{NumpyKind::Function, name.c_str(), method == "outer" ? 2 : 1};
}

bool is_plain_number(PyObject* object) {
  return PyLong_CheckExact(object) || PyFloat_CheckExact(object) || PyBool_Check(object);
}

/// The function of the module itself. Borrowed.
PyObject* function_named(const NumpyRow& row) {
  return PyDict_GetItemString(PyModule_GetDict(numpy_module()), row.name);
}

/// What a function gives for numbers, and lists and tuples of numbers: `numpy.prod(x.shape)`. Numbers that differ from
/// call to call are guarded by value. Null: it is given something else, or gives an array, which each run makes anew.
Ref number_of_numbers(Capture& capture, PyObject* function, CallArgs args) {
  std::vector<Ref> held, unknown;
  if (!function) return {};
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
  return call_row(of_method ? *of_method : found->second, of_method ? rest : given);
}

Ref NumpyCapture::call_row(const NumpyRow& row, const CallArgs& args) {
  // Of numbers a ufunc gives a number, now; and methods of other receivers are errors.
  const bool on_arrays = std::ranges::any_of(args.values, [](PyObject* value) { return holds_array(value); });
  if (row.kind == NumpyKind::Function && !on_arrays && !std::strchr(row.name, '.')) {
    if (Ref number = number_of_numbers(c, function_named(row), args)) return number;
  }
  if ((row.is_method() || row.writes()) && (args.positional() == 0 || !is_array(args.values[0]))) return {};
  NumpyCall call;
  call.filled = row.kind != NumpyKind::Unfilled;
  PyObject* written = row.writes() ? args.values[0] : nullptr;
  if (written) require_writable(written);
  if (!write_arguments(row, args, call, written)) return {};
  const auto unknown = [&](const Ref& array) { return !is_known(array.get()); };
  if (row.needs_contents() && std::ranges::any_of(call.arrays, unknown)) {
    c.side_exit(BreakReason::DataDependentValue, std::string("what numpy.") + row.name + " gives depends on the data");
  }
  if (row.kind == NumpyKind::Layout) return fact(call);
  if (!written) return run(call);
  write(written, std::move(call));
  return Ref::borrow(row.writes() ? Py_None : written);
}

bool NumpyCapture::write_arguments(const NumpyRow& row, const CallArgs& args, NumpyCall& call, PyObject*& written) {
  const bool ufunc = row.kind == NumpyKind::Ufunc, method = row.is_method();
  const size_t inputs = row.arrays;
  // np.add(a, b, c) writes to c.
  const bool out_given = ufunc && args.positional() == inputs + 1 && is_array(args.values[inputs]);
  if (ufunc && args.positional() != inputs + (out_given ? 1 : 0)) return false;
  if (std::string_view(row.name) == "where" && args.values.size() != 3) return false;
  const auto write_target = [&](PyObject* target) {
    if (target != written) require_writable(written = target);
    call.text += "v, ";
  };
  call.text = method ? "" : "numpy.";
  if (method && written) call.text = "v";
  if (method && !written && !write_argument(args.values[0], call, true)) return false;
  call.text += (method ? "." : "") + std::string(row.name) + "(";
  bool anywhere = true;  // np.add(a, b, where=c) leaves the rest to what has been in memory before
  for (size_t i = method; i < args.values.size(); ++i) {
    PyObject *const keyword = args.keyword(i), *value = args.values[i];
    if (keyword) {
      const bool is_out = PyUnicode_CompareWithASCIIString(keyword, "out") == 0 && is_array(value) && !written;
      if (!is_out && !is_harmless(keyword)) return false;
      if (ufunc && PyUnicode_CompareWithASCIIString(keyword, "where") == 0) anywhere = value == Py_True;
      call.text += std::string(PyUnicode_AsUTF8(keyword)) + "=";
      if (is_out) {
        write_target(value);
        continue;
      }
    } else if ((row.kind == NumpyKind::Writer && i == 0) || (out_given && i == inputs)) {
      write_target(value);
      continue;
    }
    Ref held;
    if (i == 0 && !keyword && takes_tensors(row) && is_fake_tensor(value)) {
      held = array_of_tensor(value);
      value = held.get();
    }
    const bool arrays = row.kind == NumpyKind::Layout || row.needs_contents() ||
                        (keyword ? may_be_array(keyword) : i < inputs + method);
    if (!write_argument(value, call, arrays)) return false;
    call.text += ", ";
  }
  call.text += ")";
  return written || anywhere;
}

Ref NumpyCapture::fact(const NumpyCall& call) {
  const std::vector<Ref> samples = samples_of(call);
  Ref answer;
  c.run_suspended([&] {
    PyObject* const function = runtime::numpy_function(call.text, call.arrays.size());
    std::vector<PyObject*> values;
    for (const Ref& sample : samples) values.push_back(sample.get());
    answer = Ref::steal(PyObject_Vectorcall(function, values.data(), values.size(), nullptr));
  });
  if (!answer) c.errors.check_interrupt();
  PyErr_Clear();
  if (!answer) c.side_exit(BreakReason::OpaqueCall, "NumPy raises or warns: " + call.text);
  return is_value(answer.get()) || PyTuple_CheckExact(answer.get())
             ? answer
             : c.world.wrap(answer.get(), c.sources.constant(answer.get()));
}

}  // namespace magneto::capture
