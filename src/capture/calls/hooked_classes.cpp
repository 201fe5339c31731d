// Class statements with code of the program around the making: metaclasses, `__set_name__`, `__init_subclass__`.
#include <algorithm>
#include <array>

#include "capture/calls/calls.h"
#include "capture/calls/handlers.h"
#include "capture/calls/made_classes.h"
#include "capture/calls/native_mode.h"
#include "capture/capture.h"
#include "capture/interpreter/errors.h"
#include "capture/interpreter/frames.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/attributes.h"
#include "capture/world/modules.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "python/abi/private.h"
#include "python/abi/types.h"
#include "python/imported.h"
#include "python/quiet_class.h"
#include "support/tensor_object.h"

namespace magneto::capture {

bool is_class_library(std::string_view module) {
  constexpr std::string_view known[] = {"builtins", "abc", "enum", "typing", "torch.autograd.function"};
  return std::ranges::find(known, module) != std::end(known);
}

bool is_told(PyObject* hook) {
  PyObject* function = hook ? function_of_hook(hook) : nullptr;
  if (!function) return hook && is_python_class(Py_TYPE(hook));  // an object that is called
  const std::string_view module = module_of(PyFunction_GET_GLOBALS(function));
  return !is_class_library(module) && module != "dataclasses";
}

bool is_enumeration(PyTypeObject* meta) {
  static constinit Imported type("enum", "EnumMeta");
  return PyType_IsSubtype(meta, type.type());
}

bool is_of_class_library(PyTypeObject* meta) { return meta == &PyType_Type || is_class_library(module_of(meta)); }

Ref MadeClasses::run_library(const std::function<PyObject*()>& run) {
  Ref result;
  {
    const NativeScope scope(c.mode);
    c.mode.callbacks_allowed = false;
    c.mode.plain = true;
    result = Ref::steal(run());
  }
  c.errors.check_sticky();
  c.torch.check_refusal();
  if (!result) throw PythonError{};
  return result;
}

/// The mapping for the names of the body.
Ref MadeClasses::prepare(const Statement& statement) {
  static constinit Imported make("magneto._classes", "class_namespace");
  const auto [meta, name, bases, resolved, keywords] = statement;
  auto* const metaclass = reinterpret_cast<PyTypeObject*>(meta);
  Ref names;
  if (is_told(c.attributes.type_lookup(metaclass, "__prepare__"))) {
    names = c.calls.call_polyfill("_classes.class_namespace", CallArgs{{meta, name, resolved, keywords}});
    if (c.world.is_outside(names.get())) refuse("whose names are entries of a mapping from outside");
  } else {
    names =
        run_library([&] { return PyObject_CallFunctionObjArgs(make.get(), meta, name, resolved, keywords, nullptr); });
  }
  const bool plain = is_of_class_library(metaclass) ? PyDict_Check(names.get()) : PyDict_CheckExact(names.get());
  if (!plain) refuse("whose names are no entries of a plain dict");
  return names;
}

bool MadeClasses::has_hooks(PyObject* bases, PyObject* entries) {
  bool any = false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(bases); ++i) {
    auto* base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(bases, i));
    any |= is_told(c.attributes.type_lookup(base, "__init_subclass__"));
  }
  PyObject* value;
  for (Py_ssize_t position = 0; PyDict_Next(entries, &position, nullptr, &value);) {
    if (!is_python_class(Py_TYPE(value)) || is_tensor(value)) continue;
    any |= is_told(c.attributes.type_lookup(Py_TYPE(value), "__set_name__"));
  }
  return any;
}

/// Interpreted are metaclasses of the program, and what they have from `type` and abc.ABCMeta.
void MadeClasses::check_metaclass(PyTypeObject* metaclass) {
  static constinit Imported abstract("abc", "ABCMeta");
  if (Py_TYPE(metaclass) != &PyType_Type) refuse("with a metaclass that has one itself");
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(metaclass->tp_mro); ++i) {
    auto* base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(metaclass->tp_mro, i));
    if (base == &PyType_Type || base == &PyBaseObject_Type || base == abstract.type()) continue;
    if (is_class_library(module_of(base)) || !is_python_class(base)) refuse("with a metaclass of a library");
    if (PyDict_GetItemString(type_dict(base), "mro")) refuse("with a metaclass that orders the bases");
  }
  if (PyType_HasFeature(metaclass, Py_TPFLAGS_HEAPTYPE) && !is_class(metaclass)) c.guards.bases(metaclass);
}

Ref MadeClasses::make_by_program(const Statement& statement, PyObject* names) {
  const auto [meta, name, bases, resolved, keywords] = statement;
  check_metaclass(reinterpret_cast<PyTypeObject*>(meta));
  if (resolved != bases && PyDict_SetItemString(names, "__orig_bases__", bases) < 0) throw PythonError{};
  CallArgs args{{name, resolved, names}};
  const Ref given = checked(PyDict_Copy(keywords));
  if (PyDict_GetItemString(given.get(), "metaclass")) PyDict_DelItemString(given.get(), "metaclass");
  const Ref words = checked(PySequence_Tuple(given.get()));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(words.get()); ++i) {
    args.values.push_back(PyDict_GetItem(given.get(), PyTuple_GET_ITEM(words.get(), i)));
  }
  if (PyTuple_GET_SIZE(words.get())) args.kwnames = words.get();
  Ref cell = Ref::borrow(PyDict_GetItemString(names, "__classcell__"));
  Ref made = c.calls.call(meta, std::move(args));
  if (cell && PyCell_GET(cell.get()) != made.get()) refuse("whose metaclass makes another class");
  return made;
}

namespace {

/// Entries of a class that the statement's own class gets, and type.__new__ takes away.
constexpr std::array kCells = {"__classcell__", "__classdictcell__"};

}  // namespace

Ref MadeClasses::make_by_type(const CallArgs& args) {
  const bool fits = args.positional() == 4 && PyType_Check(args.values[0]) && PyUnicode_CheckExact(args.values[1]) &&
                    PyTuple_CheckExact(args.values[2]) && PyDict_CheckExact(args.values[3]);
  if (!fits || c.world.is_outside(args.values[2]) || c.world.is_outside(args.values[3])) {
    refuse("of bases or names that are no tuple and dict of the segment");
  }
  const NonResumable scope(c);
  auto* const metaclass = reinterpret_cast<PyTypeObject*>(args.values[0]);
  PyObject *const name = args.values[1], *const bases = args.values[2];
  check_metaclass(metaclass);
  check_bases(metaclass, bases);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(bases); ++i) {
    if (!PyType_IsSubtype(metaclass, Py_TYPE(PyTuple_GET_ITEM(bases, i)))) refuse("whose base has another metaclass");
  }
  const Ref names = checked(PyDict_Copy(args.values[3]));
  PyObject* const module = PyDict_GetItemString(c.frame->globals, "__name__");
  if (module && !PyDict_SetDefault(names.get(), MAGNETO_STR("__module__"), module)) throw PythonError{};
  Ref entries = checked(PyDict_Copy(names.get()));
  for (const char* cell : kCells) {
    if (PyDict_GetItemString(entries.get(), cell)) PyDict_DelItemString(entries.get(), cell);
  }
  check_values(entries.get(), metaclass);
  has_hooks(bases, entries.get());  // guards what is found
  Ref cls = quiet_class(metaclass, name, bases, names.get());
  if (!cls) throw PythonError{};
  classes_[cls.get()] = {Ref::borrow(name), Ref::borrow(bases), {}, entries, {}, Ref::borrow(args.values[0])};
  note(cls.get());
  call_hooks(cls.get(), entries.get(), args);
  return cls;
}

/// As type.__new__ calls them: of the values, then of the bases.
void MadeClasses::call_hooks(PyObject* cls, PyObject* entries, const CallArgs& args) {
  PyObject *name, *value;
  for (Py_ssize_t position = 0; PyDict_Next(entries, &position, &name, &value);) {
    PyObject* hook = lookup_in_type(Py_TYPE(value), MAGNETO_STR("__set_name__"));
    if (!hook) continue;
    if (!PyFunction_Check(hook)) {
      if (is_python_class(Py_TYPE(hook))) refuse("with a descriptor that is told its name by no function");
      continue;  // C code, which type.__new__ has called
    }
    try {
      c.calls.call(c.world.wrap(hook, c.sources.constant(hook)).get(), {value, cls, name});
    } catch (const PythonError&) {  // CPython says then whose name it was
      PyErr_Clear();
      refuse("with a descriptor that raises when it is told its name");
    }
  }
  auto* const type = reinterpret_cast<PyTypeObject*>(cls);
  PyObject* hook = nullptr;
  for (Py_ssize_t i = 1; !hook && i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    hook = PyDict_GetItemString(type_dict(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, i))),
                                "__init_subclass__");
  }
  if (!hook || !function_of_hook(hook)) {
    if (args.keywords() || (hook && is_told(hook))) refuse("with keywords that no function takes");
    return;
  }
  CallArgs given{{cls}};
  given.values.insert(given.values.end(), args.values.begin() + 4, args.values.end());
  given.kwnames = args.kwnames;
  c.calls.call_polyfill("_classes.tell_bases", given);
}

Ref MadeClasses::make_abstract(const CallArgs& args) {
  static constinit Imported function("_abc", "_abc_init");
  check_count(args, 1, 1, "_abc_init");
  PyObject* const cls = args.values[0];
  if (!is_class(cls)) c.side_exit(BreakReason::OpaqueCall, "call of _abc._abc_init");
  auto* const type = reinterpret_cast<PyTypeObject*>(cls);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_bases); ++i) {
    c.attributes.type_lookup(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_bases, i)),
                             "__abstractmethods__");
  }
  Ref none = run_library([&] { return PyObject_CallFunctionObjArgs(function.get(), cls, nullptr); });
  note_step(cls, function.get(), {});
  return none;
}

}  // namespace magneto::capture
