// Compiling a GuardSet: which values are read, in which order, and what may be remembered.
#include <functional>
#include <map>

#include "guards/constants.h"
#include "guards/objects.h"
#include "guards/planted.h"
#include "guards/program.h"

namespace magneto::guards {

namespace {

struct GroupPlan {
  bool on_instance;  // the base's instance dict, or the base itself
  int32_t base;
  std::vector<int32_t> entries;  // slots
  std::vector<Op> fixed;
  bool emitted = false;
};

class Compiler {
 public:
  Compiler(GuardProgram::Impl& program, const GuardSet& set, const SourceTable& table)
      : program_(program), set_(set.impl()), table_(table) {}

  void compile() {
    program_.global_state = set_.global_state;
    choose_sources();
    copy_checks();
    plan_groups();
    emit_roots();
    emit_type_attributes();
    for (int32_t slot = 0; slot < slot_count(); ++slot) {
      emit_load(slot);
      for (int32_t check : checks_of_[slot]) emit_check(check);
      for (int32_t check : pairs_of_[slot]) emit_check(check);
    }
    for (size_t i = 0; i < program_.checks.size(); ++i) {
      if (program_.checks[i].kind == CheckKind::AllDistinct) emit_all_distinct(static_cast<int32_t>(i));
      if (program_.checks[i].kind == CheckKind::Sizes) emit_sizes(static_cast<int32_t>(i));
    }
    flatten_groups();
    for (int32_t slot = 0; slot < slot_count(); ++slot) {
      if (owner_[slot] >= 0) program_.slots.owner[slot] = group_op_[owner_[slot]];
    }
  }

 private:
  int32_t slot_count() const { return program_.slots.count(); }
  const Source& source(int32_t slot) const { return program_.slots.sources[slot]; }
  int32_t slot_of(const Source* source) const { return program_.slots.by_source[source->id]; }
  static bool is_root(const Source& source) {
    return source.kind == SourceKind::Local || source.kind == SourceKind::Stack || source.kind == SourceKind::Function;
  }

  /// Gives a slot to each source that a check names and to its bases, in order of creation: bases come first.
  void choose_sources() {
    std::vector<bool> wanted(table_.all().size(), false);
    const std::function<void(const Source*)> want = [&](const Source* source) {
      for (; source && !wanted[source->id]; source = source->base) {
        wanted[source->id] = true;
        want(source->other);
      }
    };
    for (const Check& check : set_.checks) {
      want(check.source);
      want(check.other);
      for (const Source* each : check.sources) want(each);
    }
    program_.slots.by_source.assign(wanted.size(), -1);
    for (const auto& original : table_.all()) {
      if (!wanted[original->id]) continue;
      int32_t slot = slot_count();
      program_.slots.by_source[original->id] = slot;
      program_.slots.sources.push_back(*original);
      Source& copy = program_.slots.sources.back();
      const auto copy_of = [&](const Source* old) { return old ? &program_.slots.sources[slot_of(old)] : nullptr; };
      copy.base = copy_of(original->base);
      copy.other = copy_of(original->other);
      base_.push_back(original->base ? slot_of(original->base) : -1);
      other_.push_back(original->other ? slot_of(original->other) : -1);
    }
    program_.slots.resize();
    for (const auto* bases : {&base_, &other_}) {
      for (int32_t base : *bases) {
        if (base >= 0) program_.slots.bare[base] = false;
      }
    }
    absent_.assign(slot_count(), false);
    loaded_.assign(slot_count(), false);
    owner_.assign(slot_count(), -1);
    checks_of_.resize(slot_count());
    pairs_of_.resize(slot_count());
  }

  void copy_checks() {
    program_.checks = set_.checks;
    std::vector<std::string> places;
    for (const UserPlace& place : set_.user_places) places.push_back(place.text());
    program_.lines = {set_.places, std::move(places), set_.size_places};
    program_.lines.by_check.resize(set_.places.empty() ? 0 : program_.checks.size(), 0);
    slot_of_check_.assign(program_.checks.size(), -1);
    other_of_check_.assign(program_.checks.size(), -1);
    emitted_.assign(program_.checks.size(), false);
    size_t tensors = 0, dimensions = 0;
    for (size_t i = 0; i < program_.checks.size(); ++i) {
      Check& check = program_.checks[i];
      for (const Source*& each : check.sources) {
        each = &source(slot_of(each));
        program_.slots.bare[slot_of(each)] = false;
      }
      if (!check.source) continue;
      int32_t slot = slot_of(check.source);
      check.source = &source(slot);
      slot_of_check_[i] = slot;
      if (check.kind == CheckKind::Require) continue;
      program_.slots.bare[slot] = false;
      if (check.kind == CheckKind::Absent) {
        absent_[slot] = true;
      } else if (check.other) {
        int32_t other = slot_of(check.other);
        check.other = &source(other);
        program_.slots.bare[other] = false;
        other_of_check_[i] = other;
        pairs_of_[std::max(slot, other)].push_back(static_cast<int32_t>(i));
      } else {
        checks_of_[slot].push_back(static_cast<int32_t>(i));
      }
      if (check.tensor) {
        ++tensors;
        dimensions += 2 * check.tensor->sizes.size();
      }
    }
    program_.tensors.reserve(tensors, dimensions);
  }

  void plan_groups() {
    for (int32_t slot = 0; slot < slot_count(); ++slot) {
      SourceKind kind = source(slot).kind;
      if (kind != SourceKind::Attr && kind != SourceKind::DictItem) continue;
      int32_t group = group_on(base_[slot], kind == SourceKind::Attr);
      plans_[group].entries.push_back(slot);
      owner_[slot] = group;
    }
    // A check of a dict's keys is remembered by the dict's version, as its entries are.
    for (size_t i = 0; i < program_.checks.size(); ++i) {
      if (program_.checks[i].kind == CheckKind::DictKeys) group_on(slot_of_check_[i], false);
    }
  }

  int32_t group_on(int32_t base, bool on_instance) {
    auto [known, added] = group_by_base_.emplace(std::pair(base, on_instance), static_cast<int32_t>(plans_.size()));
    if (added) plans_.push_back({on_instance, base});
    return known->second;
  }

  /// First what the caller passes, and of it first the tensors: cheap, and what changes most.
  void emit_roots() {
    for (int32_t slot = 0; slot < slot_count(); ++slot) {
      if (is_root(source(slot))) emit_load(slot);
    }
    for (int32_t slot = 0; slot < slot_count(); ++slot) {
      if (!is_root(source(slot))) continue;
      for (int32_t check : checks_of_[slot]) {
        if (program_.checks[check].kind == CheckKind::Tensor) emit_check(check);
      }
    }
  }

  /// And the state of the process.
  void emit_type_attributes() {
    std::map<PyTypeObject*, int32_t> by_type;
    for (size_t i = 0; i < program_.checks.size(); ++i) {
      const Check& check = program_.checks[i];
      if (check.kind == CheckKind::AbcRegistrations) {
        program_.ops.push_back({.kind = OpKind::CheckAbcRegistrations,
                                .check = static_cast<int32_t>(i),
                                .number = static_cast<int64_t>(check.length)});
      }
      if (check.kind == CheckKind::State) {
        program_.ops.push_back({.kind = OpKind::CheckState, .check = static_cast<int32_t>(i)});
      }
      if (check.kind != CheckKind::TypeLookup && check.kind != CheckKind::Bases) continue;
      auto [known, added] = by_type.emplace(check.python_type(), static_cast<int32_t>(program_.types.size()));
      if (added) {
        program_.types.push_back({check.python_type()});
        program_.ops.push_back({.kind = OpKind::CheckTypeAttributes, .number = known->second});
      }
      program_.types[known->second].checks.push_back(static_cast<int32_t>(i));
    }
  }

  /// Places an op among those that run each time, or, if its outcome depends only on the values of a group, there.
  void place(Op op, int32_t group) {
    bool writes = op.kind <= OpKind::LoadGrad;
    if (group < 0) {
      if (writes) program_.slots.writer[op.slot] = static_cast<int32_t>(program_.ops.size());
      program_.ops.push_back(op);
      return;
    }
    emit_group(group);
    if (writes) {
      program_.slots.writer[op.slot] = group_op_[group];
      owner_[op.slot] = group;
    }
    plans_[group].fixed.push_back(op);
  }

  void emit_group(int32_t group) {
    GroupPlan& plan = plans_[group];
    if (plan.emitted) return;
    plan.emitted = true;
    auto position = static_cast<int32_t>(program_.ops.size());
    group_op_[group] = position;
    program_.ops.push_back(
        {.kind = plan.on_instance ? OpKind::InstanceEntries : OpKind::DictEntries, .slot = plan.base, .number = group});
    for (int32_t slot : plan.entries) {
      program_.slots.writer[slot] = position;
      loaded_[slot] = true;
    }
  }

  void emit_load(int32_t slot) {
    if (loaded_[slot]) return;
    loaded_[slot] = true;
    const Source& from = source(slot);
    int32_t base = base_[slot];
    Op op{.slot = slot, .other = base, .number = from.index};
    op.absent = absent_[slot];
    op.pointer = from.key.get();
    int32_t group = -1;
    switch (from.kind) {
      case SourceKind::Attr:
      case SourceKind::DictItem:
        return emit_group(owner_[slot]);
      case SourceKind::Local:
        op.kind = OpKind::LoadLocal;
        break;
      case SourceKind::Stack:
        op.kind = OpKind::LoadStack;
        break;
      case SourceKind::Function:
        op.kind = OpKind::LoadFunction;
        break;
      case SourceKind::Const:
        program_.slots.values[slot] = from.key.get();
        program_.slots.owner[slot] = Slots::kConstant;
        if (!op.absent) return;  // a constant is always there
        op.kind = OpKind::LoadConst;
        break;
      case SourceKind::Closure:
        op.kind = OpKind::LoadClosure;
        break;
      case SourceKind::ClosureCell:
        op.kind = OpKind::LoadClosureCell;
        break;
      case SourceKind::Cell:
        op.kind = OpKind::LoadCell;
        break;
      case SourceKind::Slot:
        op.kind = OpKind::LoadMember;
        break;
      case SourceKind::InstanceDict:
        op.kind = OpKind::LoadInstanceDict;
        break;
      case SourceKind::SeqItem:
        op.kind = OpKind::LoadSeqItem;
        if (is_known_tuple(base)) group = owner_[base];
        break;
      case SourceKind::BoundSelf:  // methods are immutable
        op.kind = OpKind::LoadBoundSelf;
        group = owner_[base];
        break;
      case SourceKind::BoundFunction:
        op.kind = OpKind::LoadBoundFunction;
        group = owner_[base];
        break;
      case SourceKind::Number:
        op.kind = OpKind::LoadNumber;
        op.number = static_cast<int64_t>(other_[slot]) << 8 | from.index;
        break;
      case SourceKind::Size:
        op.kind = OpKind::LoadSize;
        break;
      case SourceKind::Draw:
        op.kind = OpKind::LoadDraw;
        break;
      case SourceKind::DequeItem:
        op.kind = OpKind::LoadDequeItem;
        break;
      case SourceKind::ContextValue:
        op.kind = OpKind::LoadContextValue;
        break;
      case SourceKind::ThreadDict:
        op.kind = OpKind::LoadThreadDict;
        break;
      case SourceKind::Grad:
        op.kind = OpKind::LoadGrad;
        break;
    }
    place(op, group);
  }

  bool is_known_tuple(int32_t slot) const {
    for (int32_t index : checks_of_[slot]) {
      const Check& check = program_.checks[index];
      if ((check.kind == CheckKind::Type || check.kind == CheckKind::Length) && keeps_type(check.python_type()) &&
          PyType_FastSubclass(check.python_type(), Py_TPFLAGS_TUPLE_SUBCLASS)) {
        return true;
      }
      if (check.kind == CheckKind::Equals && PyTuple_CheckExact(check.object.get())) return true;
    }
    return false;
  }

  /// Another check of the same source compares the same type.
  bool implied(const Check& type, int32_t slot) const {
    for (int32_t index : checks_of_[slot]) {
      const Check& check = program_.checks[index];
      if (&check == &type) continue;
      if (check.type.get() == type.type.get()) return true;
      if (check.kind == CheckKind::Equals && Py_TYPE(check.object.get()) == type.python_type()) return true;
      if (check.kind == CheckKind::Function && type.python_type() == &PyFunction_Type) return true;
    }
    return false;
  }

  void emit_check(int32_t index) {
    if (emitted_[index]) return;
    emitted_[index] = true;
    const Check& check = program_.checks[index];
    int32_t slot = slot_of_check_[index];
    int32_t owner = owner_[slot];
    Op op{.slot = slot, .check = index, .pointer = check.type.get()};
    switch (check.kind) {
      case CheckKind::Type:
        if (implied(check, slot)) return;
        op.kind = OpKind::CheckType;
        return place(op, keeps_type(check.python_type()) ? owner : -1);
      case CheckKind::Identity:
        op.kind = check.weakly ? OpKind::CheckReferent : OpKind::CheckIdentity;
        op.pointer = check.object.get();
        return place(op, owner);
      case CheckKind::Equals:
        op.kind = OpKind::CheckEquals;
        op.pointer = check.object.get();
        return place(op, PySet_CheckExact(check.object.get()) ? -1 : owner);
      case CheckKind::Length:
        return emit_length(op, check, owner);
      case CheckKind::DictKeys:
        op.kind = OpKind::CheckKeys;
        return place(op, has_dict_version(check) ? group_on(slot, false) : -1);
      case CheckKind::Tensor: {
        const TensorGuard& guard = *check.tensor;
        op.kind = OpKind::CheckTensor;
        op.pointer = tensor_check(guard);
        return place(op, -1);
      }
      case CheckKind::TensorData:
        op.kind = OpKind::CheckTensorData;
        op.pointer = check.object.get();
        return place(op, -1);
      case CheckKind::Array:
        op.kind = OpKind::CheckArray;
        op.pointer = check.object.get();
        return place(op, -1);
      case CheckKind::BuiltinMethod:
        op.kind = OpKind::CheckBuiltinMethod;
        op.pointer = check.object.get();
        return place(op, owner);
      case CheckKind::Alias:
      case CheckKind::Distinct:
        op.kind = check.kind == CheckKind::Alias ? OpKind::CheckAlias : OpKind::CheckDistinct;
        op.other = other_of_check_[index];
        return place(op, owner == owner_[op.other] ? owner : -1);
      case CheckKind::Function:
        op.kind = OpKind::CheckFunction;
        return place(op, -1);
      case CheckKind::Absent:
      case CheckKind::AllDistinct:
      case CheckKind::Sizes:
      case CheckKind::TypeLookup:
      case CheckKind::Bases:
      case CheckKind::AbcRegistrations:
      case CheckKind::State:
      case CheckKind::Require:
        return;
    }
  }

  /// Tensors of one kind and shape share what they are compared with.
  const TensorCheck* tensor_check(const TensorGuard& guard) {
    std::vector<int64_t> key = {reinterpret_cast<int64_t>(guard.type),     static_cast<int64_t>(guard.dispatch_keys),
                                static_cast<int64_t>(guard.dtype),         guard.requires_grad,
                                static_cast<int64_t>(guard.device.type()), guard.device.index()};
    key.insert(key.end(), guard.sizes.begin(), guard.sizes.end());
    key.insert(key.end(), guard.strides.begin(), guard.strides.end());
    key.insert(key.end(), guard.free_sizes.begin(), guard.free_sizes.end());
    key.insert(key.end(), guard.free_strides.begin(), guard.free_strides.end());
    key.push_back(guard.nested);
    const TensorCheck*& known = tensor_checks_[key];
    if (!known) known = program_.tensors.add(guard);
    return known;
  }

  /// Behind all loads.
  void emit_sizes(int32_t index) {
    const auto number = static_cast<int64_t>(program_.size_checks.size());
    program_.size_checks.emplace_back(*program_.checks[index].sizes,
                                      [&](const Source* source) { return slot_of(source); });
    program_.checks[index].sizes = with_own_sources(*program_.checks[index].sizes);
    program_.ops.push_back({.kind = OpKind::CheckSizes, .check = index, .number = number});
  }

  std::shared_ptr<const SizeAssumptions> with_own_sources(SizeAssumptions assumptions) {
    const auto own = [&](SizePlace& place) { place.source = &source(slot_of(place.source)); };
    for (auto& symbol : assumptions.symbols) own(symbol.place);
    for (auto& same : assumptions.same) own(same.place);
    return std::make_shared<const SizeAssumptions>(std::move(assumptions));
  }

  void emit_all_distinct(int32_t index) {
    std::vector<int32_t> slots;
    for (const Source* each : program_.checks[index].sources) slots.push_back(slot_of(each));
    auto number = static_cast<int64_t>(program_.distinct_sets.size());
    program_.distinct_sets.emplace_back(std::move(slots));
    program_.ops.push_back({.kind = OpKind::CheckAllDistinct, .check = index, .number = number});
  }

  /// The dict's version covers its length and its keys, and the dict stays of this type.
  static bool has_dict_version(const Check& check) {
    return keeps_type(check.python_type()) &&
           (check.kind != CheckKind::DictKeys || check.keys.size() <= 1 || order_has_version(check.python_type()));
  }

  void emit_length(Op op, const Check& check, int32_t owner) {
    PyTypeObject* type = check.python_type();
    op.number = check.length;
    int32_t group = -1;
    if (PyType_FastSubclass(type, Py_TPFLAGS_DICT_SUBCLASS)) {
      op.kind = OpKind::CheckDictLength;
      auto known = group_by_base_.find({op.slot, false});
      if (known != group_by_base_.end() && has_dict_version(check)) group = known->second;
    } else if (PyType_FastSubclass(type, Py_TPFLAGS_LIST_SUBCLASS) || PyType_IsSubtype(type, deque_type())) {
      op.kind = OpKind::CheckItemCount;
    } else if (PyType_FastSubclass(type, Py_TPFLAGS_TUPLE_SUBCLASS)) {
      op.kind = OpKind::CheckItemCount;
      if (keeps_type(type)) group = owner;
    } else {
      op.kind = OpKind::CheckSetLength;
      if (keeps_type(type) && PyType_IsSubtype(type, &PyFrozenSet_Type)) group = owner;
    }
    place(op, group);
  }

  void flatten_groups() {
    for (GroupPlan& plan : plans_) {
      Group group;
      group.first_entry = static_cast<int32_t>(program_.groups.entries.size());
      for (int32_t slot : plan.entries) {
        PyObject* key = source(slot).key.get();
        Py_hash_t hash = PyObject_Hash(key);
        if (hash == -1) throw PythonError{};
        program_.groups.entries.push_back({key, hash, slot, absent_[slot]});
      }
      group.last_entry = static_cast<int32_t>(program_.groups.entries.size());
      group.first_fixed = static_cast<int32_t>(program_.groups.fixed.size());
      program_.groups.fixed.insert(program_.groups.fixed.end(), plan.fixed.begin(), plan.fixed.end());
      group.last_fixed = static_cast<int32_t>(program_.groups.fixed.size());
      program_.groups.all.push_back(group);
    }
  }

  GuardProgram::Impl& program_;
  const GuardSet::Impl& set_;
  const SourceTable& table_;

  // By slot.
  std::vector<int32_t> base_, other_;
  std::vector<bool> absent_, loaded_;
  std::vector<int32_t> owner_;  // the group whose memory covers this value, or -1
  std::vector<std::vector<int32_t>> checks_of_, pairs_of_;

  // By check.
  std::vector<int32_t> slot_of_check_, other_of_check_;
  std::vector<bool> emitted_;

  std::vector<GroupPlan> plans_;
  std::map<std::pair<int32_t, bool>, int32_t> group_by_base_;
  std::map<int32_t, int32_t> group_op_;
  std::map<std::vector<int64_t>, const TensorCheck*> tensor_checks_;
};

}  // namespace

GuardProgram::Impl::Impl(const GuardSet& set, const SourceTable& table) {
  Compiler(*this, set, table).compile();
  weaken_as_planted(*this);
}

}  // namespace magneto::guards
