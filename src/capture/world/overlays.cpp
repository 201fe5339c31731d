// Writes to objects from outside, which are kept back until the run's end, and the entries of dicts under them.
#include "capture/world/overlays.h"

#include <Python.h>

#include <algorithm>
#include <span>
#include <unordered_set>

#include "capture/calls/calls.h"
#include "capture/calls/special_methods.h"
#include "capture/capture.h"
#include "capture/interpreter/frames.h"
#include "capture/numbers/draw_methods.h"
#include "capture/torch/tensor_map.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/world.h"
#include "support/tensor_object.h"

namespace magneto::capture {

using guards::Source;
using guards::SourceKind;

std::pair<Ref, Ref>* Overlay::find(PyObject* name) {
  const auto same = [name](PyObject* known) {
    if (known == name || is_tensor(known) || is_tensor(name)) return known == name;  // tensors compare their elements
    return PyObject_RichCompareBool(known, name, Py_EQ) == 1;
  };
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (same(entry->first.get())) return &*entry;
  }
  return nullptr;
}

void Overlay::set(PyObject* name, PyObject* value) {
  auto* entry = find(name);
  if (entry && entry->second) {
    entry->second = Ref::borrow(value);
  } else {  // after a deletion the new entry comes last, as in a dict
    entries.emplace_back(Ref::borrow(name), Ref::borrow(value));
  }
}

void Overlay::erase(PyObject* name, bool in_original) {
  if (auto* entry = find(name)) entries.erase(entries.begin() + (entry - entries.data()));
  if (in_original && !find(name)) entries.emplace_back(Ref::borrow(name), Ref());
}

Overlay* Overlays::find(PyObject* object, bool items) {
  auto found = overlay_of_[items].find(object);
  return found == overlay_of_[items].end() ? nullptr : found->second;
}

Overlay& Overlays::of(PyObject* object, bool items) {
  ++writes;
  if (Overlay* known = find(object, items)) return *known;
  all.push_back(std::make_unique<Overlay>(Overlay{object, items, {}}));
  overlay_of_[items][object] = all.back().get();
  return *all.back();
}

PyObject* World::pinned(PyObject* object) {
  if (auto original = c.containers.shadow_original.find(object); original != c.containers.shadow_original.end())
    object = original->second;
  if (is_tensor(object)) {
    const auto [real, source] = c.tensors.original(object);
    if (!real || c.tensors.fake_of.at(real).get() != object) return object;
    c.guards.identity(source, real);
    return real;
  }
  const Source* source = source_of(object);
  if (source && source->kind != SourceKind::Const) c.guards.identity(source, object);
  return object;
}

PyObject* World::original_key(PyObject* key) {
  if (is_scalar(key) || is_identity_constant(key)) return key;
  if (PyTuple_CheckExact(key) || Py_TYPE(key) == size_class() || Py_TYPE(key) == method_wrapper_type()) {
    const Source* source = is_outside(key) ? source_of(key) : nullptr;
    const bool known = !is_outside(key) || (source && source->kind == SourceKind::Const);
    if (known && is_constant_key(key)) return key;
    Ref fixed = PyTuple_Check(key) ? constant_argument(c, key) : Ref();  // of sizes that are symbols
    if (!fixed || !is_constant_key(fixed.get())) return nullptr;
    if (!PyTuple_CheckExact(key))
      fixed = checked(PyObject_CallOneArg(reinterpret_cast<PyObject*>(size_class()), fixed.get()));
    keep(fixed);
    return fixed.get();
  }
  if (is_tensor(key)) {
    if (!fake::is_fake(unpack_tensor(key))) return nullptr;
    auto input = c.tensors.inputs.find(c.session->value_of(unpack_tensor(key)));
    if (input == c.tensors.inputs.end() || c.tensors.fake_of.at(input->second.real.get()).get() != key) return nullptr;
    c.guards.identity(input->second.source, input->second.real.get());
    return input->second.real.get();
  }
  if (PyWeakref_CheckRefExact(key)) {  // as what it refers to, which a guard pins
    PyObject* referent = PyWeakref_GET_OBJECT(key);
    const bool known = is_identity_constant(referent) || (is_outside(referent) && is_identity_key(referent));
    return known && original_key(referent) ? key : nullptr;
  }
  if (!is_identity_key(key) && !PyFunction_Check(key)) return nullptr;
  guard_classes(c, key, Question::Hash, 0);
  const Source* source = source_of(key);
  if (source && source->kind != SourceKind::Const) c.guards.identity(source, key);
  return key;
}

/// Of wrappers that are made at each read, the dict's own: guards tell keys by identity.
static PyObject* own_key(PyObject* dict, PyObject* key) {
  if (Py_TYPE(key) != method_wrapper_type()) return key;
  PyObject* own;
  for (Py_ssize_t position = 0; PyDict_Next(dict, &position, &own, nullptr);) {
    if (Py_TYPE(own) == Py_TYPE(key) && PyObject_RichCompareBool(own, key, Py_EQ) == 1) return own;
  }
  return key;
}

Ref Overlays::dict_lookup(PyObject* dict, PyObject* key) {
  if (auto original = c.containers.shadow_original.find(dict); original != c.containers.shadow_original.end())
    dict = original->second;
  if (c.containers.shadows.count(dict)) {
    return Ref::borrow(PyDict_GetItemWithError(c.containers.shadows.at(dict).object.get(), key));
  }
  const Source* source = c.world.source_of(dict);
  if (!source) {
    PyObject* value = PyDict_GetItemWithError(dict, key);
    if (!value && PyErr_Occurred()) throw PythonError{};
    return Ref::borrow(value);
  }
  if (Overlay* written = find(dict, true)) {
    if (auto* entry = written->find(key)) return entry->second;
  }
  if (PyWeakref_CheckRefExact(key) && c.calls.classes.is_class(PyWeakref_GET_OBJECT(key))) return {};  // made here
  PyObject* original = c.world.original_key(key);
  if (!original) {
    c.side_exit(BreakReason::OpaqueObject,
                source->name() + " is looked up with a key of type " + Py_TYPE(key)->tp_name);
  }
  original = own_key(dict, original);
  PyObject* value = PyDict_GetItemWithError(dict, original);
  if (!value && PyErr_Occurred()) throw PythonError{};
  if (!value && !c.world.is_outside(key) && is_identity_key(key)) return {};  // made here: it can't get there, either
  key = original;
  const Source* item = c.sources.dict_item(source, key);
  if (!value) {
    c.guards.absent(item);
    return {};
  }
  return c.world.wrap(value, item);
}

namespace {

/// Closing the generator runs code: it is suspended where a handler waits. (One that turns StopIteration into
/// RuntimeError may wait everywhere, one that ends what is awaited around each `await` and `yield from`.)
bool has_finally(PyObject* generator) {
  Frame* suspended = generator_frame(generator);
  if (!suspended || !generator_is_started(generator)) return false;
  const CodeInfo& info = decode(frame_code(suspended));
  const Handler* handler = info.handler_of(std::max(frame_next_instr(suspended, info) - 1, 0));
  while (handler && info.instrs[handler->target].op == Op::CLEANUP_THROW) handler = info.handler_of(handler->target);
  return handler && info.instrs[handler->target].op != Op::STOPITERATION_ERROR;
}

}  // namespace

void World::check_finalizer(PyObject* dropped) {
  if (dropped && is_tensor(dropped)) {
    if (PyObject* real = c.tensors.original(dropped).first) dropped = real;
  }
  if (!dropped || !(is_outside(dropped) || (!c.frames.root.raw.empty() && !is_scalar(dropped)))) return;
  if (PyType_Check(dropped)) return;  // classes are in cycles: the collector's
  PyTypeObject* type = Py_TYPE(dropped);
  bool speaks = type->tp_finalize || type->tp_del;
  if (PyGen_CheckExact(dropped)) speaks = has_finally(dropped);
  if (PyCoro_CheckExact(dropped))
    speaks = has_finally(dropped) || (generator_frame(dropped) && !generator_is_started(dropped));
  if (PyType_SUPPORTS_WEAKREFS(type)) {
    for (auto* reference = *reinterpret_cast<PyWeakReference**>(PyObject_GET_WEAKREFS_LISTPTR(dropped)); reference;
         reference = reference->wr_next) {
      speaks |= reference->wr_callback != nullptr;
      dropped_referents.insert(dropped);
    }
  }
  if (speaks) c.side_exit(BreakReason::Finalizer, std::string("an object of type ") + type->tp_name + " is dropped");
}

namespace {

/// An item that may hold others is in the container, and none of its stand-in stands for it.
bool has_lost_items(const Capture& c, PyObject* original, PyObject* stand_in) {
  const auto items = [](PyObject* container) {
    return checked(PyDict_Check(container) ? PyDict_Values(container) : PySequence_List(container));
  };
  const Ref before = items(original), now = items(stand_in);
  const auto all = [](const Ref& list) {
    return std::span<PyObject*>(PySequence_Fast_ITEMS(list.get()), static_cast<size_t>(PyList_GET_SIZE(list.get())));
  };
  const std::unordered_set<PyObject*> there(all(now).begin(), all(now).end());
  return std::ranges::any_of(all(before), [&](PyObject* item) {
    const auto shadow = c.containers.shadows.find(item);
    const bool stands = shadow != c.containers.shadows.end() && there.contains(shadow->second.object.get());
    return !is_scalar(item) && !stands && !there.contains(item);
  });
}

}  // namespace

bool has_let_go(const Capture& c) {
  if (!c.world.dropped_referents.empty()) return true;
  for (const auto& overlay : c.overlays.all) {
    for (const auto& [name, value] : overlay->entries) {
      PyObject* object = overlay->object;
      PyObject* dict = overlay->items ? (PyDict_Check(object) ? object : nullptr) : instance_dict_of(object);
      if (!dict) return true;
      PyObject* old = PyDict_GetItemWithError(dict, name.get());
      if (PyErr_Occurred()) throw PythonError{};
      if (old && old != value.get() && !is_scalar(old)) return true;
    }
  }
  return std::ranges::any_of(c.containers.shadows, [&](const auto& entry) {
    return entry.second.dirty && has_lost_items(c, entry.first, entry.second.object.get());
  });
}

void Overlays::store_entry(PyObject* dict, PyObject* key, PyObject* value) {
  if (auto original = c.containers.shadow_original.find(dict); original != c.containers.shadow_original.end())
    dict = original->second;
  if (is_scalar(key)) c.world.check_finalizer(PyDict_GetItemWithError(dict, key));
  if (value) {
    of(dict, true).set(key, value);
  } else {
    PyObject* original = c.world.original_key(key);
    const int in_original = original ? PyDict_Contains(dict, original) : 0;
    if (in_original < 0) throw PythonError{};
    of(dict, true).erase(key, in_original != 0);
  }
  auto shadow = c.containers.shadows.find(dict);
  if (shadow == c.containers.shadows.end()) return;
  PyObject* contents = shadow->second.object.get();
  if ((value ? PyObject_SetItem(contents, key, value) : PyObject_DelItem(contents, key)) < 0) throw PythonError{};
}

}  // namespace magneto::capture
