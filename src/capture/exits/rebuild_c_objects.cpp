// Recipes for objects of C types: iterators, partial, deque and the like, mostly by their own __reduce__.
#include <algorithm>
#include <cstring>
#include <string_view>

#include "capture/exits/rebuild.h"
#include "capture/world/containers.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "python/abi/private.h"
#include "python/abi/types.h"

namespace magneto::capture {

using runtime::PlanOp;

std::vector<PyObject*> referents(PyObject* object) {
  std::vector<PyObject*> found;
  Py_TYPE(object)->tp_traverse(
      object,
      [](PyObject* each, void* all) {
        static_cast<std::vector<PyObject*>*>(all)->push_back(each);
        return 0;
      },
      &found);
  return found;
}

PyObject* referent(PyObject* object, PyTypeObject* type) {
  for (PyObject* each : referents(object)) {
    if (PyObject_TypeCheck(each, type)) return each;
  }
  return nullptr;
}

namespace {

PyObject* standard(const char* module, const char* name) {
  Ref found = checked(PyImport_ImportModule(module));
  return PyDict_GetItemString(PyModule_GetDict(found.get()), name);
}

}  // namespace

/// An iterator of the same dict that has come as far: it notices what the program changes in the dict later.
int32_t Rebuilder::build_dict_iterator(PyObject* value) {
  PyObject* dict = referent(value, &PyDict_Type);
  if (!dict) return build_reduced(value);  // it has ended
  Ref reduced = Ref::steal(PyObject_CallMethod(value, "__reduce__", nullptr));
  auto stand_in = c.containers.shadow_original.find(dict);
  PyObject* original = stand_in == c.containers.shadow_original.end() ? dict : stand_in->second;
  const auto shadow = c.containers.shadows.find(original);
  const bool written =
      c.overlays.find(original, true) || (shadow != c.containers.shadows.end() && shadow->second.dirty);
  if (!reduced || written) {  // it has noticed a change, or would notice the replay of one
    PyErr_Clear();
    throw unbuildable(value);
  }
  Ref rest = checked(PySequence_List(PyTuple_GET_ITEM(PyTuple_GET_ITEM(reduced.get(), 1), 0)));
  const Py_ssize_t consumed = PyDict_Size(dict) - PyList_GET_SIZE(rest.get());
  const char* type = Py_TYPE(value)->tp_name;
  const char* view = std::strstr(type, "key") ? "keys" : std::strstr(type, "value") ? "values" : "items";
  std::vector<int32_t> args = {constant(PyDict_GetItemString(type_dict(&PyDict_Type), view)), build(dict)};
  args = {constant(standard("builtins", "iter")), emit(PlanOp::Call, std::move(args))};
  const int32_t made = memo_[value] = emit(PlanOp::Call, std::move(args));
  if (consumed == 0) return made;
  Ref count = checked(PyLong_FromSsize_t(consumed)), nothing = checked(PyLong_FromLong(0));
  args = {constant(standard("itertools", "islice")), made, constant(count.get())};
  args = {constant(standard("collections", "deque")), emit(PlanOp::Call, std::move(args)), constant(nothing.get())};
  emit(PlanOp::Call, std::move(args));  // deque(islice(iterator, consumed), 0): goes as far
  return made;
}

namespace {

/// What makes a view of a dict, called with the dict. Borrowed. Null: of another type.
PyObject* maker_of_view(PyTypeObject* type) {
  struct View {
    PyTypeObject *type, *dict;
    const char* method;
  };
  static constexpr View views[] = {
      {&PyDictKeys_Type, &PyDict_Type, "keys"},       {&PyDictValues_Type, &PyDict_Type, "values"},
      {&PyDictItems_Type, &PyDict_Type, "items"},     {&PyODictKeys_Type, &PyODict_Type, "keys"},
      {&PyODictValues_Type, &PyODict_Type, "values"}, {&PyODictItems_Type, &PyODict_Type, "items"},
  };
  if (type == &PyDictProxy_Type) return reinterpret_cast<PyObject*>(type);
  const auto* found = std::ranges::find(views, type, &View::type);
  return found == std::end(views) ? nullptr : PyDict_GetItemString(type_dict(found->dict), found->method);
}

}  // namespace

int32_t Rebuilder::build_reduced(PyObject* value) {
  PyTypeObject* type = Py_TYPE(value);
  if (PyObject* maker = maker_of_view(type)) {
    PyObject* mapping = referent(value, &PyDict_Type);
    if (!mapping) throw unbuildable(value);
    std::vector<int32_t> args = {constant(maker), build(mapping)};
    return memo_[value] = emit(PlanOp::Call, std::move(args));
  }
  static constexpr const char* reducible[] = {"list_iterator",
                                              "list_reverseiterator",
                                              "tuple_iterator",
                                              "range_iterator",
                                              "longrange_iterator",
                                              "str_iterator",
                                              "str_ascii_iterator",
                                              "set_iterator",
                                              "enumerate",
                                              "zip",
                                              "reversed",
                                              "map",
                                              "filter",
                                              "functools.partial",
                                              "collections.deque",
                                              "collections.defaultdict",
                                              "odict_iterator",
                                              "itertools.chain",
                                              "itertools.count",
                                              "itertools.repeat",
                                              "itertools.islice",
                                              "itertools.product",
                                              "itertools.accumulate",
                                              "itertools.starmap",
                                              "itertools.takewhile",
                                              "itertools.dropwhile",
                                              "itertools.filterfalse",
                                              "itertools.compress",
                                              "itertools.zip_longest",
                                              "itertools.permutations",
                                              "itertools.combinations",
                                              "itertools.combinations_with_replacement",
                                              "itertools.cycle",
                                              "itertools._tee",
                                              "itertools._tee_dataobject",
                                              "operator.itemgetter",
                                              "operator.attrgetter",
                                              "operator.methodcaller",
                                              "types.GenericAlias",
                                              "bytearray_iterator",
                                              "bytes_iterator",
                                              "callable_iterator",
                                              "iterator",
                                              "bytearray"};
  bool known = false;
  for (const char* name : reducible) known |= std::strcmp(type->tp_name, name) == 0;
  // From 3.14 on itertools' objects can't be taken apart: __reduce__ is that of every object.
  static PyObject* const of_every_object = PyDict_GetItemString(type_dict(&PyBaseObject_Type), "__reduce__");
  if (!known || lookup_in_type(type, MAGNETO_STR("__reduce__")) == of_every_object) throw unbuildable(value);
  Ref reduced = checked(PyObject_CallMethod(value, "__reduce__", nullptr));
  c.world.keep(reduced);
  PyObject* tuple = reduced.get();
  std::vector<int32_t> args = {build(PyTuple_GET_ITEM(tuple, 0))};
  PyObject* call_args = PyTuple_GET_ITEM(tuple, 1);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(call_args); ++i) args.push_back(build(PyTuple_GET_ITEM(call_args, i)));
  const int32_t made = memo_[value] = emit(PlanOp::Call, std::move(args));
  const Py_ssize_t size = PyTuple_GET_SIZE(tuple);
  if (size > 2 && PyTuple_GET_ITEM(tuple, 2) != Py_None) {
    const int32_t state = build(PyTuple_GET_ITEM(tuple, 2));
    // A place in a list is within what the list holds by then.
    static constexpr std::string_view places[] = {"list_iterator", "list_reverseiterator", "reversed",
                                                  "bytearray_iterator"};
    if (std::ranges::find(places, type->tp_name) != std::end(places)) {
      places_.emplace_back(made, state);
    } else {
      emit_to(made, PlanOp::SetState, {state});
    }
  }
  if (size > 3 && PyTuple_GET_ITEM(tuple, 3) != Py_None) {  // deque: items to append, through a list
    Ref items = checked(PySequence_List(PyTuple_GET_ITEM(tuple, 3)));
    c.world.keep(items);
    emit_to(made, PlanOp::ExtendFrom, {build(items.get())});
  }
  if (size > 4 && PyTuple_GET_ITEM(tuple, 4) != Py_None) emit_to(made, PlanOp::DictFill, build_entries(value));
  return made;
}

}  // namespace magneto::capture
