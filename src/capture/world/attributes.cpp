// Attribute access, as the interpreted program sees it.
//
// This is CPython's attribute protocol done step by step, so that every read of an outside object leaves a guard on
// exactly what was read (type attribute, instance dict entry, absence of one) and Python-level hooks (properties,
// `__getattr__`, `__getattribute__`, descriptors) are interpreted like any other function.
#include "capture/world/attributes.h"

#include <Python.h>
#include <structmember.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>

#include "capture/calls/calls.h"
#include "capture/capture.h"
#include "capture/numbers/symbols.h"
#include "capture/numpy/numpy_capture.h"
#include "capture/torch/gradients.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/containers.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "python/abi/errors.h"
#include "python/abi/private.h"
#include "python/abi/types.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

using guards::Source;

PyObject* torch_module_class() {
  static constinit Imported type("torch.nn.modules.module", "Module");
  return type.get();
}

PyObject* class_entry(PyObject* type, const char* name) {
  return PyDict_GetItemString(type_dict(reinterpret_cast<PyTypeObject*>(type)), name);
}

PyObject* instance_dict_of(PyObject* object) {
  Ref dict = Ref::steal(PyObject_GenericGetDict(object, nullptr));
  if (!dict) {
    PyErr_Clear();
    return nullptr;
  }
  return dict.get();  // the object keeps it alive
}

bool has_instance_dict(PyTypeObject* type) {
  return type->tp_dictoffset != 0 || PyType_HasFeature(type, Py_TPFLAGS_MANAGED_DICT);
}

namespace {

/// A Python-level `__getattr__` for `owner`.
Ref call_attribute_hook(Capture& capture, PyObject* hook, PyObject* owner, PyObject* name) {
  NonResumable scope(capture);
  return capture.calls.call(capture.world.wrap(hook, capture.sources.constant(hook)).get(), {owner, name});
}

/// The current error is an AttributeError that a hook may still turn into a value; clears it. Else goes on raising.
void expect_attribute_error(PyObject* hook) {
  if (!hook || !PyErr_ExceptionMatches(PyExc_AttributeError)) throw PythonError{};
  PyErr_Clear();
}

/// torch.ops makes a namespace, an operator and its overloads when they are first asked for, and keeps them: that is
/// nothing that a program does.
void make_operator(PyObject* owner, PyObject* name) {
  static constinit Imported all("torch._ops", "_Ops"), some("torch._ops", "_OpNamespace"),
      one("torch._ops", "OpOverloadPacket");
  PyTypeObject* type = Py_TYPE(owner);
  if (type != all.type() && type != some.type() && type != one.type()) return;
  PyObject* made = instance_dict_of(owner);
  if (PyDict_GetItemWithError(made, name) || lookup_in_type(type, name)) return;
  if (!Ref::steal(PyObject_GetAttr(owner, name))) PyErr_Clear();  // what is wrong, the program's own look-up says
}

}  // namespace

PyObject* Attributes::type_lookup(PyTypeObject* type, PyObject* name) {
  if (c.overlays.classes_written) {
    if (const auto* written = c.overlays.find_class_write(type, name)) return written->second.get();
  }
  PyObject* found = lookup_in_type(type, name);
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) c.guards.type_lookup(type, name, found);
  return found;
}

PyObject* Attributes::type_lookup(PyTypeObject* type, const char* name) {
  Ref text = checked(PyUnicode_InternFromString(name));
  return type_lookup(type, text.get());
}

/// Whether an object in a class is a descriptor, and of which kind, its own class says: one of the user's may be
/// changed.
void Attributes::guard_protocol(PyObject* descriptor) {
  if (!descriptor || !is_python_class(Py_TYPE(descriptor))) return;
  for (PyObject* name : {MAGNETO_STR("__get__"), MAGNETO_STR("__set__"), MAGNETO_STR("__delete__")}) {
    type_lookup(Py_TYPE(descriptor), name);
  }
}

Ref Attributes::load_attr(PyObject* owner, PyObject* name, bool* unbound) {
  Ref value = lookup_attr(owner, name, unbound);
  if (value) return value;
  if (PyType_Check(owner)) {
    PyErr_Format(PyExc_AttributeError, "type object '%.50s' has no attribute '%U'",
                 reinterpret_cast<PyTypeObject*>(owner)->tp_name, name);
  } else if (PyModule_Check(owner)) {
    PyErr_Format(PyExc_AttributeError, "module '%.50s' has no attribute '%U'", PyModule_GetName(owner), name);
  } else {
    PyObject* of = PyMethod_Check(owner) ? PyMethod_GET_FUNCTION(owner) : owner;
    PyObject* sample = sample_of(of);
    PyObject* descriptor = lookup_in_type(Py_TYPE(sample), name);
    if (descriptor && Py_TYPE(descriptor) == &PyMemberDescr_Type) {
      set_empty_slot_error(sample, name);
    } else {
      PyErr_Format(PyExc_AttributeError, "'%.50s' object has no attribute '%U'", Py_TYPE(sample)->tp_name, name);
    }
  }
  throw PythonError{};
}

Ref Attributes::lookup_attr(PyObject* owner, PyObject* name, bool* unbound) {
  if (unbound) *unbound = false;
  make_operator(owner, name);
  if (PyType_Check(owner)) return lookup_type_attr(reinterpret_cast<PyTypeObject*>(owner), name);
  if (PyModule_Check(owner)) return lookup_module_attr(owner, name);
  if (is_tensor(owner)) return lookup_tensor_attr(owner, name, unbound);
  if (is_array(owner)) return c.numpy.attribute(owner, name, unbound);
  if (Py_TYPE(owner) == &PySuper_Type) return lookup_super_attr(owner, name);
  PyTypeObject* type = Py_TYPE(owner);
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
    PyObject* getattribute = type_lookup(type, MAGNETO_STR("__getattribute__"));
    if (getattribute && PyFunction_Check(getattribute)) {
      // An AttributeError from it is followed by __getattr__, as in slot_tp_getattr_hook.
      PyObject* hook = type_lookup(type, MAGNETO_STR("__getattr__"));
      try {
        NonResumable scope(c);
        return c.calls.call(c.world.wrap(getattribute, c.sources.constant(getattribute)).get(), {owner, name});
      } catch (const PythonError&) {
        expect_attribute_error(hook);
      }
      return call_attribute_hook(c, hook, owner, name);
    }
  }
  if (c.world.is_opaque(owner) && has_own_getattr(type)) {
    c.side_exit(BreakReason::OpaqueObject,
                std::string("an attribute of an object of type ") + type->tp_name + " is read, which has its own ways");
  }
  PyObject* hook = nullptr;
  // An AttributeError of a property leads to the hook: the property can't be cut off from here.
  std::optional<NonResumable> scope;
  if (c.frame && PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && lookup_in_type(type, MAGNETO_STR("__getattr__"))) {
    scope.emplace(c);
  }
  try {
    if (Ref value = lookup_instance_attr(owner, name, unbound)) return value;
    if (PyMethod_Check(owner)) {  // what it lacks itself is its function's
      const Source* source = c.world.source_of(owner);
      PyObject* function = PyMethod_GET_FUNCTION(owner);
      return lookup_attr(source ? c.world.wrap(function, c.sources.bound_function(source)).get() : function, name);
    }
    if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) return {};
    hook = type_lookup(type, MAGNETO_STR("__getattr__"));
  } catch (const PythonError&) {  // of a property or another descriptor
    if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) hook = type_lookup(type, MAGNETO_STR("__getattr__"));
    expect_attribute_error(hook);
  }
  if (!hook) return {};
  static PyObject* const module_hook = class_entry(torch_module_class(), "__getattr__");
  if (hook == module_hook) return module_getattr(owner, name);
  return call_attribute_hook(c, hook, owner, name);
}

/// What a descriptor found on a type gives for an instance; `owner` null: for the class itself.
Ref Attributes::bind(PyObject* descriptor, PyObject* owner, PyTypeObject* type, bool* unbound) {
  PyTypeObject* kind = Py_TYPE(descriptor);
  if (kind == &PyFunction_Type || kind == &PyMethodDescr_Type || kind == &PyWrapperDescr_Type) {
    Ref function = c.world.wrap(descriptor, c.sources.constant(descriptor));
    if (!owner) return function;
    if (unbound) {
      *unbound = true;
      return function;
    }
    if (kind == &PyFunction_Type) return checked(PyMethod_New(function.get(), owner));
    return checked(kind->tp_descr_get(descriptor, owner, reinterpret_cast<PyObject*>(type)));
  }
  if (kind == &PyStaticMethod_Type || kind == &PyClassMethod_Type) {
    Ref bound = checked(kind->tp_descr_get(descriptor, owner, reinterpret_cast<PyObject*>(type)));
    if (kind == &PyStaticMethod_Type) return c.world.wrap(bound.get(), c.sources.constant(bound.get()));
    if (PyMethod_Check(bound.get())) {  // functions made by classmethod are read from the class: constants
      PyObject* function = PyMethod_GET_FUNCTION(bound.get());
      c.world.wrap(function, c.sources.constant(function));
      c.world.keep(bound);
    }
    return bound;
  }
  static constinit Imported cached_property("functools", "cached_property");
  if (kind == cached_property.type() && owner && has_instance_dict(type)) {
    // As its __get__ does it, but for the lock of 3.11.
    NonResumable scope(c);
    Ref self = c.world.wrap(descriptor, c.sources.constant(descriptor));
    Ref function = load_attr(descriptor, MAGNETO_STR("func"));
    Ref name = load_attr(descriptor, MAGNETO_STR("attrname"));
    Ref value = c.calls.call(function.get(), {owner});
    PyObject* dict = instance_dict_of(owner);
    if (!c.world.is_outside(owner)) {
      if (PyDict_SetItem(dict, name.get(), value.get()) < 0) throw PythonError{};
    } else if (c.containers.is_written(dict)) {
      c.overlays.store_entry(dict, name.get(), value.get());
    } else {
      c.overlays.of(owner, false).set(name.get(), value.get());
    }
    return value;
  }
  if (is_property_type(kind)) {
    if (!owner) return c.world.wrap(descriptor, c.sources.constant(descriptor));
    Ref getter = checked(PyObject_GetAttr(descriptor, MAGNETO_STR("fget")));
    return c.calls.call(c.world.wrap(getter.get(), c.sources.constant(getter.get())).get(), {owner});
  }
  if (std::strcmp(kind->tp_name, "functools._lru_cache_wrapper") == 0) {
    Ref function = c.world.wrap(descriptor, c.sources.constant(descriptor));
    return owner ? checked(PyMethod_New(function.get(), owner)) : function;
  }
  PyObject* get = lookup_in_type(kind, MAGNETO_STR("__get__"));
  if (!get) return c.world.wrap(descriptor, c.sources.constant(descriptor));
  Ref descriptor_value = c.world.wrap(descriptor, c.sources.constant(descriptor));
  if (PyFunction_Check(get)) {
    type_lookup(kind, MAGNETO_STR("__get__"));
    return c.calls.call(c.world.wrap(get, c.sources.constant(get)).get(),
                        {descriptor, owner ? owner : Py_None, reinterpret_cast<PyObject*>(type)});
  }
  if (kind == &PyGetSetDescr_Type || kind == &PyMemberDescr_Type || kind == &PyClassMethodDescr_Type ||
      kind == &PyCFunction_Type) {
    if (!owner && kind != &PyClassMethodDescr_Type) return descriptor_value;
    return checked(kind->tp_descr_get(descriptor, owner, reinterpret_cast<PyObject*>(type)));
  }
  if (owner && c.world.is_outside(owner)) {
    c.side_exit(BreakReason::OpaqueObject, std::string("attribute read through a descriptor of type ") + kind->tp_name);
  }
  return c.calls.call_native([&] { return kind->tp_descr_get(descriptor, owner, reinterpret_cast<PyObject*>(type)); });
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

Ref Attributes::instance_dict_entry(PyObject* owner, PyObject* name) {
  const Source* source = c.world.source_of(owner);
  if (source) {
    if (Overlay* written = c.overlays.find(owner, false)) {
      if (auto* entry = written->find(name)) return entry->second;
    }
  }
  PyObject* dict = instance_dict_of(owner);
  if (!dict) return {};
  if (c.containers.is_written(dict)) return c.overlays.dict_lookup(dict, name);
  PyObject* value = PyDict_GetItemWithError(dict, name);
  if (!value && PyErr_Occurred()) throw PythonError{};
  if (!source) return Ref::borrow(value);
  const Source* place = c.sources.attr(source, name);
  if (!value) {
    c.guards.absent(place);
    return {};
  }
  return c.world.wrap(value, place);
}

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

Ref Attributes::lookup_instance_attr(PyObject* owner, PyObject* name, bool* unbound) {
  PyTypeObject* type = Py_TYPE(owner);
  const Source* source = c.world.source_of(owner);
  PyObject* descriptor = type_lookup(type, name);
  guard_protocol(descriptor);
  if (!source && name == MAGNETO_STR("__context__") && PyExceptionInstance_Check(owner)) {
    // Raised while the segment itself handled nothing: the context is what the caller handles, if it does.
    Ref context = Ref::steal(PyException_GetContext(owner));
    if (!context || context.get() == c.start_handled()) {
      c.side_exit(BreakReason::OpaqueObject, "the __context__ of an exception");
    }
  }
  if (source && is_bound_builtin(owner)) {  // its texts depend on the receiver's type
    Ref receiver = c.world.receiver_of(owner);
    if (name == MAGNETO_STR("__self__")) return receiver;
  }
  if (descriptor && Py_TYPE(descriptor)->tp_descr_set) {
    PyTypeObject* kind = Py_TYPE(descriptor);
    if (name == MAGNETO_STR("__class__") && kind == &PyGetSetDescr_Type)
      return c.world.wrap(reinterpret_cast<PyObject*>(type), c.sources.constant(reinterpret_cast<PyObject*>(type)));
    if (source && name == MAGNETO_STR("__dict__") && has_instance_dict(type)) {
      PyObject* dict = instance_dict_of(owner);
      if (!dict) return {};
      Ref value = c.world.wrap(dict, c.sources.instance_dict(source));
      move_writes_to_dict(owner, dict);
      return value;
    }
    if (PyFunction_Check(owner)) {
      if (Ref fact = function_fact(owner, name)) return fact;
    }
    // What a function was before it was compiled. A program may set something else: the instance's dict has that.
    PyObject* original =
        source && name == MAGNETO_STR("__wrapped__") && original_of_compiled ? original_of_compiled(owner) : nullptr;
    PyObject* set = original ? instance_dict_of(owner) : nullptr;
    if (original && set && !PyDict_GetItemWithError(set, name)) {
      c.world.pinned(owner);
      c.guards.absent(c.sources.dict_item(c.sources.instance_dict(source), name));
      return c.world.wrap(original, c.sources.constant(original));
    }
    if (PyCell_Check(owner) && name == MAGNETO_STR("cell_contents")) {
      if (Ref contents = c.world.read_cell(owner)) return contents;
      PyErr_SetString(PyExc_ValueError, "Cell is empty");
      throw PythonError{};
    }
    if (PyMethod_Check(owner) && name == MAGNETO_STR("__doc__")) {
      return lookup_attr(source ? load_attr(owner, MAGNETO_STR("__func__")).get() : PyMethod_GET_FUNCTION(owner), name);
    }
    if (source && (source->kind != guards::SourceKind::Const || c.world.is_opaque(owner)) &&
        !holds_guarded_state(owner, descriptor)) {
      c.side_exit(BreakReason::OpaqueObject,
                  std::string("'") + PyUnicode_AsUTF8(name) + "' of an object of type " + type->tp_name);
    }
    const bool constant = source && source->kind == guards::SourceKind::Const;
    if (source && kind == &PyMemberDescr_Type && !(constant && is_fixed_member(type, descriptor))) {
      if (Overlay* written = c.overlays.find(owner, false)) {
        if (auto* entry = written->find(name)) return entry->second;
      }
      Ref value = Ref::steal(kind->tp_descr_get(descriptor, owner, reinterpret_cast<PyObject*>(type)));
      const Source* place = c.sources.slot(source, descriptor);
      if (!value) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw PythonError{};
        PyErr_Clear();
        c.guards.absent(place);
        return {};
      }
      return c.world.wrap(value.get(), place);
    }
    if (source && PyTuple_Check(owner) && std::strstr(kind->tp_name, "collections._tuplegetter") != nullptr) {
      Ref parts = checked(PyObject_CallMethod(descriptor, "__reduce__", nullptr));  // (class, (index, doc))
      const Py_ssize_t index = PyLong_AsSsize_t(PyTuple_GET_ITEM(PyTuple_GET_ITEM(parts.get(), 1), 0));
      if (index < PyTuple_GET_SIZE(owner))
        return c.world.wrap(PyTuple_GET_ITEM(owner, index), c.sources.seq_item(source, index));
    }
    Ref value = bind(descriptor, owner, type, nullptr);
    const bool field = kind == &PyGetSetDescr_Type || kind == &PyMemberDescr_Type;
    if (source && field && !is_scalar(value.get()) && !c.world.is_outside(value.get())) {
      // Attributes of C objects (code objects, functions, bound methods): constants of a guarded owner.
      c.world.keep(value);
      return c.world.wrap(value.get(), c.sources.constant(value.get()));
    }
    return value;
  }
  if (has_instance_dict(type)) {
    if (Ref value = instance_dict_entry(owner, name)) return value;
  }
  if (!descriptor) return {};
  return bind(descriptor, owner, type, unbound);
}

Ref Attributes::lookup_type_attr(PyTypeObject* owner, PyObject* name) {
  PyTypeObject* meta = Py_TYPE(owner);
  PyObject* on_meta = type_lookup(meta, name);
  if (on_meta && Py_TYPE(on_meta)->tp_descr_set && Py_TYPE(on_meta)->tp_descr_get) {
    guard_protocol(on_meta);
    if (Py_TYPE(on_meta) == &PyProperty_Type || is_python_class(Py_TYPE(on_meta))) {
      return bind(on_meta, reinterpret_cast<PyObject*>(owner), meta, nullptr);
    }
    if (on_meta == lookup_in_type(&PyType_Type, name)) {
      if (Ref fact = class_fact(owner, name)) return fact;
    }
    Ref value = Ref::steal(
        Py_TYPE(on_meta)->tp_descr_get(on_meta, reinterpret_cast<PyObject*>(owner), reinterpret_cast<PyObject*>(meta)));
    if (!value) {
      if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw PythonError{};
      PyErr_Clear();
      return {};
    }
    c.world.keep(value);
    return c.world.wrap(value.get(), c.sources.constant(value.get()));
  }
  if (PyObject* found = type_lookup(owner, name)) return bind(found, nullptr, owner, nullptr);
  if (on_meta) return bind(on_meta, reinterpret_cast<PyObject*>(owner), meta, nullptr);
  PyObject* hook = type_lookup(meta, MAGNETO_STR("__getattr__"));
  return hook ? call_attribute_hook(c, hook, reinterpret_cast<PyObject*>(owner), name) : Ref();
}

Ref Attributes::lookup_module_attr(PyObject* owner, PyObject* name) {
  PyObject* dict = PyModule_GetDict(owner);
  c.world.wrap(dict, c.sources.constant(dict));
  if (Py_TYPE(owner) != &PyModule_Type) {  // lazy modules and the like: descriptors on the subclass come first
    PyObject* descriptor = type_lookup(Py_TYPE(owner), name);
    if (descriptor && Py_TYPE(descriptor)->tp_descr_set) return bind(descriptor, owner, Py_TYPE(owner), nullptr);
  }
  if (Ref value = c.overlays.dict_lookup(dict, name)) return value;
  if (PyObject* descriptor = lookup_in_type(Py_TYPE(owner), name)) {
    return bind(descriptor, owner, Py_TYPE(owner), nullptr);
  }
  // A module's __getattr__ (PEP 562, or of a subclass such as a lazy module).
  NonResumable scope(c);
  if (Ref hook = c.overlays.dict_lookup(dict, MAGNETO_STR("__getattr__"))) return c.calls.call(hook.get(), {name});
  if (Py_TYPE(owner) == &PyModule_Type) return {};
  PyObject* method = type_lookup(Py_TYPE(owner), MAGNETO_STR("__getattr__"));
  return method ? c.calls.call(c.world.wrap(method, c.sources.constant(method)).get(), {owner, name}) : Ref();
}

Ref Attributes::lookup_tensor_attr(PyObject* owner, PyObject* name, bool* unbound) {
  PyObject* descriptor = type_lookup(Py_TYPE(owner), name);
  if (descriptor) {
    PyTypeObject* kind = Py_TYPE(descriptor);
    if (kind == &PyGetSetDescr_Type) {
      // What no guard of a tensor tells.
      static constexpr const char* refused[] = {"grad_fn", "_backward_hooks", "_post_accumulate_grad_hooks",
                                                "name",    "_version",        "output_nr"};
      static constexpr const char* refused_with_grad[] = {"is_leaf", "retains_grad"};
      if (name == MAGNETO_STR("__dict__")) {
        c.side_exit(BreakReason::OpaqueObject, "the __dict__ of a tensor is read");
      }
      static PyObject* const getattr_function = [] { return PyDict_GetItemString(PyEval_GetBuiltins(), "getattr"); }();
      PyObject* args[] = {owner, name};
      if (c.torch.is_overridden({args, 1})) {
        return c.torch.record(graph::TorchNode::Kind::CallFunction, getattr_function, args, nullptr,
                              [&] { return PyObject_GetAttr(owner, name); });
      }
      const auto is_refused = [&](std::span<const char* const> attributes) {
        return std::ranges::any_of(
            attributes, [&](const char* attribute) { return PyUnicode_CompareWithASCIIString(name, attribute) == 0; });
      };
      if (is_refused(refused) || (unpack_tensor(owner).requires_grad() && is_refused(refused_with_grad))) {
        c.side_exit(BreakReason::AutogradCall, std::string("tensor attribute ") + PyUnicode_AsUTF8(name) + " is read");
      }
      if (name == MAGNETO_STR("_base")) {
        Ref base = checked(PyObject_GetAttr(owner, name));
        if (c.tensors.is_input(owner) ||
            (base.get() != Py_None && c.tensors.is_input(base.get()))) {  // it may be a view itself
          c.side_exit(BreakReason::AutogradCall, "the base of a tensor from outside is read");
        }
        return base;
      }
      if (PyUnicode_CompareWithASCIIString(name, "grad") == 0) {
        const auto value = c.session->value_of(unpack_tensor(owner));
        auto input = c.tensors.inputs.find(value);
        if (input == c.tensors.inputs.end() || c.gradients.cleared_grads.contains(value)) return Ref::borrow(Py_None);
        Ref grad = checked(PyObject_GetAttr(input->second.real.get(), name));
        return c.world.wrap(grad.get(), c.sources.grad(input->second.source));
      }
      if (name == MAGNETO_STR("shape")) {
        if (Ref shape = c.symbols.shape_of(unpack_tensor(owner))) return shape;
      }
      if (name == MAGNETO_STR("data")) {
        // A value of its own: it stays what it is when the tensor's data is set, and may be written in place.
        return c.torch.record(graph::TorchNode::Kind::CallFunction, getattr_function, args, nullptr,
                              [&] { return PyObject_CallMethod(owner, "detach", nullptr); });
      }
      return c.torch.record(graph::TorchNode::Kind::CallFunction, getattr_function, args, nullptr,
                            [&] { return PyObject_GetAttr(owner, name); });
    }
    if (kind == &PyFunction_Type || kind == &PyMethodDescr_Type || kind == &PyWrapperDescr_Type) {
      return bind(descriptor, owner, Py_TYPE(owner), unbound);
    }
    if (kind->tp_descr_get && !is_property_type(kind)) return bind(descriptor, owner, Py_TYPE(owner), unbound);
  }
  // Attributes that users hang on tensors live in the dict of the real one.
  const auto input = c.tensors.inputs.find(c.session->value_of(unpack_tensor(owner)));
  if (input != c.tensors.inputs.end()) {
    PyObject* real = input->second.real.get();
    if (Overlay* written = c.overlays.find(real, false)) {
      if (auto* entry = written->find(name)) return entry->second;
    }
    PyObject* dict = instance_dict_of(real);
    PyObject* value = dict ? PyDict_GetItemWithError(dict, name) : nullptr;
    const Source* place = c.sources.attr(input->second.source, name);
    if (value) return c.world.wrap(value, place);
    if (dict) c.guards.absent(place);
  } else if (PyObject* dict = instance_dict_of(owner)) {
    if (PyObject* value = PyDict_GetItemWithError(dict, name)) return Ref::borrow(value);
  }
  if (descriptor && is_property_type(Py_TYPE(descriptor))) return bind(descriptor, owner, Py_TYPE(owner), nullptr);
  if (descriptor) return c.world.wrap(descriptor, c.sources.constant(descriptor));
  return {};
}

Ref Attributes::lookup_super_attr(PyObject* owner, PyObject* name) {
  const Source* source = c.world.source_of(owner);
  const auto member = [&](PyObject* member_name) {
    Ref value = checked(PyObject_GetAttr(owner, member_name));
    if (!source) return value;
    return c.world.wrap(value.get(),
                        c.sources.slot(source, PyDict_GetItemWithError(type_dict(&PySuper_Type), member_name)));
  };
  Ref start = member(MAGNETO_STR("__thisclass__"));
  Ref self = member(MAGNETO_STR("__self__"));
  Ref self_class = member(MAGNETO_STR("__self_class__"));
  auto* type = reinterpret_cast<PyTypeObject*>(self_class.get());
  const bool for_class = self.get() == self_class.get();
  PyObject* mro = type->tp_mro;
  Py_ssize_t i = 0;
  while (i < PyTuple_GET_SIZE(mro) && PyTuple_GET_ITEM(mro, i) != start.get()) ++i;
  for (++i; i < PyTuple_GET_SIZE(mro); ++i) {
    auto* base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(mro, i));
    PyObject* found = PyDict_GetItemWithError(type_dict(base), name);
    if (!found) {
      if (PyErr_Occurred()) throw PythonError{};
      type_lookup(base, name);  // notices when this one gets the attribute
      continue;
    }
    type_lookup(base, name);
    return bind(found, for_class ? nullptr : self.get(), type, nullptr);  // the receiver is not `owner`: bound at once
  }
  return {};
}

Ref Attributes::module_getattr(PyObject* owner, PyObject* name) {
  for (PyObject* table_name : {MAGNETO_STR("_parameters"), MAGNETO_STR("_buffers"), MAGNETO_STR("_modules")}) {
    Ref table = instance_dict_entry(owner, table_name);
    if (!table) continue;
    if (Ref value = c.overlays.dict_lookup(table.get(), name)) return value;
  }
  return {};
}

}  // namespace magneto::capture
