#include "guards/source.h"

#include <structmember.h>

#include <functional>
#include <stdexcept>

#include "guards/constants.h"
#include "guards/draw.h"
#include "guards/text.h"

namespace magneto::guards {

namespace {

std::string text_of(PyObject* str) {
  const char* text = str && PyUnicode_Check(str) ? PyUnicode_AsUTF8(str) : nullptr;
  if (!text) PyErr_Clear();
  return text ? text : "?";
}

/// The value of `__name__` when `dict` is a module's globals, else null. Borrowed.
PyObject* module_name(PyObject* dict) {
  if (!dict || !PyDict_CheckExact(dict)) return nullptr;
  SavedError saved;
  PyObject* name = PyDict_GetItemString(dict, "__name__");
  return name && PyUnicode_Check(name) ? name : nullptr;
}

std::string constant_name(PyObject* object) {
  if (PyObject* name = module_name(object)) return text_of(name) == "builtins" ? "__builtins__" : "G";
  if (PyModule_Check(object)) {
    PyObject* name = module_name(PyModule_GetDict(object));
    return name ? text_of(name) : "<module>";
  }
  if (PyType_Check(object)) {
    auto* type = reinterpret_cast<PyTypeObject*>(object);
    if (type->tp_flags & Py_TPFLAGS_HEAPTYPE) return text_of(reinterpret_cast<PyHeapTypeObject*>(type)->ht_qualname);
    return type->tp_name;
  }
  if (PyFunction_Check(object)) return text_of(reinterpret_cast<PyFunctionObject*>(object)->func_qualname);
  if (PyCFunction_Check(object)) return reinterpret_cast<PyCFunctionObject*>(object)->m_ml->ml_name;
  if (is_constant(object)) return object_text(object);
  return std::string("<") + Py_TYPE(object)->tp_name + " object>";
}

size_t mix(size_t seed, size_t value) { return seed ^ (value + 0x9e3779b97f4a7c15ull + (seed << 6) + (seed >> 2)); }

}  // namespace

std::string Source::name() const { return name_on(base ? base->name() : std::string()); }

std::string Source::name_on(const std::string& above) const {
  switch (kind) {
    case SourceKind::Local:
      return "L['" + text_of(key.get()) + "']";
    case SourceKind::Stack:
      return "___stack" + std::to_string(index);
    case SourceKind::Function:
      return "___function";
    case SourceKind::Const:
      return constant_name(key.get());
    case SourceKind::Closure:
      return "L['" + text_of(key.get()) + "']";
    case SourceKind::ClosureCell:
      return above + ".__closure__[" + std::to_string(index) + "]";
    case SourceKind::Cell:
      return above + ".cell_contents";
    case SourceKind::Attr:
      return above + "." + text_of(key.get());
    case SourceKind::Slot:
      return above + "." + reinterpret_cast<PyMemberDescrObject*>(key.get())->d_member->name;
    case SourceKind::InstanceDict:
      return above + ".__dict__";
    case SourceKind::DictItem:
      return above + "[" + object_text(key.get()) + "]";
    case SourceKind::SeqItem:
      return above + "[" + std::to_string(index) + "]";
    case SourceKind::BoundSelf:
      return above + ".__self__";
    case SourceKind::BoundFunction:
      return above + ".__func__";
    case SourceKind::Grad:
      return above + ".grad";
    case SourceKind::Size:
      return above + ".size()[" + std::to_string(index) + "]";
    case SourceKind::Draw:
      return above + "." + draw_text(index);
    case SourceKind::DequeItem:
      return index < 0 ? above + ".maxlen" : above + "[" + std::to_string(index) + "]";
    case SourceKind::ContextValue:
      return above + ".get()";
    case SourceKind::ThreadDict:
      return above + ".__dict__";
    case SourceKind::Number:
      if (key) return constant_name(key.get()) + "(" + above + (other ? ", " + other->name() : "") + ")";
      return "(" + above + " " + symbol_of(static_cast<Arithmetic>(index)) + " " + other->name() + ")";
  }
  return "?";
}

const Source* SourceTable::intern(SourceKind kind, const Source* base, PyObject* key, Py_ssize_t index,
                                  const Source* other) {
  // A key that is a constant stands for its value; any other object, and every object that a path starts from, for
  // itself.
  bool by_value = key && kind != SourceKind::Const;
  size_t hash = mix(mix(static_cast<size_t>(kind), std::hash<const void*>()(base)), static_cast<size_t>(index));
  if (other) hash = mix(hash, std::hash<const void*>()(other));
  if (key) hash = mix(hash, by_value ? constant_hash(key) : std::hash<void*>()(key));
  const int32_t found = index_.find(hash, [&](int32_t position) {
    const Source& known = *sources_[position];
    if (known.kind != kind || known.base != base || known.index != index || known.other != other) return false;
    PyObject* same = known.key.get();
    return same == key || (by_value && same && is_constant(key) && constants_equal(same, key));
  });
  if (found >= 0) return sources_[found].get();
  auto id = static_cast<int32_t>(sources_.size());
  sources_.push_back(std::make_unique<Source>(Source{kind, base, Ref::borrow(key), index, id, other}));
  index_.add(hash, id);
  return sources_.back().get();
}

const Source* SourceTable::local(Py_ssize_t index, PyObject* name) {
  return intern(SourceKind::Local, nullptr, name, index);
}
const Source* SourceTable::stack(Py_ssize_t index) { return intern(SourceKind::Stack, nullptr, nullptr, index); }
const Source* SourceTable::function() { return intern(SourceKind::Function, nullptr, nullptr, 0); }
const Source* SourceTable::constant(PyObject* object) { return intern(SourceKind::Const, nullptr, object, 0); }
const Source* SourceTable::closure(const Source* function, Py_ssize_t index, PyObject* name) {
  return intern(SourceKind::Closure, function, name, index);
}
const Source* SourceTable::closure_cell(const Source* function, Py_ssize_t index) {
  return intern(SourceKind::ClosureCell, function, nullptr, index);
}

const Source* SourceTable::cell(const Source* base) { return intern(SourceKind::Cell, base, nullptr, 0); }

const Source* SourceTable::attr(const Source* base, PyObject* name) {
  if (!PyUnicode_CheckExact(name)) throw std::invalid_argument("the name of an attribute source must be a str");
  return intern(SourceKind::Attr, base, name, 0);
}

const Source* SourceTable::slot(const Source* base, PyObject* descriptor) {
  bool plain = Py_IS_TYPE(descriptor, &PyMemberDescr_Type);
  int type = plain ? reinterpret_cast<PyMemberDescrObject*>(descriptor)->d_member->type : -1;
  if (type != T_OBJECT && type != T_OBJECT_EX) {
    throw std::invalid_argument("a slot source needs a member descriptor that holds an object");
  }
  return intern(SourceKind::Slot, base, descriptor, 0);
}

const Source* SourceTable::instance_dict(const Source* base) {
  return intern(SourceKind::InstanceDict, base, nullptr, 0);
}

const Source* SourceTable::dict_item(const Source* base, PyObject* key) {
  if (PyObject_Hash(key) == -1) throw PythonError{};
  return intern(SourceKind::DictItem, base, key, 0);
}

const Source* SourceTable::seq_item(const Source* base, Py_ssize_t index) {
  if (index < 0) throw std::invalid_argument("the index of a sequence source counts from the start");
  return intern(SourceKind::SeqItem, base, nullptr, index);
}

const Source* SourceTable::bound_self(const Source* base) { return intern(SourceKind::BoundSelf, base, nullptr, 0); }
const Source* SourceTable::bound_function(const Source* base) {
  return intern(SourceKind::BoundFunction, base, nullptr, 0);
}
const Source* SourceTable::number(Arithmetic operation, const Source* left, const Source* right) {
  return intern(SourceKind::Number, left, nullptr, static_cast<Py_ssize_t>(operation), right);
}
const Source* SourceTable::call(PyObject* function, const Source* left, const Source* right) {
  return intern(SourceKind::Number, left, function, static_cast<Py_ssize_t>(Arithmetic::Call), right);
}
const Source* SourceTable::size(const Source* base, Py_ssize_t dim) {
  return intern(SourceKind::Size, base, nullptr, dim);
}
const Source* SourceTable::draw(const Source* random, Py_ssize_t index) {
  return intern(SourceKind::Draw, random, nullptr, index);
}
const Source* SourceTable::deque_item(const Source* base, Py_ssize_t index) {
  return intern(SourceKind::DequeItem, base, nullptr, index);
}
const Source* SourceTable::deque_limit(const Source* base) { return deque_item(base, -1); }
const Source* SourceTable::context_value(const Source* variable) {
  return intern(SourceKind::ContextValue, variable, nullptr, 0);
}
const Source* SourceTable::thread_dict(const Source* local) {
  return intern(SourceKind::ThreadDict, local, nullptr, 0);
}
const Source* SourceTable::grad(const Source* base) { return intern(SourceKind::Grad, base, nullptr, 0); }

}  // namespace magneto::guards
