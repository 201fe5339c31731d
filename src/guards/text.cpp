#include "guards/text.h"

#include "guards/array.h"
#include "guards/constants.h"
#include "guards/tensor_check.h"
#include "python/abi/private.h"
#include "python/abi/types.h"

namespace magneto::guards {

namespace {

std::string utf8(PyObject* str) {
  const char* text = str && PyUnicode_Check(str) ? PyUnicode_AsUTF8(str) : nullptr;
  if (!text) PyErr_Clear();
  return text ? text : "?";
}

/// "module.Class" for a class made in Python, tp_name for others.
std::string qualified_name(PyTypeObject* type) {
  if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE)) return type->tp_name;
  PyObject* module = PyDict_GetItemString(type_dict(type), "__module__");
  std::string name = utf8(reinterpret_cast<PyHeapTypeObject*>(type)->ht_qualname);
  return module && PyUnicode_Check(module) ? utf8(module) + "." + name : name;
}

std::string keys_text(const std::vector<Ref>& keys) {
  std::string text = "[";
  for (const Ref& key : keys) text += (text.size() > 1 ? ", " : "") + object_text(key.get());
  return text + "]";
}

std::vector<Ref> tuple_items(PyObject* tuple) {
  std::vector<Ref> items;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) items.push_back(Ref::borrow(PyTuple_GET_ITEM(tuple, i)));
  return items;
}

std::string type_suffix(const Check& check) { return ", type=" + object_text(check.type.get()); }

std::string lookup_text(const Check& check) {
  return "_PyType_Lookup(" + object_text(check.type.get()) + ", " + object_text(check.name.get()) + ")";
}

std::string state_text(const Check& check) {
  std::string args;
  for (const Ref& arg : check.keys) args += (args.empty() ? "" : ", ") + object_text(arg.get());
  return std::string(reinterpret_cast<PyCFunctionObject*>(check.function.get())->m_ml->ml_name) + "(" + args + ")";
}

/// The condition, as one would write it in Python.
std::string condition(const Check& check, const Names& names) {
  const std::string& name = names.own;
  switch (check.kind) {
    case CheckKind::Type:
      return "___check_type_id(" + name + ", " + object_text(check.type.get()) + ")";
    case CheckKind::Identity:
      return "___check_obj_id(" + name + ", " + object_text(check.expected()) + ")";
    case CheckKind::Equals:
      return name + " == " + object_text(check.object.get());
    case CheckKind::Absent:
      return presence_text(*check.source, false, names);
    case CheckKind::Length:
      return "len(" + name + ") == " + std::to_string(check.length);
    case CheckKind::DictKeys:
      return "list(dict.keys(" + name + ")) == " + keys_text(check.keys);
    case CheckKind::Tensor:
      return tensor_text(*check.tensor, name);
    case CheckKind::TensorData:
      return "___check_tensor_data(" + name + ", " + object_text(check.object.get()) + ")";
    case CheckKind::Array:
      return "___check_array(" + name + ", " + layout_text(check.object.get()) + ")";
    case CheckKind::BuiltinMethod:
      return "___check_method(" + name + ", " + object_text(check.object.get()) + ")";
    case CheckKind::Alias:
      return name + " is " + check.other->name();
    case CheckKind::AllDistinct: {
      std::string names;
      for (const Source* each : check.sources) names += (names.empty() ? "" : ", ") + each->name();
      return "check_no_aliasing(" + names + ")";
    }
    case CheckKind::Sizes: {
      std::string lines;
      for (const std::string& line : check.sizes->lines()) lines += (lines.empty() ? "" : " and ") + line;
      return lines;
    }
    case CheckKind::Distinct:
      return name + " is not " + check.other->name();
    case CheckKind::Function:
      return "___check_function(" + name + ", " + object_text(check.object.get()) + ")";
    case CheckKind::TypeLookup:
      return lookup_text(check) + (check.object ? " is " + object_text(check.object.get()) : " is missing");
    case CheckKind::Bases:
      return object_text(check.type.get()) + ".__mro__ is " + keys_text(tuple_items(check.object.get()));
    case CheckKind::AbcRegistrations:
      return "abc.get_cache_token() == " + std::to_string(check.length);
    case CheckKind::State:
      return state_text(check) + " == " + object_text(check.object.get());
    case CheckKind::Require:
      return presence_text(*check.source, true, names);
  }
  return "";
}

Py_ssize_t length_of(PyObject* value) {
  if (PyDict_Check(value)) return PyDict_GET_SIZE(value);
  if (PyList_Check(value) || PyTuple_Check(value)) return Py_SIZE(value);
  return PyAnySet_Check(value) ? PySet_GET_SIZE(value) : -1;
}

std::string keys_of(PyObject* dict) {
  std::vector<Ref> keys;
  // Of an ordered dict this is the order of insertion, not of iteration; good enough to see what is new.
  Py_ssize_t position = 0;
  PyObject* key;
  while (PyDict_Next(dict, &position, &key, nullptr)) keys.push_back(Ref::borrow(key));
  return keys_text(keys);
}

/// Of a C type with a text of its own.
bool is_torch_constant(PyObject* object) {
  const std::string_view name = Py_TYPE(object)->tp_name;
  return name == "torch.dtype" || name == "torch.device" || name == "torch.layout" || name == "torch.memory_format";
}

const char* truth(bool value) { return value ? "True" : "False"; }

}  // namespace

std::string type_name(PyTypeObject* type) {
  if (type->tp_flags & Py_TPFLAGS_HEAPTYPE) return utf8(reinterpret_cast<PyHeapTypeObject*>(type)->ht_name);
  std::string name = type->tp_name;
  return name.substr(name.rfind('.') + 1);
}

std::string object_text(PyObject* object) {
  SavedError saved;
  if (!object) return "nothing";
  if (is_constant(object) || is_torch_constant(object)) {
    Ref text = Ref::steal(PyObject_Repr(object));
    if (text) return utf8(text.get());
    PyErr_Clear();
  }
  for (PyTypeObject* type : {&PyLong_Type, &PyFloat_Type, &PyComplex_Type, &PyUnicode_Type, &PyBytes_Type}) {
    if (!PyObject_TypeCheck(object, type)) continue;  // the subclass may have a text of its own, in Python
    Ref text = Ref::steal(type->tp_repr(object));
    if (text) return std::string(Py_TYPE(object)->tp_name) + "(" + utf8(text.get()) + ")";
    PyErr_Clear();
  }
  if (PyType_Check(object)) return "<class '" + qualified_name(reinterpret_cast<PyTypeObject*>(object)) + "'>";
  if (PyFunction_Check(object)) {
    return "<function " + utf8(reinterpret_cast<PyFunctionObject*>(object)->func_qualname) + ">";
  }
  if (PyCFunction_Check(object)) {
    return std::string("<built-in function ") + reinterpret_cast<PyCFunctionObject*>(object)->m_ml->ml_name + ">";
  }
  if (PyCode_Check(object)) {
    auto* code = reinterpret_cast<PyCodeObject*>(object);
    return "<code " + utf8(code->co_qualname) + ", line " + std::to_string(code->co_firstlineno) + ">";
  }
  if (PyModule_Check(object)) {
    PyObject* name = PyDict_GetItemString(PyModule_GetDict(object), "__name__");
    return "<module '" + utf8(name) + "'>";
  }
  return "<" + type_name(Py_TYPE(object)) + " object>";
}

std::string presence_text(const Source& source, bool present, const Names& names) {
  switch (source.kind) {
    case SourceKind::DictItem:
      return object_text(source.key.get()) + (present ? " in " : " not in ") + names.base;
    case SourceKind::SeqItem:
      return "len(" + names.base + ")" + (present ? " > " : " <= ") + std::to_string(source.index);
    case SourceKind::Attr:
    case SourceKind::Slot:
    case SourceKind::InstanceDict:
    case SourceKind::BoundSelf:
    case SourceKind::BoundFunction:
    case SourceKind::Grad:
      return (present ? "hasattr(" : "not hasattr(") + names.base + ", '" + source.name_on("").substr(1) + "')";
    default:
      return names.own + (present ? " is bound" : " is not bound");
  }
}

std::string presence_line(const Source& source, bool present, const Names& names) {
  const std::string text = presence_text(source, present, names);
  const char* label = present ? "HASATTR" : "NO_HASATTR";
  if (source.kind == SourceKind::DictItem)
    label = present ? "DICT_CONTAINS" : "DICT_NOT_CONTAINS";
  else if (source.kind == SourceKind::SeqItem)
    label = "LENGTH_CHECK";
  else if (!text.starts_with("hasattr(") && !text.starts_with("not hasattr("))
    label = present ? "BOUND" : "NOT_BOUND";
  return label + (": " + text);
}

std::string check_line(const Check& check, const Names& names) {
  std::string line = std::string(check_label(check.kind)) + ": " + condition(check, names);
  if (check.kind == CheckKind::Length || check.kind == CheckKind::DictKeys) line += type_suffix(check);
  return line;
}

std::string check_failure(const Check& check, PyObject* value, PyObject* other) {
  std::string text = condition(check, Names(check.source));
  if (check.kind == CheckKind::TypeLookup) {
    PyObject* found = lookup_in_type(check.python_type(), check.name.get());
    return text + ": actual " + object_text(found);
  }
  if (check.kind == CheckKind::Bases) {
    return text + ": actual " + keys_text(tuple_items(check.python_type()->tp_mro));
  }
  if (check.kind == CheckKind::State) return text + ": not any more";
  if (check.kind == CheckKind::AbcRegistrations) {
    return text + ": a class has been registered with an abstract base class";
  }
  if (check.kind == CheckKind::Alias || check.kind == CheckKind::Distinct) {
    return text + (check.kind == CheckKind::Alias ? ": they are different objects now" : ": they are one object now");
  }
  if (!value) return text + ": " + check.source->name() + " is missing";
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(value));
  if (check.type && check.type.get() != type)
    return text + ": expected type " + object_text(check.type.get()) + ", actual " + object_text(type);
  switch (check.kind) {
    case CheckKind::Identity:
      return text + ": actual " +
             (Py_TYPE(value) == Py_TYPE(check.expected()) && !is_constant(value) ? "another " + object_text(value)
                                                                                 : object_text(value));
    case CheckKind::Equals: {
      bool same_type = Py_TYPE(value) == Py_TYPE(check.object.get());
      auto described = [&](PyObject* object) {
        return object_text(object) + (same_type ? "" : " (" + type_name(Py_TYPE(object)) + ")");
      };
      return text + ": expected " + described(check.object.get()) + ", actual " + described(value);
    }
    case CheckKind::Array: {
      const Ref layout = is_array(value) ? layout_of(value) : Ref();
      return text + ": actual " + (layout ? layout_text(layout.get()) : object_text(value));
    }
    case CheckKind::Length:
      return text + ": actual " + std::to_string(length_of(value));
    case CheckKind::DictKeys:
      return text + ": actual " + keys_of(value);
    case CheckKind::Function: {
      if (!PyFunction_Check(value)) return text + ": actual " + object_text(value);
      auto* function = reinterpret_cast<PyFunctionObject*>(value);
      if (function->func_code != check.object.get()) return text + ": actual code " + object_text(function->func_code);
      return text + ": its " + (function->func_defaults != check.defaults.get() ? "__defaults__" : "__kwdefaults__") +
             " changed";
    }
    default:
      return text;
  }
}

std::string global_state_line(const GlobalState& state) {
  return std::string("GLOBAL_STATE: ___check_global_state(grad_mode=") + truth(state.grad_mode) +
         ", inference_mode=" + truth(state.inference_mode) + ", autocast_cpu=" + truth(state.autocast_cpu) +
         ", autocast_cuda=" + truth(state.autocast_cuda) + ", deterministic=" + truth(state.deterministic) +
         ", torch_function=" + truth(state.torch_function_enabled) +
         ", torch_function_modes=" + std::to_string(state.torch_function_modes) +
         ", default_dtype=" + c10::toString(state.default_dtype) +
         ", num_threads=" + std::to_string(state.num_threads) + ")";
}

std::string default_device_line(const GlobalState& state) {
  std::string device = "None";
  if (state.torch_function_modes > 0) {
    for (PyObject* mode : function_modes()) {
      if (const std::optional<c10::Device> own = device_of_context(mode)) device = "device('" + own->str() + "')";
    }
  }
  return "DEFAULT_DEVICE: utils_device.CURRENT_DEVICE == " + device;
}

std::string mode_stack_line(const GlobalState& state) {
  std::string modes;
  if (state.torch_function_modes > 0) {
    for (PyObject* mode : function_modes()) modes += (modes.empty() ? "" : ", ") + type_name(Py_TYPE(mode));
  }
  return "TORCH_FUNCTION_MODE_STACK: ___check_torch_function_mode_stack(" + modes + ")";
}

}  // namespace magneto::guards
