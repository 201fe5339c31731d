// Sources: where a value that a capture read came from.
//
// A source is a path from a root (a local of the frame, a constant object) to a value, and can be loaded again at the
// start of every call without running Python code. Guards hang on sources, plans load from them, and messages print
// them as users write them: `L['self']._modules['0'].weight`.
#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "guards/number.h"
#include "python/ref.h"
#include "support/hash_index.h"

namespace magneto::guards {

/// X(kind, has_base, doc). How each kind loads:
#define MAGNETO_SOURCE_KINDS(X)                                                                                 \
  X(Local, false, "slot `index` of the frame's locals, cells and free variables; key: the variable's name")     \
  X(Stack, false, "slot `index` of the frame's value stack, bottom first (segments that start mid-frame)")      \
  X(Function, false, "the function object that the frame runs")                                                 \
  X(Const, false, "the object `key` itself, kept alive by the source (module dicts, classes, functions)")       \
  X(Closure, true, "base: a function; contents of its closure cell `index`")                                    \
  X(ClosureCell, true, "base: a function; its closure cell `index` itself")                                     \
  X(Cell, true, "base: a cell; its contents")                                                                   \
  X(Attr, true, "base: any object; entry `key` of its instance dict (no descriptors, no __getattr__)")          \
  X(Slot, true, "base: any object; the member descriptor `key` of its type read from it (__slots__)")           \
  X(InstanceDict, true, "base: any object; its instance dict")                                                  \
  X(DictItem, true, "base: a dict or a subclass of one; entry `key` read past any override")                    \
  X(SeqItem, true, "base: a list or tuple or a subclass of one; item `index` read past any override")           \
  X(BoundSelf, true, "base: a bound method; its __self__")                                                      \
  X(BoundFunction, true, "base: a bound method; its __func__")                                                  \
  X(Grad, true, "base: a tensor; its .grad")                                                                    \
  X(Size, true, "base: a tensor; its size in dimension `index`")                                                \
  X(Draw, true, "base: a random.Random; what the draw of number `index` (draw.h) will give")                    \
  X(DequeItem, true, "base: a deque; item `index`, or its maxlen if that is -1")                                \
  X(ContextValue, true, "base: a contextvars.ContextVar; what the thread's context has for it, defaults aside") \
  X(ThreadDict, true, "base: a threading.local; the dict that it has for this thread")                          \
  X(Number, true, "base, other: numbers; what the arithmetic `index` gives for them; key: the function called")

enum class SourceKind : uint8_t {
#define X(kind, has_base, doc) kind,
  MAGNETO_SOURCE_KINDS(X)
#undef X
};

struct Source {
  SourceKind kind;
  const Source* base;             // null for roots
  Ref key;                        // str for Attr, any hashable for DictItem, descriptor for Slot, object for Const
  Py_ssize_t index;               // Local, Stack, Closure, SeqItem, DequeItem, Size, Draw, Number
  int32_t id;                     // dense, in order of creation: a base comes before what hangs on it
  const Source* other = nullptr;  // Number

  /// The user's spelling: L['x'], G['np'], L['self'].layers[0].weight. Runs no Python code.
  std::string name() const;
  /// The same where its base is called `above`.
  std::string name_on(const std::string& above) const;
};

/// Owns and interns the sources of one capture: equal paths are one object. Roots print with L, and Const dicts that
/// are a module's globals as G.
class SourceTable {
 public:
  const Source* local(Py_ssize_t index, PyObject* name);
  const Source* stack(Py_ssize_t index);
  const Source* function();
  const Source* constant(PyObject* object);
  const Source* closure(const Source* function, Py_ssize_t index, PyObject* name);
  const Source* closure_cell(const Source* function, Py_ssize_t index);
  const Source* cell(const Source* base);
  const Source* attr(const Source* base, PyObject* name);
  const Source* slot(const Source* base, PyObject* descriptor);
  const Source* instance_dict(const Source* base);
  /// `key` must be hashable and of a type whose equality runs no Python code (str, int, float, bool, None, bytes,
  /// tuples of those) or compared by identity (types, functions, modules, enum members, torch dtypes and devices).
  const Source* dict_item(const Source* base, PyObject* key);
  const Source* seq_item(const Source* base, Py_ssize_t index);
  const Source* bound_self(const Source* base);
  const Source* bound_function(const Source* base);
  const Source* grad(const Source* base);
  const Source* size(const Source* base, Py_ssize_t dim);
  const Source* draw(const Source* random, Py_ssize_t index);
  const Source* deque_item(const Source* base, Py_ssize_t index);
  const Source* deque_limit(const Source* base);
  const Source* context_value(const Source* variable);
  const Source* thread_dict(const Source* local);
  /// `left` and `right` are checked when they are loaded: exact ints and floats, else the source is missing.
  const Source* number(Arithmetic operation, const Source* left, const Source* right);
  /// The same of what a C function of numbers gives for one, or two (`right` is not null).
  const Source* call(PyObject* function, const Source* left, const Source* right);

  const std::vector<std::unique_ptr<Source>>& all() const { return sources_; }

 private:
  const Source* intern(SourceKind kind, const Source* base, PyObject* key, Py_ssize_t index,
                       const Source* other = nullptr);

  std::vector<std::unique_ptr<Source>> sources_;
  HashIndex index_;
};

}  // namespace magneto::guards
