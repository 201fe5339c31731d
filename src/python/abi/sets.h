// The tables of sets: two with the same members may iterate, and pop, in different orders.
#pragma once

#include "python/ref.h"

namespace magneto {

/// A copy of a set or frozenset with the same members at the same places of its table. `type`: of which class, past
/// its constructor; null: set or frozenset.
Ref clone_set(PyObject* set, PyTypeObject* type = nullptr);

/// Both tables have the same size, and pop() begins at the same place in them.
bool same_state(PyObject* a, PyObject* b);

/// Makes `set` what `clone_set(like)` gives.
void assign_set(PyObject* set, PyObject* like);

}  // namespace magneto
