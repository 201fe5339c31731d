// Functions under functools.lru_cache.
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <cstring>

#include "capture/calls/calls.h"
#include "capture/calls/deferred.h"
#include "capture/calls/special_methods.h"
#include "capture/capture.h"
#include "capture/exits/exit_builder.h"
#include "capture/numbers/numbers.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "graph/aliases.h"
#include "ops/operator.h"

namespace magneto::capture {

namespace {

bool is_immutable(PyObject* value) {
  if (is_scalar(value) || is_unknown_number(value) || is_identity_constant(value)) return true;
  if (!PyTuple_CheckExact(value)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) {
    if (!is_immutable(PyTuple_GET_ITEM(value, i))) return false;
  }
  return true;
}

/// The dict of a functools.lru_cache, which shows it to the garbage collector right in front of its function, behind
/// what is in it.
PyObject* cache_of(const std::vector<PyObject*>& held, PyObject* function) {
  const auto found = std::find(held.rbegin(), held.rend(), function);
  if (found == held.rend() || found + 1 == held.rend()) return nullptr;
  return PyDict_CheckExact(found[1]) ? found[1] : nullptr;
}

bool is_shape(PyObject* value) { return std::strcmp(Py_TYPE(value)->tp_name, "torch.Size") == 0; }

bool holds_unknown_number(PyObject* value) {
  if (!PyTuple_CheckExact(value) && !is_shape(value)) return is_unknown_number(value);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) {
    if (holds_unknown_number(PyTuple_GET_ITEM(value, i))) return true;
  }
  return false;
}

/// The tuple or number with numbers as they are in this run, and are in all that use the capture from here on.
Ref with_known_numbers(Capture& capture, PyObject* value) {
  if (!PyTuple_Check(value)) return capture.numbers.known(value);
  Ref items = checked(PyTuple_New(PyTuple_GET_SIZE(value)));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) {
    PyTuple_SET_ITEM(items.get(), i, with_known_numbers(capture, PyTuple_GET_ITEM(value, i)).release());
  }
  if (PyTuple_CheckExact(value)) return items;
  return checked(PyObject_CallOneArg(reinterpret_cast<PyObject*>(Py_TYPE(value)), items.get()));
}

/// Like original_key, for a tuple that holds tuples, or is a tensor's shape, and a weak reference to a class, too. A
/// cache tells numbers apart: they are fixed.
PyObject* cache_key(Capture& capture, PyObject* value) {
  if (holds_unknown_number(value)) {
    Ref known = with_known_numbers(capture, value);
    capture.world.keep(known);
    return known.get();
  }
  const bool shape = is_shape(value);
  if (is_tensor(value)) return nullptr;
  const guards::Source* source = capture.world.source_of(value);
  const bool constant = source && source->kind == guards::SourceKind::Const;
  if (constant && PyWeakref_CheckRefExact(value) && is_identity_constant(PyWeakref_GET_OBJECT(value))) return value;
  if (PyTuple_CheckExact(value) && PyTuple_GET_SIZE(value) == 0) {  // one object, wherever the program has it from
    if (source && !constant) capture.guards.length(source, &PyTuple_Type, 0);
    return value;
  }
  if ((source && !constant) || !(shape || PyTuple_CheckExact(value))) return capture.world.original_key(value);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) {
    PyObject* item = PyTuple_GET_ITEM(value, i);
    if (cache_key(capture, item) != item) return nullptr;
  }
  return value;
}

/// Without a look into anything that has its own idea of equality.
bool is_same_key(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (is_scalar(a) && Py_TYPE(a) == Py_TYPE(b)) return PyObject_RichCompareBool(a, b, Py_EQ) == 1;
  if (!PyTuple_CheckExact(a) || !PyTuple_CheckExact(b) || PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); ++i) {
    if (!is_same_key(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
  }
  return true;
}

bool tells_types_apart(PyObject* cached) {
  Ref parameters = checked(PyObject_CallMethod(cached, "cache_parameters", nullptr));
  return PyDict_GetItemString(parameters.get(), "typed") != Py_False;
}

/// The key of positional arguments, where an lru_cache does not tell their types apart.
Ref key_of_arguments(const std::vector<PyObject*>& values) {
  if (values.size() == 1 && (PyUnicode_CheckExact(values[0]) || PyLong_CheckExact(values[0]))) {
    return Ref::borrow(values[0]);
  }
  Ref key = checked(PyTuple_New(static_cast<Py_ssize_t>(values.size())));
  for (size_t i = 0; i < values.size(); ++i) PyTuple_SET_ITEM(key.get(), i, Py_NewRef(values[i]));
  return key;
}

/// The cache has the key: a call runs no code of the function.
bool has_key(PyObject* callable, PyObject* key) {
  Ref function = checked(PyObject_GetAttrString(callable, "__wrapped__"));
  PyObject* cache = cache_of(referents(callable), function.get());
  const int found = cache ? PyDict_Contains(cache, key) : 0;
  if (found < 0) PyErr_Clear();
  return found > 0;
}

/// The arguments as the cache of a function has them, where none of them is a dynamic number. Null:
/// they are no key.
Ref original_arguments(Capture& capture, const CallArgs& args) {
  if (args.kwnames) return {};
  Ref originals = checked(PyTuple_New(static_cast<Py_ssize_t>(args.values.size())));
  for (size_t i = 0; i < args.values.size(); ++i) {
    PyObject* key = holds_unknown_number(args.values[i]) ? nullptr : cache_key(capture, args.values[i]);
    if (!key) return {};
    guard_classes(capture, args.values[i], Question::Hash, 0);
    PyTuple_SET_ITEM(originals.get(), i, Py_NewRef(key));
  }
  return originals;
}

/// The operators from `first` on compute from nothing but constants, and the same in each run.
bool computes_from_constants(const graph::Graph& graph, size_t first) {
  for (size_t i = first; i < graph.aten_nodes.size(); ++i) {
    const graph::AtenNode& node = graph.aten_nodes[i];
    const ops::Operator& traits = ops::operator_of(node.op);
    bool closed = !traits.random && !traits.effect;
    graph::for_each_operand(
        node, [&](graph::ValueId id) { closed &= graph.values[id].producer >= static_cast<int32_t>(first); });
    if (!closed) return false;
  }
  return true;
}

/// Nothing has been done in the segment that code called in front of it could find otherwise.
bool may_be_called_first(Capture& capture) {
  guards::GlobalState now = guards::GlobalState::read();
  now.dispatch_included = capture.start_state.dispatch_included;  // the capture's own
  now.dispatch_excluded = capture.start_state.dispatch_excluded;
  return now == capture.start_state && capture.overlays.writes == 0 && capture.deferred.calls.empty();
}

/// ...that is a module, or of one: variables of contexts and PyTorch's modes at most, and objects of other classes.
bool has_left_modules(Capture& capture) {
  const auto is_dirty = [](const auto& entry) { return entry.second.dirty; };
  const auto is_apart = [](const std::unique_ptr<Overlay>& overlay) {
    PyTypeObject* const type = Py_TYPE(overlay->object);
    return !overlay->items && !PyType_Check(overlay->object) &&
           !PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(torch_module_class()));
  };
  return capture.containers.tails.empty() && std::ranges::none_of(capture.containers.shadows, is_dirty) &&
         std::ranges::all_of(capture.overlays.all, is_apart) &&
         std::ranges::all_of(capture.deferred.calls, ContextVariables::is_change);
}

/// The segment is captured anew behind a call of the function; a few times, since it is in vain for a cache that has no
/// room.
void call_first(Capture& capture, PyObject* callable, const Ref& args) {
  constexpr int kMostCalls = 4;
  auto& calls = capture.feedback.first_calls;
  auto call = std::ranges::find_if(calls, [&](const SpecializationFeedback::FirstCall& known) {
    if (known.function.get() != callable) return false;
    const int same = PyObject_RichCompareBool(known.args.get(), args.get(), Py_EQ);  // as a cache compares
    if (same < 0) PyErr_Clear();
    return same != 0;
  });
  if (call == calls.end()) call = calls.insert(calls.end(), {Ref::borrow(callable), args});
  call->wanted = call->calls < kMostCalls;
  if (call->wanted) throw Retry{};
}

}  // namespace

void make_first_calls(SpecializationFeedback& feedback) {
  for (SpecializationFeedback::FirstCall& call : feedback.first_calls) {
    if (!std::exchange(call.wanted, false)) continue;
    ++call.calls;
    if (!Ref::steal(PyObject_CallObject(call.function.get(), call.args.get()))) PyErr_Clear();
  }
}

/// A function that changes a module once, and notes that in an attribute of it. It reads nothing else that changes.
void Calls::call_once(PyObject* function, const CallArgs& args, const char* attribute) {
  if (!has_left_modules(c)) return;
  const Ref originals = original_arguments(c, args);
  if (!originals || PyTuple_GET_SIZE(originals.get()) == 0) return;
  const Ref done = Ref::steal(PyObject_GetAttrString(PyTuple_GET_ITEM(originals.get(), 0), attribute));
  if (!done) PyErr_Clear();
  if (done.get() != Py_True) call_first(c, function, originals);
}

/// What an unbounded lru_cache has for plain arguments, while it has it; null: nothing is known.
Ref Calls::find_cached(PyObject* callable, const CallArgs& args) {
  if (args.kwnames || c.world.source_of(callable)->kind != guards::SourceKind::Const) return {};
  for (PyObject* arg : args.values) {
    if (!is_scalar(arg) && !is_identity_constant(arg) && !is_identity_key(arg)) return {};
    guard_classes(c, arg, Question::Hash, 0);
  }
  Ref parameters = checked(PyObject_CallMethod(callable, "cache_parameters", nullptr));
  if (PyDict_GetItemString(parameters.get(), "maxsize") != Py_None || tells_types_apart(callable)) return {};
  Ref function = checked(PyObject_GetAttrString(callable, "__wrapped__"));
  PyObject* cache = cache_of(referents(callable), function.get());
  if (!cache) return {};
  const Ref wanted = key_of_arguments(args.values);
  const Py_hash_t hash = PyObject_Hash(wanted.get());
  PyObject *key, *value;
  Py_ssize_t position = 0;
  while (PyDict_Next(cache, &position, &key, &value)) {
    if (PyObject_Hash(key) != hash || PyObject_RichCompareBool(key, wanted.get(), Py_EQ) != 1) continue;
    for (PyObject* arg : args.values) c.world.pinned(arg);
    return c.world.wrap(value, c.sources.dict_item(c.sources.constant(cache), key));
  }
  PyErr_Clear();
  return {};
}

/// What an lru_cache keeps, or will keep, for a call whose arguments follow from the code and whose function has been
/// seen to have no effect: the object itself, under a guard on its place in the cache. Null: not such a call.
Ref Calls::kept_result(PyObject* callable, const CallArgs& args) {
  CallArgs originals = args;
  for (PyObject*& value : originals.values) {
    value = cache_key(c, value);
    if (!value) return {};
  }
  Ref kept =
      Ref::steal(PyObject_Vectorcall(callable, originals.values.data(), originals.positional(), originals.kwnames));
  Ref function = kept ? Ref::steal(PyObject_GetAttrString(callable, "__wrapped__")) : Ref();
  if (!function) return {};
  const std::vector<PyObject*> held = referents(callable);
  PyObject* cache = cache_of(held, function.get());
  if (!cache) return {};
  const auto holds = [&](PyObject* key, PyObject* value) {
    if (value == kept.get()) return true;           // an unbounded cache
    for (size_t i = 0; i + 1 < held.size(); ++i) {  // of any other, each key lies beside its result
      if (held[i] == key && held[i + 1] == kept.get()) return true;
    }
    return false;
  };
  const Ref wanted = args.kwnames || tells_types_apart(callable) ? Ref() : key_of_arguments(originals.values);
  PyObject *place = nullptr, *holder = nullptr, *key, *value;
  Py_ssize_t position = 0;
  int places = 0;
  while (PyDict_Next(cache, &position, &key, &value)) {
    if (!holds(key, value)) continue;
    place = key, holder = value;
    if (wanted && is_same_key(key, wanted.get())) {
      places = 1;
      break;
    }
    ++places;
  }
  if (places != 1) return {};  // given for other arguments, too
  c.guards.identity(c.sources.dict_item(c.sources.constant(cache), place), holder);
  c.world.keep(kept);
  c.world.pinned(kept.get());  // where the program finds the object elsewhere, too
  return c.world.wrap(kept.get(), c.sources.constant(kept.get()));
}

/// A function under functools.lru_cache. What the cache is known to have, is given. Otherwise the function is
/// interpreted as if there were no cache, which nobody notices if it has no effect and gives an immutable value; of
/// other values, the cache's own is taken. Tensors that it computes from constants are put into the cache by a call in
/// front of the next capture, and so is what a function gives that does nothing but write logs. Any other is called for
/// real.
Ref Calls::call_cached(PyObject* callable, CallArgs& args) {
  if (std::strcmp(Py_TYPE(callable)->tp_name, "functools._lru_cache_wrapper") != 0) return {};
  if (!c.world.is_outside(callable))
    c.side_exit(BreakReason::OpaqueCall, "call of a function under an lru_cache made here");
  if (Ref found = find_cached(callable, args)) return found;
  const Ref originals = tells_types_apart(callable) ? Ref() : original_arguments(c, args);
  const std::vector<PyObject*> values =
      originals ? std::vector(&PyTuple_GET_ITEM(originals.get(), 0),
                              &PyTuple_GET_ITEM(originals.get(), 0) + PyTuple_GET_SIZE(originals.get()))
                : std::vector<PyObject*>();
  if (originals && has_key(callable, key_of_arguments(values).get())) {
    if (Ref kept = kept_result(callable, args)) return kept;
    PyErr_Clear();
  }
  const int64_t writes = c.overlays.writes;
  const size_t operators = c.graph.aten_nodes.size();
  Ref result;
  bool logs = false;
  bool* const outer = std::exchange(logs_of_cached_, originals && may_be_called_first(c) ? &logs : nullptr);
  const auto leave = c10::make_scope_exit([&] { logs_of_cached_ = outer; });
  try {
    NonResumable scope(c);
    Ref wrapped = c.attributes.load_attr(callable, MAGNETO_STR("__wrapped__"));
    result = call(wrapped.get(), args);
  } catch (const PythonError&) {
    if (logs) throw c.exits.restart_before(*c.frame, callable_name(callable) + " writes a log and raises");
    throw;
  }
  if (writes == c.overlays.writes && operators == c.graph.aten_nodes.size()) {
    if (logs) {
      call_first(c, callable, originals);
      throw c.exits.restart_before(*c.frame, callable_name(callable) + " writes a log");
    }
    if (is_immutable(result.get())) return result;
    if (Ref kept = kept_result(callable, args)) return kept;
    PyErr_Clear();
  } else if (originals && computes_from_constants(c.graph, operators) && may_be_called_first(c)) {
    call_first(c, callable, originals);
  }
  throw c.exits.restart_before(*c.frame, callable_name(callable) + " keeps what it gives in an lru_cache");
}

void Calls::write_log(PyObject* function, const CallArgs& args) {
  // Keywords may name the place of the caller, which is another one in a call in front of the segment.
  if (!logs_of_cached_ || args.kwnames) c.side_exit(BreakReason::InputOutput, "call of " + callable_name(function));
  *logs_of_cached_ = true;
}

}  // namespace magneto::capture
