#include "capture/interpreter/frames.h"

#include <algorithm>

#include "capture/calls/native_mode.h"
#include "capture/capture.h"
#include "capture/exits/exit_builder.h"
#include "capture/interpreter/interpreter.h"
#include "capture/world/world.h"
#include "python/abi/c_stack.h"
#include "python/imported.h"

namespace magneto::capture {

guards::UserPlace Frames::user_place() const {
  if (!c.frame) return {};
  return {Ref::borrow(reinterpret_cast<PyObject*>(c.frame->info->code)), c.frame->instr().line};
}

void Frames::trace_instruction() {
  SavedError saved;
  c.run_suspended([this] { c.options.tracer->instruction(*c.frame); });
}

std::string Frames::user_line() const {
  const std::string place = user_place().text();
  return place.empty() ? place : "at " + place;
}

/// Reads a slot of the root frame for the first time: what is there is the user's own object.
Ref Frames::read_raw(int32_t slot) {
  if (root.raw.empty() || !root.raw[slot]) return Ref::borrow(root.slots[slot]);
  PyObject* value = root.slots[slot];
  if (!value) {
    root.raw[slot] = 0;
    return {};
  }
  PyObject* name = PyTuple_GET_ITEM(root.info->localsplus_names.get(), slot);
  Ref wrapped = c.world.wrap(value, c.sources.local(slot, name));
  root.raw[slot] = 0;  // now: an exit in `wrap` finds the slot as it was
  root.set_local(slot, wrapped);
  return wrapped;
}

namespace {

/// Restores the caller as the innermost frame, exceptions included.
class FrameScope {
 public:
  FrameScope(Capture& capture, InterpFrame& f) : capture_(capture) {
    f.caller = capture.frame;
    capture.frame = &f;
  }
  ~FrameScope() { capture_.frame = capture_.frame->caller; }

 private:
  Capture& capture_;
};

}  // namespace

Ref Frames::run(InterpFrame& callee, bool raise_first) {
  int depth = 0;
  for (InterpFrame* outer = c.frame; outer; outer = outer->caller) ++depth;
  if (depth > Py_GetRecursionLimit() || depth > 2000 || c_stack_is_low()) {
    // CPython runs the outermost call, and raises RecursionError where it does so in eager.
    throw c.exits.restart_before(root, "the calls go deeper than a capture follows");
  }
  FrameScope scope(c, callee);
  codes.insert(callee.info);
  return Interpreter(c, callee).run(raise_first);
}

/// The module that a frame calls, borrowed, if it is one of Module.__call__.
static const void* called_module(const InterpFrame& caller) {
  static constinit Imported call("torch.nn", "Module._wrapped_call_impl");
  PyObject* const code = PyFunction_GET_CODE(call.get());
  return reinterpret_cast<PyObject*>(caller.info->code) == code ? caller.slots[0] : nullptr;
}

std::shared_ptr<const graph::CallSite> Frames::call_site(InterpFrame& frame) {
  if (frame.called_from || !frame.caller) return frame.called_from;
  InterpFrame& caller = *frame.caller;
  PyCodeObject* const code = caller.info->code;
  frame.called_from = std::make_shared<graph::CallSite>(graph::CallSite{
      .file = PyUnicode_AsUTF8(code->co_filename),
      .line = caller.instr().line,
      .function = PyUnicode_AsUTF8(code->co_qualname),
      .module = called_module(caller),
      .outer = call_site(caller),
  });
  return frame.called_from;
}

/// Something leaves the segment: keeps the user's stack for who tells of it.
void Frames::note_site() {
  if (!site.empty()) return;
  for (const InterpFrame* at = c.frame; at; at = at->caller) site.push_back({at->info, at->pc});
  std::ranges::reverse(site);
}

/// Tests ask for exits at instructions that have no need of one.
void Frames::force_exit() {
  if (c.frame->pc <= c.frame->info->entry) return;  // the frame is still being made
  if (++executed_ < c.options.exit_every) return;
  for (const InterpFrame* f = c.frame; f; f = f->caller) {
    if (f == c.mode.called_back_from || f->callback || (f->caller && !f->caller->result_is_pushed))
      return;  // no frame can be cut here
  }
  c.side_exit(BreakReason::Forced, "an exit is forced");
}

}  // namespace magneto::capture
