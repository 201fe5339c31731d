// Classes that the program makes with a class statement.
//
// Invariant: such a class is the capture's own, made for real while capturing: by metaclasses of the libraries that run
// no code of the program, or by type.__new__ alone, the metaclass and the hooks of the program being interpreted around
// it (hooked_classes.cpp). It is known how it was made, so that a run that hands it on, or an instance of it, makes one
// of its own. What it holds is fresh, and read without guards; what its bases hold is not.
#pragma once

#include <Python.h>

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "python/ref.h"

namespace magneto::capture {

class Capture;
struct CallArgs;

/// How a class was made: what `types.new_class` needs to do it again, and what happened to it then. Where it has a
/// metaclass here, `type.__new__` has made it of the entries, without hooks: what these did are steps.
struct MadeClass {
  /// A call whose first argument is the class: of a decorator, of setattr.
  struct Step {
    Ref function;
    std::vector<Ref> args;  // those behind it
  };
  Ref name, bases, keywords, entries;
  std::vector<Step> steps;
  Ref metaclass;
};

class MadeClasses {
 public:
  explicit MadeClasses(Capture& capture) : c(capture) {}
  MadeClasses(const MadeClasses&) = delete;

  /// builtins.__build_class__.
  Ref build(const CallArgs& args);
  /// A decorator that changes the class, called by CPython. Null: it is given something else.
  Ref decorate(PyObject* function, const CallArgs& args);
  /// An attribute of such a class is set, or deleted (null).
  void write(PyObject* cls, PyObject* name, PyObject* value);
  /// staticmethod, classmethod and property, called; also by the methods of a property. Null: another class.
  Ref make_wrapper(PyTypeObject* type, const CallArgs& args);
  /// type.__new__(metaclass, name, bases, names, **keywords), hooks of the values and the bases included.
  Ref make_by_type(const CallArgs& args);
  /// _abc._abc_init(cls).
  Ref make_abstract(const CallArgs& args);

  bool is_class(PyObject* object) const { return classes_.contains(object); }
  bool is_class(PyTypeObject* type) const { return is_class(reinterpret_cast<PyObject*>(type)); }
  const MadeClass& of(PyObject* cls) const { return classes_.at(cls); }
  /// A member of an enumeration among them.
  bool is_member(PyObject* object) const;
  /// A staticmethod, classmethod or property.
  bool is_wrapper(PyObject* object) const;
  bool is_any(PyObject* object) const { return is_class(object) || is_wrapper(object) || is_member(object); }
  /// The capture is over: what the classes hold ends now, and not when the collector finds their cycles.
  void forget();
  /// A function of the class closes over more than constants: what the capture has made, or reads under guards.
  bool closes_over_values(PyObject* cls) const;
  /// Guards the bases that are none of these.
  void guard_bases(PyTypeObject* type);

 private:
  /// A class statement, its metaclass and bases known. Borrowed; `bases` as written.
  struct Statement {
    PyObject *meta, *name, *bases, *resolved, *keywords;
  };
  Ref make(PyObject* name, PyObject* bases, PyObject* keywords, PyObject* function);
  Ref make_natively(const Statement& statement, PyObject* names, Ref entries);
  void check_bases(PyTypeObject* metaclass, PyObject* bases);
  Ref run_body(PyObject* function, PyObject* names);
  void check_values(PyObject* names, PyTypeObject* meta);
  void note(PyObject* cls);
  void note_value(PyObject* value);
  void note_step(PyObject* cls, PyObject* function, const std::vector<PyObject*>& args);
  [[noreturn]] void refuse(const std::string& why);
  /// Python code of a library runs by itself: nothing of it is the program's.
  Ref run_library(const std::function<PyObject*()>& run);

  /// Metaclasses and hooks of the program. (hooked_classes.cpp)
  Ref prepare(const Statement& statement);
  bool has_hooks(PyObject* bases, PyObject* entries);
  void check_metaclass(PyTypeObject* metaclass);
  Ref make_by_program(const Statement& statement, PyObject* names);
  void call_hooks(PyObject* cls, PyObject* entries, const CallArgs& args);

  Capture& c;
  std::unordered_map<PyObject*, MadeClass> classes_;
};

/// Its metaclasses and hooks run no code of the program.
bool is_class_library(std::string_view module);
bool is_of_class_library(PyTypeObject* meta);
/// An entry that C code calls when a class is made is a function of the program.
bool is_told(PyObject* hook);
bool is_enumeration(PyTypeObject* meta);

/// The functions that a staticmethod, classmethod or property is made of, in the order of its arguments. Borrowed.
std::vector<PyObject*> functions_of_wrapper(PyObject* wrapper);

}  // namespace magneto::capture
