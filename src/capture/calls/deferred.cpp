// Calls of logging functions that may be put off to the segment's end (config.reorderable_logging_functions), so that
// they need no side exit: print(tensor) shows the tensor of the run.
//
// They are made last, in their order, behind all other writes. A tensor that is written after such a call would be
// shown as it is then: the segment is captured again, with side exits.

#include "capture/calls/deferred.h"

#include <algorithm>
#include <ranges>

#include "capture/capture.h"
#include "capture/exits/rebuild.h"
#include "capture/world/world.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

Ref& reorderable() {
  static auto* functions = new Ref;
  return *functions;
}

}  // namespace

void set_reorderable_functions(PyObject* functions) {
  if (!PyAnySet_Check(functions)) throw std::invalid_argument("reorderable_logging_functions must be a set");
  reorderable() = Ref::borrow(functions);
}

namespace {

/// What the set has: the callable itself, or the method that a function called on an object is. Null: neither.
Ref find_reorderable(PyObject* functions, PyObject* callable, const CallArgs& args) {
  const auto is_there = [&](PyObject* function) {
    const int found = PySet_Contains(functions, function);
    if (found < 0) throw PythonError{};
    return found == 1;
  };
  if (PyCFunction_Check(callable) && is_there(callable)) return Ref::borrow(callable);
  if (!PyFunction_Check(callable)) return {};
  if (is_there(callable)) return Ref::borrow(callable);
  if (args.positional() == 0 || is_tensor(args.values[0])) return {};
  Ref method = checked(PyMethod_New(callable, args.values[0]));
  return is_there(method.get()) ? method : Ref();
}

/// Such an argument is at the segment's end what it is now, or a tensor whose writes are counted.
bool may_wait(PyObject* value) {
  if (is_tensor(value)) return !unpack_tensor(value).is_inference();
  if (!PyTuple_Check(value)) return is_scalar(value);
  return std::all_of(PySequence_Fast_ITEMS(value), PySequence_Fast_ITEMS(value) + PyTuple_GET_SIZE(value), is_scalar);
}

}  // namespace

bool DeferredCalls::defers(PyObject* callable, const CallArgs& args) {
  PyObject* functions = reorderable().get();
  if (!functions || PySet_GET_SIZE(functions) == 0 || c.feedback.defers_nothing) return false;
  const Ref function = find_reorderable(functions, callable, args);
  return function && std::ranges::all_of(args.values | std::views::drop(PyMethod_Check(function.get())), may_wait);
}

Ref DeferredCalls::defer(PyObject* callable, const CallArgs& all_args) {
  const Ref function = find_reorderable(reorderable().get(), callable, all_args);
  CallArgs args = all_args;
  if (PyMethod_Check(function.get())) args.values.erase(args.values.begin());
  for (PyObject* part : {callable, PyMethod_Check(function.get()) ? all_args.values[0] : nullptr}) {
    if (const guards::Source* source = part ? c.world.source_of(part) : nullptr) c.guards.identity(source, part);
  }
  DeferredCall call{function, {}, {}};
  if (args.keywords()) {
    static constinit Imported partial("functools", "partial");
    Ref keywords = checked(PyDict_New());
    for (size_t i = 0; i < args.keywords(); ++i) {
      if (is_tensor(args.values[args.positional() + i])) return {};
      PyDict_SetItem(keywords.get(), PyTuple_GET_ITEM(args.kwnames, i), args.values[args.positional() + i]);
    }
    Ref target = checked(PyTuple_Pack(1, function.get()));
    call.function = checked(PyObject_Call(partial.get(), target.get(), keywords.get()));
  }
  for (size_t i = 0; i < args.positional(); ++i) {
    call.args.push_back(Ref::borrow(args.values[i]));
    call.versions.push_back(is_tensor(args.values[i]) ? unpack_tensor(args.values[i])._version() : 0);
  }
  calls.push_back(std::move(call));
  return Ref::borrow(Py_None);
}

void Rebuilder::deferred_calls() {
  while (deferred_calls_ < c.deferred.calls.size()) {
    const DeferredCall call = c.deferred.calls[deferred_calls_++];  // more may come when it is built
    std::vector<int32_t> args = {emit(runtime::PlanOp::Const, {}, call.function.get())};
    for (size_t i = 0; i < call.args.size(); ++i) {
      PyObject* value = call.args[i].get();
      const bool looked_at = is_tensor(value) && call.versions[i] != DeferredCall::kAnyVersion;
      if (looked_at && unpack_tensor(value)._version() != call.versions[i]) {
        c.feedback.defers_nothing = true;
        throw Retry{};
      }
      args.push_back(build(value));
    }
    const int32_t result = emit(runtime::PlanOp::Call, std::move(args));
    if (call.result) memo_[call.result.get()] = result;
  }
}

}  // namespace magneto::capture
