// Operators on tensors, and functions such as abs, go to special methods of torch.Tensor, which a program may replace.
#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "capture/capture.h"

namespace magneto::capture {

namespace {

struct BuiltinRow {
  std::string_view function;
  std::vector<const char*> methods;
};

const std::vector<BuiltinRow>& builtin_rows() {
  static const std::vector<BuiltinRow> rows = {
      {"abs", {"__abs__"}},
      {"divmod", {"__divmod__", "__rdivmod__"}},
      {"pow", {"__pow__", "__rpow__"}},
      {"round", {"__round__"}},
      {"sum", {"__add__", "__radd__"}},
      {"min", {"__lt__", "__gt__"}},
      {"max", {"__lt__", "__gt__"}},
      {"bool", {"__bool__", "__len__"}},
      {"int", {"__int__", "__index__", "__trunc__"}},
      {"float", {"__float__", "__index__"}},
      {"complex", {"__complex__", "__float__", "__index__"}},
  };
  return rows;
}

/// "add" for "iadd" and "add"; of a comparison the one that is asked of the other operand.
std::vector<std::string> methods_of_operator(std::string name) {
  static const std::map<std::string, std::string> mirrored = {{"lt", "gt"}, {"gt", "lt"}, {"le", "ge"}, {"ge", "le"}};
  static constexpr std::string_view plain[] = {"neg", "pos", "invert", "inv", "index", "eq", "ne"};
  if (name.ends_with('_')) name.pop_back();  // and_
  if (const auto other = mirrored.find(name); other != mirrored.end()) {
    return {"__" + name + "__", "__" + other->second + "__"};
  }
  if (name.ends_with("item") || name == "contains" || std::ranges::find(plain, name) != std::end(plain)) {
    return {"__" + name + "__"};
  }
  std::vector<std::string> methods = {"__" + name + "__", "__r" + name + "__"};
  if (name.starts_with('i')) {
    methods.push_back("__" + name.substr(1) + "__");
    methods.push_back("__r" + name.substr(1) + "__");
  }
  return methods;
}

std::vector<PyObject*> find_methods(PyObject* function) {
  std::vector<std::string> names;
  std::string_view module = "builtins";
  if (PyCFunction_Check(function)) {
    PyObject* of = reinterpret_cast<PyCFunctionObject*>(function)->m_module;
    module = of && PyUnicode_Check(of) ? PyUnicode_AsUTF8(of) : "";
  }
  const std::string name = PyType_Check(function) ? reinterpret_cast<PyTypeObject*>(function)->tp_name
                                                  : reinterpret_cast<PyCFunctionObject*>(function)->m_ml->ml_name;
  if (module == "_operator") {
    names = methods_of_operator(name);
  } else if (module == "math") {
    names = {"__float__", "__index__", "__" + name + "__"};
  } else if (module == "builtins") {
    const auto row = std::ranges::find(builtin_rows(), name, &BuiltinRow::function);
    if (row != builtin_rows().end()) names.assign(row->methods.begin(), row->methods.end());
  }
  std::vector<PyObject*> methods;
  for (const std::string& each : names) methods.push_back(PyUnicode_InternFromString(each.c_str()));
  return methods;
}

}  // namespace

void Capture::guard_special_methods(PyObject* function, std::span<PyObject* const> args) {
  if (!PyCFunction_Check(function) && !PyType_Check(function)) return;
  static auto* known = new std::unordered_map<PyObject*, std::vector<PyObject*>>;
  auto found = known->find(function);
  if (found == known->end()) {
    keep_forever(function);
    found = known->emplace(function, find_methods(function)).first;
  }
  if (found->second.empty()) return;
  const auto guard = [&](PyObject* arg) {
    if (!is_tensor(arg)) return;
    for (PyObject* method : found->second) type_lookup(Py_TYPE(arg), method);
  };
  for (PyObject* arg : args) {
    guard(arg);
    if (!PyList_CheckExact(arg)) continue;  // sum(list)
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(arg); ++i) guard(PyList_GET_ITEM(arg, i));
  }
}

Ref Capture::call_replaced_method(PyObject* tensor, PyObject* name) {
  PyObject* method = type_lookup(Py_TYPE(tensor), name);
  if (!method || !PyFunction_Check(method)) return {};
  PyObject* module = PyDict_GetItemString(PyFunction_GET_GLOBALS(method), "__name__");
  if (module && PyUnicode_Check(module) && PyUnicode_CompareWithASCIIString(module, "torch._tensor") == 0) return {};
  return call(wrap(method, sources.constant(method)).get(), {tensor});
}

}  // namespace magneto::capture
