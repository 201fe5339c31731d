// The stand-in for a number, a bool or a string that the capture goes on without knowing.
//
// C code that looks at one, past all that asks for `Numbers::known` first, has the segment captured again. One that
// follows from sizes answers by itself: what is asked is then assumed.
#pragma once

#include <Python.h>

#include <variant>

#include "capture/kinds.h"
#include "guards/source.h"
#include "python/ref.h"
#include "shapes/relation.h"

namespace magneto::capture {

/// From outside, or computed of such.
struct OutsideNumber {
  const guards::Source* source;
  bool changes;           // captures have found different values
  bool of_sizes = false;  // a float that follows from sizes alone
  /// A float that is one size divided by another number, or so much of it that rounding to ints gives the same.
  std::optional<std::pair<shapes::Expr, int64_t>> quotient = {};
};
struct SizeNumber {
  shapes::Expr size;
  const guards::Source* source;  // null: data-dependent
  bool changes;
};
struct DataFloat {
  Ref holder;  // the tensor that holds it
};
struct DataString {};
/// The storage of a tensor of the graph, or how many bytes it has: what it is, the tensor that is handed on says.
struct OfStorage {
  Ref tensor;
  bool size;
};
/// Where a tensor begins in memory, or its storage does. (memory_questions.cpp)
struct Address {
  Ref tensor;
  bool of_storage;
};
/// A relation: a data-dependent bool.
using Meaning = std::variant<OutsideNumber, SizeNumber, DataFloat, shapes::Relation, DataString, OfStorage, Address>;

struct UnknownNumber {
  PyObject_HEAD PyObject* now;  // the value in this run
  Meaning meaning;
};

Ref make_unknown(PyObject* now, Meaning meaning);
inline UnknownNumber& unknown_of(PyObject* object) { return *reinterpret_cast<UnknownNumber*>(object); }
/// Null: it means something else, or is no stand-in.
template <typename T>
T* meaning_of(PyObject* object) {
  return is_unknown_number(object) ? std::get_if<T>(&unknown_of(object).meaning) : nullptr;
}

/// Follows from sizes, or is an integer that the data say.
bool is_size(PyObject* object);
/// Whatever C code asks of it may be answered, and is assumed then.
bool answers(PyObject* object);
/// An integer that the data say.
bool is_data_number(PyObject* object);
/// Null: data-dependent.
const guards::Source* source_of(const UnknownNumber& unknown);
/// Captures have found different values.
bool changes(const UnknownNumber& unknown);

}  // namespace magneto::capture
