// Python functions that C code calls while a capture runs.
#include "capture/calls/callbacks.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "capture/calls/calls.h"
#include "capture/calls/native_functions.h"
#include "capture/calls/native_mode.h"
#include "capture/capture.h"
#include "capture/exits/exit_builder.h"
#include "capture/interpreter/errors.h"
#include "capture/interpreter/frames.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/symbols.h"
#include "capture/torch/gradients.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/modules.h"
#include "capture/world/world.h"
#include "python/abi/frame.h"
#include "python/abi/types.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

/// Generators that are alive at the end hold fakes, and closing them would run the user's `finally` blocks: they are
/// sent back to their first instruction, which no handler covers, and closed there.
void Callbacks::close_generators() {
  SavedError saved;
  c.mode.callbacks_allowed = false;
  for (const Ref& reference : generators) {
    PyObject* generator = PyWeakref_GET_OBJECT(reference.get());
    Frame* suspended = generator == Py_None ? nullptr : generator_frame(generator);
    if (!suspended) continue;
    Ref held = Ref::borrow(generator);
    frame_set_running(suspended, decode(frame_code(suspended)), 0, frame_stack_depth(suspended));
    Ref closed = Ref::steal(PyObject_CallMethod(generator, "close", nullptr));
    if (!closed) PyErr_WriteUnraisable(generator);
  }
  generators.clear();
}

namespace {

/// A new frame that CPython makes for a signal: its arguments are the signal's number and the interrupted frame.
bool is_signal_handler(Frame* real) {
  PyCodeObject* code = frame_code(real);
  PyObject** slots = frame_localsplus(real);
  const auto is_pair = [](PyObject* number, PyObject* frame) {
    return number && frame && PyLong_CheckExact(number) && PyFrame_Check(frame);
  };
  const int count = code->co_argcount;
  if (count >= 2 && is_pair(slots[count - 2], slots[count - 1])) return true;
  if (!(code->co_flags & CO_VARARGS)) return false;
  PyObject* rest = slots[count + code->co_kwonlyargcount];
  return rest && PyTuple_CheckExact(rest) && PyTuple_GET_SIZE(rest) == 2 &&
         is_pair(PyTuple_GET_ITEM(rest, 0), PyTuple_GET_ITEM(rest, 1));
}

/// Code of PyTorch, which C code of PyTorch may call as it likes, and the parts of Python's library that it is written
/// with (decompositions that a transform or the engine asks for): they do nothing to the program's objects.
bool is_torch_code(Frame* real) {
  constexpr std::string_view kLibrary[] = {"abc", "contextlib", "enum", "functools", "inspect", "logging", "typing"};
  const std::string_view name = module_of(frame_globals(real));
  return name == "torch" || name.starts_with("torch.") || std::ranges::find(kLibrary, name) != std::end(kLibrary);
}

/// Modules are imported: what runs for that, whose finders ever, is no part of the program.
bool is_import_code(Frame* real) { return module_of(frame_globals(real)) == "importlib._bootstrap"; }

/// Code of Python's library and of packages that PyTorch requires (C code of CPython 3.12 asks typing_extensions for
/// the parameters of a generic class), or of Magneto, which looks on where modules are imported.
bool is_library_code(Frame* real) {
  static PyObject* const library = PySys_GetObject("stdlib_module_names");
  constexpr std::string_view kOthers[] = {"magneto",  "filelock", "fsspec", "jinja2",           "mpmath",
                                          "networkx", "numpy",    "sympy",  "typing_extensions"};
  const std::string name(module_of(frame_globals(real)));
  const std::string top = name.substr(0, name.find('.'));
  if (std::ranges::find(kOthers, top) != std::end(kOthers)) return true;
  Ref package = Ref::steal(PyUnicode_FromString(top.c_str()));
  return !package || !library || PySet_Contains(library, package.get()) != 0;
}

/// A function among the arguments of a Native function, or a method of a class or an object among them, which its
/// library calls; but for the library's own.
bool is_callback_of(std::span<PyObject* const> args, Frame* real) {
  PyObject* const function = frame_function(real);
  const bool has_first = frame_code(real)->co_argcount > 0;
  PyObject* const first = has_first ? frame_localsplus(real)[0] : nullptr;
  // A class of C has no methods in Python: a name, say, that is handed on as it is.
  const bool may_be_self = first && PyType_HasFeature(Py_TYPE(first), Py_TPFLAGS_HEAPTYPE);
  PyObject* const self = may_be_self || (first && PyType_Check(first)) ? first : nullptr;
  if (std::ranges::find(args, function) == args.end() && (!self || std::ranges::find(args, self) == args.end())) {
    return false;
  }
  if (is_native_function(function)) return false;  // it runs itself, or another one of its module
  const std::string_view name = module_of(frame_globals(real));
  return !is_torch_code(real) && !name.empty() && !is_library_code(real);
}

/// The function of PyTorch whose only call of C code is that of autograd's engine.
bool runs_engine(Frame* real) {
  static constinit Imported function("torch.autograd.graph", "_engine_run_backward");
  return reinterpret_cast<PyObject*>(frame_code(real)) == PyFunction_GET_CODE(function.get());
}

}  // namespace

/// A frame of PyTorch's own code that is called while a torch call is recorded: it runs as it is, with all that it
/// calls.
PyObject* Callbacks::run_recorded(PyThreadState* thread, Frame* real, int throwflag) {
  const bool engine = runs_engine(real);
  const NativeScope scope(c.mode);
  c.mode.trusted = true;
  c.mode.engine_runs |= engine;
  const bool engine_ran = c.session->set_engine_runs(engine);
  PyObject* result = run_frame_plainly(thread, real, throwflag);
  c.session->set_engine_runs(engine_ran);
  return result;
}

/// Code of PyTorch and of Python's library that is called back runs as it is, and the program's code that it calls is
/// interpreted.
PyObject* Callbacks::run_torch_code(PyThreadState* thread, Frame* real, int throwflag) {
  if (!runs_engine(real)) return run_frame_plainly(thread, real, throwflag);
  const bool engine_ran = c.session->set_engine_runs(true);
  PyObject* result = run_frame_plainly(thread, real, throwflag);
  c.session->set_engine_runs(engine_ran);
  return result;
}

/// Ends a frame that will not be run.
void Callbacks::end_frame(PyThreadState* thread, Frame* real, const CodeInfo& info, int32_t instr, int32_t depth) {
  SavedError saved;
  frame_set(real, info, instr, depth);
  PyObject* none = frame_return(thread, real, info, Py_NewRef(Py_None));
  Py_XDECREF(none);
  PyErr_Clear();
}

/// What an object says when its last reference goes, between calls of C code: a generator is closed, or a weak
/// reference's callback is called. Nothing from outside dies meanwhile: the object is the capture's own. (Objects with
/// a __del__ are not made during captures: Finalizer.)
bool Callbacks::is_last_word(Frame* real, int throwflag) const {
  if (!c.frame || c.mode.recording || c.mode.plain) return false;
  if (throwflag) return frame_is_generator(real);
  PyCodeObject* code = frame_code(real);
  if (code->co_argcount < 1) return false;
  PyObject* last = frame_localsplus(real)[code->co_argcount - 1];
  return last && PyWeakref_Check(last) && PyWeakref_GET_OBJECT(last) == Py_None;
}

/// What is raised in an object's last words is printed, and the program goes on: that has to happen in each run.
void Callbacks::mute_last_word() {
  if (!c.errors.sticky && PyErr_ExceptionMatches(PyExc_GeneratorExit)) return;
  if (!c.errors.sticky) {
    c.errors.sticky =
        std::make_exception_ptr(c.exits.restart_before(*c.frame, "an exception is raised where an object dies"));
  }
  PyErr_SetNone(PyExc_GeneratorExit);  // a generator that is closed may raise it
}

namespace {

/// What CPython calls where a coroutine dies that nobody has awaited.
bool warns_of_coroutine(Frame* real) {
  static constinit Imported function("warnings", "_warn_unawaited_coroutine");
  return reinterpret_cast<PyObject*>(frame_code(real)) == PyFunction_GET_CODE(function.get());
}

}  // namespace

/// The warning is due in each run, and not now: the segment ends in front of the call that makes the coroutine.
PyObject* Callbacks::note_unawaited(PyThreadState* thread, Frame* real) {
  const BreakSite* const born = c.exits.allocation_site(frame_localsplus(real)[0]);
  if (born && !c.errors.sticky) {
    c.errors.sticky = std::make_exception_ptr(c.exits.restart_before(*born, "a coroutine is made that is not awaited"));
  }
  const CodeInfo& info = decode(frame_code(real));
  frame_set(real, info, frame_next_instr(real, info), frame_stack_depth(real));
  return frame_return(thread, real, info, Py_NewRef(Py_None));
}

namespace {

/// `__hash__`, `__len__`, `__index__`...: CPython wants a number of them, and nothing that stands for one.
bool is_special_method(const CodeInfo& info) {
  const char* name = PyUnicode_AsUTF8(info.code->co_name);
  return std::strncmp(name, "__", 2) == 0 && !(info.code->co_flags & CO_GENERATOR);
}

/// PyTorch hands sizes on as it has them.
void take_size_numbers(Capture& capture, InterpFrame& f) {
  for (int32_t slot = 0; slot < f.info->nlocals; ++slot) {
    PyObject* const value = f.slots[slot];
    if (!value) continue;
    const bool named = PyTuple_Check(value) && !PyTuple_CheckExact(value) && Py_TYPE(value) != size_class();
    Ref items = named ? checked(PyTuple_GetSlice(value, 0, PyTuple_GET_SIZE(value))) : Ref::borrow(value);
    Ref numbers = capture.symbols.with_size_numbers(items.get());
    if (numbers.get() == items.get()) continue;
    if (named) {  // torch._functorch.autograd_function.VmapInfo
      const Ref args = checked(PyTuple_Pack(1, numbers.get()));
      numbers = checked(PyTuple_Type.tp_new(Py_TYPE(value), args.get(), nullptr));
    }
    f.set_local(slot, numbers);
  }
}

}  // namespace

/// C code goes straight to a special method in the class of its first argument: what it has found there is guarded.
/// Null: the function is not from there.
const guards::Source* Callbacks::method_found_by_c(PyObject* function, PyObject* self) {
  PyTypeObject* const type = self ? Py_TYPE(self) : nullptr;
  if (!type || !is_python_class(type)) return nullptr;
  bool found = false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    Py_ssize_t position = 0;
    PyObject *name, *value;
    while (PyDict_Next(type_dict(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, i))), &position, &name,
                       &value)) {
      if (value != function || !PyUnicode_CheckExact(name)) continue;
      c.attributes.type_lookup(type, name);
      found = true;
    }
  }
  if (!found) return nullptr;
  c.world.wrap(function, c.sources.constant(function));
  return c.world.source_of(function);
}

/// A frame that C code calls where no call back is awaited: it runs as it is. But code of the user (an operand's
/// __radd__, an argument's __index__, a hook or the backward of a custom function) must be interpreted: the segment
/// ends in front of the call of C code.
PyObject* Callbacks::run_uninterpreted(PyThreadState* thread, Frame* real, int throwflag) {
  if (Ref hash = c.containers.hash_of_stand_in(real)) {
    const CodeInfo& info = decode(frame_code(real));
    frame_set(real, info, frame_next_instr(real, info), frame_stack_depth(real));
    return frame_return(thread, real, info, hash.release());
  }
  if (c.mode.recording && ((c.mode.trusted && !c.mode.engine_runs) || throwflag || is_torch_code(real))) {
    return run_recorded(thread, real, throwflag);
  }
  if (c.mode.recording || is_callback_of(c.mode.native_args, real)) {
    const CodeInfo& info = decode(frame_code(real));
    end_frame(thread, real, info, frame_next_instr(real, info), frame_stack_depth(real));
    const std::string caller = c.mode.recording ? "a torch function" : "a library function";
    return c.errors.interrupt_c_code(std::make_exception_ptr(
        c.exits.restart_before(*c.frame, caller + " calls " + PyUnicode_AsUTF8(info.code->co_qualname))));
  }
  const NativeScope scope(c.mode);
  c.mode.plain = true;
  return run_frame_plainly(thread, real, throwflag);
}

PyObject* Callbacks::run(PyThreadState* thread, Frame* real, int throwflag, bool* handled) {
  if (!throwflag && is_signal_handler(real)) {
    *handled = true;
    PyObject* result = nullptr;
    c.run_suspended([&] { result = run_frame_plainly(thread, real, throwflag); });
    return result;
  }
  if (!throwflag && warns_of_coroutine(real)) {
    *handled = true;
    return note_unawaited(thread, real);
  }
  if (c.errors.sticky) return nullptr;
  const bool last_word = !c.mode.callbacks_allowed && is_last_word(real, throwflag);
  if ((!c.mode.callbacks_allowed && !last_word) || c.gradients.is_operator_backward(real)) {
    *handled = true;
    const NativeScope scope(c.mode);
    c.mode.callbacks_allowed = false;
    return run_uninterpreted(thread, real, throwflag);
  }
  const bool by_torch = c.mode.torch_runs || (c.frame && module_of(c.frame->globals).starts_with("torch."));
  if (by_torch && is_import_code(real)) {
    *handled = true;
    const NativeScope scope(c.mode);
    c.mode.callbacks_allowed = false;
    c.mode.plain = true;
    return run_frame_plainly(thread, real, throwflag);
  }
  if (c.mode.torch_runs && (is_torch_code(real) || is_library_code(real))) {
    *handled = true;
    return run_torch_code(thread, real, throwflag);
  }
  const CodeInfo& info = decode(frame_code(real));
  const int flags = info.code->co_flags;
  PyObject* function = frame_function(real);
  if ((flags & (CO_COROUTINE | CO_ASYNC_GENERATOR | CO_GENERATOR)) && !frame_is_generator(real)) {
    c.world.register_closure(function, c.world.source_of(function));
    return nullptr;  // CPython makes the generator object; its body comes back here
  }
  *handled = true;
  InterpFrame f;
  f.info = &info;
  f.function = Ref::borrow(function);
  f.function_source = c.world.source_of(function);
  f.globals = frame_globals(real);
  f.builtins = frame_builtins(real);
  f.real = real;
  f.slots = frame_localsplus(real);
  f.depth = frame_stack_depth(real);
  f.pc = frame_next_instr(real, info);
  f.callback = true;
  std::optional<NativeScope> scope(std::in_place, c.mode);
  c.mode.callbacks_allowed = false;
  const bool of_torch = std::exchange(c.mode.torch_runs, false);
  // A loop over a generator is no C code between the two.
  const bool loops = c.frame && frame_is_generator(real) && c.frame->depth > 0 && c.frame->instr().op == Op::FOR_ITER;
  PyObject* const iterator = loops ? c.frame->top() : nullptr;  // null: the loop is over, and its iterator dies
  const bool direct = iterator && PyGen_CheckExact(iterator) && generator_frame(iterator) == nullptr;
  if (!c.mode.called_back_from) c.mode.called_back_from = c.frame;
  Ref value;
  bool raised = false;
  try {
    if (!f.function_source && f.pc <= info.entry && !throwflag && info.code->co_argcount > 0) {
      f.function_source = method_found_by_c(function, f.slots[0]);
    }
    if (f.function_source) c.guards.function(f.function_source, function);
    c.world.register_closure(function, f.function_source);
    if (f.pc <= info.entry && !throwflag) c.calls.wrap_defaults(f);
    if (f.pc <= info.entry && of_torch) take_size_numbers(c, f);
    if (throwflag) {
      f.pc = std::max(f.pc - 1, 0);
      if (!info.handler_of(f.pc)) {
        frame_set_running(real, info, f.pc, f.depth);
        scope.reset();
        return frame_raise(thread, real);
      }
      value = c.frames.run(f, /*raise_first=*/true);
    } else {
      value = c.frames.run(f);
    }
    if (!direct && !last_word) value = returned_to_c(std::move(value), frame_is_generator(real));
    if (is_special_method(info)) value = c.numbers.known(value.get());
  } catch (const PythonError&) {
    raised = true;
  } catch (...) {
    c.errors.interrupt_c_code(std::current_exception());
    raised = true;
  }
  scope.reset();
  if (raised) {
    if (last_word) mute_last_word();
    end_frame(thread, real, info, f.pc, f.depth);
    if (!last_word || throwflag) return nullptr;
    PyErr_Clear();
    return Py_NewRef(Py_None);
  }
  frame_set(real, info, f.pc, f.depth);
  if (info.instrs[f.pc].op == Op::YIELD_VALUE) return frame_yield(thread, real, info, f.pc, value.release());
  return frame_return(thread, real, info, value.release());
}

}  // namespace magneto::capture
