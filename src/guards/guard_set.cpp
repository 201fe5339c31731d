#include <stdexcept>

#include "guards/checks.h"
#include "guards/constants.h"
#include "guards/guards.h"
#include "guards/objects.h"
#include "guards/tensor_check.h"
#include "python/abi/sets.h"

namespace magneto::guards {

const char* check_label(CheckKind kind) {
  static constexpr const char* labels[] = {
#define X(kind, label) label,
      MAGNETO_CHECK_KINDS(X)
#undef X
  };
  return labels[static_cast<size_t>(kind)];
}

namespace {

Ref borrow(PyTypeObject* type) { return Ref::borrow(reinterpret_cast<PyObject*>(type)); }

bool same_tensor(const std::optional<TensorGuard>& a, const std::optional<TensorGuard>& b) {
  if (!a || !b) return !a && !b;
  return a->type == b->type && a->dtype == b->dtype && a->device == b->device && a->dispatch_keys == b->dispatch_keys &&
         a->requires_grad == b->requires_grad && a->sizes == b->sizes && a->strides == b->strides &&
         a->free_sizes == b->free_sizes && a->free_strides == b->free_strides && a->nested == b->nested;
}

}  // namespace

std::string UserPlace::text() const {
  if (!code) return "";
  const auto* lines = reinterpret_cast<PyCodeObject*>(code.get());
  return std::string(PyUnicode_AsUTF8(lines->co_filename)) + ":" + std::to_string(line) + " in " +
         PyUnicode_AsUTF8(lines->co_name);
}

bool Check::same_as(const Check& check) const {
  if (kind != check.kind || source != check.source || other != check.other || type.get() != check.type.get() ||
      length != check.length || defaults.get() != check.defaults.get() || kwdefaults.get() != check.kwdefaults.get() ||
      function.get() != check.function.get() || keys.size() != check.keys.size() || sizes != check.sizes ||
      sources != check.sources || !same_tensor(tensor, check.tensor)) {
    return false;
  }
  bool same_object =
      object.get() == check.object.get() || ((kind == CheckKind::Equals || kind == CheckKind::TensorData ||
                                              kind == CheckKind::Array || kind == CheckKind::State) &&
                                             constants_equal(object.get(), check.object.get()));
  bool same_name =
      name.get() == check.name.get() || (name && check.name && constants_equal(name.get(), check.name.get()));
  if (!same_object || !same_name) return false;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!constants_equal(keys[i].get(), check.keys[i].get())) return false;
  }
  return true;
}

size_t Check::hash() const {
  size_t hash = static_cast<size_t>(kind);
  auto add = [&hash](size_t value) { hash = hash * 1000003 ^ value; };
  add(std::hash<const void*>()(source));
  add(std::hash<const void*>()(other));
  add(std::hash<const void*>()(type.get()));
  add(std::hash<const void*>()(function.get()));
  if (name) add(constant_hash(name.get()));
  return hash;
}

bool GuardSet::Impl::add(Check check) {
  size_t hash = check.hash();
  if (index.find(hash, [&](int32_t position) { return checks[position].same_as(check); }) >= 0) return false;
  index.add(hash, static_cast<int32_t>(checks.size()));
  checks.push_back(std::move(check));
  if (place) {
    const UserPlace now = place();
    if (user_places.empty()) user_places.emplace_back();
    if (user_places.back() != now) user_places.push_back(now);
    places.resize(checks.size());
    places.back() = static_cast<int32_t>(user_places.size()) - 1;
  }
  return true;
}

GuardSet::GuardSet(SourceTable& sources) : impl_(std::make_unique<Impl>(sources)) {}
/// Of a class of Python's, and no class or tensor: those are constants of plans.
static bool is_plain_instance(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  return PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && PyType_SUPPORTS_WEAKREFS(type) && !PyType_Check(object) &&
         !is_tensor(object);
}

GuardSet::~GuardSet() = default;
GuardSet::GuardSet(GuardSet&&) noexcept = default;

void GuardSet::type(const Source* source, PyTypeObject* type) {
  impl_->add({.kind = CheckKind::Type, .source = source, .type = borrow(type)});
}

void GuardSet::identity(const Source* source, PyObject* object) {
  const bool weakly = is_plain_instance(object);
  Ref held = weakly ? checked(PyWeakref_NewRef(object, nullptr)) : Ref::borrow(object);
  impl_->add({.kind = CheckKind::Identity, .source = source, .object = std::move(held), .weakly = weakly});
}

void GuardSet::equals(const Source* source, PyObject* constant) {
  if (!is_constant(constant) && is_constant_set(constant)) {  // the user's own may change: compare with a copy
    impl_->add({.kind = CheckKind::Equals, .source = source, .object = clone_set(constant, Py_TYPE(constant))});
    return;
  }
  if (!is_constant(constant) && !has_value(constant)) {
    throw std::invalid_argument(std::string("a guard can't compare objects of type ") + Py_TYPE(constant)->tp_name +
                                " by value");
  }
  impl_->add({.kind = CheckKind::Equals, .source = source, .object = Ref::borrow(constant)});
}

void GuardSet::absent(const Source* source) { impl_->add({.kind = CheckKind::Absent, .source = source}); }

void GuardSet::length(const Source* source, PyTypeObject* type, Py_ssize_t length) {
  constexpr unsigned long sized = Py_TPFLAGS_LIST_SUBCLASS | Py_TPFLAGS_TUPLE_SUBCLASS | Py_TPFLAGS_DICT_SUBCLASS;
  if (!PyType_FastSubclass(type, sized) && !PyType_IsSubtype(type, &PySet_Type) &&
      !PyType_IsSubtype(type, &PyFrozenSet_Type) && !PyType_IsSubtype(type, deque_type())) {
    throw std::invalid_argument(std::string("a length guard does not know the type ") + type->tp_name);
  }
  impl_->add({.kind = CheckKind::Length, .source = source, .type = borrow(type), .length = length});
}

void GuardSet::dict_keys(const Source* source, PyTypeObject* type, const std::vector<PyObject*>& keys) {
  if (!PyType_FastSubclass(type, Py_TPFLAGS_DICT_SUBCLASS)) {
    throw std::invalid_argument(std::string("a guard on dict keys needs a dict type, not ") + type->tp_name);
  }
  Check check{.kind = CheckKind::DictKeys, .source = source, .type = borrow(type)};
  for (PyObject* key : keys) check.keys.push_back(Ref::borrow(key));
  impl_->add(std::move(check));
}

void GuardSet::tensor(const Source* source, PyObject* tensor) {
  Check check{.kind = CheckKind::Tensor, .source = source, .type = borrow(Py_TYPE(tensor))};
  check.tensor = read_tensor(tensor);
  impl_->add(std::move(check));
}

void GuardSet::tensor(const Source* source, PyObject* tensor, std::vector<bool> free_sizes,
                      std::vector<bool> free_strides) {
  Check check{.kind = CheckKind::Tensor, .source = source, .type = borrow(Py_TYPE(tensor))};
  check.tensor = read_tensor(tensor);
  check.tensor->free_sizes = std::move(free_sizes);
  check.tensor->free_strides = std::move(free_strides);
  impl_->add(std::move(check));
}

void GuardSet::sizes(SizeAssumptions assumptions) {
  Check check{.kind = CheckKind::Sizes};
  const auto add = [&](const SizePlace& place) { check.sources.push_back(place.source); };
  for (const auto& symbol : assumptions.symbols) add(symbol.place);
  for (const auto& same : assumptions.same) add(same.place);
  check.sizes = std::make_shared<const SizeAssumptions>(std::move(assumptions));
  impl_->add(std::move(check));
}

void GuardSet::tensor_data(const Source* source, PyObject* tensor) {
  impl_->add({.kind = CheckKind::TensorData, .source = source, .object = read_data(tensor)});
}

void GuardSet::array(const Source* source, PyObject* layout) {
  impl_->add({.kind = CheckKind::Array, .source = source, .object = Ref::borrow(layout)});
}

void GuardSet::builtin_method(const Source* source, PyObject* method) {
  impl_->add({.kind = CheckKind::BuiltinMethod,
              .source = source,
              .type = borrow(Py_TYPE(method)),
              .object = Ref::borrow(method)});
}

void GuardSet::alias(const Source* source, const Source* same_as) {
  impl_->add({.kind = CheckKind::Alias, .source = source, .other = same_as});
}

void GuardSet::distinct(const Source* source, const Source* other) {
  if (source->id > other->id) std::swap(source, other);
  impl_->add({.kind = CheckKind::Distinct, .source = source, .other = other});
}

void GuardSet::distinct(const std::vector<const Source*>& sources) {
  if (sources.size() > 1) impl_->add({.kind = CheckKind::AllDistinct, .sources = sources});
}

void GuardSet::function(const Source* source, PyObject* function) {
  if (!PyFunction_Check(function)) throw std::invalid_argument("a function guard needs a Python function");
  auto* python_function = reinterpret_cast<PyFunctionObject*>(function);
  impl_->add({.kind = CheckKind::Function,
              .source = source,
              .object = Ref::borrow(python_function->func_code),
              .defaults = Ref::borrow(python_function->func_defaults),
              .kwdefaults = Ref::borrow(python_function->func_kwdefaults)});
}

void GuardSet::type_lookup(PyTypeObject* type, PyObject* name, PyObject* found) {
  if (!PyUnicode_CheckExact(name)) throw std::invalid_argument("the name of a type attribute must be a str");
  // Most are repetitions: each attribute that is read looks its class up.
  const auto known = impl_->lookups.find({type, name});
  if (known != impl_->lookups.end() && known->second == found) return;
  if (impl_->add({.kind = CheckKind::TypeLookup,
                  .type = borrow(type),
                  .object = Ref::borrow(found),
                  .name = Ref::borrow(name)})) {
    impl_->lookups[{type, name}] = found;  // the check keeps all three alive
  }
}

void GuardSet::bases(PyTypeObject* type) {
  impl_->add({.kind = CheckKind::Bases, .type = borrow(type), .object = Ref::borrow(type->tp_mro)});
}

void GuardSet::abc_registrations() {
  impl_->add({.kind = CheckKind::AbcRegistrations, .length = count_abc_registrations()});
}

void GuardSet::state(PyObject* function, const std::vector<PyObject*>& args, PyObject* constant) {
  Check check{.kind = CheckKind::State, .object = Ref::borrow(constant), .function = Ref::borrow(function)};
  for (PyObject* arg : args) check.keys.push_back(Ref::borrow(arg));
  impl_->add(std::move(check));
}

void GuardSet::require(const Source* source) { impl_->add({.kind = CheckKind::Require, .source = source}); }

void GuardSet::set_global_state(const GlobalState& state) { impl_->global_state = state; }

void note_size_places(GuardSet& set, std::vector<std::string> places) { set.impl().size_places = std::move(places); }

void GuardSet::note_places(std::function<UserPlace()> place) { impl_->place = std::move(place); }

std::string GuardSet::print() const { return GuardProgram(*this, *impl_->sources).print(); }

}  // namespace magneto::guards
