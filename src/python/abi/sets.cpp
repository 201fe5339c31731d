#include "python/abi/sets.h"

#include <algorithm>
#include <new>
#include <utility>

namespace magneto {

namespace {

PySetObject* table_of(PyObject* set) { return reinterpret_cast<PySetObject*>(set); }
bool is_small(const PySetObject* set) { return set->table == set->smalltable; }

}  // namespace

Ref clone_set(PyObject* set, PyTypeObject* type) {
  const PySetObject* from = table_of(set);
  PyTypeObject* built_in = PySet_Check(set) ? &PySet_Type : &PyFrozenSet_Type;
  if (!type) type = built_in;
  const Ref none = checked(PyTuple_New(0));
  Ref copy = checked(built_in->tp_new(type, none.get(), nullptr));
  PySetObject* to = table_of(copy.get());
  const size_t places = static_cast<size_t>(from->mask) + 1;
  if (!is_small(from)) {
    auto* table = static_cast<setentry*>(PyMem_Malloc(places * sizeof(setentry)));
    if (!table) throw std::bad_alloc();
    to->table = table;
  }
  std::copy_n(from->table, places, to->table);
  for (size_t i = 0; i < places; ++i) {
    if (to->table[i].key && to->table[i].hash != -1) Py_INCREF(to->table[i].key);  // -1: something was removed there
  }
  to->mask = from->mask;
  to->fill = from->fill;
  to->used = from->used;
  to->finger = from->finger;
  return copy;
}

bool same_state(PyObject* a, PyObject* b) {
  return table_of(a)->mask == table_of(b)->mask && table_of(a)->finger == table_of(b)->finger;
}

void assign_set(PyObject* set, PyObject* like) {
  Ref copy = clone_set(like);
  PySetObject *a = table_of(set), *b = table_of(copy.get());
  const bool a_small = is_small(a), b_small = is_small(b);
  std::swap(a->smalltable, b->smalltable);
  std::swap(a->table, b->table);
  if (b_small) a->table = a->smalltable;
  if (a_small) b->table = b->smalltable;
  std::swap(a->mask, b->mask);
  std::swap(a->fill, b->fill);
  std::swap(a->used, b->used);
  std::swap(a->finger, b->finger);
}

}  // namespace magneto
