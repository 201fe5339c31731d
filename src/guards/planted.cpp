#include "guards/planted.h"

#include <algorithm>
#include <set>
#include <stdexcept>

#include "guards/objects.h"
#include "guards/tensor_check.h"
#include "observe/faults.h"

namespace magneto::guards {
namespace {

using Program = GuardProgram::Impl;

template <typename Visit>
void for_each_op(Program& program, const Visit& visit) {
  for (auto* ops : {&program.ops, &program.groups.fixed}) {
    for (Op& op : *ops) visit(op);
  }
}

/// An op that passes: a slot is compared with itself.
void leave_out(Program& program, OpKind kind) {
  for_each_op(program, [&](Op& op) {
    if (op.kind == kind) op = {.kind = OpKind::CheckAlias, .slot = op.slot, .other = op.slot, .check = op.check};
  });
}

void compare_type(Program& program, OpKind kind) {
  for_each_op(program, [&](Op& op) {
    if (op.kind != kind) return;
    if (kind != OpKind::CheckItemCount) op.pointer = Py_TYPE(program.checks[op.check].expected());
    op.kind = OpKind::CheckType;
  });
}

template <Weaker weaker>
void weaken(Program& program, OpKind kind) {
  for_each_op(program, [&](Op& op) {
    if (op.kind != kind) return;
    op.kind = OpKind::CheckPlanted;
    op.number = static_cast<int64_t>(weaker);
  });
}

/// Entries that must be absent are looked for under a name that nothing has.
void let_be_there(Program& program, OpKind kind) {
  static PyObject* nowhere = PyUnicode_InternFromString("<nowhere>");
  for (const Op& op : program.ops) {
    if (op.kind != kind) continue;
    const Group& group = program.groups.all[op.number];
    for (int32_t i = group.first_entry; i < group.last_entry; ++i) {
      GroupEntry& entry = program.groups.entries[i];
      if (entry.absent) entry = {nowhere, PyObject_Hash(nowhere), entry.slot, true};
    }
  }
}

void free_sizes(Program& program, OpKind) { program.tensors.free(/*strides=*/false); }
void free_strides(Program& program, OpKind) { program.tensors.free(/*strides=*/true); }

void erase_lookups(Program& program, CheckKind kind) {
  for (TypeAttributes& type : program.types) {
    std::erase_if(type.checks, [&](int32_t check) { return program.checks[check].kind == kind; });
  }
}

void leave_out_lookups(Program& program, OpKind) { erase_lookups(program, CheckKind::TypeLookup); }
void leave_out_bases(Program& program, OpKind) { erase_lookups(program, CheckKind::Bases); }
void keep_first_lookup(Program& program, OpKind) {
  for (TypeAttributes& type : program.types) type.checks.resize(1);
}

void leave_out_global_state(Program& program, OpKind) { program.global_state.reset(); }

/// The snapshot asks (is_forgotten).
void forget(Program&, OpKind) {}

struct Fault {
  const char* name;
  OpKind kind;
  void (*happen)(Program&, OpKind);
  const char* meaning;
};

constexpr Fault kFaults[] = {
#define FAULT(name, kind, happens, meaning) {name, OpKind::kind, happens, meaning},
#include "guards/guard_faults.def"
#undef FAULT
};

const Fault* planted() {
  const std::string* name = observe::fault_at("guard");
  if (!name) return nullptr;
  const auto* found = std::ranges::find(kFaults, *name, &Fault::name);
  return found == std::end(kFaults) ? nullptr : found;
}

std::set<OpKind>& surveyed() {
  static auto* kinds = new std::set<OpKind>;
  return *kinds;
}

std::optional<TensorGuard> look_at(PyObject* value) {
  try {
    return read_tensor(value);
  } catch (const std::invalid_argument&) {  // no tensor, or one whose class answers for its sizes
    return std::nullopt;
  }
}

bool same_tensor_but(Weaker fact, TensorGuard guard, PyObject* value) {
  const std::optional<TensorGuard> found = look_at(value);
  if (!found) return false;
  const TensorGuard& now = *found;
  // Keys follow from the type's and the gradient's facts, too.
  guard.dispatch_keys = now.dispatch_keys;
  if (fact == Weaker::TensorOfAnyType) guard.type = now.type;
  if (fact == Weaker::TensorOfAnyDtype) guard.dtype = now.dtype;
  if (fact == Weaker::TensorOfAnyGradient) guard.requires_grad = now.requires_grad;
  const auto same = [](const std::vector<int64_t>& was, const std::vector<int64_t>& is, const std::vector<bool>& free) {
    if (was.size() != is.size()) return false;
    for (size_t i = 0; i < was.size(); ++i) {
      if (was[i] != is[i] && (free.empty() || !free[i])) return false;
    }
    return true;
  };
  return guard.type == now.type && guard.dtype == now.dtype && guard.device == now.device &&
         guard.requires_grad == now.requires_grad && same(guard.sizes, now.sizes, guard.free_sizes) &&
         same(guard.strides, now.strides, guard.free_strides);
}

bool equal_in_python(PyObject* a, PyObject* b) {
  const int equal = PyObject_RichCompareBool(a, b, Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal > 0;
}

}  // namespace

bool weaker_holds(Weaker weaker, const Check& check, PyObject* value) {
  if (!value) return false;
  const bool same_type = Py_TYPE(value) == check.python_type();
  auto* function = reinterpret_cast<PyFunctionObject*>(value);
  switch (weaker) {
    case Weaker::EqualInPython:
      return equal_in_python(check.object.get(), value);
    case Weaker::AtLeast:
      return same_type && Py_SIZE(value) >= check.length;
    case Weaker::AtMost:
      return same_type && Py_SIZE(value) <= check.length;
    case Weaker::LengthOfAnyType:
      return (PyList_Check(value) || PyTuple_Check(value)) && Py_SIZE(value) == check.length;
    case Weaker::FirstKey: {
      Py_ssize_t position = 0;
      PyObject* key = nullptr;
      if (!same_type) return false;
      const bool any = PyDict_Next(value, &position, &key, nullptr);
      return any ? !check.keys.empty() && equal_in_python(check.keys[0].get(), key) : check.keys.empty();
    }
    case Weaker::KeysInAnyOrder:
      return same_type && PyDict_GET_SIZE(value) == static_cast<Py_ssize_t>(check.keys.size()) &&
             std::ranges::all_of(check.keys, [&](const Ref& key) { return PyDict_Contains(value, key.get()) == 1; });
    case Weaker::CodeAlone:
      return PyFunction_Check(value) && function->func_code == check.object.get();
    case Weaker::DefaultsAlone:
      return PyFunction_Check(value) && function->func_defaults == check.defaults.get() &&
             function->func_kwdefaults == check.kwdefaults.get();
    case Weaker::TensorOfAnyType:
    case Weaker::TensorOfAnyDtype:
    case Weaker::TensorOfAnyGradient:
      return same_tensor_but(weaker, *check.tensor, value);
  }
  return false;
}

void weaken_as_planted(Program& program) {
  const std::string* name = observe::fault_at("guard");
  if (!name) return;
  if (*name == "survey") {
    for_each_op(program, [](const Op& op) { surveyed().insert(op.kind); });
    surveyed().insert(OpKind::CheckPlanted);  // of what all programs have
  }
  if (const Fault* fault = planted()) fault->happen(program, fault->kind);
}

bool is_forgotten(OpKind kind) {
  const Fault* fault = planted();
  return fault && fault->happen == forget && fault->kind == kind;
}

std::vector<std::pair<std::string, std::string>> guard_faults() {
  std::vector<std::pair<std::string, std::string>> faults;
  for (const Fault& fault : kFaults) faults.emplace_back(fault.name, fault.meaning);
  return faults;
}

std::vector<std::string> take_survey() {
  std::vector<std::string> names;
  for (const Fault& fault : kFaults) {
    if (surveyed().contains(fault.kind)) names.emplace_back(fault.name);
  }
  surveyed().clear();
  return names;
}

}  // namespace magneto::guards
