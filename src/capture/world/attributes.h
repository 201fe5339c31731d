// Attribute look-ups and writes of the interpreted program.
//
// Invariant: a look-up follows CPython's protocol without running the program's code in C: each class and dict on its
// way is guarded, writes that are kept back are seen, and a descriptor or a hook in Python is interpreted.
#pragma once

#include <Python.h>

#include <optional>
#include <utility>

#include "guards/source.h"
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
  PyObject* lookup_in_made_class(PyTypeObject* type, PyObject* name);
  void guard_protocol(PyObject* descriptor);
  Ref lookup_instance_attr(PyObject* owner, PyObject* name, bool* unbound);
  Ref module_getattr(PyObject* owner, PyObject* name);
  void store_class_attr(PyTypeObject* owner, PyObject* name, PyObject* value);
  void store_tensor_attr(PyObject* owner, PyObject* name, PyObject* value);
  void move_writes_to_dict(PyObject* owner, PyObject* dict);
  Ref instance_dict_entry(PyObject* owner, PyObject* name);
  Ref constant(PyObject* object);

  /// Kinds of what has attributes. (Table and reads: attributes.cpp; writes: attribute_writes.cpp; of tensors:
  /// tensor_attributes.cpp)
  struct OwnerKind {
    const char* name;
    bool (*is)(PyObject* owner);
    Ref (Attributes::*read)(PyObject* owner, PyObject* name, bool* unbound);
    /// `setter`: __setattr__ of its class, or __delattr__ where `value` is null. False: leaves it to the next.
    bool (Attributes::*write)(PyObject* owner, PyObject* name, PyObject* value, PyObject* setter);
  };
  static const OwnerKind kOwners[];
  Ref read_of_class(PyObject* owner, PyObject* name, bool* unbound);
  Ref read_of_module(PyObject* owner, PyObject* name, bool* unbound);
  Ref read_of_tensor(PyObject* owner, PyObject* name, bool* unbound);
  Ref read_of_array(PyObject* owner, PyObject* name, bool* unbound);
  Ref read_of_storage(PyObject* owner, PyObject* name, bool* unbound);
  Ref read_of_super(PyObject* owner, PyObject* name, bool* unbound);
  Ref read_of_thread_local(PyObject* owner, PyObject* name, bool* unbound);
  Ref read_of_object(PyObject* owner, PyObject* name, bool* unbound);
  Ref read_by_getattribute(PyObject* getattribute, PyObject* owner, PyObject* name);
  bool write_of_class(PyObject* owner, PyObject* name, PyObject* value, PyObject* setter);
  bool write_of_module(PyObject* owner, PyObject* name, PyObject* value, PyObject* setter);
  bool write_of_thread_local(PyObject* owner, PyObject* name, PyObject* value, PyObject* setter);
  bool write_of_tensor(PyObject* owner, PyObject* name, PyObject* value, PyObject* setter);
  bool write_of_object(PyObject* owner, PyObject* name, PyObject* value, PyObject* setter);
  bool write_of_torch_module(PyObject* owner, PyObject* name, PyObject* value);

  /// A descriptor found on `type`; `owner` null: for the class itself.
  struct Binding {
    PyObject* descriptor;
    PyObject* owner;
    PyTypeObject* type;
    bool* unbound;
    PyTypeObject* kind() const { return Py_TYPE(descriptor); }
    /// What its C code gives, a new reference.
    PyObject* get() const { return kind()->tp_descr_get(descriptor, owner, reinterpret_cast<PyObject*>(type)); }
  };
  /// Kinds of descriptors. (descriptors.cpp)
  struct DescriptorKind {
    const char* name;
    Ref (Attributes::*bind)(const Binding& of);
  };
  static const DescriptorKind kDescriptors[];
  Ref bind(PyObject* descriptor, PyObject* owner, PyTypeObject* type, bool* unbound);
  Ref bind_function(const Binding& of);
  Ref bind_static(const Binding& of);
  Ref bind_cached_property(const Binding& of);
  Ref bind_property(const Binding& of);
  Ref bind_cached_function(const Binding& of);
  Ref bind_plain(const Binding& of);
  Ref bind_by_method(const Binding& of);
  Ref bind_field(const Binding& of);
  Ref bind_native(const Binding& of);

  struct Field {
    PyObject* owner;
    PyObject* name;
    const guards::Source* source;  // of the owner; null: it is not from outside
    PyObject* descriptor;
    PyTypeObject* type() const { return Py_TYPE(owner); }
    PyTypeObject* kind() const { return Py_TYPE(descriptor); }
    bool is_of_constant() const { return source && source->kind == guards::SourceKind::Const; }
    PyObject* get() const { return kind()->tp_descr_get(descriptor, owner, reinterpret_cast<PyObject*>(type())); }
  };
  /// Kinds of fields, which descriptors that also write read. (descriptors.cpp)
  struct FieldKind {
    const char* name;
    std::optional<Ref> (Attributes::*read)(const Field& field);  // a null Ref: there is nothing
  };
  static const FieldKind kFields[];
  Ref read_field(const Field& field);
  std::optional<Ref> read_class(const Field& field);
  std::optional<Ref> read_instance_dict(const Field& field);
  std::optional<Ref> read_function_fact(const Field& field);
  std::optional<Ref> read_wrapped(const Field& field);
  std::optional<Ref> read_cell_contents(const Field& field);
  std::optional<Ref> read_method_text(const Field& field);
  std::optional<Ref> refuse_hidden(const Field& field);
  std::optional<Ref> read_slot(const Field& field);
  std::optional<Ref> read_tuple_item(const Field& field);
  std::optional<Ref> read_bound(const Field& field);

  /// Fields of a tensor's C object. (tensor_attributes.cpp)
  struct TensorField {
    const char* name;
    Ref (Attributes::*read)(PyObject* owner, PyObject* name);
  };
  static const TensorField kTensorFields[];
  Ref read_tensor_field(PyObject* owner, PyObject* name);
  Ref refuse_graph_fact(PyObject* owner, PyObject* name);
  Ref refuse_gradient_fact(PyObject* owner, PyObject* name);
  Ref read_history(PyObject* owner, PyObject* name);
  Ref read_base(PyObject* owner, PyObject* name);
  Ref read_grad(PyObject* owner, PyObject* name);
  bool takes_grad(PyObject* owner, PyObject* value);
  Ref read_tensor_shape(PyObject* owner, PyObject* name);
  Ref read_data(PyObject* owner, PyObject* name);

  Capture& c;
};

}  // namespace magneto::capture
