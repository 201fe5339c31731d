// eval() of a text that does not differ: its code is interpreted, with the variables of the frame that calls it.
#include <algorithm>

#include "capture/calls/calls.h"
#include "capture/calls/handlers.h"
#include "capture/interpreter/frames.h"
#include "capture/interpreter/interpreter.h"
#include "capture/world/world.h"
#include "python/abi/own_code.h"

namespace magneto::capture {

namespace {

/// Of the names that the code reads, those that are variables of the frame.
Ref variables_of(Capture& c, InterpFrame& frame, PyObject* names) {
  Ref found = checked(PyDict_New());
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
    PyObject* const name = PyTuple_GET_ITEM(names, i);
    for (int32_t slot = 0; slot < frame.info->nlocals; ++slot) {
      if (PyUnicode_Compare(PyTuple_GET_ITEM(frame.info->localsplus_names.get(), slot), name) != 0) continue;
      if (&frame == &c.frames.root) c.frames.read_raw(slot);
      PyObject* const held = frame.slots[slot];
      if (!held) continue;
      const bool in_cell = (frame.info->kinds[slot] & kCellOrFree) != 0;
      const Ref value = in_cell ? c.world.read_cell(held) : Ref::borrow(held);
      if (value && PyDict_SetItem(found.get(), name, value.get()) < 0) throw PythonError{};
    }
  }
  return found;
}

}  // namespace

Ref handle_eval(Capture& capture, const CallArgs& args) {
  InterpFrame& caller = *capture.frame;
  const bool plain =
      args.positional() == 1 && !args.kwnames && PyUnicode_CheckExact(args.values[0]) && !caller.body.names;
  if (!plain) capture.side_exit(BreakReason::OpaqueCall, "call of builtins.eval");
  const Ref code = [&] {
    const OwnCode own;
    return checked(Py_CompileString(PyUnicode_AsUTF8(args.values[0]), "<string>", Py_eval_input));
  }();
  const CodeInfo& info = decode(reinterpret_cast<PyCodeObject*>(code.get()));
  InterpFrame frame;
  frame.info = &info;
  frame.function = caller.function;
  frame.globals = caller.globals;
  frame.builtins = caller.builtins;
  frame.body.names = variables_of(capture, caller, info.names.get());
  frame.body.entries = checked(PyDict_New());
  frame.storage.assign(info.nlocals + info.stack_size + 1, nullptr);
  frame.slots = frame.storage.data();
  return capture.frames.run(frame);
}

}  // namespace magneto::capture
