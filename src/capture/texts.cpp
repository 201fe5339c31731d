// Texts that only the data says: of a tensor, or of a number that it gives.
//
// Most are messages for errors that do not happen. A stand-in is handed on in place of such a text; where the program
// needs it, the segment is captured again, and ends where the text is made.
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <string_view>

#include "capture/capture.h"

namespace magneto::capture {

namespace {

/// What formats as the value does, be it with an error. Null: nobody knows.
Ref sample_of_text(Capture& capture, PyObject* value) {
  if (is_unknown_number(value)) return Ref::borrow(number_now(value));
  if (!is_fake_tensor(value) || !THPVariable_CheckExact(value) || fake::known_value(THPVariable_Unpack(value))) {
    return {};
  }
  for (PyObject* name : {MAGNETO_STR("__format__"), MAGNETO_STR("__repr__"), MAGNETO_STR("__str__")}) {
    PyObject* method = capture.type_lookup(Py_TYPE(value), name);
    if (method != _PyType_Lookup(reinterpret_cast<PyTypeObject*>(THPVariableClass), name)) return {};
    PyObject* module = PyFunction_Check(method)
                           ? PyDict_GetItemString(PyFunction_GET_GLOBALS(method), "__name__")
                           : nullptr;
    const bool own = module && PyUnicode_CompareWithASCIIString(module, "torch._tensor") == 0;
    if (PyFunction_Check(method) && !own) return {};
  }
  const at::Tensor& tensor = THPVariable_Unpack(value);
  if (tensor.dim() > 0) return Ref::borrow(Py_None);  // takes no format, either
  if (tensor.scalar_type() == at::kBool) return Ref::borrow(Py_True);
  if (c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false)) return checked(PyLong_FromLong(1));
  return c10::isComplexType(tensor.scalar_type()) ? checked(PyComplex_FromDoubles(1, 1))
                                                  : checked(PyFloat_FromDouble(1));
}

/// Of a number: whether it is one of a character depends on the number.
bool asks_for_character(PyObject* format) {
  return std::string_view(PyUnicode_AsUTF8(format)).find('c') != std::string_view::npos;
}

}  // namespace

Ref Capture::unknown_text(std::vector<BreakSite> sites) {
  Ref text = make_unknown_text();
  texts_.emplace(text.get(), std::move(sites));
  keep(text);
  return text;
}

bool Capture::may_wait_for_text() const {
  return frame && !memory_.needs_all && !memory_.texts.count({frame->info->code, frame->pc});
}

Ref Capture::text_of_data(PyObject* value, PyObject* format) {
  if (!may_wait_for_text() || (format && (!PyUnicode_CheckExact(format) || asks_for_character(format)))) return {};
  if (!is_tensor(value) && !is_unknown_number(value)) return {};
  const Ref sample = sample_of_text(*this, value);
  if (!sample) return {};
  Ref text = Ref::steal(PyObject_Format(sample.get(), format));
  if (!text) {  // what the program raises
    PyErr_Clear();
    return {};
  }
  std::vector<BreakSite> sites = {{frame->info->code, frame->pc}};
  if (const auto within = texts_.find(value); within != texts_.end()) sites = within->second;
  return unknown_text(std::move(sites));
}

Ref Capture::join_texts(std::span<PyObject* const> parts) {
  std::vector<BreakSite> sites;
  for (PyObject* part : parts) {
    const auto unknown = texts_.find(part);
    if (unknown != texts_.end()) sites.insert(sites.end(), unknown->second.begin(), unknown->second.end());
  }
  if (!sites.empty()) return unknown_text(std::move(sites));
  Ref empty = checked(PyUnicode_New(0, 0));
  return checked(_PyUnicode_JoinArray(empty.get(), parts.data(), static_cast<Py_ssize_t>(parts.size())));
}

void Capture::need_text(PyObject* text) {
  const std::vector<BreakSite>& sites = texts_.at(text);
  memory_.texts.insert(sites.begin(), sites.end());
  throw Retry{};
}

}  // namespace magneto::capture
