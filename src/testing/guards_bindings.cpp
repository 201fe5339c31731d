// Bindings of the guards, for tests and benchmarks: guard sets described by tuples.
//
//   program = _testing.guards_compile([(path, "check", *arguments), ...])
//   _testing.guards_check(program, (function, locals, stack))    -> {path position: value} or None
//   _testing.guards_explain(program, roots), _testing.guards_print(program), _testing.guards_bench(program, roots,
//   rounds)
//
// A path is a tuple of steps, the root first: (("local", 0, "x"), ("attr", "weight"), ("item", "k"), ("seq", 1)).
// In locals and stack `NotImplemented` stands for an unbound variable.
#include <time.h>

#include <functional>
#include <map>
#include <stdexcept>

#include "api/bindings.h"
#include "guards/guards.h"

namespace magneto {

namespace {

using namespace guards;

PyObject* item(PyObject* tuple, Py_ssize_t index) {
  if (!PyTuple_Check(tuple) || index >= PyTuple_GET_SIZE(tuple))
    throw std::invalid_argument("a description is too short");
  return PyTuple_GET_ITEM(tuple, index);
}

std::string text(PyObject* str) {
  const char* utf8 = PyUnicode_AsUTF8(str);
  if (!utf8) throw PythonError{};
  return utf8;
}

Py_ssize_t number(PyObject* object) {
  Py_ssize_t value = PyLong_AsSsize_t(object);
  if (value == -1 && PyErr_Occurred()) throw PythonError{};
  return value;
}

PyTypeObject* type_of(PyObject* object) {
  if (!PyType_Check(object)) throw std::invalid_argument("expected a type");
  return reinterpret_cast<PyTypeObject*>(object);
}

using Step = std::function<const Source*(SourceTable&, const Source*, PyObject*)>;

const std::map<std::string, Step>& steps() {
  static const std::map<std::string, Step> table = {
      {"local", [](auto& t, auto, PyObject* s) { return t.local(number(item(s, 1)), item(s, 2)); }},
      {"stack", [](auto& t, auto, PyObject* s) { return t.stack(number(item(s, 1))); }},
      {"function", [](auto& t, auto, PyObject*) { return t.function(); }},
      {"const", [](auto& t, auto, PyObject* s) { return t.constant(item(s, 1)); }},
      {"closure", [](auto& t, auto base, PyObject* s) { return t.closure(base, number(item(s, 1)), item(s, 2)); }},
      {"cell", [](auto& t, auto base, PyObject*) { return t.cell(base); }},
      {"attr", [](auto& t, auto base, PyObject* s) { return t.attr(base, item(s, 1)); }},
      {"slot", [](auto& t, auto base, PyObject* s) { return t.slot(base, item(s, 1)); }},
      {"dict", [](auto& t, auto base, PyObject*) { return t.instance_dict(base); }},
      {"item", [](auto& t, auto base, PyObject* s) { return t.dict_item(base, item(s, 1)); }},
      {"seq", [](auto& t, auto base, PyObject* s) { return t.seq_item(base, number(item(s, 1))); }},
      {"self", [](auto& t, auto base, PyObject*) { return t.bound_self(base); }},
      {"func", [](auto& t, auto base, PyObject*) { return t.bound_function(base); }},
      {"grad", [](auto& t, auto base, PyObject*) { return t.grad(base); }},
  };
  return table;
}

const Source* source_at(SourceTable& table, PyObject* path) {
  if (!PyTuple_Check(path)) throw std::invalid_argument("a path is a tuple of steps");
  const Source* source = nullptr;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(path); ++i) {
    auto step = steps().find(text(item(item(path, i), 0)));
    if (step == steps().end()) throw std::invalid_argument("unknown step of a path");
    source = step->second(table, source, item(path, i));
  }
  return source;
}

/// What a description is turned into: the check's tuple is (path, name, arguments...).
struct Description {
  SourceTable& table;
  GuardSet& set;
  const Source* source;
  PyObject* tuple;

  PyObject* argument(Py_ssize_t index) const { return item(tuple, 2 + index); }
};

std::vector<PyObject*> list_items(PyObject* list) {
  if (!PyList_Check(list)) throw std::invalid_argument("expected a list");
  std::vector<PyObject*> items;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) items.push_back(PyList_GET_ITEM(list, i));
  return items;
}

const std::map<std::string, void (*)(const Description&)>& checks() {
  using D = const Description&;
  static const std::map<std::string, void (*)(D)> table = {
      {"type", [](D d) { d.set.type(d.source, type_of(d.argument(0))); }},
      {"identity", [](D d) { d.set.identity(d.source, d.argument(0)); }},
      {"equals", [](D d) { d.set.equals(d.source, d.argument(0)); }},
      {"absent", [](D d) { d.set.absent(d.source); }},
      {"length", [](D d) { d.set.length(d.source, type_of(d.argument(0)), number(d.argument(1))); }},
      {"dict_keys", [](D d) { d.set.dict_keys(d.source, type_of(d.argument(0)), list_items(d.argument(1))); }},
      {"tensor", [](D d) { d.set.tensor(d.source, d.argument(0)); }},
      {"alias", [](D d) { d.set.alias(d.source, source_at(d.table, d.argument(0))); }},
      {"distinct", [](D d) { d.set.distinct(d.source, source_at(d.table, d.argument(0))); }},
      {"all_distinct",
       [](D d) {
         std::vector<const Source*> sources;
         for (PyObject* path : list_items(d.argument(0))) sources.push_back(source_at(d.table, path));
         d.set.distinct(sources);
       }},
      {"function", [](D d) { d.set.function(d.source, d.argument(0)); }},
      {"type_lookup", [](D d) { d.set.type_lookup(type_of(d.argument(0)), d.argument(1), d.argument(2)); }},
      {"type_lookup_missing", [](D d) { d.set.type_lookup(type_of(d.argument(0)), d.argument(1), nullptr); }},
      {"bases", [](D d) { d.set.bases(type_of(d.argument(0))); }},
      {"abc_registrations", [](D d) { d.set.abc_registrations(); }},
      {"state", [](D d) { d.set.state(d.argument(0), list_items(d.argument(1)), d.argument(2)); }},
      {"require", [](D d) { d.set.require(d.source); }},
      {"global_state", [](D d) { d.set.set_global_state(GlobalState::read()); }},
  };
  return table;
}

/// A program with the slot of each description's source.
struct TestProgram {
  std::unique_ptr<GuardProgram> program;
  std::vector<int32_t> slots;
  std::string set_text;
};

constexpr const char* kGuardsCapsule = "magneto.guards.program";

TestProgram& program_of(PyObject* capsule) {
  auto* program = static_cast<TestProgram*>(PyCapsule_GetPointer(capsule, kGuardsCapsule));
  if (!program) throw PythonError{};
  return *program;
}

/// The roots of a call; borrows from the tuple.
class TestRoots {
 public:
  explicit TestRoots(PyObject* tuple) : function_(item(tuple, 0)) {
    fill(locals_, item(tuple, 1));
    fill(stack_, item(tuple, 2));
  }
  Roots get() const { return {function_ == Py_None ? nullptr : function_, locals_.data(), stack_.data()}; }

 private:
  static void fill(std::vector<PyObject*>& slots, PyObject* tuple) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(tuple); ++i) {
      slots.push_back(item(tuple, i) == Py_NotImplemented ? nullptr : item(tuple, i));
    }
  }
  PyObject* function_;
  std::vector<PyObject*> locals_, stack_;
};

PyObject* compile(PyObject*, PyObject* descriptions) {
  return guarded([&] {
    auto result = std::make_unique<TestProgram>();
    SourceTable table;
    GuardSet set(table);
    std::vector<const Source*> sources;
    for (PyObject* tuple : list_items(descriptions)) {
      PyObject* path = item(tuple, 0);
      const Source* source = path == Py_None ? nullptr : source_at(table, path);
      auto check = checks().find(text(item(tuple, 1)));
      if (check == checks().end()) throw std::invalid_argument("unknown check");
      check->second({table, set, source, tuple});
      sources.push_back(source);
    }
    result->program = std::make_unique<GuardProgram>(set, table);
    for (const Source* source : sources) result->slots.push_back(source ? result->program->slot_of(source) : -1);
    result->set_text = set.print();
    PyObject* capsule = PyCapsule_New(result.get(), kGuardsCapsule, [](PyObject* object) {
      delete static_cast<TestProgram*>(PyCapsule_GetPointer(object, kGuardsCapsule));
    });
    if (capsule) (void)result.release();  // the capsule owns it
    return capsule;
  });
}

PyObject* check(PyObject*, PyObject* arguments) {
  return guarded([&]() -> PyObject* {
    TestProgram& program = program_of(item(arguments, 0));
    TestRoots roots(item(arguments, 1));
    PyObject* const* slots = program.program->check(roots.get());
    if (!slots) Py_RETURN_NONE;
    Ref values = checked(PyTuple_New(static_cast<Py_ssize_t>(program.slots.size())));
    for (size_t i = 0; i < program.slots.size(); ++i) {
      PyObject* value = program.slots[i] >= 0 ? slots[program.slots[i]] : nullptr;
      PyTuple_SET_ITEM(values.get(), static_cast<Py_ssize_t>(i), Py_NewRef(value ? value : Py_NotImplemented));
    }
    return values.release();
  });
}

PyObject* explain(PyObject*, PyObject* arguments) {
  return guarded([&] {
    TestRoots roots(item(arguments, 1));
    return PyUnicode_FromString(program_of(item(arguments, 0)).program->explain(roots.get()).c_str());
  });
}

PyObject* print(PyObject*, PyObject* capsule) {
  return guarded([&] {
    TestProgram& program = program_of(capsule);
    if (program.set_text != program.program->print()) throw std::logic_error("set and program print differently");
    return PyUnicode_FromString(program.set_text.c_str());
  });
}

PyObject* names(PyObject*, PyObject* paths) {
  return guarded([&] {
    SourceTable table;
    Ref result = checked(PyList_New(0));
    for (PyObject* path : list_items(paths)) {
      Ref name = checked(PyUnicode_FromString(source_at(table, path)->name().c_str()));
      Ref entry = checked(Py_BuildValue("(Oi)", name.get(), source_at(table, path)->id));
      if (PyList_Append(result.get(), entry.get()) < 0) throw PythonError{};
    }
    return result.release();
  });
}

/// Time that this thread has run, which other processes on a busy machine do not lengthen.
double thread_nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

PyObject* bench(PyObject*, PyObject* arguments) {
  return guarded([&] {
    TestProgram& program = program_of(item(arguments, 0));
    TestRoots held(item(arguments, 1));
    Py_ssize_t rounds = number(item(arguments, 2));
    Roots roots = held.get();
    Py_ssize_t hits = 0;
    double start = thread_nanoseconds();
    for (Py_ssize_t i = 0; i < rounds; ++i) hits += program.program->check(roots) != nullptr;
    double time = thread_nanoseconds() - start;
    return Py_BuildValue("(dni)", time / static_cast<double>(rounds), hits, program.program->slot_count());
  });
}

PyObject* bench_global_state(PyObject*, PyObject* argument) {
  return guarded([&] {
    Py_ssize_t rounds = number(argument);
    GlobalState expected = GlobalState::read();
    Py_ssize_t equal = 0;
    double start = thread_nanoseconds();
    for (Py_ssize_t i = 0; i < rounds; ++i) equal += GlobalState::read() == expected;
    double time = thread_nanoseconds() - start;
    return Py_BuildValue("(dn)", time / static_cast<double>(rounds), equal);
  });
}

}  // namespace

PyMethodDef guards_test_methods[] = {
    {"guards_compile", compile, METH_O, "Compiles a list of (path, check, arguments...) to a guard program."},
    {"guards_check", check, METH_VARARGS, "Values of the described sources, or None if a guard fails."},
    {"guards_explain", explain, METH_VARARGS, "Why the guards fail; empty if they hold."},
    {"guards_print", print, METH_O, "The guards, one per line."},
    {"guards_names", names, METH_O, "Name and number of the source at each path."},
    {"guards_bench", bench, METH_VARARGS, "(nanoseconds per check, passed checks, slots)."},
    {"guards_bench_global_state", bench_global_state, METH_O, "(nanoseconds per reading, equal readings)."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace magneto
