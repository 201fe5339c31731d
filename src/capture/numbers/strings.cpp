// Data-dependent strings: of a tensor, or of a number that it gives.
//
// Most are messages for errors that do not happen. A stand-in is handed on in place of such a text. Where one is handed
// on behind the segment's end, the segment is captured again with a copy of the value, of which the run makes the text;
// where the program reads it before, the segment ends where the text is made.

#include "capture/numbers/strings.h"

#include <algorithm>
#include <string_view>

#include "capture/calls/calls.h"
#include "capture/capture.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/attributes.h"
#include "capture/world/modules.h"
#include "capture/world/world.h"
#include "python/abi/private.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

/// What formats as the value does, be it with an error. Null: nobody knows.
Ref sample_of_text(Capture& capture, PyObject* value) {
  if (is_unknown_number(value)) return Ref::borrow(number_now(value));
  if (!is_fake_tensor(value) || !is_exact_tensor_type(Py_TYPE(value)) || fake::known_value(unpack_tensor(value))) {
    return {};
  }
  for (PyObject* name : {MAGNETO_STR("__format__"), MAGNETO_STR("__repr__"), MAGNETO_STR("__str__")}) {
    PyObject* method = capture.attributes.type_lookup(Py_TYPE(value), name);
    if (method != lookup_in_type(reinterpret_cast<PyTypeObject*>(tensor_class()), name)) return {};
    if (is_function_beside(method, "torch._tensor")) return {};
  }
  const at::Tensor& tensor = unpack_tensor(value);
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

/// The text that a run makes of a copy does not say how that was made.
bool makes_text_of_copy(PyObject* value) {
  return !is_tensor(value) || unpack_tensor(value).dim() == 0 || !unpack_tensor(value).requires_grad();
}

}  // namespace

Ref Strings::unknown_text(SymbolicString text) {
  Ref stand_in = make_symbolic_string();
  made.emplace(stand_in.get(), std::move(text));
  c.world.keep(stand_in);
  return stand_in;
}

SpecializationFeedback::Text* Strings::demand_string() {
  static SpecializationFeedback::Text nothing = SpecializationFeedback::Text::Dropped;
  if (!c.frame || c.feedback.needs_all) return nullptr;
  const auto wish = c.feedback.texts.find({c.frame->info->code, c.frame->pc});
  return wish == c.feedback.texts.end()                       ? &nothing
         : wish->second == SpecializationFeedback::Text::Read ? nullptr
                                                              : &wish->second;
}

Ref Strings::text_of_data(PyObject* value, PyObject* format, PyObject* function) {
  if (!is_tensor(value) && !is_unknown_number(value)) return {};
  if (c.torch.is_overridden({&value, 1})) c.side_exit(BreakReason::DataDependentValue, "the text of a tensor");
  if (format && (!PyUnicode_CheckExact(format) || asks_for_character(format))) return {};
  const SpecializationFeedback::Text* wish = demand_string();
  if (!wish) return {};
  if (is_symbolic_string(value) && (!format || PyUnicode_GET_LENGTH(format) == 0)) return Ref::borrow(value);
  const Ref sample = sample_of_text(c, value);
  if (!sample) return {};
  Ref text = Ref::steal(PyObject_Format(sample.get(), format));
  if (!text) {  // what the program raises
    PyErr_Clear();
    return {};
  }
  Ref copy = Ref::borrow(value);
  if (*wish == SpecializationFeedback::Text::Forwarded) {
    if (is_symbolic_string(value) || !makes_text_of_copy(value)) return {};
    static PyObject* const clone = PyObject_GetAttrString(tensor_class(), "clone");
    if (is_tensor(value)) copy = c.calls.call(clone, {value});
  }
  static PyObject* const plain = PyDict_GetItemString(PyEval_GetBuiltins(), "format");
  return unknown_text(
      {{{copy, Ref::borrow(function ? function : plain), Ref::borrow(format)}}, {{c.frame->info->code, c.frame->pc}}});
}

Ref Strings::join_texts(std::span<PyObject* const> parts) {
  SymbolicString joined;
  for (PyObject* part : parts) {
    const auto unknown = made.find(part);
    if (unknown == made.end()) {
      joined.parts.push_back({Ref::borrow(part), {}, {}});
      continue;
    }
    const SymbolicString& text = unknown->second;
    joined.parts.insert(joined.parts.end(), text.parts.begin(), text.parts.end());
    joined.sites.insert(joined.sites.end(), text.sites.begin(), text.sites.end());
  }
  if (!joined.sites.empty()) return unknown_text(std::move(joined));
  Ref empty = checked(PyUnicode_New(0, 0));
  return checked(join_strings(empty.get(), parts.data(), static_cast<Py_ssize_t>(parts.size())));
}

void Strings::need_text(PyObject* text) {
  for (const BreakSite& site : made.at(text).sites) c.feedback.texts[site] = SpecializationFeedback::Text::Read;
  throw Retry{};
}

const std::vector<StringPart>& Strings::parts_to_hand_on(PyObject* text) {
  const SymbolicString& unknown = made.at(text);
  bool again = false;
  for (const BreakSite& site : unknown.sites)
    again |= c.feedback.texts.try_emplace(site, SpecializationFeedback::Text::Forwarded).second;
  if (again) throw Retry{};
  return unknown.parts;
}

}  // namespace magneto::capture
