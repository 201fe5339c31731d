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
#include "capture/numbers/symbols.h"
#include "capture/torch/switches.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/world.h"
#include "fake/session.h"
#include "guards/constants.h"
#include "guards/objects.h"
#include "python/abi/types.h"
#include "support/autocast_depth.h"

namespace magneto::capture {

namespace {

enum class Policy : uint8_t { Unknown, Torch, State, Pure, Getter, Setter, Method, Mutate, Handler, Break };

// The traits and rows of the table, by the names that it has for them.
namespace table {

enum class Trait : uint8_t {
#define TRAIT(name, note) name,
#include "capture/calls/effects.def"
};

constexpr uint32_t none = 0;
#define TRAIT(name, note) constexpr uint32_t name = 1u << static_cast<int>(Trait::name);
#include "capture/calls/effects.def"

struct EffectRow {
  const char* name;
  Policy policy;
  uint32_t traits;
  const char* note;
};

constexpr EffectRow kEffects[] = {
#define X(name, policy, traits, note) {name, Policy::policy, traits, note},
#include "capture/calls/effects.def"
};

struct MethodRow {
  std::string_view name;
  uint32_t traits;
};

constexpr MethodRow kMethods[] = {
#define METHOD(name, traits) {name, traits},
#include "capture/calls/effects.def"
};

}  // namespace table

struct Effect {
  Policy policy = Policy::Unknown;
  uint32_t traits = 0;
  BreakReason reason = BreakReason::OpaqueCall;
  HandlerFunction handler = nullptr;
  PyObject* getter = nullptr;  // Setter
  bool recorded = true;        // State
  bool operates = false;       // on numbers, as an operator does
  std::string name;

  bool is(uint32_t trait) const { return traits & trait; }
  bool reads() const { return policy == Policy::Pure && !is(table::looks_into_nothing); }
  /// Does not read what it is given, but for keys and members.
  bool stores() const { return policy == Policy::Mutate && !is(table::compares); }
  /// Its arguments from here on it keeps, and looks at none of them.
  size_t keeps() const { return is(table::keeps_second) ? 1 : is(table::keeps_third) ? 2 : SIZE_MAX; }
};

/// The C function that a classmethod of `object` is.
const PyMethodDef* base_method(const char* name) {
  return reinterpret_cast<PyMethodDescrObject*>(PyDict_GetItemString(type_dict(&PyBaseObject_Type), name))->d_method;
}

/// What the row says, what methods of that name do, and what the policy implies.
uint32_t traits_of(const table::EffectRow& row, std::string_view name) {
  uint32_t traits = row.traits;
  const std::string_view method = name.substr(name.rfind('.') + 1);
  const auto found = std::ranges::find(table::kMethods, method, &table::MethodRow::name);
  if (found != std::end(table::kMethods)) traits |= found->traits;
  if (row.policy != Policy::Mutate) traits &= ~table::iterates;
  if (row.policy == Policy::Torch) traits |= table::takes_sizes;
  return traits;
}

Effect find_effect(const std::string& name) {
  static const auto* rows = [] {
    auto* map = new std::unordered_map<std::string, const table::EffectRow*>;
    for (const table::EffectRow& row : table::kEffects) map->emplace(row.name, &row);
    return map;
  }();
  Effect effect;
  effect.name = name;
  auto found = rows->find(name);
  if (found == rows->end()) found = rows->find(name.substr(0, name.rfind('.')) + ".*");
  if (found == rows->end()) return effect;
  effect.policy = found->second->policy;
  effect.traits = traits_of(*found->second, name);
  effect.operates = is_number_function(name);
  effect.recorded = std::strcmp(found->second->note, "unrecorded") != 0;
  if (effect.policy == Policy::Break) {
    effect.reason = reason_named(found->second->note);
  }
  if (effect.policy == Policy::Setter) {
    const Ref torch = checked(PyImport_ImportModule("torch._C"));
    effect.getter = checked(PyObject_GetAttrString(torch.get(), found->second->note)).release();
  }
  if (effect.policy == Policy::Handler) {
    for (const auto family : {builtin_handlers(), class_handlers(), text_handlers(), object_handlers(),
                              tensor_handlers(), memory_handlers(), class_tensor_handlers(), array_handlers(),
                              sized_handlers(), torch_function_handlers(), warning_handlers(), context_handlers()}) {
      for (const HandlerRow& row : family) {
        if (name == row.name) effect.handler = row.function;
      }
    }
  }
  return effect;
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
  return known->emplace(key, find_effect(name())).first->second;
}

/// What the function asks of the class of its argument `i`, and of what is in that.
void guard_classes_of(Capture& capture, const Effect& effect, PyObject* function, PyObject* value, size_t i) {
  if (effect.is(table::compares)) {
    guard_classes(capture, value, Question::Order, 8);
    guard_classes(capture, value, Question::Hash, 8);
  } else if (effect.is(table::hashes) && i > 0) {
    guard_classes(capture, value, Question::Hash, 8);
  } else if (effect.policy == Policy::Pure) {
    guard_classes_asked(capture, function, value, effect.reads() ? 8 : 0);
  }
}

bool is_of_pybind(PyCFunctionObject* function) {
  return std::strncmp(Py_TYPE(function->m_self)->tp_name, "pybind11", 8) == 0;
}

/// Of a method of pybind11, or a getter, which has no name: "module.Class.method". What it is a method of, only its
/// documentation says, which begins with its signature. Empty: a function.
std::string pybind_method(PyCFunctionObject* function) {
  if (!function->m_self || PyModule_Check(function->m_self) || !is_of_pybind(function)) return "";
  const std::string_view receiver = function->m_module ? "(self: " : "(arg0: ";
  const std::string_view doc = function->m_ml->ml_doc ? function->m_ml->ml_doc : "";
  const size_t at = doc.find(receiver);
  if (at == std::string_view::npos) return "";
  const std::string_view rest = doc.substr(at + receiver.size());
  return std::string(rest.substr(0, rest.find_first_of(",)"))) + "." + function->m_ml->ml_name;
}

bool is_module_function(PyCFunctionObject* function) {
  PyObject* self = function->m_self;
  if (!self || PyModule_Check(self)) return true;
  return !PyType_Check(self) && (is_of_pybind(function) || (function->m_module && PyCapsule_CheckExact(self)));
}

/// C code is about to change what `container`, of a subclass, holds. Where it may go to methods in Python of that class
/// (those of list and dict never do, nor do OrderedDict's `[key] =` and `del`), the segment ends.
void refuse_own_methods(Capture& c, PyObject* callable, PyObject* container) {
  const bool descriptor = Py_TYPE(callable) == &PyMethodDescr_Type || Py_TYPE(callable) == &PyWrapperDescr_Type;
  PyTypeObject* const owner = descriptor ? PyDescr_TYPE(callable) : nullptr;
  if (owner == &PyList_Type || owner == &PyDict_Type || owner == &PySet_Type || owner == guards::deque_type()) return;
  if (owner == &PyODict_Type && std::string_view(PyUnicode_AsUTF8(PyDescr_NAME(callable))).ends_with("item__")) return;
  std::vector<const char*> names = {"__getitem__", "__setitem__", "__contains__", "__len__", "insert", "get"};
  if (owner == &PyODict_Type) names.insert(names.end(), {"__delitem__", "__missing__"});
  for (const char* name : names) {
    PyObject* method = c.attributes.type_lookup(Py_TYPE(container), name);
    if (!method || !PyFunction_Check(method)) continue;
    c.side_exit(BreakReason::Mutation,
                std::string("an instance of ") + Py_TYPE(container)->tp_name + " from outside is changed");
  }
}

/// Methods of sets and deques that tell the class of their instance, or make another one of it.
void refuse_class_readers(Capture& c, PyObject* callable, PyObject* container) {
  const bool deque = PyObject_TypeCheck(container, guards::deque_type());
  if (!(deque || PyAnySet_Check(container)) ||
      !(Py_TYPE(callable) == &PyMethodDescr_Type || Py_TYPE(callable) == &PyWrapperDescr_Type))
    return;
  static constexpr std::string_view all[] = {"__repr__", "__reduce__", "__reduce_ex__", "__sizeof__", "copy",
                                             "__copy__", "__add__",    "__mul__",       "__rmul__",   "__reversed__"};
  const std::string_view name = PyUnicode_AsUTF8(PyDescr_NAME(callable));
  const auto found = std::ranges::find(all, name);
  if (found == std::end(all) || (!deque && found - all >= 4)) return;
  c.side_exit(BreakReason::OpaqueObject,
              "call of " + std::string(name) + " on an object of type " + Py_TYPE(container)->tp_name);
}

/// What the segment goes on with, where C code gives back the stand-in of a subclass's instance.
Ref original_of(Capture& c, Ref result) {
  const auto found = c.containers.shadow_original.find(result.get());
  const bool derived = found != c.containers.shadow_original.end() && is_derived_container(found->second);
  return derived ? Ref::borrow(found->second) : result;
}

/// Calls it with the arguments as they are now. `mutate`: it changes the first one.
Ref call_resolved(Capture& c, PyObject* callable, const Effect& effect, const CallArgs& args, bool mutate) {
  std::vector<Ref> held;
  for (PyObject* value : args.values) {
    if (effect.is(table::compares) && !PyDict_Check(value)) c.containers.guard_contents(value);  // of a dict, the keys
  }
  CallArgs values;
  values.kwnames = args.kwnames;
  bool tensors = false;
  for (size_t i = 0; i < args.values.size(); ++i) {
    const bool called = (i == 0 && effect.is(table::calls_first)) || args.keyword(i) == MAGNETO_STR("key");
    if (called) {
      held.push_back(c.callbacks.callback(args.values[i]));
      values.values.push_back(held.back().get());
      continue;
    }
    const bool changed = mutate && i == 0;
    const bool derived = is_derived_container(args.values[i]) && c.world.is_outside(args.values[i]);
    if (changed && derived) refuse_own_methods(c, callable, args.values[0]);
    if (derived && i == 0) refuse_class_readers(c, callable, args.values[0]);
    const bool deep =
        effect.reads() || (effect.is(table::compares) && !mutate) || (effect.is(table::takes_pairs) && i > 0);
    Ref value = deep ? c.containers.resolve_deep(args.values[i]) : c.containers.resolve(args.values[i], changed);
    if (i > 0) c.containers.refuse_opaque_iterable(value.get());
    const bool reads_items =
        effect.is(table::iterates) || (effect.policy == Policy::Method && PyAnySet_Check(value.get()));
    if (i > 0 && reads_items && is_derived_container(value.get()) && c.world.is_outside(value.get())) {
      value = c.containers.contents_of(value.get());
    }
    if (value.get() == args.values[i] && c.world.is_outside(value.get()) && i == 0 &&
        is_derived_container(value.get()) && !c.containers.is_shadow(value.get())) {
      value = c.containers.contents_of(value.get());
    } else if (i == 0 && value.get() == args.values[i] && c.world.is_outside(value.get()) &&
               !c.containers.is_shadow(value.get()) &&
               (mutate ||
                (effect.policy == Policy::Method && !is_scalar(value.get()) && !is_builtin_container(value.get()) &&
                 !is_python_class(Py_TYPE(value.get())) && !PyFunction_Check(value.get()) &&
                 (PyIter_Check(value.get()) || c.world.source_of(value.get())->kind != guards::SourceKind::Const)))) {
      c.side_exit(BreakReason::OpaqueObject, "call of " + effect.name + " on an object from outside");
    }
    if (effect.stores() ? i == 1 && effect.is(table::hashes) && !effect.is(table::takes_pairs)
                        : i > 0 || effect.is(table::compares) || effect.reads()) {
      c.containers.refuse_opaque(value.get(), effect.stores() ? 1 : 8);
    }
    guard_classes_of(c, effect, callable, value.get(), i);
    tensors |= is_tensor(value.get()) && (i > 0 || effect.policy == Policy::Pure);
    held.push_back(value);
    values.values.push_back(value.get());
  }
  if (tensors && effect.policy == Policy::Pure && !effect.is(table::calls_first))
    return c.torch.call_torch(callable, args);
  return original_of(c, c.calls.call_native([&] {
    return PyObject_Vectorcall(callable, values.values.data(), values.positional(), values.kwnames);
  }));
}

/// torch.clear_autocast_cache(), which the end of an outermost region calls.
static void clear_casts(Capture& c) {
  fake::AutocastCasts& casts = c.session->impl().casts;
  if (casts.is_in_outer() && autocast_depth() > 0) {
    c.side_exit(BreakReason::OpaqueCall, "torch.clear_autocast_cache() in a region of autocast that began before");
  }
  casts.clear(c.graph);
}

Ref call_by_effect(Capture& c, PyObject* callable, const Effect& effect, CallArgs args) {
  if (effect.is(table::appends) && args.values.size() == 2 && !args.kwnames && PyList_CheckExact(args.values[0])) {
    c.containers.append(args.values[0], args.values[1]);
    return Ref::borrow(Py_None);
  }
  if (effect.is(table::computes)) {
    if (Ref number = c.numbers.unknown_function(callable, args)) return number;
  }
  if (effect.operates) {
    if (Ref number = number_function(c, effect.name, args)) return number;
  }
  if (!effect.is(table::asks_class) && !effect.is(table::takes_questions))
    c.numbers.specialize_all(args, effect.keeps(), effect.is(table::takes_sizes));
  const bool allows_cut = effect.policy == Policy::Unknown || effect.policy == Policy::Break;
  std::optional<NonResumable> scope;
  if (!allows_cut && c.frame) scope.emplace(c);
  switch (effect.policy) {
    case Policy::Torch:
      return c.torch.call_torch(callable, args);
    case Policy::State: {
      std::vector<Ref> sizes;
      for (PyObject*& value : args.values) {
        if (!effect.is(table::takes_sizes)) break;
        value = sizes.emplace_back(c.symbols.with_symints(value)).get();
      }
      const bool clears = effect.is(table::clears_casts);  // PyTorch's own only when it runs
      if (clears) clear_casts(c);
      Ref result = clears
                       ? Ref::borrow(Py_None)
                       : Ref::steal(PyObject_Vectorcall(callable, args.values.data(), args.positional(), args.kwnames));
      if (!result) throw PythonError{};
      if (!effect.recorded || is_without_grad_below()) return result;
      graph::TorchNode node;
      node.target = Ref::borrow(callable);
      for (PyObject* value : args.values) node.args.push_back(c.torch.py_arg(value));
      c.graph.torch_nodes.push_back(std::move(node));
      return result;
    }
    case Policy::Getter:
      return c.torch.switches.read(callable, args, effect.name);
    case Policy::Setter:
      c.torch.switches.set(callable, effect.getter, args, effect.is(table::steers_kernels));
      return Ref::borrow(Py_None);
    case Policy::Handler:
      if (effect.is(table::overridable) && c.torch.is_overridden(args.values))
        return c.torch.call_torch(callable, args);
      return effect.handler(c, args);
    case Policy::Mutate:
      return call_resolved(c, callable, effect, args, /*mutate=*/true);
    case Policy::Pure:
    case Policy::Method:
      return call_resolved(c, callable, effect, args, /*mutate=*/false);
    case Policy::Break:
      c.side_exit(effect.reason, "call of " + effect.name);
    case Policy::Unknown:
      break;
  }
  c.side_exit(BreakReason::OpaqueCall, "call of the C function " + effect.name);
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
        if (std::string method = pybind_method(function); !method.empty()) return method;
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
      } else if (function->m_ml == base_method("__init_subclass__")) {  // bound to the class itself
        args.values.insert(args.values.begin(), self);
        effect = &effect_of(function->m_ml, [&] { return std::string("object.__init_subclass__"); });
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
  return call_by_effect(c, callable, *effect, std::move(args));
}

}  // namespace magneto::capture
