// Objects from outside whose state C code keeps out of sight: arrays, dates, decimals, locks. They can be handed on,
// but what reads their value ends the segment, because no guard could tell that it has changed.
#include <cstring>
#include <string_view>
#include <unordered_set>

#include "capture/capture.h"
#include "capture/world/world.h"
#include "guards/constants.h"
#include "python/abi/private.h"
#include "python/abi/types.h"

namespace magneto::capture {

namespace {

/// C classes that the capture knows: their instances have no state, are guarded by identity, or are read under guards.
bool is_known_layout(PyTypeObject* type) {
  static const auto* known = new std::unordered_set<PyTypeObject*>{
      &PyBaseObject_Type,    &PyType_Type,         &PyModule_Type,       &PyFunction_Type,
      &PyMethod_Type,        &PyCFunction_Type,    &PyCMethod_Type,      &PyMethodDescr_Type,
      &PyGetSetDescr_Type,   &PyMemberDescr_Type,  &PyWrapperDescr_Type, &PyClassMethodDescr_Type,
      method_wrapper_type(), &PyCell_Type,         &PyCode_Type,         &PyList_Type,
      &PyDict_Type,          &PyTuple_Type,        &PySet_Type,          &PyFrozenSet_Type,
      &PyODict_Type,         &PyProperty_Type,     &PyStaticMethod_Type, &PyClassMethod_Type,
      &PySuper_Type,         &Py_GenericAliasType, weakref_type()};
  if (known->count(type)) return true;
  const std::string_view name = type->tp_name;
  if (name == "torch._C.Generator") return false;
  return name.starts_with("torch.") || name.starts_with("functools.") || name.starts_with("operator.") ||
         name.starts_with("re.") || name.starts_with("magneto.") || name == "types.UnionType";
}

}  // namespace

bool is_value(PyObject* object) { return guards::has_value(object); }

bool World::is_opaque(PyObject* object) const {
  return source_of(object) && !is_value(object) && !is_builtin_container(object) && !is_identity_constant(object) &&
         !PyExceptionInstance_Check(object) && !is_known_layout(layout_class(Py_TYPE(object)));
}

namespace {

/// The special method is C code other than `usual`.
template <typename Function>
bool is_own_code(PyTypeObject* type, PyObject* method, Function* usual) {
  PyObject* found = lookup_in_type(type, method);
  return found && Py_TYPE(found) == &PyWrapperDescr_Type &&
         reinterpret_cast<PyWrapperDescrObject*>(found)->d_wrapped != reinterpret_cast<void*>(usual);
}

}  // namespace

bool has_own_getattr(PyTypeObject* type) {
  return is_own_code(type, MAGNETO_STR("__getattribute__"), &PyObject_GenericGetAttr);
}

bool has_own_setattr(PyTypeObject* type) {
  return is_own_code(type, MAGNETO_STR("__setattr__"), &PyObject_GenericSetAttr);
}

}  // namespace magneto::capture
