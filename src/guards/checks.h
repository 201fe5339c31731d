// The checks of a GuardSet as data: one record for each, whatever its kind.
#pragma once

#include <Python.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "guards/guards.h"
#include "guards/source.h"
#include "python/ref.h"
#include "support/hash_index.h"

namespace magneto::guards {

/// X(kind, label in printed guards).
#define MAGNETO_CHECK_KINDS(X)         \
  X(Type, "TYPE_MATCH")                \
  X(Identity, "ID_MATCH")              \
  X(Equals, "EQUALS_MATCH")            \
  X(Absent, "NO_HASATTR")              \
  X(Length, "LENGTH_CHECK")            \
  X(DictKeys, "DICT_KEYS")             \
  X(Tensor, "TENSOR_MATCH")            \
  X(TensorData, "TENSOR_DATA")         \
  X(Array, "ARRAY_MATCH")              \
  X(BuiltinMethod, "BUILTIN_METHOD")   \
  X(Alias, "OBJECT_ALIASING")          \
  X(Distinct, "NO_OBJECT_ALIASING")    \
  X(AllDistinct, "NO_OBJECT_ALIASING") \
  X(Function, "FUNCTION_MATCH")        \
  X(TypeLookup, "TYPE_LOOKUP")         \
  X(Bases, "MRO_MATCH")                \
  X(AbcRegistrations, "ABC_CACHE")     \
  X(State, "STATE_MATCH")              \
  X(Sizes, "SHAPE_ENV")                \
  X(Require, "")

enum class CheckKind : uint8_t {
#define X(kind, label) kind,
  MAGNETO_CHECK_KINDS(X)
#undef X
};

const char* check_label(CheckKind kind);

struct Check {
  CheckKind kind;
  const Source* source = nullptr;      // null for what no object is asked: TypeLookup to Sizes
  const Source* other = nullptr;       // Alias, Distinct
  Ref type;                            // Type, Length, DictKeys, Tensor, TypeLookup, Bases, BuiltinMethod
  Ref object;                          // Identity, Equals, TypeLookup: what to find; Function: its __code__
                                       // Identity, `weakly`: a weak reference to it
                                       // TensorData, Array: a bytes; BuiltinMethod: one like it
                                       // Bases: the __mro__; State: what the function gave
  Ref defaults, kwdefaults;            // Function
  Ref name;                            // TypeLookup
  Ref function;                        // State
  bool weakly = false;                 // Identity: the object may go, and then nothing is it any more
  Py_ssize_t length = 0;               // Length; AbcRegistrations: how many
  std::vector<Ref> keys;               // DictKeys; State: the arguments
  std::vector<const Source*> sources;  // AllDistinct, Sizes
  std::optional<TensorGuard> tensor;
  std::shared_ptr<const SizeAssumptions> sizes;  // Sizes

  PyTypeObject* python_type() const { return reinterpret_cast<PyTypeObject*>(type.get()); }
  /// What `object` stands for; None: it has gone.
  PyObject* expected() const { return weakly ? PyWeakref_GET_OBJECT(object.get()) : object.get(); }
  bool same_as(const Check& check) const;
  size_t hash() const;
};

struct GuardSet::Impl {
  explicit Impl(SourceTable& table) : sources(&table) {}

  /// False: the same check is there already.
  bool add(Check check);

  SourceTable* sources;
  std::vector<Check> checks;
  std::function<UserPlace()> place;      // null: places are not noted
  std::vector<int32_t> places;           // by check: in `user_places`
  std::vector<UserPlace> user_places;    // neighbours differ; the first is of checks before places were noted
  std::vector<std::string> size_places;  // of the relations of sizes
  HashIndex index;                       // of `checks`
  struct HashLookup {
    size_t operator()(const std::pair<PyTypeObject*, PyObject*>& lookup) const {
      return (reinterpret_cast<size_t>(lookup.first) >> 4) * 1000003 ^ (reinterpret_cast<size_t>(lookup.second) >> 4);
    }
  };
  std::unordered_map<std::pair<PyTypeObject*, PyObject*>, PyObject*, HashLookup> lookups;  // by identity
  std::optional<GlobalState> global_state;
};

}  // namespace magneto::guards
