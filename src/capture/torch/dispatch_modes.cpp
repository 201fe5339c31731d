#include "capture/torch/dispatch_modes.h"

#include "capture/calls/calls.h"
#include "capture/calls/handlers.h"
#include "capture/calls/native_mode.h"
#include "capture/torch/class_tensors.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "capture/world/attributes.h"
#include "capture/world/world.h"

namespace magneto::capture {

void DispatchModes::enter(PyObject* mode) {
  for (const char* key : {"_mode_key", "_dispatch_key"}) {
    const Ref name = checked(PyUnicode_FromString(key));
    if (const Ref found = c.attributes.lookup_attr(mode, name.get()); found && found.get() != Py_None) {
      c.side_exit(BreakReason::OpaqueCall, "a dispatch mode of PyTorch's own is entered");
    }
  }
  if (is_transforming()) c.side_exit(BreakReason::OpaqueCall, "a dispatch mode is entered inside a transform");
  if (open_++ == 0) entry_ = entry_of_region(c.frame);
  c.world.keep(Ref::borrow(mode));
  modes_.push_back(Ref::borrow(mode));
}

void DispatchModes::leave() {
  if (modes_.empty()) c.side_exit(BreakReason::OpaqueCall, "a dispatch mode is left that the segment has not entered");
  modes_.pop_back();
  --open_;
}

Ref DispatchModes::ask(std::array<PyObject*, 4> args) {
  struct Without {
    explicit Without(std::vector<Ref>& from) : modes(from), mode(std::move(from.back())) { from.pop_back(); }
    ~Without() { modes.push_back(mode); }
    std::vector<Ref>& modes;
    Ref mode;
  };
  const NonResumable whole(c);
  const Without without(modes_);
  const AboveClasses next(c);
  NativeScope scope(c.mode);
  c.mode.callbacks_allowed = c.mode.recording = c.mode.trusted = false;
  if (!c.mode.called_back_from) c.mode.called_back_from = c.frame;
  const Ref method = c.attributes.load_attr(without.mode.get(), MAGNETO_STR("__torch_dispatch__"));
  return c.calls.call(method.get(), {args[0], args[1], args[2], args[3]});
}

Ref handle_enter_dispatch_mode(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 1, "enter_dispatch_mode");
  capture.torch.dispatch_modes.enter(args.values[0]);
  return Ref::borrow(Py_None);
}

Ref handle_leave_dispatch_mode(Capture& capture, const CallArgs& args) {
  check_count(args, 0, 0, "leave_dispatch_mode");
  capture.torch.dispatch_modes.leave();
  return Ref::borrow(Py_None);
}

}  // namespace magneto::capture
