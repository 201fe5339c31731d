// What functions, classes and cells say of themselves: names, texts, annotations, defaults, bases, namespaces.
//
// C code answers from fields of the object, which any program may set: the field is a source, or the class is guarded.
#include <Python.h>
#include <structmember.h>

#include <algorithm>
#include <span>
#include <vector>

#include "capture/calls/calls.h"
#include "capture/capture.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "python/abi/types.h"

namespace magneto::capture {

using guards::Source;

namespace {

/// A field, and a member descriptor for a guard to read it by.
struct Field {
  PyObject* name;
  PyObject* member;
};
using FieldOffset = std::pair<const char*, size_t>;

constexpr FieldOffset kFunctionFields[] = {
    {"__name__", offsetof(PyFunctionObject, func_name)},
    {"__qualname__", offsetof(PyFunctionObject, func_qualname)},
    {"__doc__", offsetof(PyFunctionObject, func_doc)},
    {"__module__", offsetof(PyFunctionObject, func_module)},
    {"__annotations__", offsetof(PyFunctionObject, func_annotations)},
    {"__code__", offsetof(PyFunctionObject, func_code)},
    {"__defaults__", offsetof(PyFunctionObject, func_defaults)},
    {"__kwdefaults__", offsetof(PyFunctionObject, func_kwdefaults)},
};
constexpr FieldOffset kClassFields[] = {
    {"__name__", offsetof(PyHeapTypeObject, ht_name)},
    {"__qualname__", offsetof(PyHeapTypeObject, ht_qualname)},
};

std::vector<Field> make_fields(PyTypeObject* type, std::span<const FieldOffset> offsets) {
  std::vector<Field> fields;
  for (const auto& [name, offset] : offsets) {
    auto* member = new PyMemberDef{name, T_OBJECT, static_cast<Py_ssize_t>(offset), READONLY, nullptr};
    fields.push_back({PyUnicode_InternFromString(name), PyDescr_NewMember(type, member)});
  }
  return fields;
}

/// Null: not a field.
PyObject* find_field(const std::vector<Field>& fields, PyObject* name) {
  const auto found = std::ranges::find(fields, name, &Field::name);
  return found == fields.end() ? nullptr : found->member;
}

PyObject* function_field(PyObject* name) {
  static const std::vector<Field> fields = make_fields(&PyFunction_Type, kFunctionFields);
  return find_field(fields, name);
}

PyObject* class_field(PyObject* name) {
  static const std::vector<Field> fields = make_fields(&PyType_Type, kClassFields);
  return find_field(fields, name);
}

bool is_one_of(PyObject* name, std::initializer_list<PyObject*> names) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

Ref Attributes::function_fact(PyObject* function, PyObject* name) {
  const Source* source = c.world.source_of(function);
  PyObject* field = source ? function_field(name) : nullptr;
  if (!field) return {};
  if (Overlay* written = c.overlays.find(function, false)) {
    if (auto* entry = written->find(name)) return entry->second;
  }
  Ref value = checked(PyObject_GetAttr(function, name));  // makes the dict of annotations
  return c.world.wrap(value.get(), c.sources.slot(source, field));
}

Ref Attributes::class_fact(PyTypeObject* type, PyObject* name) {
  if (c.calls.classes.is_class(type)) return {};  // each run makes it
  auto* object = reinterpret_cast<PyObject*>(type);
  if (name == MAGNETO_STR("__dict__")) {
    if (c.overlays.find(object, false))
      c.side_exit(BreakReason::OpaqueObject, "the __dict__ of a class that is written");
    PyObject* dict = type_dict(type);
    c.world.wrap(dict, c.sources.constant(dict));
    if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) &&
        !c.containers.has_shadow(dict)) {  // nobody can change it: no guards
      PyObject* value;
      Py_ssize_t position = 0;
      while (PyDict_Next(dict, &position, nullptr, &value)) c.world.wrap(value, c.sources.constant(value));
      Ref copy = checked(PyDict_Copy(dict));
      c.containers.shadow_original[copy.get()] = dict;
      c.containers.shadows[dict] = {Ref::borrow(dict), std::move(copy), /*dirty=*/false};
    }
    return checked(PyDictProxy_New(c.containers.resolve(dict).get()));
  }
  if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) return {};
  if (PyObject* field = class_field(name)) {
    Ref value = checked(PyObject_GetAttr(object, name));
    return c.world.wrap(value.get(), c.sources.slot(c.sources.constant(object), field));
  }
  if (is_one_of(name, {MAGNETO_STR("__bases__"), MAGNETO_STR("__mro__"), MAGNETO_STR("__base__")})) {
    c.guards.bases(type);
  } else if (is_one_of(name, {MAGNETO_STR("__doc__"), MAGNETO_STR("__annotations__"), MAGNETO_STR("__module__"),
                              MAGNETO_STR("__abstractmethods__"), MAGNETO_STR("__type_params__")})) {
    Ref value = Ref::steal(PyObject_GetAttr(object, name));  // makes the dict of annotations
    PyErr_Clear();
    type_lookup(type, name);
    // Where 3.14 keeps that dict, and a new one that is assigned.
    PyObject* const kept = MAGNETO_STR("__annotations_cache__");
    if (name == MAGNETO_STR("__annotations__") && PyDict_Contains(type_dict(type), kept) == 1) type_lookup(type, kept);
  }
  return {};
}

Ref World::read_cell(PyObject* cell) {
  if (Overlay* written = c.overlays.find(cell, false)) return written->find(Py_None)->second;  // the last of its writes
  PyObject* contents = PyCell_GET(cell);
  const auto outside = cell_contents.find(cell);
  if (outside == cell_contents.end()) return Ref::borrow(contents);
  if (contents) return wrap(contents, outside->second);
  c.guards.absent(outside->second);
  return {};
}

}  // namespace magneto::capture
