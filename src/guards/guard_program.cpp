#include <Python.h>
#include <c10/util/SmallVector.h>
#include <structmember.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "guards/array.h"
#include "guards/constants.h"
#include "guards/draw.h"
#include "guards/guards.h"
#include "guards/objects.h"
#include "guards/planted.h"
#include "guards/program.h"
#include "guards/text.h"
#include "guards/thread_state.h"

namespace magneto::guards {

namespace {

/// A failing check is tried first until it has passed this often.
constexpr int32_t kHintPasses = 16;
/// Changes of an op that no snapshot will hold.
constexpr uint8_t kRunsEachTime = UINT8_MAX;

PyObject* load_member(PyObject* object, const void* descriptor) {
  auto* member = static_cast<const PyMemberDescrObject*>(descriptor);
  if (!PyType_IsSubtype(Py_TYPE(object), member->d_common.d_type)) return nullptr;
  PyObject* value = *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + member->d_member->offset);
  return value || member->d_member->type == T_OBJECT_EX ? value : Py_None;
}

PyObject* load_closure_cell(PyObject* function, Py_ssize_t index) {
  PyObject* cells = PyFunction_GET_CLOSURE(function);
  return cells && index < PyTuple_GET_SIZE(cells) ? PyTuple_GET_ITEM(cells, index) : nullptr;
}

PyObject* load_closure(PyObject* function, Py_ssize_t index) {
  PyObject* cell = load_closure_cell(function, index);
  return cell ? PyCell_GET(cell) : nullptr;
}

/// A method of a C type, whatever it is bound to; method wrappers are told apart by what sources read of them.
bool same_method(PyObject* a, PyObject* b) {
  if (Py_TYPE(a) != Py_TYPE(b)) return false;
  return !PyCFunction_Check(a) ||
         reinterpret_cast<PyCFunctionObject*>(a)->m_ml == reinterpret_cast<PyCFunctionObject*>(b)->m_ml;
}

bool same_function(const Check& check, PyObject* object) {
  auto* function = reinterpret_cast<PyFunctionObject*>(object);
  return Py_IS_TYPE(object, &PyFunction_Type) && function->func_code == check.object.get() &&
         function->func_defaults == check.defaults.get() && function->func_kwdefaults == check.kwdefaults.get();
}

/// Asked anew: nothing tells when such a state changes.
bool check_state(const Check& check) {
  c10::SmallVector<PyObject*, 4> args;
  for (const Ref& arg : check.keys) args.push_back(arg.get());
  Ref now = Ref::steal(PyObject_Vectorcall(check.function.get(), args.data(), args.size(), nullptr));
  if (!now) PyErr_Clear();
  return now && constants_equal(check.object.get(), now.get());
}

/// What has failed was in a snapshot. Entries that are called in turn fail so at every other call: no snapshot should
/// be lost to it again.
void leave_out_hint(GuardProgram::Impl& program) {
  if (program.changes.ops.empty() || program.ops[program.hint.back()].kind == OpKind::CheckAllDistinct) return;
  for (const int32_t op : program.hint) program.changes.ops[op] = kRunsEachTime;
}

}  // namespace

bool GuardProgram::Impl::load_number(const Op& op) {
  PyObject* left = slots.values[op.other];
  const auto other = static_cast<int32_t>(op.number >> 8);
  PyObject* right = other < 0 ? nullptr : slots.values[other];
  Ref made;
  const bool is_call = static_cast<Arithmetic>(op.number & 255) == Arithmetic::Call;
  const auto is_operand = [&](PyObject* value) { return value && (is_number(value) || (is_call && is_tensor(value))); };
  if (is_operand(left) && (other < 0 || is_operand(right))) {
    auto* function = op.object();
    made = compute(static_cast<Arithmetic>(op.number & 255), left, right, function);
    if (!made) PyErr_Clear();  // the program raises here: that is for a capture to see
  }
  slots.computed[op.slot] = made;
  return store(op, made.get());
}

bool GuardProgram::Impl::load_size(const Op& op) {
  PyObject* object = slots.values[op.other];
  Ref size;
  if (object && op.number < THPVariable_Unpack(object).dim()) {
    size = Ref::steal(PyLong_FromLongLong(THPVariable_Unpack(object).size(op.number)));
    if (!size) PyErr_Clear();
  }
  slots.computed[op.slot] = size;
  return store(op, size.get());
}

bool GuardProgram::Impl::load_deque_item(const Op& op) {
  PyObject* deque = slots.values[op.other];
  Ref item;
  if (deque && op.number >= 0) item = Ref::steal(deque_type()->tp_as_sequence->sq_item(deque, op.number));
  if (deque && op.number < 0) item = deque_limit(deque);
  if (!item) PyErr_Clear();
  PyObject* value = item.get();
  slots.computed[op.slot] = op.number < 0 ? std::move(item) : Ref();  // the deque holds its items
  return store(op, value);
}

bool GuardProgram::Impl::load_draw(const Op& op) {
  Ref drawn = peek_random(slots.values[op.other], op.number);
  if (!drawn) PyErr_Clear();
  slots.computed[op.slot] = drawn;
  return store(op, drawn.get());
}

bool GuardProgram::Impl::store(const Op& op, PyObject* value) {
  slots.values[op.slot] = value;
  return (value == nullptr) == op.absent;
}

bool GuardProgram::Impl::enter(Group& group, PyObject* dict, const Roots& roots) {
  if (group.remembers(dict)) return true;
  group.dict = nullptr;
  if (!groups.read(group, dict, slots.values.data(), failed)) return false;
  for (int32_t i = group.first_fixed; i < group.last_fixed; ++i) {
    if (!step(groups.fixed[i], roots)) return false;
  }
  group.remember(dict);
  return true;
}

bool GuardProgram::Impl::check_all_distinct(DistinctSet& set) {
  snapshot.valid = false;  // which has its own use for what the set has seen
  return set.all_distinct(slots.values, failed);
}

inline bool GuardProgram::Impl::step(const Op& op, const Roots& roots) {
  auto fail = [&] {
    failed.op = &op;
    return false;
  };
  auto stored = [&](PyObject* value) { return store(op, value) || fail(); };
  auto entered = [&](PyObject* dict) {
    if (enter(groups.all[op.number], dict, roots)) return true;
    if (!failed.op) failed.op = &op;
    return false;
  };
  // A base of another kind than the capture saw: even an absent source fails then.
  auto wrong_base = [&] {
    slots.values[op.slot] = nullptr;
    return fail();
  };
  PyObject* base = op.other >= 0 ? slots.values[op.other] : nullptr;
  PyObject* value = op.slot >= 0 ? slots.values[op.slot] : nullptr;
  switch (op.kind) {
    case OpKind::LoadLocal:
      return stored(roots.locals[op.number]);
    case OpKind::LoadStack:
      return stored(roots.stack[op.number]);
    case OpKind::LoadFunction:
      return stored(roots.function);
    case OpKind::LoadConst:
      return stored(op.object());
    case OpKind::LoadClosure:
      if (base && !PyFunction_Check(base)) return wrong_base();
      return stored(base ? load_closure(base, op.number) : nullptr);
    case OpKind::LoadClosureCell:
      if (base && !PyFunction_Check(base)) return wrong_base();
      return stored(base ? load_closure_cell(base, op.number) : nullptr);
    case OpKind::LoadCell:
      if (base && !PyCell_Check(base)) return wrong_base();
      return stored(base ? PyCell_GET(base) : nullptr);
    case OpKind::LoadMember:
      return stored(base ? load_member(base, op.pointer) : nullptr);
    case OpKind::LoadInstanceDict:
      return stored(base ? make_instance_dict(base) : nullptr);
    case OpKind::LoadSeqItem:
      if (!base) return stored(nullptr);
      if (PyList_Check(base)) {
        return stored(op.number < PyList_GET_SIZE(base) ? PyList_GET_ITEM(base, op.number) : nullptr);
      }
      if (!PyTuple_Check(base)) return wrong_base();
      return stored(op.number < PyTuple_GET_SIZE(base) ? PyTuple_GET_ITEM(base, op.number) : nullptr);
    case OpKind::LoadBoundSelf:
      if (base && !PyMethod_Check(base)) return wrong_base();
      return stored(base ? PyMethod_GET_SELF(base) : nullptr);
    case OpKind::LoadBoundFunction:
      if (base && !PyMethod_Check(base)) return wrong_base();
      return stored(base ? PyMethod_GET_FUNCTION(base) : nullptr);
    case OpKind::LoadNumber:
      return load_number(op) || fail();
    case OpKind::LoadSize:
      if (base && !is_tensor(base)) return wrong_base();
      return load_size(op) || fail();
    case OpKind::LoadDraw:
      if (!base) return wrong_base();
      return load_draw(op) || fail();
    case OpKind::LoadDequeItem:
      if (base && !PyObject_TypeCheck(base, deque_type())) return wrong_base();
      return load_deque_item(op) || fail();
    case OpKind::LoadContextValue:
      return stored(base ? context_value(base) : nullptr);
    case OpKind::LoadThreadDict:
      return stored(base ? thread_dict(base) : nullptr);
    case OpKind::LoadGrad:
      if (base && !is_tensor(base)) return wrong_base();
      return stored(base ? load_grad(base) : nullptr);
    case OpKind::InstanceEntries:
      return entered(value ? instance_dict(value) : nullptr);
    case OpKind::DictEntries:
      return value && !PyDict_Check(value) ? fail() : entered(value);
    case OpKind::CheckType:
      return (value && Py_TYPE(value) == op.pointer) || fail();
    case OpKind::CheckIdentity:
      return value == op.pointer || fail();
    case OpKind::CheckReferent:
      return (value && value != Py_None && value == PyWeakref_GET_OBJECT(op.object())) || fail();
    case OpKind::CheckEquals:
      return value == op.pointer || (value && constants_equal(op.object(), value)) || fail();
    case OpKind::CheckItemCount:
      return (value && Py_TYPE(value) == op.pointer && Py_SIZE(value) == op.number) || fail();
    case OpKind::CheckDictLength:
      return (value && Py_TYPE(value) == op.pointer && dict_length(value) == op.number) || fail();
    case OpKind::CheckSetLength:
      return (value && Py_TYPE(value) == op.pointer && PySet_GET_SIZE(value) == op.number) || fail();
    case OpKind::CheckKeys:
      return (value && Py_TYPE(value) == op.pointer && has_keys(value, checks[op.check].keys)) || fail();
    case OpKind::CheckTensor:
      return (value && tensor_matches(*static_cast<const TensorCheck*>(op.pointer), value)) || fail();
    case OpKind::CheckTensorData:
      return (value && data_matches(value, op.object())) || fail();
    case OpKind::CheckArray:
      return (value && has_layout(value, op.object())) || fail();
    case OpKind::CheckBuiltinMethod:
      return (value && same_method(value, op.object())) || fail();
    case OpKind::CheckAlias:
      return value == base || fail();
    case OpKind::CheckDistinct:
      return value != base || fail();
    case OpKind::CheckAllDistinct:
      return check_all_distinct(distinct_sets[op.number]) || fail();
    case OpKind::CheckSizes:
      return size_checks[op.number].holds(slots.values.data()) || fail();
    case OpKind::CheckFunction:
      return (value && same_function(checks[op.check], value)) || fail();
    case OpKind::CheckAbcRegistrations:
      return count_abc_registrations() == op.number || fail();
    case OpKind::CheckState:
      return check_state(checks[op.check]) || fail();
    case OpKind::CheckTypeAttributes:
      return types[op.number].hold(checks, failed) || fail();
    case OpKind::CheckPlanted:
      return weaker_holds(static_cast<Weaker>(op.number), checks[op.check], value) || fail();
  }
  return fail();
}

bool GuardProgram::Impl::run_hint(const Roots& roots) {
  if (hint.empty()) return true;
  for (int32_t index : hint) {
    if (!step(ops[index], roots)) {
      hint_passes = 0;
      return false;
    }
  }
  if (++hint_passes == kHintPasses) hint.clear();
  return true;
}

bool GuardProgram::Impl::check(const Roots& roots) {
  if (global_state && !(*global_state == GlobalState::read())) return false;
  // A hint may load what the snapshot has values of: right if all turns out unchanged, else not to be relied on.
  const bool mixes = snapshot.valid && std::ranges::any_of(hint, [&](int32_t op) { return steady[op] != 0; });
  Answer answer = Answer::Fails;
  if (run_hint(roots)) answer = snapshot.valid ? run_snapshot(roots) : Answer::Changed;
  if (answer == Answer::Holds) return true;
  if (answer == Answer::Fails) {
    if (mixes) {
      snapshot.valid = false;
      leave_out_hint(*this);
    }
    return false;
  }
  if (!run(roots)) return false;
  take_snapshot();
  return true;
}

bool GuardProgram::Impl::run(const Roots& roots) {
  snapshot.valid = false;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (step(ops[i], roots)) continue;
    remember_failure(static_cast<int32_t>(i));
    leave_out_hint(*this);
    return false;
  }
  return true;
}

Failure GuardProgram::Impl::explain(const Roots& roots) {
  failed = {};
  if (global_state) {
    const std::string difference = global_state->difference(GlobalState::read());
    if (!difference.empty()) return {"global state: " + difference, ""};
  }
  return run(roots) ? Failure{} : describe_failure();
}

std::vector<Failure> GuardProgram::Impl::explain_all(const Roots& roots) {
  std::vector<Failure> failures;
  if (global_state) {
    const std::string difference = global_state->difference(GlobalState::read());
    if (!difference.empty()) failures.push_back({"global state: " + difference, ""});
  }
  snapshot.valid = false;
  // What hangs on a value that is another one than the capture saw can't be looked at.
  std::vector<bool> unusable(slots.values.size(), false);
  const auto is_unusable = [&](int32_t slot) { return slot >= 0 && unusable[slot]; };
  for (const Op& op : ops) {
    bool skipped = is_unusable(op.other) || (!is_load(op.kind) && is_unusable(op.slot)) ||
                   (op.kind == OpKind::LoadNumber && is_unusable(static_cast<int32_t>(op.number >> 8)));
    if (op.kind == OpKind::CheckAllDistinct) skipped = std::ranges::any_of(distinct_sets[op.number].slots, is_unusable);
    if (op.kind == OpKind::CheckSizes) skipped = std::ranges::any_of(size_checks[op.number].slots(), is_unusable);
    failed = {};
    if (!skipped && step(op, roots)) continue;
    if (!skipped) failures.push_back(describe_failure());
    if (op.slot >= 0) unusable[op.slot] = true;
    for_each_written(op, [&](int32_t slot) {
      unusable[slot] = true;
      slots.values[slot] = nullptr;
    });
  }
  return failures;
}

std::vector<double> GuardProgram::Impl::time_ops(const Roots& roots) {
  using Clock = std::chrono::steady_clock;
  constexpr int kRounds = 2, kSteps = 3;
  if (!run(roots)) return {};
  std::vector<double> least(ops.size());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < ops.size(); ++i) {
      const auto begin = Clock::now();
      for (int again = 0; again < kSteps; ++again) step(ops[i], roots);
      const double time = std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / kSteps;
      if (round == 0 || time < least[i]) least[i] = time;
    }
  }
  // Reading the clock takes time, too: what the quickest op seems to take is nearly all that.
  const double clock = least.empty() ? 0 : std::max(0.0, *std::ranges::min_element(least) - 1);
  for (double& time : least) time -= clock;
  return least;
}

void GuardProgram::Impl::remember_failure(int32_t failed) {
  hint = {failed};
  hint_passes = 0;
  std::vector<bool> needed(ops.size(), false);
  needed[failed] = true;
  auto need = [&](int32_t slot) {
    if (slot < 0 || slots.writer[slot] < 0 || needed[slots.writer[slot]]) return;
    needed[slots.writer[slot]] = true;
    hint.push_back(slots.writer[slot]);
  };
  for (size_t next = 0; next < hint.size(); ++next) {
    const Op& op = ops[hint[next]];
    need(op.slot);
    need(op.other);
    if (op.kind == OpKind::LoadNumber) need(static_cast<int32_t>(op.number >> 8));
    if (op.kind == OpKind::CheckSizes) {
      for (int32_t slot : size_checks[op.number].slots()) need(slot);
    }
    if (op.kind != OpKind::CheckAllDistinct) continue;
    for (int32_t slot : distinct_sets[op.number].slots) need(slot);
  }
  std::sort(hint.begin(), hint.end());
}

Failure GuardProgram::Impl::describe_failure() {
  if (failed.check >= 0)
    return {check_failure(checks[failed.check], nullptr, nullptr), place_of(&checks[failed.check])};
  const auto presence = [&](int32_t slot, bool present) {
    return presence_text(slots.sources[slot], present, Names(&slots.sources[slot]));
  };
  if (failed.entry >= 0) {
    const GroupEntry& entry = groups.entries[failed.entry];
    const std::string text = presence(entry.slot, !entry.absent);
    return {failed.unknown ? text + ": only a key's own __eq__ could tell" : text, place_below(entry.slot)};
  }
  const Op& op = *failed.op;
  if (op.kind == OpKind::CheckAllDistinct) {
    const std::string first = slots.sources[failed.slots[0]].name(), second = slots.sources[failed.slots[1]].name();
    return {first + " is not " + second + ": they are one object now", place_below(failed.slots[0])};
  }
  if (op.kind == OpKind::CheckSizes) {
    const SizeAssumptions& assumptions = *checks[op.check].sizes;
    const std::string text = size_checks[op.number].failure(slots.values.data(), assumptions);
    const auto relation = static_cast<size_t>(relation_of_line(text, assumptions));  // none: out of range
    return {text, relation < lines.of_sizes.size() ? lines.of_sizes[relation] : ""};
  }
  PyObject* value = op.slot >= 0 ? slots.values[op.slot] : nullptr;
  const std::string place = op.check >= 0 ? place_of(&checks[op.check]) : op.slot >= 0 ? place_below(op.slot) : "";
  if (op.kind == OpKind::CheckTensor && value) {
    return {tensor_mismatch(*static_cast<const TensorCheck*>(op.pointer), value, slots.sources[op.slot].name()), place};
  }
  if (op.check >= 0)
    return {check_failure(checks[op.check], value, op.other >= 0 ? slots.values[op.other] : nullptr), place};
  if (op.kind == OpKind::DictEntries) return {"isinstance(" + slots.sources[op.slot].name() + ", dict)", place};
  return {presence(op.slot, !op.absent), place};
}

std::string GuardProgram::Impl::place_below(int32_t slot) const {
  for (const Check& check : checks) {
    for (const Source* source = check.source; source; source = source->base) {
      if (source == &slots.sources[slot]) return place_of(&check);
    }
  }
  return "";
}

GuardProgram::GuardProgram(const GuardSet& set, const SourceTable& sources)
    : impl_(std::make_unique<Impl>(set, sources)) {}

GuardProgram::GuardProgram(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

GuardProgram::~GuardProgram() {
  if (on_end) on_end();
}

int32_t GuardProgram::slot_count() const { return static_cast<int32_t>(impl_->slots.values.size()); }

int32_t GuardProgram::slot_of(const Source* source) const { return impl_->slots.of(source); }

PyObject* const* GuardProgram::check(const Roots& roots) {
  return impl_->check(roots) ? impl_->slots.values.data() : nullptr;
}

bool GuardProgram::would_hold(const Roots& roots) {
  if (impl_->global_state && !(*impl_->global_state == GlobalState::read())) return false;
  impl_->snapshot.valid = false;  // the slots get other values
  return std::ranges::all_of(impl_->ops, [&](const Op& op) { return impl_->step(op, roots); });
}

std::unique_ptr<GuardProgram> GuardProgram::copy() const {
  return std::unique_ptr<GuardProgram>(new GuardProgram(std::make_unique<Impl>(*impl_)));
}

bool GuardProgram::failed_on_data() const {
  return impl_->failed.op && impl_->failed.op->kind == OpKind::CheckTensorData;
}

std::string GuardProgram::explain(const Roots& roots) { return impl_->explain(roots).text; }

std::vector<std::string> GuardProgram::explain_all(const Roots& roots) {
  std::vector<std::string> texts;
  for (Failure& failure : impl_->explain_all(roots)) texts.push_back(std::move(failure.text));
  return texts;
}

Failure failure_of(GuardProgram& program, const Roots& roots) { return program.impl().explain(roots); }

std::vector<Failure> failures_of(GuardProgram& program, const Roots& roots) {
  return program.impl().explain_all(roots);
}

int GuardProgram::traverse(visitproc visit, void* arg) const {
  for (const Source& source : impl_->slots.sources) Py_VISIT(source.key.get());
  for (const Check& check : impl_->checks) {
    Py_VISIT(check.type.get());
    Py_VISIT(check.object.get());
    Py_VISIT(check.defaults.get());
    Py_VISIT(check.kwdefaults.get());
    Py_VISIT(check.name.get());
    Py_VISIT(check.function.get());
    for (const Ref& key : check.keys) Py_VISIT(key.get());
  }
  for (const Ref& value : impl_->equal_constants) Py_VISIT(value.get());
  for (const Ref& value : impl_->slots.computed) Py_VISIT(value.get());
  return 0;
}

}  // namespace magneto::guards
