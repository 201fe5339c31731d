// What the tests need to see of this stage.
#include <new>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "api/bindings.h"
#include "python/abi/dicts.h"
#include "python/abi/frame.h"
#include "python/abi/frame_slots.h"
#include "python/bind.h"
#include "python/bytecode/code.h"
#include "python/ref.h"

namespace magneto {

namespace {

PyCodeObject* as_code(PyObject* object) {
  if (!PyCode_Check(object)) throw std::invalid_argument("a code object is needed");
  return reinterpret_cast<PyCodeObject*>(object);
}

/// decode(code) -> (instructions, handlers): instructions as (name, arg, start, offset, next, target, line, second),
/// handlers as (begin, end, target, depth, lasti); all in instruction indices.
PyObject* decode_binding(PyObject*, PyObject* code) {
  return guarded([&] {
    const CodeInfo& info = decode(as_code(code));
    Ref instrs = checked(PyList_New(0));
    for (const Instr& instr : info.instrs) {
      Ref row = checked(Py_BuildValue("(siiiiiii)", op_name(instr.op), instr.arg, instr.start, instr.offset, instr.next,
                                      instr.target, instr.line, instr.second));
      if (PyList_Append(instrs.get(), row.get()) < 0) throw PythonError{};
    }
    Ref handlers = checked(PyList_New(0));
    for (const Handler& h : info.handlers) {
      Ref row = checked(Py_BuildValue("(iiiiO)", h.begin, h.end, h.target, h.depth, h.lasti ? Py_True : Py_False));
      if (PyList_Append(handlers.get(), row.get()) < 0) throw PythonError{};
    }
    return Py_BuildValue("(OO)", instrs.get(), handlers.get());
  });
}

/// stack_effects(code) -> (pops, pushes) of each instruction.
PyObject* stack_effects_binding(PyObject*, PyObject* code) {
  return guarded([&] {
    Ref effects = checked(PyList_New(0));
    for (const Instr& instr : decode(as_code(code)).instrs) {
      Ref row = checked(Py_BuildValue("(ii)", pops_of(instr), pushes_of(instr)));
      if (PyList_Append(effects.get(), row.get()) < 0) throw PythonError{};
    }
    return effects.release();
  });
}

/// handler_of(code, instr) -> index of the handler's first instruction, or -1.
PyObject* handler_of_binding(PyObject*, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject* code;
    int instr;
    if (!PyArg_ParseTuple(args, "Oi", &code, &instr)) return nullptr;
    const Handler* handler = decode(as_code(code)).handler_of(instr);
    return PyLong_FromLong(handler ? handler->target : -1);
  });
}

PyObject* forget_code_binding(PyObject*, PyObject* code) {
  return guarded([&] {
    forget_code(as_code(code));
    return Py_NewRef(Py_None);
  });
}

/// What `resume_test` does with the first frame of `code` that the hook sees. All borrowed from the binding's
/// arguments.
struct Takeover {
  PyCodeObject* code;
  int instr;
  PyObject* locals;    // list with one entry per slot (Ellipsis: an empty slot), or None: leave them as bound
  PyObject* stack;     // list (Ellipsis: NULL), or None: leave it
  const char* action;  // "continue", "raise", "return", "yield", "call"
  PyObject* operand;   // exception to raise, value to return or to yield, function to call in the frame
  PyObject* handled;   // the exception being handled there, or None
};

const Takeover* pending = nullptr;

/// Moves copies of a list's entries into frame slots.
void fill(PyObject** slots, PyObject* list) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    PyObject* value = PyList_GET_ITEM(list, i);
    slots[i] = value == Py_Ellipsis ? nullptr : Py_NewRef(value);
  }
}

void set_up(const Takeover& takeover, Frame* frame, const CodeInfo& info) {
  PyObject** slots = frame_localsplus(frame);
  const bool past_prologue = frame_next_instr(frame, info) == 0 && takeover.instr >= info.entry;
  if (takeover.locals != Py_None) {
    for (int32_t i = 0; i < info.nlocals; ++i) Py_CLEAR(slots[i]);
    fill(slots, takeover.locals);
  } else if (past_prologue) {
    frame_init_cells(frame, info);
  }
  int32_t depth = frame_stack_depth(frame);
  if (takeover.stack != Py_None) {
    for (int32_t i = 0; i < depth; ++i) Py_CLEAR(slots[info.nlocals + i]);
    fill(slots + info.nlocals, takeover.stack);
    depth = static_cast<int32_t>(PyList_GET_SIZE(takeover.stack));
  }
  if (takeover.action == std::string_view("continue")) {
    frame_set(frame, info, takeover.instr, depth);
  } else {
    frame_set_running(frame, info, takeover.instr, depth);
  }
}

PyObject* take_over(const Takeover& takeover, PyThreadState* thread, Frame* frame) {
  const CodeInfo& info = decode(takeover.code);
  const std::string_view action = takeover.action;
  set_up(takeover, frame, info);
  if (takeover.handled != Py_None) PyErr_SetHandledException(takeover.handled);
  if (action == "continue") return frame_continue(thread, frame);
  if (action == "return") return frame_return(thread, frame, info, Py_NewRef(takeover.operand));
  if (action == "yield") return frame_yield(thread, frame, info, takeover.instr, Py_NewRef(takeover.operand));
  if (action == "raise") {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(takeover.operand)), takeover.operand);
    return frame_raise(thread, frame);
  }
  // "call"
  CurrentFrame current(thread, frame);
  PyObject* result = PyObject_CallNoArgs(takeover.operand);
  return result ? frame_return(thread, frame, info, result) : frame_raise(thread, frame);
}

PyObject* resume_hook(PyThreadState* thread, Frame* frame, int throwflag) {
  if (pending && frame_code(frame) == pending->code && !throwflag) {
    const bool creates_generator =
        (pending->code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) != 0 &&
        !frame_is_generator(frame);
    if (!creates_generator) {
      const Takeover takeover = *std::exchange(pending, nullptr);
      return take_over(takeover, thread, frame);
    }
  }
  return throwflag ? frame_throw(thread, frame) : frame_continue(thread, frame);
}

/// resume_test(code, call, instr, locals=None, stack=None, action="continue", operand=None, handled=None): runs call();
/// the first frame of `code` that it enters (for generator functions: the generator's own frame) is set to instruction
/// `instr`, with those locals and stack, and finished by `action`.
PyObject* resume_test_binding(PyObject*, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject *code, *call;
    Takeover takeover{nullptr, 0, Py_None, Py_None, "continue", Py_None, Py_None};
    if (!PyArg_ParseTuple(args, "OOi|OOsOO", &code, &call, &takeover.instr, &takeover.locals, &takeover.stack,
                          &takeover.action, &takeover.operand, &takeover.handled)) {
      return nullptr;
    }
    takeover.code = as_code(code);
    const CodeInfo& info = decode(takeover.code);
    if (takeover.instr < 0 || takeover.instr >= static_cast<int>(info.instrs.size()) ||
        (takeover.locals != Py_None &&
         (!PyList_Check(takeover.locals) || PyList_GET_SIZE(takeover.locals) != info.nlocals)) ||
        (takeover.stack != Py_None &&
         (!PyList_Check(takeover.stack) || PyList_GET_SIZE(takeover.stack) > info.stack_size))) {
      throw std::invalid_argument("this state does not fit the code object");
    }
    pending = &takeover;
    Ref result;
    {
      FrameHook hook(resume_hook);
      result = Ref::steal(PyObject_CallNoArgs(call));
    }
    if (std::exchange(pending, nullptr) && result) throw std::invalid_argument("no frame of this code was entered");
    return result.release();
  });
}

int64_t counted_frames = 0;

PyObject* count_frame(PyThreadState* thread, Frame* frame, int throwflag) {
  ++counted_frames;
  return throwflag ? frame_throw(thread, frame) : frame_continue(thread, frame);
}

/// frames_test(call) -> how many Python frames call() runs, its own included.
PyObject* frames_test_binding(PyObject*, PyObject* call) {
  return guarded([&] {
    counted_frames = 0;
    const FrameHook hook(count_frame);
    Ref result = checked(PyObject_CallNoArgs(call));
    return PyLong_FromLongLong(counted_frames);
  });
}

/// generator_state(generator) -> (index of the next instruction, stack depth), or None if it runs or has ended.
PyObject* generator_state_binding(PyObject*, PyObject* generator) {
  return guarded([&] {
    Frame* frame = generator_frame(generator);
    if (!frame) return Py_NewRef(Py_None);
    return Py_BuildValue("(ii)", frame_next_instr(frame, decode(frame_code(frame))), frame_stack_depth(frame));
  });
}

/// Slots as a list; Ellipsis for an empty one.
Ref list_of(PyObject** slots, Py_ssize_t count) {
  Ref list = checked(PyList_New(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyList_SET_ITEM(list.get(), i, Py_NewRef(slots[i] ? slots[i] : Py_Ellipsis));
  }
  return list;
}

/// snapshot_test(frame) -> (instruction, slots, stack) of a frame object in a trace function.
PyObject* snapshot_test_binding(PyObject*, PyObject* object) {
  return guarded([&] {
    if (!PyFrame_Check(object)) throw std::invalid_argument("a frame is needed");
    Frame* frame = frame_of_object(object);
    const CodeInfo& info = decode(frame_code(frame));
    const int32_t depth = frame_stack_depth(frame);
    if (depth < 0) throw std::invalid_argument("the stack of this frame is not saved");
    std::vector<Ref> held;
    std::vector<PyObject*> all;
    for (int32_t i = 0; i < info.nlocals + depth; ++i) all.push_back(held.emplace_back(frame_slot(frame, i)).get());
    Ref slots = list_of(all.data(), info.nlocals);
    Ref stack = list_of(all.data() + info.nlocals, depth);
    return Py_BuildValue("(iOO)", info.index_of[PyFrame_GetLasti(reinterpret_cast<PyFrameObject*>(object)) / 2],
                         slots.get(), stack.get());
  });
}

/// bind_test(function, *args, **kwargs) -> the slots that bind_arguments fills (Ellipsis: an empty one), or None.
PyObject* bind_test_binding(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return guarded([&]() -> PyObject* {
    if (nargs < 1 || !PyFunction_Check(args[0])) throw std::invalid_argument("a function is needed");
    auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(args[0]));
    std::vector<PyObject*> slots(code->co_nlocalsplus);
    if (!bind_arguments(args[0], args + 1, nargs - 1, kwnames, slots.data())) return Py_NewRef(Py_None);
    Ref bound = list_of(slots.data(), code->co_nlocalsplus);
    for (PyObject* slot : slots) Py_XDECREF(slot);
    return bound.release();
  });
}

/// dict_version(dict) -> the version that guards would read.
PyObject* dict_version_binding(PyObject*, PyObject* dict) {
  return guarded([&] {
    if (!PyDict_Check(dict)) throw std::invalid_argument("a dict is needed");
    if (!keeps_version(dict)) throw std::bad_alloc();
    return PyLong_FromUnsignedLongLong(dict_version(dict));
  });
}

}  // namespace

PyMethodDef python_test_methods[] = {
    {"decode", decode_binding, METH_O, "decode(code) -> (instructions, handlers)"},
    {"stack_effects", stack_effects_binding, METH_O, "stack_effects(code) -> (pops, pushes) of each instruction"},
    {"handler_of", handler_of_binding, METH_VARARGS, "handler_of(code, instr) -> target index or -1"},
    {"forget_code", forget_code_binding, METH_O, "forget_code(code): drops the decoded form"},
    {"generator_state", generator_state_binding, METH_O, "generator_state(generator) -> (next instruction, depth)"},
    {"bind_test", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(bind_test_binding)),
     METH_FASTCALL | METH_KEYWORDS,
     "bind_test(function, *args, **kwargs) -> list of slots, or None if they do not fit"},
    {"resume_test", resume_test_binding, METH_VARARGS,
     "resume_test(code, call, instr, locals=None, stack=None, action='continue', operand=None, handled=None)"},
    {"frames_test", frames_test_binding, METH_O, "frames_test(call) -> how many Python frames call() runs"},
    {"snapshot_test", snapshot_test_binding, METH_O, "snapshot_test(frame) -> (instruction, slots, stack)"},
    {"dict_version", dict_version_binding, METH_O, "dict_version(dict) -> int"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace magneto
