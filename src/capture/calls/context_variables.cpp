#include "capture/calls/context_variables.h"

#include "capture/calls/deferred.h"
#include "capture/calls/handlers.h"
#include "capture/world/world.h"
#include "guards/thread_state.h"
#include "python/imported.h"

namespace magneto::capture {

namespace {

PyObject* set_method() {
  static constinit Imported method("_contextvars", "ContextVar.set");
  return method.get();
}
PyObject* reset_method() {
  static constinit Imported method("_contextvars", "ContextVar.reset");
  return method.get();
}

/// As in a context where nothing is set.
Ref default_of(PyObject* variable) {
  const Ref empty = checked(PyContext_New());
  PyObject* value = nullptr;
  if (PyContext_Enter(empty.get()) < 0) throw PythonError{};
  const int found = PyContextVar_Get(variable, nullptr, &value);
  if (PyContext_Exit(empty.get()) < 0 || found < 0) throw PythonError{};
  return Ref::steal(value);
}

/// One that the thread's context has had.
Ref make_token(PyObject* variable) {
  Ref token = checked(PyContextVar_Set(variable, Py_None));
  if (PyContextVar_Reset(variable, token.get()) < 0) throw PythonError{};
  return token;
}

}  // namespace

bool ContextVariables::is_change(const DeferredCall& call) {
  return call.function.get() == set_method() || call.function.get() == reset_method();
}

Ref ContextVariables::get(PyObject* variable, PyObject* otherwise) {
  if (const auto known = values_.find(variable); known != values_.end()) return known->second;
  const guards::Source* source = c.sources.context_value(c.sources.constant(variable));
  if (PyObject* value = guards::context_value(variable)) return c.world.wrap(value, source);
  c.guards.absent(source);
  if (otherwise) return Ref::borrow(otherwise);
  const Ref usual = default_of(variable);
  return usual ? c.world.wrap(usual.get(), c.sources.constant(usual.get())) : Ref();
}

Ref ContextVariables::set(PyObject* variable, PyObject* value) {
  Ref token = make_token(variable);
  const auto known = values_.find(variable);
  const bool was_set = known != values_.end();
  tokens_[token.get()] = {Ref::borrow(variable), was_set, was_set ? known->second : Ref()};
  values_[variable] = Ref::borrow(value);
  c.world.keep(token);
  c.deferred.calls.push_back({Ref::borrow(set_method()),
                              {Ref::borrow(variable), Ref::borrow(value)},
                              {DeferredCall::kAnyVersion, DeferredCall::kAnyVersion},
                              token});
  return token;
}

void ContextVariables::reset(PyObject* variable, PyObject* object) {
  const auto found = tokens_.find(object);
  if (found == tokens_.end() || found->second.used || found->second.variable.get() != variable) {
    c.side_exit(BreakReason::OpaqueObject, "a context variable is reset by a token that was made before, or used");
  }
  Token& token = found->second;
  token.used = true;
  if (token.was_set) {
    values_[variable] = token.before;
  } else {
    values_.erase(variable);
  }
  std::vector<DeferredCall>& calls = c.deferred.calls;
  if (!calls.empty() && calls.back().result.get() == object) {  // nothing has come between: nobody sees the two
    calls.pop_back();
    token.left_out = true;
    return;
  }
  calls.push_back({Ref::borrow(reset_method()),
                   {Ref::borrow(variable), Ref::borrow(object)},
                   {DeferredCall::kAnyVersion, DeferredCall::kAnyVersion},
                   {}});
}

namespace {

Ref handle_get(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 2, "get");
  Ref value = capture.deferred.contexts.get(args.values[0], args.values.size() > 1 ? args.values[1] : nullptr);
  if (value) return value;
  PyErr_SetObject(PyExc_LookupError, args.values[0]);
  throw PythonError{};
}

Ref handle_set(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "set");
  return capture.deferred.contexts.set(args.values[0], args.values[1]);
}

Ref handle_reset(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "reset");
  capture.deferred.contexts.reset(args.values[0], args.values[1]);
  return Ref::borrow(Py_None);
}

/// `with variable.set(value):`, from 3.14 on.
Ref handle_enter(Capture&, const CallArgs& args) { return Ref::borrow(args.values.at(0)); }

Ref handle_exit(Capture& capture, const CallArgs& args) {
  PyObject* token = args.values.at(0);
  if (!capture.deferred.contexts.has_made(token)) {
    capture.side_exit(BreakReason::OpaqueObject, "a context variable is reset by a token that was made before");
  }
  capture.deferred.contexts.reset(capture.deferred.contexts.variable_of(token), token);
  return Ref::borrow(Py_None);
}

}  // namespace

std::span<const HandlerRow> context_handlers() {
  static constexpr HandlerRow rows[] = {
      {"_contextvars.ContextVar.get", handle_get},     {"_contextvars.ContextVar.set", handle_set},
      {"_contextvars.ContextVar.reset", handle_reset}, {"_contextvars.Token.__enter__", handle_enter},
      {"_contextvars.Token.__exit__", handle_exit},
  };
  return rows;
}

}  // namespace magneto::capture
