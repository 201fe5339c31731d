// Classes that the segment has made, and what is of them, made again by each run.
#include <algorithm>

#include "capture/calls/calls.h"
#include "capture/exits/rebuild.h"
#include "capture/world/world.h"
#include "python/abi/private.h"
#include "python/abi/types.h"
#include "python/imported.h"

namespace magneto::capture {

using runtime::PlanOp;

/// An instance of a class that is no constant: as its C class makes one.
int32_t Rebuilder::build_maker(PyTypeObject* type, std::vector<int32_t> args) {
  PyTypeObject* const layout = PyTuple_Type.tp_new == type->tp_new ? &PyTuple_Type : layout_class(type);
  const Ref maker = checked(PyObject_GetAttrString(reinterpret_cast<PyObject*>(layout), "__new__"));
  const int32_t cls = build(reinterpret_cast<PyObject*>(type));
  std::vector<int32_t> all = {emit(PlanOp::Const, {}, maker.get()), cls};
  all.insert(all.end(), args.begin(), args.end());
  return emit(PlanOp::Call, std::move(all));
}

bool Rebuilder::is_of_made_class(PyObject* value) { return c.calls.classes.is_any(value); }

int32_t Rebuilder::build_of_made_class(PyObject* value) {
  if (c.calls.classes.is_class(value)) return build_made_class(value);
  PyTypeObject* const type = Py_TYPE(value);
  if (c.calls.classes.is_member(value)) {  // by its value, where it has no name: several flags
    static constinit Imported get("builtins", "getattr");
    const int32_t cls = build(reinterpret_cast<PyObject*>(type));
    const Ref name = checked(PyObject_GetAttrString(value, "_name_"));
    const bool named = name.get() != Py_None && PyObject_HasAttr(reinterpret_cast<PyObject*>(type), name.get());
    if (named) return memo_[value] = emit(PlanOp::Call, {constant(get.get()), cls, constant(name.get())});
    const Ref number = checked(PyObject_GetAttrString(value, "_value_"));
    return memo_[value] = emit(PlanOp::Call, {cls, build(number.get())});
  }
  std::vector<int32_t> args = {constant(reinterpret_cast<PyObject*>(type))};
  for (PyObject* function : functions_of_wrapper(value)) args.push_back(build(function));
  if (type == &PyProperty_Type) args.push_back(build(checked(PyObject_GetAttrString(value, "__doc__")).get()));
  return memo_[value] = emit(PlanOp::Call, std::move(args));
}

/// Cells that the functions of a class close over and that the segment has made: empty ones, so that what they hold may
/// be the class, or be of it.
std::vector<PyObject*> Rebuilder::reserve_cells(PyObject* entries) {
  std::vector<PyObject*> functions, cells;
  PyObject* value;
  for (Py_ssize_t position = 0; PyDict_Next(entries, &position, nullptr, &value);) {
    if (c.calls.classes.is_wrapper(value)) {
      for (PyObject* function : functions_of_wrapper(value)) functions.push_back(function);
    } else {
      functions.push_back(value);
    }
  }
  for (PyObject* function : functions) {
    PyObject* closure = function && PyFunction_Check(function) ? PyFunction_GET_CLOSURE(function) : nullptr;
    if (!closure || c.world.is_outside(function)) continue;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(closure); ++i) {
      PyObject* cell = PyTuple_GET_ITEM(closure, i);
      if (memo_.contains(cell) || c.world.cell_contents.contains(cell) || c.world.is_outside(cell)) continue;
      memo_[cell] = emit(PlanOp::NewCell);
      cells.push_back(cell);
    }
  }
  return cells;
}

/// The class as type.__new__ has made it. Values that are told their names, and may hold it, come behind it.
int32_t Rebuilder::make_class_quietly(PyObject* value) {
  static constinit Imported make("magneto._C", "make_class"), set("builtins", "type.__setattr__");
  const MadeClass& made = c.calls.classes.of(value);
  const Ref entries = checked(PyDict_Copy(made.entries.get()));
  c.world.keep(entries);
  std::vector<std::pair<PyObject*, PyObject*>> told;
  PyObject *name, *entry;
  for (Py_ssize_t position = 0; PyDict_Next(made.entries.get(), &position, &name, &entry);) {
    PyObject* hook = lookup_in_type(Py_TYPE(entry), MAGNETO_STR("__set_name__"));
    if (!hook || !PyFunction_Check(hook)) continue;
    told.emplace_back(name, entry);
    PyDict_SetItem(entries.get(), name, Py_None);
  }
  std::vector<int32_t> args = {constant(make.get())};
  for (PyObject* part : {made.metaclass.get(), made.name.get(), made.bases.get(), entries.get()}) {
    args.push_back(build(part));
  }
  const int32_t cls = memo_[value] = emit(PlanOp::Call, std::move(args));
  for (const auto& [key, each] : told) emit(PlanOp::Call, {constant(set.get()), cls, build(key), build(each)});
  return cls;
}

int32_t Rebuilder::build_made_class(PyObject* value) {
  static constinit Imported make("magneto._classes", "make_class");
  if (std::ranges::find(classes_being_made_, value) != classes_being_made_.end()) throw unbuildable(value);
  struct Being {
    std::vector<PyObject*>& all;
    ~Being() { all.pop_back(); }
  };
  classes_being_made_.push_back(value);
  const Being being{classes_being_made_};
  const MadeClass& made = c.calls.classes.of(value);
  const std::vector<PyObject*> cells = reserve_cells(made.entries.get());
  int32_t cls;
  if (made.metaclass) {
    cls = make_class_quietly(value);
  } else {
    std::vector<int32_t> args = {constant(make.get())};
    for (const Ref* part : {&made.name, &made.bases, &made.keywords, &made.entries}) args.push_back(build(part->get()));
    cls = memo_[value] = emit(PlanOp::Call, std::move(args));
  }
  for (const MadeClass::Step& step : made.steps) {
    std::vector<int32_t> call = {build(step.function.get()), cls};
    for (const Ref& arg : step.args) call.push_back(build(arg.get()));
    emit(PlanOp::Call, std::move(call));
  }
  for (PyObject* cell : cells) {
    if (PyObject* contents = PyCell_GET(cell)) emit_to(memo_.at(cell), PlanOp::CellFill, {build(contents)});
  }
  return cls;
}

}  // namespace magneto::capture
