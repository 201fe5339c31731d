// The text of objects: repr, str, format.
#include <cstring>

#include "capture/calls/calls.h"
#include "capture/calls/handlers.h"
#include "capture/calls/special_methods.h"
#include "capture/numbers/strings.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/modules.h"
#include "capture/world/world.h"
#include "python/abi/types.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

/// repr, format, str of values whose text depends on nothing but themselves.
bool has_constant_text(Capture& capture, PyObject* value) {
  if (is_scalar(value) || PyType_Check(value) || is_identity_constant(value)) return true;
  if (is_value(value) && !PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HEAPTYPE)) return true;  // NumPy's numbers
  if (is_tensor(value) || capture.world.is_outside(value)) return false;
  if (Py_TYPE(value) == &PyRange_Type || Py_TYPE(value) == &PySlice_Type) return true;
  if (PyTuple_Check(value) && std::strcmp(Py_TYPE(value)->tp_name, "torch.Size") == 0) return true;
  return PyExceptionInstance_Check(value) || PyTuple_CheckExact(value) || PyList_CheckExact(value);
}

constexpr const char* kRepr = "repr";
constexpr const char* kAscii = "ascii";
constexpr const char* kStr = "str";
constexpr const char* kFormat = "format";

/// `name`: of the built-in function that does the same.
template <PyObject* (*function)(PyObject*), const char* const& name>
Ref handle_text(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 2, "repr");
  if (is_tensor(args.values[0]) && args.values.size() == 1) {
    static PyObject* const made_by = PyDict_GetItemString(PyEval_GetBuiltins(), name);
    if (Ref waiting = capture.strings.text_of_data(args.values[0], nullptr, made_by)) return waiting;
  }
  Ref value = capture.containers.resolve_deep(args.values[0]);
  capture.containers.refuse_opaque(value.get(), 8);
  PyTypeObject* type = Py_TYPE(value.get());
  if (!has_constant_text(capture, value.get()) && !is_builtin_container(value.get()) &&
      !PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
    capture.side_exit(BreakReason::OpaqueObject, std::string("the text of an object of type ") + type->tp_name);
  }
  if (is_tensor(value.get())) capture.side_exit(BreakReason::DataDependentValue, "the text of a tensor");
  guard_class_text(capture, value.get(), 8);
  if (name == kStr || name == kRepr) {
    PyObject* method =
        capture.attributes.type_lookup(type, name == kStr ? MAGNETO_STR("__str__") : MAGNETO_STR("__repr__"));
    if (is_python_class(type) && method && PyFunction_Check(method)) {
      NonResumable scope(capture);
      Ref text = capture.calls.call(capture.world.wrap(method, capture.sources.constant(method)).get(), {value.get()});
      if (PyUnicode_Check(text.get())) return text;
    }
  }
  return capture.calls.call_native([&] { return function(value.get()); });
}

PyObject* format_plain(PyObject* value) { return PyObject_Format(value, nullptr); }

/// What Tensor.__format__ formats of a tensor of one number that follows from the code. Null: something else.
Ref known_number(Capture& capture, PyObject* value) {
  if (!is_fake_tensor(value) || !is_exact_tensor_type(Py_TYPE(value))) return {};
  const at::Tensor& tensor = unpack_tensor(value);
  PyObject* method = capture.attributes.type_lookup(Py_TYPE(value), MAGNETO_STR("__format__"));
  if (tensor.dim() != 0 || !fake::known_value(tensor) || is_function_beside(method, "torch._tensor")) return {};
  static PyObject* const item = PyObject_GetAttrString(tensor_class(), "item");
  return capture.calls.call(item, {value});
}

Ref handle_format(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 2, "format");
  PyObject* value = args.values[0];
  PyObject* const spec = args.values.size() > 1 ? args.values[1] : nullptr;
  if (is_tensor(value)) {
    if (Ref waiting = capture.strings.text_of_data(value, spec)) return waiting;
    if (Ref number = known_number(capture, value))
      return handle_format(capture, spec ? CallArgs{{number.get(), spec}} : CallArgs{{number.get()}});
  }
  capture.containers.refuse_opaque(value, 3);
  PyTypeObject* type = Py_TYPE(value);
  static PyObject* const plain = PyDict_GetItemString(type_dict(&PyBaseObject_Type), "__format__");
  const bool is_constant = has_constant_text(capture, value);
  if ((!is_constant || is_python_class(type)) && !is_tensor(value)) {
    PyObject* method = capture.attributes.type_lookup(type, MAGNETO_STR("__format__"));
    if (method && PyFunction_Check(method)) {
      Ref empty = checked(PyUnicode_New(0, 0));
      Ref text = capture.calls.call(capture.world.wrap(method, capture.sources.constant(method)).get(),
                                    {value, spec ? spec : empty.get()});
      if (PyUnicode_Check(text.get())) return text;
      PyErr_Format(PyExc_TypeError, "__format__ must return a str, not %.200s", Py_TYPE(text.get())->tp_name);
      throw PythonError{};
    }
    const bool no_spec = !spec || (PyUnicode_Check(spec) && !PyUnicode_GET_LENGTH(spec));
    if (method == plain && no_spec) return capture.calls.call(reinterpret_cast<PyObject*>(&PyUnicode_Type), {value});
  }
  if (!is_constant) {
    capture.side_exit(BreakReason::OpaqueObject, std::string("the text of an object of type ") + type->tp_name);
  }
  guard_class_text(capture, value, 3);
  return capture.calls.call_native([&] { return PyObject_Format(value, spec); });
}

Ref handle_str_format(Capture& capture, const CallArgs& args) {
  std::vector<Ref> seen;
  std::vector<PyObject*> values;
  for (PyObject* value : args.values) {
    seen.push_back(capture.containers.resolve_deep(value));
    values.push_back(seen.back().get());
    capture.containers.refuse_opaque(values.back(), 8);
    guard_class_text(capture, values.back(), 8);
    if (!has_constant_text(capture, values.back()) && !is_builtin_container(values.back())) {
      capture.side_exit(BreakReason::OpaqueObject,
                        std::string("the text of an object of type ") + Py_TYPE(value)->tp_name);
    }
  }
  static PyObject* const format = PyDict_GetItemString(type_dict(&PyUnicode_Type), "format");
  return capture.calls.call_native(
      [&] { return PyObject_Vectorcall(format, values.data(), args.positional(), args.kwnames); });
}

}  // namespace

Ref text_of(Capture& capture, const CallArgs& args) { return handle_text<PyObject_Str, kStr>(capture, args); }

std::span<const HandlerRow> text_handlers() {
  static constexpr HandlerRow rows[] = {
      {"builtins.repr", handle_text<PyObject_Repr, kRepr>},
      {"builtins.ascii", handle_text<PyObject_ASCII, kAscii>},
      {"builtins.format", handle_format},
      {"object.__repr__", handle_text<PyObject_Repr, kRepr>},
      {"object.__str__", handle_text<PyObject_Str, kStr>},
      {"object.__format__", handle_text<format_plain, kFormat>},
      {"str.format", handle_str_format},
  };
  return rows;
}

}  // namespace magneto::capture
