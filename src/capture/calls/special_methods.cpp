// Operators, and functions such as abs, go to special methods of their operands' classes, torch.Tensor among them,
// which a program may replace.
#include "capture/calls/special_methods.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "capture/calls/calls.h"
#include "capture/capture.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/attributes.h"
#include "capture/world/modules.h"
#include "capture/world/world.h"
#include "python/abi/types.h"

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

void Calls::guard_special_methods(PyObject* function, std::span<PyObject* const> args) {
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
    for (PyObject* method : methods) c.attributes.type_lookup(Py_TYPE(arg), method);
  };
  for (size_t i = 0; i < args.size(); ++i) {
    const std::vector<PyObject*>& methods = i == 0 ? found->second.first : found->second.others;
    guard(args[i], methods);
    if (!PyList_CheckExact(args[i])) continue;  // sum(list)
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(args[i]); ++k) guard(PyList_GET_ITEM(args[i], k), methods);
  }
}

namespace {

using Interned = std::vector<PyObject*>;

Interned interned(std::initializer_list<const char*> names) {
  Interned methods;
  for (const char* name : names) methods.push_back(PyUnicode_InternFromString(name));
  return methods;
}

const Interned& methods_of(Question question) {
  static const Interned text = interned({"__repr__", "__str__", "__format__"}),
                        equality = interned({"__eq__", "__ne__"}),
                        order = interned({"__lt__", "__gt__", "__le__", "__ge__", "__eq__"}),
                        hash = interned({"__hash__", "__eq__"}), truth = interned({"__bool__", "__len__"}),
                        call = interned({"__call__"}),
                        iteration = interned({"__iter__", "__next__", "__getitem__", "__len__", "__length_hint__",
                                              "__reversed__", "__contains__"});
  static const Interned all = [] {
    Interned methods = interned(
        {"__abs__",     "__neg__",          "__pos__",      "__invert__",    "__int__",           "__float__",
         "__complex__", "__index__",        "__round__",    "__trunc__",     "__floor__",         "__ceil__",
         "__add__",     "__radd__",         "__sub__",      "__rsub__",      "__mul__",           "__rmul__",
         "__truediv__", "__rtruediv__",     "__floordiv__", "__rfloordiv__", "__mod__",           "__rmod__",
         "__divmod__",  "__rdivmod__",      "__pow__",      "__rpow__",      "__matmul__",        "__rmatmul__",
         "__and__",     "__rand__",         "__or__",       "__ror__",       "__xor__",           "__rxor__",
         "__lshift__",  "__rlshift__",      "__rshift__",   "__rrshift__",   "__bytes__",         "__fspath__",
         "__getattr__", "__getattribute__", "__enter__",    "__exit__",      "__instancecheck__", "__subclasscheck__",
         "__missing__", "__copy__",         "__deepcopy__", "__reduce__",    "__reduce_ex__",     "__sizeof__",
         "__dir__"});
    for (const auto* some : {&text, &equality, &order, &hash, &truth, &call, &iteration}) {
      methods.insert(methods.end(), some->begin(), some->end());
    }
    return methods;
  }();
  static const Interned* const rows[] = {&text, &equality, &order, &hash, &truth, &call, &iteration, &all};
  return *rows[static_cast<size_t>(question)];
}

/// Functions and classes of C code that ask one question; those in `builtin_rows` ask theirs, all others may ask
/// anything.
std::optional<Question> question_of(std::string_view name) {
  static const std::map<std::string_view, Question> rows = {
      {"builtins.hash", Question::Hash},
      {"builtins.callable", Question::Call},
      {"builtins.len", Question::Truth},
      {"builtins.iter", Question::Iteration},
      {"builtins.next", Question::Iteration},
      {"builtins.all", Question::Truth},
      {"builtins.any", Question::Truth},
      {"builtins.id", Question::Call},
      {"builtins.list", Question::Iteration},
      {"builtins.tuple", Question::Iteration},
      {"builtins.set", Question::Hash},
      {"builtins.frozenset", Question::Hash},
      {"builtins.dict", Question::Hash},
      {"builtins.zip", Question::Iteration},
      {"builtins.enumerate", Question::Iteration},
      {"builtins.map", Question::Iteration},
      {"builtins.filter", Question::Truth},
      {"builtins.reversed", Question::Iteration},
  };
  const auto found = rows.find(name);
  return found == rows.end() ? std::nullopt : std::optional(found->second);
}

std::string qualified_name(PyObject* callable) {
  const auto text = [](PyObject* object, const char* attribute) {
    Ref name = Ref::steal(PyObject_GetAttrString(object, attribute));
    PyErr_Clear();
    return name && PyUnicode_Check(name.get()) ? std::string(PyUnicode_AsUTF8(name.get())) : std::string();
  };
  return text(callable, "__module__") + "." + text(callable, "__qualname__");
}

const Interned& methods_asked_by(PyObject* callable) {
  static auto* known = new std::unordered_map<PyObject*, Interned>;
  auto found = known->find(callable);
  if (found != known->end()) return found->second;
  keep_forever(callable);
  Interned methods;
  if (const auto question = question_of(qualified_name(callable))) {
    methods = methods_of(*question);
  } else {
    if (PyCFunction_Check(callable) || PyType_Check(callable)) methods = find_methods(callable).first;
    if (methods.empty()) methods = methods_of(Question::Anything);
  }
  return known->emplace(callable, std::move(methods)).first->second;
}

void guard_methods(Capture& capture, PyObject* value, const Interned& methods, int depth) {
  PyTypeObject* type = Py_TYPE(value);
  if (is_python_class(type) && !is_tensor(value)) {
    for (PyObject* method : methods) capture.attributes.type_lookup(type, method);
  }
  if (depth <= 0) return;
  if (PyTuple_Check(value) || PyList_Check(value)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i) {
      guard_methods(capture, PySequence_Fast_GET_ITEM(value, i), methods, depth - 1);
    }
  } else if (PyDict_Check(value)) {
    PyObject *key, *item;
    Py_ssize_t position = 0;
    while (PyDict_Next(value, &position, &key, &item)) {
      guard_methods(capture, key, methods, depth - 1);
      guard_methods(capture, item, methods, depth - 1);
    }
  } else if (PyAnySet_Check(value)) {
    const Ref members = checked(PySequence_List(value));
    guard_methods(capture, members.get(), methods, depth);
  }
}

}  // namespace

void guard_classes(Capture& capture, PyObject* value, Question question, int depth) {
  guard_methods(capture, value, methods_of(question), depth);
}

void guard_class_text(Capture& capture, PyObject* value, int depth) {
  if (PyType_Check(value)) {
    capture.attributes.lookup_attr(value, MAGNETO_STR("__module__"));
    capture.attributes.lookup_attr(value, MAGNETO_STR("__qualname__"));
    return;
  }
  guard_classes(capture, value, Question::Text, 0);
  if (depth > 0 && (PyTuple_Check(value) || PyList_Check(value))) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i) {
      guard_class_text(capture, PySequence_Fast_GET_ITEM(value, i), depth - 1);
    }
  } else if (depth > 0 && PyDict_Check(value)) {
    PyObject *key, *item;
    Py_ssize_t position = 0;
    while (PyDict_Next(value, &position, &key, &item)) {
      guard_class_text(capture, key, depth - 1);
      guard_class_text(capture, item, depth - 1);
    }
  }
}

void guard_classes_asked(Capture& capture, PyObject* callable, PyObject* value, int depth) {
  guard_methods(capture, value, methods_asked_by(callable), depth);
}

Ref Calls::call_replaced_method(PyObject* tensor, PyObject* name) {
  PyObject* method = c.attributes.type_lookup(Py_TYPE(tensor), name);
  if (!method || !(is_function_beside(method, "torch._tensor") || c.torch.is_overridden({&tensor, 1}))) return {};
  return call(c.world.wrap(method, c.sources.constant(method)).get(), {tensor});
}

}  // namespace magneto::capture
