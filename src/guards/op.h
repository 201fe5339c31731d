// The operations of a guard program: what is loaded, and what is checked.
#pragma once

#include <Python.h>

#include <cstdint>

namespace magneto::guards {

enum class OpKind : uint8_t {
  // Loads. They write `slot`, read `other` (the slot of the base), and fail if the value is missing (or, with `absent`,
  // if it is there).
  LoadLocal,
  LoadStack,
  LoadFunction,
  LoadConst,
  LoadClosure,
  LoadClosureCell,
  LoadCell,
  LoadMember,
  LoadInstanceDict,
  LoadSeqItem,
  LoadBoundSelf,
  LoadBoundFunction,
  LoadNumber,     // of `other` and the slot `number >> 8`, by the arithmetic `number & 255` (`pointer`: the function)
  LoadSize,       // of the tensor `other`, in dimension `number`
  LoadDraw,       // of the random.Random `other`, its draw `number`
  LoadDequeItem,  // of the deque `other`, its item `number`, or its maxlen
  LoadContextValue,
  LoadThreadDict,
  LoadGrad,
  // Groups: group `number`, on the instance dict of `slot` or on the dict in `slot`.
  InstanceEntries,
  DictEntries,
  // Checks of `slot`.
  CheckType,
  CheckIdentity,
  CheckReferent,  // is what the weak reference `pointer` refers to
  CheckEquals,
  CheckItemCount,  // list, tuple
  CheckDictLength,
  CheckSetLength,
  CheckKeys,
  CheckTensor,
  CheckTensorData,
  CheckArray,
  CheckBuiltinMethod,
  CheckAlias,
  CheckDistinct,
  CheckAllDistinct,  // the slots of `distinct_sets[number]`
  CheckSizes,        // `size_checks[number]`
  CheckFunction,
  CheckAbcRegistrations,  // there have been `number`
  CheckTypeAttributes,    // of `types[number]`
  CheckState,
  CheckPlanted,  // less than there should be, for tests (planted.h): `number`
};

inline bool is_load(OpKind kind) { return kind <= OpKind::LoadGrad; }
inline bool is_group(OpKind kind) { return kind == OpKind::InstanceEntries || kind == OpKind::DictEntries; }

struct Op {
  OpKind kind;
  bool absent = false;
  int32_t slot = -1;
  int32_t other = -1;
  int32_t check = -1;  // the check that it makes, or -1
  const void* pointer = nullptr;
  int64_t number = 0;

  PyObject* object() const { return static_cast<PyObject*>(const_cast<void*>(pointer)); }
};
static_assert(sizeof(Op) == 32);

}  // namespace magneto::guards
