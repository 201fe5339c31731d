// The stand-ins of built-in containers from outside, which C code reads in their place.
#include "capture/world/containers.h"

#include <Python.h>
#include <structmember.h>

#include <algorithm>

#include "capture/calls/callbacks.h"
#include "capture/calls/special_methods.h"
#include "capture/capture.h"
#include "capture/numbers/numbers.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "guards/constants.h"
#include "guards/objects.h"
#include "python/abi/dicts.h"
#include "python/abi/sets.h"
#include "python/abi/types.h"
#include "python/imported.h"

namespace magneto::capture {

using guards::Source;
using guards::SourceKind;

namespace {

/// A view of a dict: the field that has the dict, for a guard to read it by, and how another dict is viewed.
struct View {
  PyTypeObject* type;
  size_t offset;
  const char* method;  // of the dict; null: types.MappingProxyType
  PyObject* member;

  View(PyTypeObject* of, size_t at, const char* made_by) : type(of), offset(at), method(made_by) {
    auto* field = new PyMemberDef{"__viewed__", T_OBJECT, static_cast<Py_ssize_t>(offset), READONLY, nullptr};
    member = PyDescr_NewMember(type, field);
  }
  PyObject* viewed(PyObject* view) const {
    return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(view) + offset);
  }
  Ref make(PyObject* dict) const {
    return checked(method ? PyObject_CallMethod(dict, method, nullptr) : PyDictProxy_New(dict));
  }
};

/// Null: no view.
const View* view_of(PyObject* object) {
  static const View views[] = {
      {&PyDictProxy_Type, sizeof(PyObject), nullptr},  // its one field
      {&PyDictKeys_Type, offsetof(DictView, dict), "keys"},
      {&PyDictValues_Type, offsetof(DictView, dict), "values"},
      {&PyDictItems_Type, offsetof(DictView, dict), "items"},
      {&PyODictKeys_Type, offsetof(DictView, dict), "keys"},
      {&PyODictValues_Type, offsetof(DictView, dict), "values"},
      {&PyODictItems_Type, offsetof(DictView, dict), "items"},
  };
  const auto* found = std::ranges::find(views, Py_TYPE(object), &View::type);
  return found == std::end(views) ? nullptr : found;
}

}  // namespace

bool is_dict_view(PyObject* object) { return view_of(object) != nullptr; }

Ref Containers::resolve(PyObject* object, bool will_mutate) {
  if (is_bound_builtin(object)) return c.world.resolve_bound_builtin(object);
  if (const View* view = view_of(object)) {
    const Source* source = c.world.source_of(object);
    if (!source || is_shadow(object)) return Ref::borrow(object);
    if (auto known = shadows.find(object); known != shadows.end()) return known->second.object;
    const Ref dict = c.world.wrap(view->viewed(object), c.sources.slot(source, view->member));
    if (!PyDict_Check(dict.get()) || !is_builtin_container(dict.get())) return Ref::borrow(object);
    const Ref stand_in = view->make(resolve(dict.get()).get());
    shadows[object] = {Ref::borrow(object), stand_in, /*dirty=*/false};
    shadow_original[stand_in.get()] = object;
    return stand_in;
  }
  if (!is_builtin_container(object)) {
    const bool constant = PyTuple_Check(object) || PyFrozenSet_Check(object);
    const bool changed = will_mutate && c.world.is_outside(object) && is_derived_container(object) && !constant;
    if (!changed) return Ref::borrow(object);  // C code may ask it for its class
    contents_of(object);
  }
  auto shadow = shadows.find(object);
  if (shadow != shadows.end()) {
    shadow->second.dirty |= will_mutate;
    c.overlays.writes += will_mutate;
    return shadow->second.object;
  }
  auto of_shadow = shadow_original.find(object);
  if (of_shadow != shadow_original.end()) {
    shadows.at(of_shadow->second).dirty |= will_mutate;
    c.overlays.writes += will_mutate;
    return Ref::borrow(object);
  }
  const Source* source = c.world.source_of(object);
  if (!source) return Ref::borrow(object);
  Ref made = make_shadow(object, source);
  if (will_mutate) {
    shadows.at(object).dirty = true;
    ++c.overlays.writes;
  }
  return made;
}

void Containers::refuse_opaque_iterable(PyObject* value) {
  if (!c.world.is_outside(value) || is_shadow(value) || is_builtin_container(value) || is_tensor(value) ||
      PyType_Check(value) || is_unknown_number(value)) {
    return;
  }
  PyTypeObject* type = Py_TYPE(value);
  if (PyIter_Check(value) || (c.world.is_opaque(value) && type->tp_iter) ||
      (type->tp_iter && !PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && !is_value(value))) {
    c.side_exit(BreakReason::OpaqueIterator,
                std::string("an object of type ") + type->tp_name + " from outside is iterated over");
  }
}

Ref Containers::iterable(PyObject* value) {
  refuse_opaque_iterable(value);
  const bool has_stand_in = PyAnySet_Check(value) || PyObject_TypeCheck(value, guards::deque_type());
  const bool derived = has_stand_in && is_derived_container(value) && c.world.is_outside(value);
  return derived ? contents_of(value) : resolve(value);
}

void Containers::guard_contents(PyObject* value) {
  if (!is_builtin_container(value)) return;
  refuse_opaque(resolve_deep(value).get(), 4);
  if (holds_changed(value, 0)) {
    c.side_exit(BreakReason::OpaqueObject, "a container is compared that holds one that has been changed");
  }
}

bool Containers::holds_changed(PyObject* value, int depth) {
  if (depth > 50) return true;  // in a circle, perhaps
  Ref seen = resolve(value);
  auto changed = [&](PyObject* item) {
    const bool derived = is_derived_container(item);
    if (!derived && !is_builtin_container(item)) return false;
    if (derived && c.overlays.find(item, true)) return true;
    auto original = shadow_original.find(item);
    auto shadow = shadows.find(original == shadow_original.end() ? item : original->second);
    return find_tail(item) || (shadow != shadows.end() && shadow->second.dirty) || holds_changed(item, depth + 1);
  };
  if (PyTuple_Check(seen.get()) || PyList_Check(seen.get())) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(seen.get()); ++i) {
      if (changed(PySequence_Fast_GET_ITEM(seen.get(), i))) return true;
    }
  } else if (PyDict_Check(seen.get())) {
    PyObject *key, *item;
    Py_ssize_t position = 0;
    while (PyDict_Next(seen.get(), &position, &key, &item)) {
      if (changed(item)) return true;
    }
  } else if (Py_TYPE(seen.get()) == guards::deque_type()) {
    const Ref items = checked(PySequence_List(seen.get()));
    return holds_changed(items.get(), depth + 1);
  }
  return false;
}

Ref Containers::wrap_member(PyObject* item) {
  if (const Source* known = c.world.source_of(item); known && known->kind != SourceKind::Const)
    c.guards.identity(known, item);
  members.insert(item);
  if (PyTuple_CheckExact(item)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(item); ++i) {
      if (!is_scalar(PyTuple_GET_ITEM(item, i))) wrap_member(PyTuple_GET_ITEM(item, i));
    }
  }
  return c.world.wrap(item, c.sources.constant(item));
}

Ref Containers::stand_in_of_sequence(PyObject* original, const Source* source) {
  PyTypeObject* type = Py_TYPE(original);
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(original);
  c.numbers.guard_length(source, type, size);
  Ref shadow = checked(type == &PyTuple_Type ? PyTuple_New(size) : PyList_New(size));
  for (Py_ssize_t i = 0; i < size; ++i) {
    Ref item = c.world.wrap(PySequence_Fast_GET_ITEM(original, i), c.sources.seq_item(source, i));
    if (type == &PyTuple_Type) {
      PyTuple_SET_ITEM(shadow.get(), i, item.release());
    } else {
      PyList_SET_ITEM(shadow.get(), i, item.release());
    }
  }
  if (const std::vector<Ref>* tail = find_tail(original)) {
    for (const Ref& item : *tail) {
      if (PyList_Append(shadow.get(), item.get()) < 0) throw PythonError{};
    }
    std::erase_if(tails, [&](const auto& entry) { return entry.first == original; });
  }
  return shadow;
}

Ref Containers::stand_in_of_dict(PyObject* original, const Source* source) {
  static constinit Imported default_dict("collections", "defaultdict");
  PyTypeObject* type = Py_TYPE(original);
  std::vector<PyObject*> keys;
  Ref order = checked(PySequence_List(original));  // OrderedDict's order is its own
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(order.get()); ++i) {
    PyObject* key = PyList_GET_ITEM(order.get(), i);
    if (!is_constant_key(key) && !is_identity_key(key) && !is_tensor(key)) {
      c.side_exit(BreakReason::OpaqueObject, source->name() + " is a dict with keys of type " + Py_TYPE(key)->tp_name);
    }
    guard_classes(c, key, Question::Hash, 8);
    keys.push_back(key);
  }
  c.numbers.exit_on_change(source, checked(PyLong_FromSize_t(keys.size())).get(), ".__len__()");
  c.guards.dict_keys(source, type, keys);
  Ref shadow = checked(PyObject_CallNoArgs(reinterpret_cast<PyObject*>(type)));
  if (type == default_dict.type()) {
    PyObject* member = PyDict_GetItemString(type_dict(type), "default_factory");
    Ref factory = checked(PyObject_GetAttrString(original, "default_factory"));
    Ref known =
        c.callbacks.callback(c.world.wrap(factory.get(), c.sources.slot(source, member)).get());  // C code calls it
    if (PyObject_SetAttrString(shadow.get(), "default_factory", known.get()) < 0) throw PythonError{};
  }
  for (PyObject* k : keys) {
    PyObject* value = PyDict_GetItemWithError(original, k);
    if (!value) throw PythonError{};
    Ref item = c.world.wrap(value, c.sources.dict_item(source, k));
    Ref known = is_scalar(k) ? Ref::borrow(k) : wrap_member(k);
    if (PyDict_Check(shadow.get()) && !PyODict_Check(shadow.get())
            ? PyDict_SetItem(shadow.get(), known.get(), item.get()) < 0
            : PyObject_SetItem(shadow.get(), known.get(), item.get()) < 0) {
      throw PythonError{};
    }
  }
  if (Overlay* written = c.overlays.find(original, true)) {
    for (const auto& [name, item] : written->entries) {
      if ((item ? PyObject_SetItem(shadow.get(), name.get(), item.get()) : PyObject_DelItem(shadow.get(), name.get())) <
          0) {
        throw PythonError{};
      }
    }
  }
  return shadow;
}

Ref Containers::stand_in_of_set(PyObject* original, const Source* source) {
  Ref items = checked(PySequence_List(original));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items.get()); ++i) {
    PyObject* item = PyList_GET_ITEM(items.get(), i);
    if (!guards::is_set_item(item)) {
      c.side_exit(BreakReason::OpaqueObject, source->name() + " is a set with items of type " + Py_TYPE(item)->tp_name);
    }
    if (!is_scalar(item)) wrap_member(item);
  }
  c.numbers.exit_on_change(source, checked(PyFrozenSet_New(original)).get(), "");
  if (source->kind != SourceKind::Const || PySet_Check(original)) c.guards.equals(source, original);
  return clone_set(original);
}

Ref Containers::stand_in_of_deque(PyObject* original, const Source* source) {
  PyTypeObject* type = guards::deque_type();
  const Py_ssize_t size = guards::deque_type()->tp_as_sequence->sq_length(original);  // past methods in Python
  c.numbers.guard_length(source, Py_TYPE(original), size);
  const Ref limit = guards::deque_limit(original);
  c.guards.equals(c.sources.deque_limit(source), limit.get());
  const Ref items = checked(PyList_New(0));
  for (Py_ssize_t i = 0; i < size; ++i) {
    const Ref raw = checked(type->tp_as_sequence->sq_item(original, i));
    const Ref item = c.world.wrap(raw.get(), c.sources.deque_item(source, i));
    if (PyList_Append(items.get(), item.get()) < 0) throw PythonError{};
  }
  return checked(PyObject_CallFunctionObjArgs(reinterpret_cast<PyObject*>(type), items.get(), limit.get(), nullptr));
}

Ref Containers::make_shadow(PyObject* original, const Source* source) {
  const InContainer scope(c.containers);
  PyTypeObject* type = Py_TYPE(original);
  const bool dirty = find_tail(original) != nullptr;
  Ref shadow;
  if (type == &PyTuple_Type || type == &PyList_Type) {
    shadow = stand_in_of_sequence(original, source);
  } else if (PyDict_Check(original)) {
    shadow = stand_in_of_dict(original, source);
  } else if (PyAnySet_CheckExact(original)) {
    shadow = stand_in_of_set(original, source);
  } else {
    shadow = stand_in_of_deque(original, source);
  }
  shadows[original] = {Ref::borrow(original), shadow, dirty};
  shadow_original[shadow.get()] = original;
  return shadow;
}

const std::vector<Ref>* Containers::find_tail(PyObject* list) const {
  const auto found = std::ranges::find(tails, list, [](const auto& entry) { return entry.first; });
  return found == tails.end() ? nullptr : &found->second;
}

bool Containers::is_written(PyObject* dict) const { return has_shadow(dict) || c.overlays.find(dict, true); }

void Containers::append(PyObject* list, PyObject* item) {
  const bool unread = PyList_CheckExact(list) && c.world.is_outside(list) && !is_shadow(list) && !shadows.count(list);
  if (!unread) {
    if (PyList_Append(resolve(list, /*will_mutate=*/true).get(), item) < 0) throw PythonError{};
    return;
  }
  auto tail = std::ranges::find(tails, list, [](const auto& entry) { return entry.first; });
  if (tail == tails.end()) tail = tails.insert(tail, {list, {}});
  tail->second.push_back(Ref::borrow(item));
  ++c.overlays.writes;
}

namespace {

/// The container with `replacement(item)` for its items. In place, so that it stays the one that it is: a stand-in, or
/// one that the capture has made.
template <typename Replacement>
void replace_items(PyObject* container, const Replacement& replacement) {
  if (PyTuple_Check(container) || PyList_Check(container)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(container); ++i) {
      PyObject* item = PySequence_Fast_GET_ITEM(container, i);
      Ref other = replacement(item);
      if (other.get() == item) continue;
      PySequence_Fast_ITEMS(container)[i] = other.release();
      Py_DECREF(item);
    }
  } else if (Py_TYPE(container) == guards::deque_type()) {
    for (Py_ssize_t i = 0; i < PyObject_Size(container); ++i) {
      const Ref item = checked(PySequence_GetItem(container, i));
      const Ref other = replacement(item.get());
      if (other.get() != item.get() && PySequence_SetItem(container, i, other.get()) < 0) throw PythonError{};
    }
  } else if (PyDict_CheckExact(container)) {
    PyObject *key, *item;
    Py_ssize_t position = 0;
    while (PyDict_Next(container, &position, &key, &item)) {
      Ref other = replacement(item);
      if (other.get() == item) continue;
      if (PyDict_SetItem(container, key, other.get()) < 0) throw PythonError{};
    }
  }
}

constexpr int kDeepest = 50;
constexpr const char* kTooDeep = "a container that may hold itself is read";

}  // namespace

Ref Containers::resolve_deep(PyObject* object, int depth) {
  if (depth > kDeepest) c.side_exit(BreakReason::OpaqueObject, kTooDeep);
  Ref top = resolve(object);
  if (PyTuple_CheckExact(top.get()) || PyList_CheckExact(top.get()) || PyDict_CheckExact(top.get()) ||
      Py_TYPE(top.get()) == guards::deque_type()) {
    replace_items(top.get(), [&](PyObject* item) {
      return is_builtin_container(item) ? resolve_deep(item, depth + 1) : Ref::borrow(item);
    });
  }
  return top;
}

namespace {

/// PyTorch reads it as it reads a plain one.
bool is_derived_sequence(PyObject* object) {
  return is_derived_container(object) && (PyTuple_Check(object) || PyList_Check(object));
}

bool holds_derived_sequence(const Capture& capture, PyObject* container) {
  const auto is_one = [&](PyObject* item) {
    if (is_derived_sequence(item)) return capture.world.is_outside(item);
    return is_builtin_container(item) && holds_derived_sequence(capture, item);
  };
  if (PyTuple_CheckExact(container) || PyList_CheckExact(container)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(container); ++i) {
      if (is_one(PySequence_Fast_GET_ITEM(container, i))) return true;
    }
  } else if (PyDict_CheckExact(container)) {
    PyObject *key, *item;
    Py_ssize_t position = 0;
    while (PyDict_Next(container, &position, &key, &item)) {
      if (is_one(item)) return true;
    }
  }
  return false;
}

Ref copy_of(PyObject* container) {
  if (PyDict_CheckExact(container)) return checked(PyDict_Copy(container));
  Ref list = checked(PySequence_List(container));
  return PyTuple_CheckExact(container) ? checked(PyList_AsTuple(list.get())) : list;
}

}  // namespace

Ref Containers::readable(PyObject* argument, int depth) {
  if (depth > kDeepest) c.side_exit(BreakReason::OpaqueObject, kTooDeep);
  const auto read_items = [&](const Ref& container) {
    replace_items(container.get(), [&](PyObject* item) { return readable(item, depth + 1); });
  };
  if (is_derived_sequence(argument) && c.world.is_outside(argument)) {
    Ref contents = contents_of(argument);
    if (PyList_Check(argument)) contents = copy_of(contents.get());
    read_items(contents);
    if (PyList_Check(argument)) return contents;
    // Still of its class, past its constructor: functions of torch ask for fields.
    Ref args = checked(PyTuple_Pack(1, contents.get()));
    return checked(PyTuple_Type.tp_new(Py_TYPE(argument), args.get(), nullptr));
  }
  if (!is_builtin_container(argument)) return Ref::borrow(argument);
  Ref top = resolve_deep(argument, depth);
  if (Py_TYPE(top.get()) == guards::deque_type()) {
    replace_items(top.get(), [&](PyObject* item) { return c.numbers.known(item); });
  }
  if (!holds_derived_sequence(c, top.get())) return top;
  Ref copy = copy_of(top.get());  // the program goes on with the items that it has
  read_items(copy);
  return copy;
}

}  // namespace magneto::capture
