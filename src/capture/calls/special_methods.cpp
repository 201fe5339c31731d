// Operators on tensors, and functions such as abs, go to special methods of torch.Tensor, which a program may replace.
#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "capture/capture.h"
#include "capture/world/modules.h"

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

using Names = std::vector<std::string>;

/// What an operator asks of its first operand, and of the second one.
std::pair<Names, Names> methods_of_operator(std::string name) {
  static const std::map<std::string, std::string> mirrored = {{"lt", "gt"}, {"gt", "lt"}, {"le", "ge"},
                                                              {"ge", "le"}, {"eq", "eq"}, {"ne", "ne"}};
  static constexpr std::string_view unary[] = {"neg", "pos", "invert", "inv", "index"};
  if (name.ends_with('_')) name.pop_back();  // and_
  const std::string own = "__" + name + "__";
  if (const auto other = mirrored.find(name); other != mirrored.end()) return {{own}, {"__" + other->second + "__"}};
  if (name.ends_with("item") || name == "contains" || std::ranges::find(unary, name) != std::end(unary)) {
    return {{own}, {}};
  }
  const bool in_place = name.starts_with('i');
  const std::string plain = in_place ? name.substr(1) : name;
  return {in_place ? Names{own, "__" + plain + "__"} : Names{own}, {"__r" + plain + "__"}};
}

struct Methods {
  std::vector<PyObject*> first, others;  // by argument; interned
};

Methods find_methods(PyObject* function) {
  std::pair<Names, Names> names;
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
    names.first = names.second = {"__float__", "__index__", "__" + name + "__"};
  } else if (module == "builtins") {
    const auto row = std::ranges::find(builtin_rows(), name, &BuiltinRow::function);
    if (row != builtin_rows().end()) names.first.assign(row->methods.begin(), row->methods.end());
    names.second = names.first;
  }
  const auto interned = [](const Names& texts) {
    std::vector<PyObject*> methods;
    for (const std::string& each : texts) methods.push_back(PyUnicode_InternFromString(each.c_str()));
    return methods;
  };
  return {interned(names.first), interned(names.second)};
}

}  // namespace

void Capture::guard_special_methods(PyObject* function, std::span<PyObject* const> args) {
  if (!PyCFunction_Check(function) && !PyType_Check(function)) return;
  static auto* known = new std::unordered_map<PyObject*, Methods>;
  auto found = known->find(function);
  if (found == known->end()) {
    keep_forever(function);
    found = known->emplace(function, find_methods(function)).first;
  }
  if (found->second.first.empty()) return;
  const auto guard = [&](PyObject* arg, const std::vector<PyObject*>& methods) {
    if (!is_tensor(arg)) return;
    for (PyObject* method : methods) type_lookup(Py_TYPE(arg), method);
  };
  for (size_t i = 0; i < args.size(); ++i) {
    const std::vector<PyObject*>& methods = i == 0 ? found->second.first : found->second.others;
    guard(args[i], methods);
    if (!PyList_CheckExact(args[i])) continue;  // sum(list)
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(args[i]); ++k) guard(PyList_GET_ITEM(args[i], k), methods);
  }
}

Ref Capture::call_replaced_method(PyObject* tensor, PyObject* name) {
  PyObject* method = type_lookup(Py_TYPE(tensor), name);
  if (!method || !(is_function_beside(method, "torch._tensor") || is_overridden({&tensor, 1}))) return {};
  return call(wrap(method, sources.constant(method)).get(), {tensor});
}

}  // namespace magneto::capture
