#include "guards/snapshot.h"

#include <structmember.h>

#include <algorithm>
#include <utility>

#include "guards/constants.h"
#include "guards/objects.h"
#include "guards/planted.h"
#include "guards/program.h"

namespace magneto::guards {

namespace {

/// What has changed so often in a row of short-lived snapshots leaves them.
constexpr uint8_t kMostChanges = 3;
/// A snapshot that has answered so often was worth taking, whatever changed then.
constexpr int32_t kLongLife = 16;

}  // namespace

bool Words::add(const void* address) {
  const auto* word = static_cast<const uint64_t*>(address);
  if (!origin_) origin_ = word;
  const ptrdiff_t place = word - origin_;
  if (place != static_cast<int32_t>(place) || origin_ + place != word) return false;
  places_.push_back(static_cast<int32_t>(place));
  values_.push_back(*word);
  return true;
}

void Words::shrink(size_t count) {
  places_.resize(count);
  values_.resize(count);
}

bool Words::equal(size_t first, const Words& other, size_t other_first, size_t other_last) const {
  if (size() - first != other_last - other_first) return false;
  for (size_t i = other_first; i < other_last; ++i, ++first) {
    if (origin_ + places_[first] != other.origin_ + other.places_[i] || values_[first] != other.values_[i])
      return false;
  }
  return true;
}

bool WordReader::add_type(PyObject* object, bool owned) { return owned || add(&object->ob_type); }

bool WordReader::add_version(PyObject* dict) { return keeps_version(dict) && add(dict_version_place(dict)); }

bool WordReader::add_dict_of(PyObject* object) {
  const void* place = instance_dict_place(object);
  return place && add(place);
}

bool WordReader::collect(const Op& op, bool owned) {
  PyObject* base = op.other >= 0 ? values_[op.other] : nullptr;
  PyObject* value = op.slot >= 0 ? values_[op.slot] : nullptr;
  switch (op.kind) {
    case OpKind::LoadClosure:
    case OpKind::LoadClosureCell: {
      if (!base) return true;  // what is absent there follows from what is in front
      auto* function = reinterpret_cast<PyFunctionObject*>(base);
      add_type(base, owned);
      add(&function->func_closure);
      if (!function->func_closure || op.number >= PyTuple_GET_SIZE(function->func_closure)) return true;
      PyObject** place = &PyTuple_GET_ITEM(function->func_closure, op.number);
      add(place);
      return op.kind == OpKind::LoadClosureCell || add(&reinterpret_cast<PyCellObject*>(*place)->ob_ref);
    }
    case OpKind::LoadCell:
      return !base || (add_type(base, owned) && add(&reinterpret_cast<PyCellObject*>(base)->ob_ref));
    case OpKind::LoadMember: {
      if (!base) return true;
      add(&base->ob_type);
      const auto* member = static_cast<const PyMemberDescrObject*>(op.pointer);
      if (!PyType_IsSubtype(Py_TYPE(base), member->d_common.d_type)) return true;
      return add(reinterpret_cast<char*>(base) + member->d_member->offset);
    }
    case OpKind::LoadInstanceDict:
      return !base || (add_type(base, owned) && add_dict_of(base));
    case OpKind::LoadSeqItem: {
      if (!base) return true;
      add_type(base, owned);
      add(&reinterpret_cast<PyVarObject*>(base)->ob_size);
      if (PyList_Check(base)) add(&reinterpret_cast<PyListObject*>(base)->ob_item);
      return op.number >= Py_SIZE(base) || add(PySequence_Fast_ITEMS(base) + op.number);
    }
    case OpKind::LoadBoundSelf:
      return !base || (add_type(base, owned) && add(&reinterpret_cast<PyMethodObject*>(base)->im_self));
    case OpKind::LoadBoundFunction:
      return !base || (add_type(base, owned) && add(&reinterpret_cast<PyMethodObject*>(base)->im_func));
    case OpKind::InstanceEntries: {
      if (!value) return true;
      PyObject* dict = instance_dict(value);
      return dict && add_type(value, owned) && add_dict_of(value) && add_version(dict);
    }
    case OpKind::DictEntries:
      return !value || (add_type(value, owned) && add_version(value));
    case OpKind::CheckType:
      return add(&value->ob_type);
    case OpKind::CheckBuiltinMethod:  // another one may lie where it was
      add(&value->ob_type);
      return !PyCFunction_Check(value) || add(&reinterpret_cast<PyCFunctionObject*>(value)->m_ml);
    case OpKind::CheckReferent:  // another one may lie where it was
      return add(&static_cast<PyWeakReference*>(const_cast<void*>(op.pointer))->wr_object);
    case OpKind::CheckIdentity:
    case OpKind::CheckAlias:
    case OpKind::CheckDistinct:
      return true;  // of objects that are the same as they were
    case OpKind::CheckEquals:
      return is_constant(value) || PyFrozenSet_CheckExact(value);  // kept alive: the same object is the same value
    case OpKind::CheckItemCount:
      return add(&value->ob_type) && add(&reinterpret_cast<PyVarObject*>(value)->ob_size);
    case OpKind::CheckKeys:
      if (!order_has_version(Py_TYPE(value))) add(order_count_place(value));
      [[fallthrough]];
    case OpKind::CheckDictLength:
      return add_type(value, owned && keeps_type(Py_TYPE(value))) && add_version(value);
    case OpKind::CheckSetLength:
      return add(&value->ob_type) && add(&reinterpret_cast<PySetObject*>(value)->used);
    case OpKind::CheckFunction: {
      auto* function = reinterpret_cast<PyFunctionObject*>(value);
      return add_type(value, owned) && add(&function->func_code) && add(&function->func_defaults) &&
             add(&function->func_kwdefaults);
    }
    case OpKind::LoadLocal:
    case OpKind::LoadStack:
    case OpKind::LoadFunction:
    case OpKind::LoadConst:
    case OpKind::LoadNumber:
    case OpKind::LoadSize:
    case OpKind::LoadDraw:
    case OpKind::LoadDequeItem:
    case OpKind::LoadContextValue:
    case OpKind::LoadThreadDict:
    case OpKind::LoadGrad:
    case OpKind::CheckTensor:  // has a list of its own
    case OpKind::CheckTensorData:
    case OpKind::CheckArray:
    case OpKind::CheckAllDistinct:
    case OpKind::CheckSizes:
    case OpKind::CheckAbcRegistrations:
    case OpKind::CheckTypeAttributes:
    case OpKind::CheckState:
    case OpKind::CheckPlanted:
      return false;
  }
  return false;
}

// -- taking ----------------------------------------------------------------------------------------------------------

/// Nothing that is reached through the slot belongs in a snapshot: another object is there too often.
void GuardProgram::Impl::let_move(int32_t slot) {
  changes.moves[slot] = true;
  for (const Op& op : ops) {
    const int32_t base = is_group(op.kind) ? op.slot : is_load(op.kind) ? op.other : -1;
    if (base >= 0 && changes.moves[base]) for_each_written(op, [&](int32_t written) { changes.moves[written] = true; });
  }
}

/// False: the op runs each time.
bool GuardProgram::Impl::add_to_snapshot(int32_t index, const Snapshot& before) {
  const Op& op = ops[index];
  const int32_t looked_at = is_load(op.kind) ? op.other : op.slot;
  if (changes.ops[index] >= kMostChanges) return false;
  if ((looked_at >= 0 && changes.moves[looked_at]) || (op.other >= 0 && changes.moves[op.other])) return false;
  if (op.kind == OpKind::CheckTensor) {
    snapshot.tensors.add(slots.values[op.slot], static_cast<const TensorCheck*>(op.pointer));
    return true;
  }
  const int32_t holder = looked_at < 0 ? -1 : slots.owner[looked_at];
  const bool owned = holder == Slots::kConstant || (holder >= 0 && steady[holder]);
  const size_t first = snapshot.words.size();
  if (!WordReader(snapshot.words, slots.values).read(op, owned)) return false;
  if (is_forgotten(op.kind)) snapshot.words.shrink(first);
  if (static_cast<size_t>(index) < before.ends.size()) {
    const size_t then = index ? before.ends[index - 1] : 0, then_last = before.ends[index];
    const bool changed = then != then_last && !snapshot.words.equal(first, before.words, then, then_last);
    if (changed && ++changes.ops[index] >= kMostChanges) return false;
  }
  if (op.kind == OpKind::CheckEquals) {
    equal_constants[index] = Ref::borrow(slots.values[op.slot]);
    ops[index].pointer = slots.values[op.slot];
  }
  return true;
}

void GuardProgram::Impl::prepare_snapshots() {
  steady.assign(ops.size(), 0);
  changes.ops.assign(ops.size(), 0);
  equal_constants.resize(ops.size());
  changes.slots.assign(slots.values.size(), 0);
  changes.moves.assign(slots.values.size(), false);
  for (const Op& op : ops) {
    const bool made = op.kind == OpKind::LoadNumber || op.kind == OpKind::LoadSize || op.kind == OpKind::LoadDraw ||
                      op.kind == OpKind::LoadDequeItem;
    if (made) let_move(op.slot);  // another object at each run
  }
  for (const Op& op : ops) {  // the tensors that a caller passes are others at each call
    if (op.kind == OpKind::CheckTensor && slots.writer[op.slot] >= 0 &&
        ops[slots.writer[op.slot]].kind <= OpKind::LoadStack) {
      let_move(op.slot);
    }
  }
}

void GuardProgram::Impl::take_snapshot() {
  const Snapshot before = std::exchange(snapshot, {});
  if (steady.empty()) prepare_snapshots();
  if (before.uses > kLongLife) {
    std::ranges::fill(changes.ops, 0);
    std::ranges::fill(changes.slots, 0);
  }
  for (const Pin& pin : before.pins) {
    if (pin.value != slots.values[pin.slot] && ++changes.slots[pin.slot] >= kMostChanges) let_move(pin.slot);
  }
  std::vector<bool> needed(slots.values.size(), false);
  for (int32_t i = 0; i < static_cast<int32_t>(ops.size()); ++i) {
    const size_t first = snapshot.words.size();
    steady[i] = add_to_snapshot(i, before);
    if (steady[i]) {
      const Op& op = ops[i];
      if (op.other >= 0) needed[op.other] = true;
      if (op.slot >= 0 && !is_load(op.kind)) needed[op.slot] = true;
    } else {
      snapshot.words.shrink(first);
      snapshot.stretches.push_back({static_cast<int32_t>(first), i, 0});
    }
    snapshot.ends.push_back(static_cast<int32_t>(snapshot.words.size()));
  }
  snapshot.stretches.push_back({static_cast<int32_t>(snapshot.words.size()), -1, 0});
  std::vector<bool> held(slots.values.size(), true);
  for (Stretch& stretch : snapshot.stretches) {
    if (stretch.op >= 0) {
      for_each_written(ops[stretch.op], [&](int32_t slot) {
        held[slot] = needed[slot];
        if (needed[slot]) snapshot.pins.push_back({slot, slots.values[slot]});
      });
    }
    stretch.last_pin = static_cast<int32_t>(snapshot.pins.size());
  }
  for (DistinctSet& set : distinct_sets) set.hold(held, slots.values);
  snapshot.valid = true;
}

// -- comparing -------------------------------------------------------------------------------------------------------

GuardProgram::Impl::Answer GuardProgram::Impl::run_snapshot(const Roots& roots) {
  size_t word = 0;
  const Pin* pin = snapshot.pins.data();
  for (const Stretch& stretch : snapshot.stretches) {
    if (!snapshot.words.hold(word, stretch.last_word)) return Answer::Changed;
    word = stretch.last_word;
    if (stretch.op < 0) break;
    const Op& op = ops[stretch.op];
    if (!(op.kind == OpKind::CheckAllDistinct ? distinct_sets[op.number].moving_distinct(slots.values)
                                              : step(op, roots))) {
      remember_failure(stretch.op);
      return Answer::Fails;
    }
    for (const Pin* last = snapshot.pins.data() + stretch.last_pin; pin != last; ++pin) {
      if (slots.values[pin->slot] != pin->value) return Answer::Changed;
    }
  }
  if (!snapshot.tensors.all_match()) return Answer::Changed;
  ++snapshot.uses;
  return Answer::Holds;
}

}  // namespace magneto::guards
