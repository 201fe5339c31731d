#include "capture/torch/switches.h"

#include <algorithm>
#include <ranges>
#include <span>

#include "capture/calls/calls.h"
#include "capture/calls/deferred.h"
#include "capture/capture.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/world.h"
#include "guards/constants.h"

namespace magneto::capture {

namespace {

Ref ask(PyObject* getter, std::span<PyObject* const> args) {
  return checked(PyObject_Vectorcall(getter, args.data(), args.size(), nullptr));
}

bool is_same(PyObject* a, PyObject* b) { return Py_TYPE(a) == Py_TYPE(b) && guards::constants_equal(a, b); }

}  // namespace

void Switches::call(const Switch& of, PyObject* value) {
  std::vector<PyObject*> args;
  for (const Ref& arg : of.args) args.push_back(arg.get());
  args.push_back(value);
  checked(PyObject_Vectorcall(of.setter.get(), args.data(), args.size(), nullptr));
}

Ref Switches::read(PyObject* getter, const CallArgs& args, const std::string& name) {
  const bool plain = !args.kwnames && std::ranges::all_of(args.values, is_scalar);
  if (sets) put_back();
  Ref at_start = ask(getter, args.values);
  const bool is_object = is_identity_constant(at_start.get());  // the state is which of several objects
  if (!plain || !(is_object || guards::is_constant(at_start.get()))) {
    c.side_exit(BreakReason::OpaqueCall, "call of " + name);
  }
  c.guards.state(getter, args.values, at_start.get());
  if (is_object) return c.world.wrap(at_start.get(), c.sources.constant(at_start.get()));
  if (!sets) return at_start;
  put_again();
  return ask(getter, args.values);
}

void Switches::set(PyObject* setter, PyObject* getter, const CallArgs& args, bool steers_kernels) {
  const std::string name = callable_name(setter);
  if (args.kwnames || args.values.empty() || !std::ranges::all_of(args.values, is_scalar)) {
    c.side_exit(BreakReason::OpaqueCall, "call of " + name);
  }
  PyObject* value = args.values.back();
  CallArgs asked;
  asked.values.assign(args.values.begin(), args.values.end() - 1);
  const Ref before = read(getter, asked, name);
  if (is_same(before.get(), value)) return;
  if (steers_kernels)
    c.side_exit(BreakReason::OpaqueCall, "call of " + name + ", which operators look at when they run");
  Switch change{Ref::borrow(setter), {}, before, Ref::borrow(value)};
  for (PyObject* arg : asked.values) change.args.push_back(Ref::borrow(arg));
  call(change, value);
  changed_.push_back(std::move(change));
  ++sets;
  graph::TorchNode node;
  node.target = Ref::borrow(setter);
  for (PyObject* arg : args.values) node.args.push_back(c.torch.py_arg(arg));
  c.graph.torch_nodes.push_back(std::move(node));
}

bool Switches::Switch::is_of(const Switch& other) const {
  const auto same = [](const Ref& a, const Ref& b) { return is_same(a.get(), b.get()); };
  return setter.get() == other.setter.get() && std::ranges::equal(args, other.args, same);
}

void Switches::leave() {
  for (auto change = changed_.begin(); change != changed_.end(); ++change) {
    const auto is_it = [&](const Switch& other) { return other.is_of(*change); };
    const bool is_last = std::none_of(change + 1, changed_.end(), is_it);
    const Switch& first = *std::ranges::find_if(changed_, is_it);
    if (!is_last || is_same(first.before.get(), change->now.get())) continue;
    DeferredCall set{change->setter, change->args, {}, {}};
    set.args.push_back(change->now);
    set.versions.assign(set.args.size(), DeferredCall::kAnyVersion);
    c.deferred.calls.push_back(std::move(set));
  }
  put_back();
}

void Switches::put_back() {
  if (!std::exchange(is_set_, false)) return;
  const SavedError saved;
  for (const Switch& change : changed_ | std::views::reverse) call(change, change.before.get());
}

void Switches::put_again() {
  if (std::exchange(is_set_, true)) return;
  for (const Switch& change : changed_) call(change, change.now.get());
}

}  // namespace magneto::capture
