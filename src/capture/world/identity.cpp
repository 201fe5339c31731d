// Which objects are one and the same, and which must stay different ones.
#include <Python.h>

#include <algorithm>
#include <map>
#include <set>

#include "capture/capture.h"
#include "capture/numbers/numbers.h"
#include "capture/torch/tensor_map.h"
#include "capture/world/containers.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "support/tensor_object.h"

namespace magneto::capture {

using guards::Source;
using guards::SourceKind;

bool World::is_identical(PyObject* a, PyObject* b) {
  const bool are_numbers = (is_unknown_number(a) || is_unknown_number(b)) && guards::is_number(number_now(a)) &&
                           guards::is_number(number_now(b));
  if (are_numbers || symbolic_bool_of(a) || symbolic_bool_of(b)) {
    const Ref known_a = c.numbers.known(a), known_b = c.numbers.known(b);
    return known_a.get() == known_b.get();
  }
  auto original = [this](PyObject* object) {
    auto found = c.containers.shadow_original.find(object);
    return found == c.containers.shadow_original.end() ? object : found->second;
  };
  a = original(a);
  b = original(b);
  const Source* source_a = source_of(a);
  const Source* source_b = source_of(b);
  const auto differs = [](const Source* source) { return source && source->kind != SourceKind::Const; };
  if (PyWeakref_CheckRefExact(a) && PyWeakref_CheckRefExact(b) && (differs(source_a) || differs(source_b))) {
    // An object has one weak reference without a callback, which `weakref.ref(object)` gives each time.
    c.side_exit(BreakReason::OpaqueObject, "a weak reference from outside is compared with another one");
  }
  if (a == b) return true;
  if (source_a && source_b && !(source_a->kind == SourceKind::Const && source_b->kind == SourceKind::Const)) {
    c.guards.distinct(source_a, source_b);
  }
  return false;
}

namespace {

/// The cell whose contents `contents` is.
const Source* cell_of(guards::SourceTable& sources, const Source* contents) {
  return contents->kind == SourceKind::Closure ? sources.closure_cell(contents->base, contents->index) : contents->base;
}

}  // namespace

void World::adopt_cell(PyObject* cell) {
  if (is_outside(cell)) return;
  const Source* source = cell_of(c.sources, cell_contents.at(cell));
  c.guards.type(source, &PyCell_Type);
  outside[cell] = source;
  keep(Ref::borrow(cell));
}

void World::guard_distinct() {
  std::set<PyTypeObject*> written;
  for (const auto& overlay : c.overlays.all) written.insert(Py_TYPE(overlay->object));
  if (written.count(&PyCell_Type)) {
    for (const auto& [contents, other] : cell_aliases_) c.guards.alias(other, cell_of(c.sources, contents));
    std::vector<const Source*> cells;
    for (const auto& [cell, contents] : cell_contents) cells.push_back(cell_of(c.sources, contents));
    std::sort(cells.begin(), cells.end(), [](const Source* a, const Source* b) { return a->id < b->id; });
    c.guards.distinct(cells);
  }
  if (!c.containers.tails.empty()) written.insert(&PyList_Type);
  for (const auto& [original, shadow] : c.containers.shadows) {
    if (shadow.dirty) written.insert(Py_TYPE(original));
  }
  std::map<PyTypeObject*, std::vector<const Source*>> places;  // guards keep objects of different types apart
  for (const auto& [value, input] : c.tensors.inputs) {
    if (!input.number && !input.array) places[Py_TYPE(input.real.get())].push_back(input.source);
  }
  for (const auto& [object, source] : outside) {
    const bool container = is_builtin_container(object);
    const bool instance = !container && (source->kind != SourceKind::Const || c.containers.members.count(object)) &&
                          (PyFunction_Check(object) || PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE));
    if (instance || (container && written.count(Py_TYPE(object)))) places[Py_TYPE(object)].push_back(source);
  }
  const auto older = [](const Source* a, const Source* b) { return a->id < b->id; };
  std::vector<std::vector<const Source*>> groups;
  for (auto& [type, group] : places) {
    std::sort(group.begin(), group.end(), older);
    groups.push_back(std::move(group));
  }
  std::sort(groups.begin(), groups.end(), [&](const auto& a, const auto& b) { return older(a.front(), b.front()); });
  const auto is_constant = [](const Source* source) { return source->kind == SourceKind::Const; };
  for (const auto& group : groups) {
    if (!std::ranges::all_of(group, is_constant)) c.guards.distinct(group);
  }
}

/// The frame is Tensor.__hash__ of a stand-in, asked for by C code: the hash is that of the original, as it is where
/// the capture interprets that function (it calls id). Null: another frame.
Ref Containers::hash_of_stand_in(Frame* real) const {
  static PyObject* const code = [] {
    PyObject* hash = PyObject_GetAttrString(tensor_class(), "__hash__");
    return PyFunction_GET_CODE(hash);
  }();
  if (reinterpret_cast<PyObject*>(frame_code(real)) != code) return {};
  PyObject* tensor = frame_localsplus(real)[0];
  if (!tensor || !is_fake_tensor(tensor)) return {};
  auto input = c.tensors.inputs.find(c.session->value_of(unpack_tensor(tensor)));
  if (input == c.tensors.inputs.end() || c.tensors.fake_of.at(input->second.real.get()).get() != tensor) return {};
  return checked(PyLong_FromVoidPtr(input->second.real.get()));
}

}  // namespace magneto::capture
