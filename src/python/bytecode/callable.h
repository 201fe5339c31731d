// The two entries of the value stack that a call begins with: a callable and its self, one of which may be missing.
#pragma once

#include <utility>

#include "python/bytecode/decode.h"

namespace magneto {

/// Up to 3.12 a callable without a self lies above a null, from 3.13 on below one; a callable with a self lies below
/// it.
struct Callable {
  PyObject* function;
  PyObject* self;  // or null
};

/// `lower`, `upper`: the two entries. Borrowed.
inline Callable callable_of(PyObject* lower, PyObject* upper) {
  return lower ? Callable{lower, upper} : Callable{upper, nullptr};
}

/// The two entries of a callable without a self, the lower one first. One of them is `function`, the other null.
template <class Reference>
std::pair<Reference, Reference> entries_of(Reference function) {
  if (dialect.null_above_callable) return {std::move(function), Reference()};
  return {Reference(), std::move(function)};
}

}  // namespace magneto
