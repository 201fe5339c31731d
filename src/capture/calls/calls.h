// Calls of the interpreted program: what is called decides by tables (functions.def, effects.def) how.
//
// Invariant: Python functions are interpreted, C functions run where a row states their effects and all that they read
// is guarded first, and every other call ends the segment in front of it.
#pragma once

#include <Python.h>

#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "capture/calls/made_classes.h"
#include "python/ref.h"

namespace magneto::capture {

class Capture;
struct CallArgs;
struct InterpFrame;

class Calls {
 public:
  explicit Calls(Capture& capture) : classes(capture), c(capture) {}
  Calls(const Calls&) = delete;

  /// Guards those that the C function goes to for tensors among the arguments.
  void guard_special_methods(PyObject* function, std::span<PyObject* const> args);
  /// Calls the program's own method, if it has put one in the place of PyTorch's, or PyTorch's, if a class or a mode
  /// says what that means; else null.
  Ref call_replaced_method(PyObject* tensor, PyObject* name);
  Ref call(PyObject* callable, CallArgs args);
  Ref call(PyObject* callable, std::initializer_list<PyObject*> args);
  Ref inline_function(PyObject* function, const CallArgs& args);
  /// What its code does, whatever the tables say of it.
  Ref interpret_function(PyObject* function, const CallArgs& args);
  /// The function of that name of magneto, interpreted: of _polyfills, where it names no module.
  Ref call_polyfill(const char* name, const CallArgs& args);
  /// `past_metaclass`: as type.__call__ does it.
  Ref call_type(PyTypeObject* type, const CallArgs& args, bool past_metaclass = false);
  /// C code that reads its arguments' contents and may call Python functions back.
  Ref call_native(const std::function<PyObject*()>& run);
  uint64_t natives_run = 0;
  void wrap_defaults(InterpFrame& frame);
  Ref check_tensor_all(const CallArgs& args);

  MadeClasses classes;  // class statements
  bool has_said_compiling = false;
  /// Classes that the program has made with collections.namedtuple().
  std::vector<Ref> named_tuples;
  /// What magneto.compile() has made in the segment, and its options.
  std::unordered_map<PyObject*, Ref> compiled;

 private:
  /// CPython runs the function (functions.def: Native). `members`: what it gives are members of its argument's class.
  /// (native_functions.cpp)
  Ref run_native_function(PyObject* function, const CallArgs& args, bool members);
  /// collections.namedtuple(). (named_tuples.cpp)
  Ref make_named_tuple(PyObject* function, const CallArgs& args);
  Ref call_c_function(PyObject* callable, const CallArgs& args);

  /// Kinds of what can be called. (callables.cpp; call_marked: calls.cpp; call_cached: cached_functions.cpp)
  struct CallableKind {
    const char* name;
    Ref (Calls::*call)(PyObject* callable, CallArgs& args);
  };
  static const CallableKind kCallables[];
  Ref call_break_region(PyObject* callable, CallArgs& args);
  Ref call_marked(PyObject* callable, CallArgs& args);
  Ref call_deferred(PyObject* callable, CallArgs& args);
  Ref call_numpy(PyObject* callable, CallArgs& args);
  Ref call_function(PyObject* callable, CallArgs& args);
  Ref call_method(PyObject* callable, CallArgs& args);
  Ref call_class(PyObject* callable, CallArgs& args);
  Ref call_c_code(PyObject* callable, CallArgs& args);
  Ref call_compiled(PyObject* callable, CallArgs& args);
  Ref call_cached(PyObject* callable, CallArgs& args);
  void call_once(PyObject* function, const CallArgs& args, const char* attribute);
  Ref call_partial(PyObject* callable, CallArgs& args);
  Ref call_getter(PyObject* callable, CallArgs& args);
  Ref call_operator(PyObject* callable, CallArgs& args);
  Ref call_generic_alias(PyObject* callable, CallArgs& args);
  Ref call_script_function(PyObject* callable, CallArgs& args);
  Ref call_ufunc(PyObject* callable, CallArgs& args);
  Ref call_weak_reference(PyObject* callable, CallArgs& args);
  Ref call_instance(PyObject* callable, CallArgs& args);

  Ref make_super(const CallArgs& args);
  Ref find_cached(PyObject* callable, const CallArgs& args);
  Ref kept_result(PyObject* callable, const CallArgs& args);
  void write_log(PyObject* function, const CallArgs& args);

  Capture& c;
  /// Of the function under an lru_cache that is interpreted, if it may be called in front of the segment: it writes
  /// logs. They are left out here, since that call writes them.
  bool* logs_of_cached_ = nullptr;
};

}  // namespace magneto::capture
