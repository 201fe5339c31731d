// The interpreter of one frame of a capture: one case per opcode.
//
// Handlers look at their operands in place and pop them only when the instruction is done, so that a side exit finds
// the stack as it was in front of the instruction. An instruction that calls Python code sets `result_is_pushed` and
// `pops` first: then a side exit inside the callee knows how this frame goes on.
#pragma once

#include "capture/capture.h"
#include "capture/exits/exit_builder.h"

namespace magneto::capture {

constexpr int32_t kReturned = -1;

/// Runs one instruction; gives the index of the next one, or kReturned with the value in `result`.
class Interpreter {
 public:
  Interpreter(Capture& capture, InterpFrame& frame) : c(capture), f(frame) {}

  Ref run(bool raise_first);

 private:
  // The opcodes by family; each hands on what is not its own.
  int32_t step(const Instr& in);            // stack, names, attributes (interpreter.cpp)
  int32_t step_data(const Instr& in);       // operators, items, building containers and text (interpreter_data.cpp)
  int32_t step_control(const Instr& in);    // jumps, iteration, calls, exceptions, `with` (interpreter_control.cpp)
  int32_t step_match(const Instr& in);      // pattern matching, exception groups (interpreter_match.cpp)
  int32_t step_coroutine(const Instr& in);  // `await`, `async for`, `async with` (interpreter_coroutines.cpp)
  int32_t step_names(const Instr& in);      // names in the bodies of classes (interpreter_names.cpp)
  /// `a[mask] = b[mask]` at `b[mask]`, done as one: the instruction behind it. -1: something else.
  int32_t op_assign_selected(const Instr& in);
  Ref call_special(PyObject* object, PyObject* name);
  Ref awaited(PyObject* object);
  void op_match_keys();
  Ref match_class(PyObject* subject, PyObject* type, int32_t positional, PyObject* names);
  void op_check_exception_group();
  Ref regrouped(PyObject* group, const std::vector<PyObject*>& exceptions);
  void op_prepare_reraise();
  /// Numbers that the instruction looks at are known from here on.
  void know_operands(const Instr& in);
  void handle_error();
  void op_call(const Instr& in);
  void op_call_function_ex(const Instr& in);
  void op_load_attr(PyObject* name, bool method);
  void op_load_super_attr(const Instr& in);
  void op_make_cell(int32_t slot);
  void op_copy_free_vars(int32_t count);
  void op_load_global(const Instr& in);
  /// In the module, or built in; raises NameError.
  Ref load_global(PyObject* key);
  /// Of a class's body. Null: it has no such name.
  Ref load_name(PyObject* key);
  void store_name(PyObject* key, PyObject* value);
  /// The local variable; raises UnboundLocalError.
  Ref load_fast(int32_t slot);
  /// The top of the stack goes to the local variable. What that held before may_drop has been asked about.
  void store_fast(int32_t slot);
  void may_drop(int32_t slot);
  /// The two entries of a callable without a self.
  void push_callable(Ref function);
  Ref load_cell(int32_t slot);
  void store_cell(int32_t slot, PyObject* value);
  void op_make_function(const Instr& in);
  void op_set_function_attribute(const Instr& in);
  void op_unpack(PyObject* sequence, int32_t before, int32_t after, bool star);
  int32_t op_for_iter(const Instr& in);
  int32_t op_send(const Instr& in);
  void op_raise(const Instr& in);
  void op_format(const Instr& in);
  /// `!s`, `!r`, `!a` of a formatted value (CONVERT_VALUE's argument; 0: none).
  Ref converted(PyObject* value, int32_t conversion);
  void guard_import(PyObject* name, PyObject* names, PyObject* module);
  void op_import_name(const Instr& in);
  Ref import_from(PyObject* attribute);
  void op_before_with();
  void op_with_except_start();
  void push_exit(Ref bound);
  PyObject* name(int32_t index) { return PyTuple_GET_ITEM(f.info->names.get(), index); }
  PyObject* constant(int32_t index) { return PyTuple_GET_ITEM(f.info->consts.get(), index); }
  /// The instruction's calls end in "pop `pops`, push the result".
  void cuttable(int32_t pops) {
    f.result_is_pushed = true;
    f.pops = pops;
  }
  /// replace with an object that C code may have made.
  void deliver(int32_t pops, Ref value) {
    c.exits.note_allocation_site(value.get());
    replace(pops, std::move(value));
  }
  void replace(int32_t pops, Ref value) {
    f.drop(pops);
    f.push(std::move(value));
  }

  Capture& c;
  InterpFrame& f;
  Ref result;
};

}  // namespace magneto::capture
