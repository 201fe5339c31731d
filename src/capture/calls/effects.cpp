// Calls of C functions: the effect table (effects.def) applied.
#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include "capture/calls/callbacks.h"
#include "capture/calls/calls.h"
#include "capture/calls/handlers.h"
#include "capture/calls/special_methods.h"
#include "capture/capture.h"
#include "capture/numbers/numbers.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "capture/world/containers.h"
#include "capture/world/world.h"
#include "guards/constants.h"
#include "python/abi/types.h"

namespace magneto::capture {

namespace {

enum class Policy : uint8_t { Unknown, Torch, State, Pure, Getter, Method, Mutate, Handler, Break };

struct Effect {
  Policy policy = Policy::Unknown;
  BreakReason reason = BreakReason::OpaqueCall;
  HandlerFunction handler = nullptr;
  bool recorded = true;  // State
  std::string name;
  // What it does with its arguments, by its name and policy.
  bool compares = false;     // items with each other: reads them all the way down
  bool takes_pairs = false;  // reads two levels
  bool iterates = false;     // over what it adds to its first argument
  bool stores = false;       // does not read, but for keys and members,
  bool hashes = false;       // which are hashed
  bool reads = false;
  bool sets_attribute = false;  // to its third argument, which it only hands on
  bool asks_class = false;      // of its first argument
  bool appends = false;         // its second argument to a list
  bool calls_first = false;     // its first argument
  bool takes_sizes = false;     // numbers that follow from sizes, as they are
  bool computes = false;        // a number of numbers
  bool operates = false;        // on numbers, as an operator does
  size_t keeps = SIZE_MAX;      // its arguments from here on, and looks at none of them
  bool overridable = false;     // asks for __torch_function__
};

struct EffectRow {
  const char* name;
  Policy policy;
  const char* note;
};

constexpr EffectRow kEffects[] = {
#define X(name, policy, note) {name, Policy::policy, note},
#include "capture/calls/effects.def"
#undef X
};

Effect find_effect(const std::string& name) {
  static const auto* rows = [] {
    auto* map = new std::unordered_map<std::string, const EffectRow*>;
    for (const EffectRow& row : kEffects) map->emplace(row.name, &row);
    return map;
  }();
  Effect effect;
  effect.name = name;
  auto found = rows->find(name);
  if (found == rows->end()) found = rows->find(name.substr(0, name.rfind('.')) + ".*");
  if (found == rows->end()) return effect;
  effect.policy = found->second->policy;
  effect.recorded = std::strcmp(found->second->note, "unrecorded") != 0;
  if (effect.policy == Policy::Break) {
    effect.reason = reason_named(found->second->note);
  }
  if (effect.policy == Policy::Handler) {
    for (const auto family :
         {builtin_handlers(), class_handlers(), text_handlers(), object_handlers(), tensor_handlers(), array_handlers(),
          sized_handlers(), torch_function_handlers(), warning_handlers()}) {
      for (const HandlerRow& row : family) {
        if (name == row.name) effect.handler = row.function;
      }
    }
  }
  return effect;
}

void find_habits(Effect& effect) {
  const std::string_view name = effect.name;
  static constexpr std::string_view comparing[] = {".sorted", ".sort",         ".index",  ".count",
                                                   ".remove", ".__contains__", ".__eq__", ".__ne__",
                                                   ".__lt__", ".__le__",       ".__gt__", ".__ge__"};
  effect.compares = name.starts_with("_heapq.") || name.starts_with("_bisect.") ||
                    std::ranges::any_of(comparing, [&](std::string_view end) { return name.ends_with(end); });
  effect.sets_attribute = name.ends_with("object.__setattr__") || name == "builtins.setattr";
  effect.asks_class =
      name == "builtins.isinstance" || name == "type.__instancecheck__" || name == "_abc._abc_instancecheck";
  effect.appends = name == "list.append";
  effect.calls_first = name == "_functools.reduce";
  static constexpr std::string_view computing[] = {"builtins.min", "builtins.max", "builtins.sum", "math.prod"};
  effect.takes_sizes = effect.policy == Policy::Torch || name.starts_with("torch._C.TensorBase.") ||
                       (effect.policy == Policy::Handler && name.starts_with("torch._C._")) ||
                       std::ranges::find(computing, name) != std::end(computing);
  static constexpr std::string_view overridable[] = {"torch._C.TensorBase.", "torch._C._VariableFunctionsClass.",
                                                     "torch._C._nn."};
  effect.overridable =
      std::ranges::any_of(overridable, [&](std::string_view start) { return name.starts_with(start); });
  effect.computes = name.starts_with("math.") || name == "builtins.abs" || name == "builtins.round";
  effect.operates = is_number_function(name);
  static constexpr std::pair<std::string_view, size_t> keeping[] = {
      {"dict.setdefault", 2},
      {"dict.get", 2},
      {"dict.pop", 2},
      {"dict.__setitem__", 2},
      {"list.insert", 2},
      {"list.__setitem__", 2},
      {"list.append", 1},
      {"builtins.getattr", 2},
      {"builtins.next", 1},
      {"builtins.setattr", 2},
      {"_operator.setitem", 2},
      {"collections.deque.append", 1},
      {"collections.deque.appendleft", 1},
  };
  for (const auto& [function, first] : keeping) {
    if (name == function) effect.keeps = first;
  }
  if (effect.sets_attribute) effect.keeps = 2;
  effect.takes_pairs = name.ends_with("dict.update") || name.ends_with("Dict.update");
  static constexpr std::string_view iterating[] = {".extend",  ".extendleft", "update",    ".__init__", ".__iadd__",
                                                   ".__ior__", ".__iand__",   ".__isub__", ".__ixor__"};
  effect.iterates = effect.policy == Policy::Mutate &&
                    std::ranges::any_of(iterating, [&](std::string_view end) { return name.ends_with(end); });
  effect.stores = effect.policy == Policy::Mutate && !effect.compares;
  effect.hashes =
      name.starts_with("set.") || name.find("ict.") != std::string_view::npos || name == "_collections._count_elements";
  // Questions about types and modes look into nothing.
  static constexpr std::string_view asking[] = {"_abc.", "torch.", "_typing.", "_imp.", "builtins.callable"};
  effect.reads = effect.policy == Policy::Pure &&
                 std::ranges::none_of(asking, [&](std::string_view start) { return name.starts_with(start); });
}

/// The name under which a method of `type` stands in the effect table.
std::string method_name(PyTypeObject* type, const char* method) {
  std::string_view name = type->tp_name;
  if (PyExceptionClass_Check(reinterpret_cast<PyObject*>(type))) name = "BaseException";
  return std::string(name) + "." + method;
}

const Effect& effect_of(const void* key, const std::function<std::string()>& name) {
  static auto* known = new std::unordered_map<const void*, Effect>;
  auto found = known->find(key);
  if (found != known->end()) return found->second;
  Effect effect = find_effect(name());
  find_habits(effect);
  return known->emplace(key, std::move(effect)).first->second;
}

/// What the function asks of the class of its argument `i`, and of what is in that.
void guard_classes_of(Capture& capture, const Effect& effect, PyObject* function, PyObject* value, size_t i) {
  if (effect.compares) {
    guard_classes(capture, value, Question::Order, 8);
    guard_classes(capture, value, Question::Hash, 8);
  } else if (effect.hashes && i > 0) {
    guard_classes(capture, value, Question::Hash, 8);
  } else if (effect.policy == Policy::Pure) {
    guard_classes_asked(capture, function, value, effect.reads ? 8 : 0);
  }
}

bool is_module_function(PyCFunctionObject* function) {
  PyObject* self = function->m_self;
  if (!self || PyModule_Check(self)) return true;
  return function->m_module && !PyType_Check(self) &&
         (std::strncmp(Py_TYPE(self)->tp_name, "pybind11", 8) == 0 || PyCapsule_CheckExact(self));
}

}  // namespace

PyObject* descriptor_of(PyObject* bound_builtin) {
  if (Py_TYPE(bound_builtin) == method_wrapper_type()) {
    Ref owner = checked(PyObject_GetAttrString(bound_builtin, "__objclass__"));
    Ref name = checked(PyObject_GetAttrString(bound_builtin, "__name__"));
    return PyDict_GetItem(type_dict(reinterpret_cast<PyTypeObject*>(owner.get())), name.get());
  }
  auto* function = reinterpret_cast<PyCFunctionObject*>(bound_builtin);
  PyObject* mro = Py_TYPE(function->m_self)->tp_mro;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro); ++i) {
    auto* base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(mro, i));
    PyObject* found = PyDict_GetItemString(type_dict(base), function->m_ml->ml_name);
    if (found && Py_TYPE(found) == &PyMethodDescr_Type &&
        reinterpret_cast<PyMethodDescrObject*>(found)->d_method == function->m_ml) {
      return found;
    }
  }
  return nullptr;
}

Ref Calls::read_state(PyObject* function, const CallArgs& args, const std::string& name) {
  Ref now = checked(PyObject_Vectorcall(function, args.values.data(), args.positional(), args.kwnames));
  if (args.kwnames || !guards::is_constant(now.get()) || !std::ranges::all_of(args.values, is_scalar)) {
    c.side_exit(BreakReason::OpaqueCall, "call of " + name);
  }
  c.guards.state(function, args.values, now.get());
  return now;
}

Ref Calls::call_c_function(PyObject* callable, const CallArgs& original_args) {
  PyTypeObject* kind = Py_TYPE(callable);
  CallArgs args = original_args;
  Ref unbound = Ref::borrow(callable);
  const Effect* effect;
  if (kind == &PyCFunction_Type || kind == &PyCMethod_Type) {
    auto* function = reinterpret_cast<PyCFunctionObject*>(callable);
    PyObject* self = function->m_self;
    if (is_module_function(function)) {
      effect = &effect_of(function->m_ml, [&] {
        const char* module = function->m_module && PyUnicode_Check(function->m_module)
                                 ? PyUnicode_AsUTF8(function->m_module)
                                 : (self && PyModule_Check(self) ? PyModule_GetName(self) : "");
        return std::string(module) + "." + function->m_ml->ml_name;
      });
    } else if (PyObject* of_metaclass = PyType_Check(self) ? descriptor_of(callable) : nullptr) {
      args.values.insert(args.values.begin(), self);  // `cls.mro`, `cls.__subclasses__`
      return call_c_function(of_metaclass, args);
    } else if (PyType_Check(self)) {
      auto* type = reinterpret_cast<PyTypeObject*>(self);
      if (std::strcmp(function->m_ml->ml_name, "__new__") == 0) {
        effect = &effect_of(type, [&] { return method_name(type, "__new__"); });
      } else {
        effect = &effect_of(function->m_ml, [&] { return method_name(type, function->m_ml->ml_name); });
      }
    } else {
      // A bound method: call its descriptor with the receiver first.
      PyObject* descriptor = descriptor_of(callable);
      if (!descriptor) c.side_exit(BreakReason::OpaqueCall, "call of " + callable_name(callable));
      Ref receiver = c.world.receiver_of(callable);
      args.values.insert(args.values.begin(), receiver.get());
      return call_c_function(descriptor, args);
    }
  } else if (kind == method_wrapper_type()) {
    PyObject* descriptor = descriptor_of(callable);
    if (!descriptor) c.side_exit(BreakReason::OpaqueCall, "call of " + callable_name(callable));
    Ref self = c.world.receiver_of(callable);
    args.values.insert(args.values.begin(), self.get());
    return call_c_function(descriptor, args);
  } else {
    PyTypeObject* type = PyDescr_TYPE(callable);
    const char* name = PyUnicode_AsUTF8(PyDescr_NAME(callable));
    effect = &effect_of(callable, [&] {
      keep_forever(callable);
      return method_name(type, name);
    });
  }

  if (effect->appends && args.values.size() == 2 && !args.kwnames && PyList_CheckExact(args.values[0])) {
    c.containers.append(args.values[0], args.values[1]);
    return Ref::borrow(Py_None);
  }
  if (effect->computes) {
    if (Ref number = c.numbers.unknown_function(callable, args)) return number;
  }
  if (effect->operates) {
    if (Ref number = number_function(c, effect->name, args)) return number;
  }
  if (!effect->asks_class) c.numbers.specialize_all(args, effect->keeps, effect->takes_sizes);
  const bool allows_cut = effect->policy == Policy::Unknown || effect->policy == Policy::Break;
  std::optional<NonResumable> scope;
  if (!allows_cut && c.frame) scope.emplace(c);
  auto run_resolved = [&](bool mutate) -> Ref {
    std::vector<Ref> held;
    for (PyObject* value : args.values) {
      if (effect->compares && !PyDict_Check(value)) c.containers.guard_contents(value);  // of a dict, the keys
    }
    CallArgs values;
    values.kwnames = args.kwnames;
    bool tensors = false;
    for (size_t i = 0; i < args.values.size(); ++i) {
      const bool called = (i == 0 && effect->calls_first) || args.keyword(i) == MAGNETO_STR("key");
      if (called) {
        held.push_back(c.callbacks.callback(args.values[i]));
        values.values.push_back(held.back().get());
        continue;
      }
      const bool deep = effect->reads || (effect->compares && !mutate) || (effect->takes_pairs && i > 0);
      Ref value =
          deep ? c.containers.resolve_deep(args.values[i]) : c.containers.resolve(args.values[i], mutate && i == 0);
      if (i > 0) c.containers.refuse_opaque_iterable(value.get());
      if (i > 0 && effect->iterates && is_derived_container(value.get()) && c.world.is_outside(value.get())) {
        value = c.containers.contents_of(value.get());
      }
      if (value.get() == args.values[i] && c.world.is_outside(value.get()) && i == 0 &&
          (PyDict_Check(value.get()) || PyList_Check(value.get()) || PyTuple_Check(value.get())) &&
          !c.containers.has_shadow(value.get()) && !c.containers.is_shadow(value.get())) {
        if (mutate)
          c.side_exit(BreakReason::Mutation,
                      "an instance of " + std::string(Py_TYPE(value.get())->tp_name) + " from outside is changed");
        value = c.containers.contents_of(value.get());
      } else if (i == 0 && value.get() == args.values[i] && c.world.is_outside(value.get()) &&
                 !c.containers.is_shadow(value.get()) &&
                 (mutate ||
                  (effect->policy == Policy::Method && !is_scalar(value.get()) && !is_builtin_container(value.get()) &&
                   !is_python_class(Py_TYPE(value.get())) && !PyFunction_Check(value.get()) &&
                   (PyIter_Check(value.get()) || c.world.source_of(value.get())->kind != guards::SourceKind::Const)))) {
        c.side_exit(BreakReason::OpaqueObject, "call of " + effect->name + " on an object from outside");
      }
      if (effect->stores ? i == 1 && effect->hashes && !effect->takes_pairs
                         : i > 0 || effect->compares || effect->reads) {
        c.containers.refuse_opaque(value.get(), effect->stores ? 1 : 8);
      }
      guard_classes_of(c, *effect, callable, value.get(), i);
      tensors |= is_tensor(value.get()) && (i > 0 || effect->policy == Policy::Pure);
      held.push_back(value);
      values.values.push_back(value.get());
    }
    if (tensors && effect->policy == Policy::Pure && !effect->calls_first) return c.torch.call_torch(callable, args);
    return call_native(
        [&] { return PyObject_Vectorcall(callable, values.values.data(), values.positional(), values.kwnames); });
  };
  switch (effect->policy) {
    case Policy::Torch:
      return c.torch.call_torch(callable, args);
    case Policy::State: {
      Ref result = Ref::steal(PyObject_Vectorcall(callable, args.values.data(), args.positional(), args.kwnames));
      if (!result) throw PythonError{};
      if (!effect->recorded || is_without_grad_below()) return result;
      graph::TorchNode node;
      node.target = Ref::borrow(callable);
      for (PyObject* value : args.values) node.args.push_back(c.torch.py_arg(value));
      c.graph.torch_nodes.push_back(std::move(node));
      return result;
    }
    case Policy::Getter:
      return read_state(callable, args, effect->name);
    case Policy::Handler:
      if (effect->overridable && c.torch.is_overridden(args.values)) return c.torch.call_torch(callable, args);
      return effect->handler(c, args);
    case Policy::Mutate:
      return run_resolved(true);
    case Policy::Pure:
    case Policy::Method:
      return run_resolved(false);
    case Policy::Break:
      c.side_exit(effect->reason, "call of " + effect->name);
    case Policy::Unknown:
      break;
  }
  c.side_exit(BreakReason::OpaqueCall, "call of the C function " + effect->name);
}

}  // namespace magneto::capture
