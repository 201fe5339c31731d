// Attribute look-ups and writes of the interpreted program.
//
// Invariant: a look-up follows CPython's protocol without running the program's code in C: each class and dict on its
// way is guarded, writes that are kept back are seen, and a descriptor or a hook in Python is interpreted.
#pragma once

#include <Python.h>

#include <utility>

#include "python/abi/types.h"
#include "python/ref.h"

namespace magneto::capture {

class Capture;

/// torch.nn.Module.
PyObject* torch_module_class();
/// What the class itself has under the name; null: nothing. Borrowed.
PyObject* class_entry(PyObject* type, const char* name);
/// Makes the instance dict exist (3.11 and later keep values inline until someone asks); borrowed, null: no dict.
PyObject* instance_dict_of(PyObject* object);
bool has_instance_dict(PyTypeObject* type);

/// A property, also of a class derived from it that reads as a property does.
inline bool is_property_type(PyTypeObject* type) {
  return PyType_IsSubtype(type, &PyProperty_Type) && type->tp_descr_get == PyProperty_Type.tp_descr_get;
}

class Attributes {
 public:
  explicit Attributes(Capture& capture) : c(capture) {}
  Attributes(const Attributes&) = delete;

  /// Null: no such attribute (no error set); an AttributeError that a hook raises is thrown. `unbound`: a function or
  /// method descriptor found on the type is returned itself and *unbound set, instead of making a bound method.
  Ref lookup_attr(PyObject* owner, PyObject* name, bool* unbound = nullptr);
  Ref load_attr(PyObject* owner, PyObject* name, bool* unbound = nullptr);  // throws AttributeError
  void store_attr(PyObject* owner, PyObject* name, PyObject* value);        // null value: delete
  /// `_PyType_Lookup` under a guard; borrowed, null: nothing.
  PyObject* type_lookup(PyTypeObject* type, PyObject* name);
  PyObject* type_lookup(PyTypeObject* type, const char* name);
  /// object.__getattribute__ and object.__setattr__: the protocol past the class's own overrides.
  Ref generic_getattr(PyObject* owner, PyObject* name) { return lookup_instance_attr(owner, name, nullptr); }
  void generic_setattr(PyObject* owner, PyObject* name, PyObject* value);
  /// `__name__` and its like, of one from outside; null: not among what it keeps itself.
  Ref function_fact(PyObject* function, PyObject* name);

 private:
  /// The same of a class: guards what it says. Null: it may be asked then.
  Ref class_fact(PyTypeObject* type, PyObject* name);
  void guard_protocol(PyObject* descriptor);
  Ref lookup_instance_attr(PyObject* owner, PyObject* name, bool* unbound);
  Ref lookup_type_attr(PyTypeObject* owner, PyObject* name);
  Ref lookup_module_attr(PyObject* owner, PyObject* name);
  Ref lookup_tensor_attr(PyObject* owner, PyObject* name, bool* unbound);
  Ref lookup_super_attr(PyObject* owner, PyObject* name);
  Ref module_getattr(PyObject* owner, PyObject* name);
  void store_class_attr(PyTypeObject* owner, PyObject* name, PyObject* value);
  void move_writes_to_dict(PyObject* owner, PyObject* dict);
  Ref instance_dict_entry(PyObject* owner, PyObject* name);
  Ref bind(PyObject* descriptor, PyObject* owner, PyTypeObject* type, bool* unbound);

  Capture& c;
};

}  // namespace magneto::capture
