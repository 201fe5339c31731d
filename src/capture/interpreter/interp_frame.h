// A user's frame as the interpreter of a capture runs it.
#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "guards/source.h"
#include "python/abi/frame.h"
#include "python/bytecode/code.h"
#include "python/ref.h"

namespace magneto::capture {

/// What a class's body reads and sets, and what it has set.
struct ClassBody {
  Ref names, entries;
};

/// Slots are laid out as CPython's localsplus: locals, cells, free
/// variables, then the value stack; each owns its reference.
struct InterpFrame {
  const CodeInfo* info = nullptr;
  Ref function;
  const guards::Source* function_source = nullptr;  // null: a fresh function
  PyObject* globals = nullptr;
  PyObject* builtins = nullptr;
  Frame* real = nullptr;           // frames that C code called back keep their slots in the real frame
  std::vector<PyObject*> storage;  // the slots of all others
  PyObject** slots = nullptr;
  int32_t depth = 0;         // entries on the value stack
  int32_t pc = 0;            // instruction being executed
  std::vector<uint8_t> raw;  // root frame: slots not read yet, still the user's own values
  int32_t raw_stack = 0;     // root frame: entries from here to the start's depth have not been read either
  bool callback = false;     // entered from C code: can't be cut
  // While this frame calls another one: how it goes on when the callee returns.
  bool result_is_pushed = false;  // pop `pops` entries, push the result, next instruction; else can't be cut
  int32_t pops = 0;
  uint64_t natives_before = 0;  // Calls::natives_run in front of the instruction
  ClassBody body;
  Ref result_override;  // pushed instead of the result (the instance, after __init__)
  InterpFrame* caller = nullptr;
  std::shared_ptr<const graph::CallSite> called_from = {};  // once a torch call has asked (Frames::call_site)

  PyObject** stack() { return slots + info->nlocals; }
  PyObject* top(int32_t below = 0) { return stack()[depth - 1 - below]; }
  void push(Ref value) { stack()[depth++] = value.release(); }
  Ref pop() { return Ref::steal(std::exchange(stack()[--depth], nullptr)); }
  void drop(int32_t count) {
    while (count-- > 0) pop();
  }
  void set_local(int32_t slot, Ref value) {
    PyObject* old = std::exchange(slots[slot], value.release());
    Py_XDECREF(old);
  }
  const Instr& instr() const { return info->instrs[pc]; }
  /// Drops the values, as the frame does at its end.
  void clear();
  ~InterpFrame() { clear(); }
};

}  // namespace magneto::capture
