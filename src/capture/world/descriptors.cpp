// Descriptors: what one that was found on a class gives for an instance, or for the class itself. Two ordered tables:
// how all kinds bind, and which fields of C objects are read in a way of their own.
#include <Python.h>
#include <structmember.h>

#include <cstring>
#include <optional>
#include <string_view>

#include "capture/calls/calls.h"
#include "capture/calls/deferred.h"
#include "capture/capture.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "guards/objects.h"
#include "python/abi/private.h"
#include "python/abi/types.h"
#include "python/imported.h"

namespace magneto::capture {

using guards::Source;

/// Whether an object in a class is a descriptor, and of which kind, its own class says: one of the user's may be
/// changed.
void Attributes::guard_protocol(PyObject* descriptor) {
  if (!descriptor || !is_python_class(Py_TYPE(descriptor))) return;
  for (PyObject* name : {MAGNETO_STR("__get__"), MAGNETO_STR("__set__"), MAGNETO_STR("__delete__")}) {
    type_lookup(Py_TYPE(descriptor), name);
  }
}

/// In this order: a kind that is none of the descriptor's gives null.
constexpr Attributes::DescriptorKind Attributes::kDescriptors[] = {
    {"a function, a method or slot of C code", &Attributes::bind_function},
    {"a static or class method", &Attributes::bind_static},
    {"functools.cached_property", &Attributes::bind_cached_property},
    {"a property", &Attributes::bind_property},
    {"functools.lru_cache", &Attributes::bind_cached_function},
    {"no descriptor", &Attributes::bind_plain},
    {"a descriptor with a method in Python", &Attributes::bind_by_method},
    {"a field or function of C code", &Attributes::bind_field},
    {"another descriptor of C code", &Attributes::bind_native},
};

Ref Attributes::bind(PyObject* descriptor, PyObject* owner, PyTypeObject* type, bool* unbound) {
  const Binding binding{descriptor, owner, type, unbound};
  for (const DescriptorKind& kind : kDescriptors) {
    if (Ref value = (this->*kind.bind)(binding)) return value;
  }
  return {};  // not reached: the last one takes all
}

Ref Attributes::constant(PyObject* object) { return c.world.wrap(object, c.sources.constant(object)); }

Ref Attributes::bind_function(const Binding& of) {
  PyTypeObject* kind = of.kind();
  const bool of_pybind = kind == &PyInstanceMethod_Type;
  if (kind != &PyFunction_Type && kind != &PyMethodDescr_Type && kind != &PyWrapperDescr_Type && !of_pybind) return {};
  Ref function = constant(of_pybind ? PyInstanceMethod_GET_FUNCTION(of.descriptor) : of.descriptor);
  if (!of.owner) return function;
  if (of.unbound) {
    *of.unbound = true;
    return function;
  }
  if (kind == &PyFunction_Type || of_pybind) return checked(PyMethod_New(function.get(), of.owner));
  return checked(of.get());
}

Ref Attributes::bind_static(const Binding& of) {
  const bool is_static = of.kind() == &PyStaticMethod_Type;
  if (!is_static && of.kind() != &PyClassMethod_Type) return {};
  Ref bound = checked(of.get());
  if (is_static) return constant(bound.get());
  if (PyMethod_Check(bound.get())) {  // functions made by classmethod are read from the class: constants
    constant(PyMethod_GET_FUNCTION(bound.get()));
    c.world.keep(bound);
  }
  return bound;
}

/// As its __get__ does it, but for the lock of 3.11.
Ref Attributes::bind_cached_property(const Binding& of) {
  static constinit Imported cached_property("functools", "cached_property");
  if (of.kind() != cached_property.type() || !of.owner || !has_instance_dict(of.type)) return {};
  NonResumable scope(c);
  Ref self = constant(of.descriptor);
  Ref function = load_attr(of.descriptor, MAGNETO_STR("func"));
  Ref name = load_attr(of.descriptor, MAGNETO_STR("attrname"));
  Ref value = c.calls.call(function.get(), {of.owner});
  PyObject* dict = instance_dict_of(of.owner);
  if (!c.world.is_outside(of.owner)) {
    if (PyDict_SetItem(dict, name.get(), value.get()) < 0) throw PythonError{};
  } else if (c.containers.is_written(dict)) {
    c.overlays.store_entry(dict, name.get(), value.get());
  } else {
    c.overlays.of(of.owner, false).set(name.get(), value.get());
  }
  return value;
}

Ref Attributes::bind_property(const Binding& of) {
  if (!is_property_type(of.kind())) return {};
  if (!of.owner) return constant(of.descriptor);
  Ref getter = checked(PyObject_GetAttr(of.descriptor, MAGNETO_STR("fget")));
  return c.calls.call(constant(getter.get()).get(), {of.owner});
}

/// A function of C code that becomes a method like one of Python.
Ref Attributes::bind_cached_function(const Binding& of) {
  const std::string_view kind = of.kind()->tp_name;
  if (kind != "functools._lru_cache_wrapper" && !kind.ends_with(".cython_function_or_method")) return {};
  Ref function = constant(of.descriptor);
  return of.owner ? checked(PyMethod_New(function.get(), of.owner)) : function;
}

Ref Attributes::bind_plain(const Binding& of) {
  return lookup_in_type(of.kind(), MAGNETO_STR("__get__")) ? Ref() : constant(of.descriptor);
}

Ref Attributes::bind_by_method(const Binding& of) {
  PyObject* get = lookup_in_type(of.kind(), MAGNETO_STR("__get__"));
  Ref descriptor = constant(of.descriptor);
  if (!PyFunction_Check(get)) return {};
  type_lookup(of.kind(), MAGNETO_STR("__get__"));
  return c.calls.call(constant(get).get(),
                      {of.descriptor, of.owner ? of.owner : Py_None, reinterpret_cast<PyObject*>(of.type)});
}

Ref Attributes::bind_field(const Binding& of) {
  PyTypeObject* kind = of.kind();
  if (kind != &PyGetSetDescr_Type && kind != &PyMemberDescr_Type && kind != &PyClassMethodDescr_Type &&
      kind != &PyCFunction_Type) {
    return {};
  }
  if (!of.owner && kind != &PyClassMethodDescr_Type) return constant(of.descriptor);
  return checked(of.get());
}

Ref Attributes::bind_native(const Binding& of) {
  if (of.owner && c.world.is_outside(of.owner)) {
    c.side_exit(BreakReason::OpaqueObject,
                std::string("attribute read through a descriptor of type ") + of.kind()->tp_name);
  }
  return c.calls.call_native([&] { return of.get(); });
}

// -- fields ----------------------------------------------------------------------------------------------------------

namespace {

/// A member of a C type that nobody can set.
bool is_fixed_member(PyTypeObject* type, PyObject* descriptor) {
  const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(descriptor)->d_member;
  return !PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && ((member->flags & READONLY) || member->type != T_OBJECT);
}

/// False for attributes of outside objects that C code computes from state that no guard sees (a frame's line, an
/// exception's arguments, the shape of an array).
bool holds_guarded_state(PyObject* owner, PyObject* descriptor) {
  if (Py_TYPE(descriptor) == &PyMemberDescr_Type) {
    const int member = reinterpret_cast<PyMemberDescrObject*>(descriptor)->d_member->type;
    return member == T_OBJECT || member == T_OBJECT_EX;
  }
  if (Py_TYPE(descriptor) != &PyGetSetDescr_Type) return true;
  PyTypeObject* type = Py_TYPE(owner);
  return type == &PyFunction_Type || type == &PyMethod_Type || type == &PyCode_Type || type == &Py_GenericAliasType ||
         is_value(owner) || is_identity_constant(owner) || is_bound_builtin(owner);
}

}  // namespace

/// Of a descriptor that also writes, so that no instance dict comes before it. In this order: a kind that is none of
/// the field's leaves it to the next. What is asked by its name comes first; behind `refuse_hidden` what C code gives
/// follows from what guards see.
constexpr Attributes::FieldKind Attributes::kFields[] = {
    {"the class", &Attributes::read_class},
    {"the dict of an instance", &Attributes::read_instance_dict},
    {"what a function says of itself", &Attributes::read_function_fact},
    {"what a function was before it was compiled", &Attributes::read_wrapped},
    {"what a cell holds", &Attributes::read_cell_contents},
    {"the text of a method", &Attributes::read_method_text},
    {"state that no guard sees", &Attributes::refuse_hidden},
    {"a slot", &Attributes::read_slot},
    {"an item of a named tuple", &Attributes::read_tuple_item},
    {"any other", &Attributes::read_bound},
};

Ref Attributes::read_field(const Field& field) {
  for (const FieldKind& kind : kFields) {
    if (auto value = (this->*kind.read)(field)) return *value;
  }
  return {};  // not reached: the last one takes all
}

std::optional<Ref> Attributes::read_class(const Field& field) {
  if (field.name != MAGNETO_STR("__class__") || field.kind() != &PyGetSetDescr_Type) return std::nullopt;
  return constant(reinterpret_cast<PyObject*>(field.type()));
}

std::optional<Ref> Attributes::read_instance_dict(const Field& field) {
  if (!field.source || field.name != MAGNETO_STR("__dict__") || !has_instance_dict(field.type())) return std::nullopt;
  PyObject* dict = instance_dict_of(field.owner);
  if (!dict) return Ref();
  Ref value = c.world.wrap(dict, c.sources.instance_dict(field.source));
  move_writes_to_dict(field.owner, dict);
  return value;
}

std::optional<Ref> Attributes::read_function_fact(const Field& field) {
  Ref fact = PyFunction_Check(field.owner) ? function_fact(field.owner, field.name) : Ref();
  return fact ? std::optional(fact) : std::nullopt;
}

/// A program may set something else: the instance's dict has that.
std::optional<Ref> Attributes::read_wrapped(const Field& field) {
  if (!field.source || field.name != MAGNETO_STR("__wrapped__") || !original_of_compiled) return std::nullopt;
  PyObject* original = original_of_compiled(field.owner);
  PyObject* set = original ? instance_dict_of(field.owner) : nullptr;
  if (!set || PyDict_GetItemWithError(set, field.name)) return std::nullopt;
  c.world.pinned(field.owner);
  c.guards.absent(c.sources.dict_item(c.sources.instance_dict(field.source), field.name));
  return constant(original);
}

std::optional<Ref> Attributes::read_cell_contents(const Field& field) {
  if (!PyCell_Check(field.owner) || field.name != MAGNETO_STR("cell_contents")) return std::nullopt;
  if (Ref contents = c.world.read_cell(field.owner)) return contents;
  PyErr_SetString(PyExc_ValueError, "Cell is empty");
  throw PythonError{};
}

std::optional<Ref> Attributes::read_method_text(const Field& field) {
  if (!PyMethod_Check(field.owner) || field.name != MAGNETO_STR("__doc__")) return std::nullopt;
  if (!field.source) return lookup_attr(PyMethod_GET_FUNCTION(field.owner), field.name);
  return lookup_attr(load_attr(field.owner, MAGNETO_STR("__func__")).get(), field.name);
}

std::optional<Ref> Attributes::refuse_hidden(const Field& field) {
  if (field.source && PyType_IsSubtype(field.type(), guards::deque_type()) && field.name == MAGNETO_STR("maxlen")) {
    return c.world.wrap(checked(field.get()).get(), c.sources.deque_limit(field.source));
  }
  if (c.deferred.contexts.has_made(field.owner) && field.name == MAGNETO_STR("old_value")) {
    c.side_exit(BreakReason::OpaqueObject, "the token of a context variable is asked for the value before");
  }
  if (field.source && (!field.is_of_constant() || c.world.is_opaque(field.owner)) &&
      !holds_guarded_state(field.owner, field.descriptor)) {
    c.side_exit(BreakReason::OpaqueObject,
                std::string("'") + PyUnicode_AsUTF8(field.name) + "' of an object of type " + field.type()->tp_name);
  }
  return std::nullopt;
}

std::optional<Ref> Attributes::read_slot(const Field& field) {
  const bool is_fixed =
      field.is_of_constant() && field.kind() == &PyMemberDescr_Type && is_fixed_member(field.type(), field.descriptor);
  if (!field.source || field.kind() != &PyMemberDescr_Type || is_fixed) return std::nullopt;
  if (Overlay* written = c.overlays.find(field.owner, false)) {
    if (auto* entry = written->find(field.name)) return entry->second;
  }
  Ref value = Ref::steal(field.get());
  const Source* place = c.sources.slot(field.source, field.descriptor);
  if (value) return c.world.wrap(value.get(), place);
  if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw PythonError{};
  PyErr_Clear();
  c.guards.absent(place);
  return Ref();
}

std::optional<Ref> Attributes::read_tuple_item(const Field& field) {
  if (!field.source || !PyTuple_Check(field.owner) ||
      std::strstr(field.kind()->tp_name, "collections._tuplegetter") == nullptr) {
    return std::nullopt;
  }
  Ref parts = checked(PyObject_CallMethod(field.descriptor, "__reduce__", nullptr));  // (class, (index, doc))
  const Py_ssize_t index = PyLong_AsSsize_t(PyTuple_GET_ITEM(PyTuple_GET_ITEM(parts.get(), 1), 0));
  if (index >= PyTuple_GET_SIZE(field.owner)) return std::nullopt;
  return c.world.wrap(PyTuple_GET_ITEM(field.owner, index), c.sources.seq_item(field.source, index));
}

std::optional<Ref> Attributes::read_bound(const Field& field) {
  Ref value = bind(field.descriptor, field.owner, field.type(), nullptr);
  const bool is_field = field.kind() == &PyGetSetDescr_Type || field.kind() == &PyMemberDescr_Type;
  if (field.source && is_field && !is_scalar(value.get()) && !c.world.is_outside(value.get())) {
    // Attributes of C objects (code objects, functions, bound methods): constants of a guarded owner.
    c.world.keep(value);
    return constant(value.get());
  }
  return value;
}

/// The instance dict is about to be used as a dict: attributes written so far become entries written.
void Attributes::move_writes_to_dict(PyObject* owner, PyObject* dict) {
  Overlay* written = c.overlays.find(owner, false);
  if (!written) return;
  std::vector<std::pair<Ref, Ref>> entries;
  std::erase_if(written->entries, [&](std::pair<Ref, Ref>& entry) {
    PyObject* descriptor = lookup_in_type(Py_TYPE(owner), entry.first.get());
    if (descriptor && Py_TYPE(descriptor)->tp_descr_set) return false;  // a slot
    entries.push_back(std::move(entry));
    return true;
  });
  for (const auto& [name, value] : entries) c.overlays.store_entry(dict, name.get(), value.get());
}

}  // namespace magneto::capture
