// Writes to attributes: kept back in overlays, or made at once where the object is the capture's own.
#include <Python.h>

#include <cstring>

#include "capture/calls/calls.h"
#include "capture/capture.h"
#include "capture/kinds.h"
#include "capture/numpy/numpy_capture.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "guards/thread_state.h"
#include "python/abi/private.h"
#include "python/abi/types.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

/// False: its metaclass has a method for this.
bool Attributes::write_of_class(PyObject* owner, PyObject* name, PyObject* value, PyObject* setter) {
  if (setter && PyFunction_Check(setter)) return false;
  store_class_attr(reinterpret_cast<PyTypeObject*>(owner), name, value);
  return true;
}

bool Attributes::write_of_module(PyObject* owner, PyObject* name, PyObject* value, PyObject* setter) {
  if (Py_TYPE(owner) != &PyModule_Type) {  // torch.backends.cudnn: its class has descriptors
    PyObject* descriptor = type_lookup(Py_TYPE(owner), name);
    if ((setter && PyFunction_Check(setter)) || (descriptor && Py_TYPE(descriptor)->tp_descr_set)) return false;
    c.side_exit(BreakReason::Mutation, "an attribute of a module is set");
  }
  PyObject* dict = PyModule_GetDict(owner);
  c.world.wrap(dict, c.sources.constant(dict));
  if (!value && !c.overlays.dict_lookup(dict, name)) {
    PyErr_Format(PyExc_AttributeError, "'%.50s' object has no attribute '%U'", Py_TYPE(owner)->tp_name, name);
    throw PythonError{};
  }
  c.overlays.store_entry(dict, name, value);
  return true;
}

bool Attributes::write_of_thread_local(PyObject* owner, PyObject* name, PyObject* value, PyObject*) {
  const guards::Source* source = c.world.source_of(owner);
  if (!source || lookup_in_type(Py_TYPE(owner), name)) return false;
  Ref dict = c.world.wrap(guards::thread_dict(owner), c.sources.thread_dict(source));
  if (!value && !c.overlays.dict_lookup(dict.get(), name)) {
    PyErr_Format(PyExc_AttributeError, "'%.50s' object has no attribute '%U'", Py_TYPE(owner)->tp_name, name);
    throw PythonError{};
  }
  c.overlays.store_entry(dict.get(), name, value);
  return true;
}

/// What nn.Module.__setattr__ does for most values. False: it is interpreted, since it has more to do.
bool Attributes::write_of_torch_module(PyObject* owner, PyObject* name, PyObject* value) {
  // It keeps parameters, buffers and submodules in tables of its own; anything else goes to the instance dict.
  Ref buffers = instance_dict_entry(owner, MAGNETO_STR("_buffers"));
  Ref parameters = instance_dict_entry(owner, MAGNETO_STR("_parameters"));
  Ref modules = instance_dict_entry(owner, MAGNETO_STR("_modules"));
  if (!value || !buffers || !parameters || !modules) return false;  // in front of nn.Module.__init__
  const bool parameter = is_tensor(value) && Py_TYPE(value) == parameter_class();
  const bool module = PyObject_IsInstance(sample_of(value), torch_module_class()) == 1;
  if (parameter || module) {
    Ref present = c.overlays.dict_lookup(parameter ? parameters.get() : modules.get(), name);
    return present.get() == value;
  }
  if (c.overlays.dict_lookup(parameters.get(), name) || c.overlays.dict_lookup(modules.get(), name)) return false;
  for (PyObject* mark : {MAGNETO_STR("_is_param"), MAGNETO_STR("_is_buffer")}) {  // of a Parameter or Buffer, too
    if (is_tensor(value) && read_of_tensor(value, mark, nullptr)) return false;
  }
  if (c.overlays.dict_lookup(buffers.get(), name)) {
    c.overlays.store_entry(buffers.get(), name, value);
  } else {
    generic_setattr(owner, name, value);
  }
  return true;
}

bool Attributes::write_of_object(PyObject* owner, PyObject* name, PyObject* value, PyObject* setter) {
  PyObject* const module_class = torch_module_class();
  static PyObject* const module_setattr = class_entry(module_class, "__setattr__");
  if (setter == module_setattr && c.world.is_outside(owner) && write_of_torch_module(owner, name, value)) return true;
  if (setter && PyFunction_Check(setter)) {
    NonResumable scope(c);
    Ref function = c.world.wrap(setter, c.sources.constant(setter));
    value ? c.calls.call(function.get(), {owner, name, value}) : c.calls.call(function.get(), {owner, name});
  } else {
    generic_setattr(owner, name, value);
  }
  return true;
}

/// A write to a class of the user, seen by all look-ups in it and its subclasses from here on.
void Attributes::store_class_attr(PyTypeObject* owner, PyObject* name, PyObject* value) {
  auto* object = reinterpret_cast<PyObject*>(owner);
  if (c.calls.classes.is_class(owner)) return c.calls.classes.write(object, name, value);
  const char* text = PyUnicode_AsUTF8(name);
  const bool special = std::strncmp(text, "__", 2) == 0;  // CPython copies them to slots, which C code reads
  PyObject* on_meta = type_lookup(Py_TYPE(owner), name);
  if (PyType_HasFeature(owner, Py_TPFLAGS_IMMUTABLETYPE) && Py_IS_TYPE(object, &PyType_Type)) {
    PyType_Type.tp_setattro(object, name, value);  // raises
    throw PythonError{};
  }
  if (special || !c.world.is_outside(object) || !PyType_HasFeature(owner, Py_TPFLAGS_HEAPTYPE) ||
      PyType_HasFeature(owner, Py_TPFLAGS_IMMUTABLETYPE) || (on_meta && Py_TYPE(on_meta)->tp_descr_set)) {
    c.side_exit(BreakReason::Mutation, std::string("the attribute ") + text + " of a class is set");
  }
  PyObject* own = PyDict_GetItemWithError(type_dict(owner), name);
  type_lookup(owner, name);
  c.overlays.classes_written = true;
  if (value) {
    if (!is_scalar(value) && !c.world.is_outside(value) && !is_identity_constant(value))
      c.overlays.class_values.insert(value);
    c.world.keep(Ref::borrow(value));
    c.overlays.of(object, false).set(name, value);
    return;
  }
  const Overlay* written = c.overlays.find(object, false);
  auto* entry = written ? const_cast<Overlay*>(written)->find(name) : nullptr;
  if (entry ? !entry->second : !own) {
    PyErr_Format(PyExc_AttributeError, "type object '%.50s' has no attribute '%U'", owner->tp_name, name);
    throw PythonError{};
  }
  c.overlays.of(object, false).erase(name, own != nullptr);
}

/// The write that a look-up finds first (its value null: nothing is found at all); null: none, or an original comes
/// first.
const std::pair<Ref, Ref>* Overlays::find_class_write(PyTypeObject* type, PyObject* name) {
  static const std::pair<Ref, Ref> nothing;
  bool hidden = false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    PyObject* base = PyTuple_GET_ITEM(type->tp_mro, i);
    if (Overlay* written = find(base, false)) {
      if (const auto* entry = written->find(name)) {
        if (entry->second) return entry;
        hidden = true;  // deleted here: what follows counts
        continue;
      }
    }
    if (PyObject* found = PyDict_GetItemWithError(type_dict(reinterpret_cast<PyTypeObject*>(base)), name)) {
      if (!hidden) return nullptr;
      c.attributes.type_lookup(reinterpret_cast<PyTypeObject*>(base), name);
      overlay_reads_.push_back(std::make_unique<std::pair<Ref, Ref>>(Ref::borrow(name), Ref::borrow(found)));
      return overlay_reads_.back().get();
    }
  }
  return hidden ? &nothing : nullptr;
}

void Attributes::generic_setattr(PyObject* owner, PyObject* name, PyObject* value) {
  PyTypeObject* type = Py_TYPE(owner);
  PyObject* descriptor = type_lookup(type, name);
  guard_protocol(descriptor);
  if (descriptor && Py_TYPE(descriptor) == &PyProperty_Type) {
    Ref function = checked(PyObject_GetAttr(descriptor, value ? MAGNETO_STR("fset") : MAGNETO_STR("fdel")));
    if (function.get() == Py_None) {
      PyErr_Format(PyExc_AttributeError, "property '%U' of '%.50s' object has no setter", name, type->tp_name);
      throw PythonError{};
    }
    NonResumable scope(c);
    Ref callable = c.world.wrap(function.get(), c.sources.constant(function.get()));
    value ? c.calls.call(callable.get(), {owner, value}) : c.calls.call(callable.get(), {owner});
    return;
  }
  if (descriptor && Py_TYPE(descriptor)->tp_descr_set && PyType_HasFeature(Py_TYPE(descriptor), Py_TPFLAGS_HEAPTYPE)) {
    PyTypeObject* kind = Py_TYPE(descriptor);
    PyObject* method = type_lookup(kind, value ? MAGNETO_STR("__set__") : MAGNETO_STR("__delete__"));
    if (method && PyFunction_Check(method)) {
      NonResumable scope(c);
      Ref function = c.world.wrap(method, c.sources.constant(method));
      Ref receiver = c.world.wrap(descriptor, c.sources.constant(descriptor));
      value ? c.calls.call(function.get(), {receiver.get(), owner, value})
            : c.calls.call(function.get(), {receiver.get(), owner});
      return;
    }
  }
  if (is_tensor(owner) && !(descriptor && is_property_type(Py_TYPE(descriptor)))) {
    return store_tensor_attr(owner, name, value);
  }
  if (is_array(owner)) return c.numpy.set_attribute(owner, name, value);
  if (!c.world.is_outside(owner)) {
    if (PyObject_GenericSetAttr(owner, name, value) < 0) throw PythonError{};
    return;
  }
  if (c.world.is_opaque(owner) && has_own_setattr(type)) {
    c.side_exit(BreakReason::Mutation,
                std::string("an attribute of an object of type ") + type->tp_name + " is set, which has its own ways");
  }
  if (descriptor && Py_TYPE(descriptor)->tp_descr_set && Py_TYPE(descriptor) != &PyMemberDescr_Type) {
    c.side_exit(BreakReason::Mutation,
                std::string("an attribute with a descriptor of type ") + Py_TYPE(descriptor)->tp_name + " is set");
  }
  // There is no place for it, so CPython changes nothing and words the error.
  if (!descriptor && !has_instance_dict(type) && PyObject_GenericSetAttr(owner, name, value) < 0) throw PythonError{};
  const bool slot = descriptor && Py_TYPE(descriptor)->tp_descr_set;
  PyObject* dict = slot ? nullptr : instance_dict_of(owner);
  if (dict) c.world.check_finalizer(PyDict_GetItemWithError(dict, name));
  if (value) {
    dict&& c.containers.is_written(dict) ? c.overlays.store_entry(dict, name, value)
                                         : c.overlays.of(owner, false).set(name, value);
    return;
  }
  if (!(slot ? lookup_instance_attr(owner, name, nullptr) : instance_dict_entry(owner, name))) {
    if (slot) {
      PyErr_SetObject(PyExc_AttributeError, name);
    } else {
      PyErr_Format(PyExc_AttributeError, "'%.100s' object has no attribute '%U'", type->tp_name, name);
    }
    throw PythonError{};
  }
  if (dict && c.containers.is_written(dict)) return c.overlays.store_entry(dict, name, nullptr);
  bool in_original = true;
  if (dict) {
    in_original = PyDict_Contains(dict, name) == 1;
  } else {
    Ref raw = Ref::steal(Py_TYPE(descriptor)->tp_descr_get(descriptor, owner, reinterpret_cast<PyObject*>(type)));
    PyErr_Clear();
    in_original = static_cast<bool>(raw);
  }
  c.overlays.of(owner, false).erase(name, in_original);
}

}  // namespace magneto::capture
