// The interpreter's opcodes of coroutines. Their frames are CPython's, as those of generators: who sends to one calls C
// code, and the body comes back to the capture (Callbacks).
#include "capture/calls/calls.h"
#include "capture/interpreter/errors.h"
#include "capture/interpreter/interpreter.h"
#include "capture/world/attributes.h"
#include "capture/world/world.h"
#include "python/abi/frame.h"
#include "python/errors.h"

namespace magneto::capture {

/// What the object's class has by that name, called. Where it is no function of Python, a side exit.
Ref Interpreter::call_special(PyObject* object, PyObject* name) {
  PyObject* method = c.attributes.type_lookup(Py_TYPE(object), name);
  if (!method || !PyFunction_Check(method)) {
    c.side_exit(BreakReason::Generator, std::string(PyUnicode_AsUTF8(name)) + " of an object of type " +
                                            Py_TYPE(object)->tp_name + " is called by C code");
  }
  return c.calls.call(c.world.wrap(method, c.sources.constant(method)).get(), {object});
}

/// What `await object` sends to.
Ref Interpreter::awaited(PyObject* object) {
  if (c.world.is_outside(object)) c.side_exit(BreakReason::Generator, "a coroutine from outside is awaited");
  if (PyCoro_CheckExact(object)) {
    const Ref other = checked(PyObject_GetAttrString(object, "cr_await"));
    if (other.get() == Py_None) return Ref::borrow(object);
    PyErr_SetString(PyExc_RuntimeError, "coroutine is being awaited already");
    throw PythonError{};
  }
  if (PyGen_CheckExact(object)) {  // of types.coroutine
    Frame* suspended = generator_frame(object);
    if (suspended && (frame_code(suspended)->co_flags & CO_ITERABLE_COROUTINE)) return Ref::borrow(object);
  }
  Ref iterator = call_special(object, MAGNETO_STR("__await__"));
  if (!PyIter_Check(iterator.get()) || PyCoro_CheckExact(iterator.get())) {
    c.side_exit(BreakReason::Generator, "__await__() gives no iterator");
  }
  return iterator;
}

int32_t Interpreter::step_coroutine(const Instr& in) {
  switch (in.op) {
    case Op::GET_AWAITABLE:
      replace(1, awaited(f.top()));
      break;
    case Op::GET_AITER:
      replace(1, call_special(f.top(), MAGNETO_STR("__aiter__")));
      break;
    case Op::GET_ANEXT:
      f.push(awaited(call_special(f.top(), MAGNETO_STR("__anext__")).get()));
      break;
    case Op::END_ASYNC_FOR:
      if (!PyErr_GivenExceptionMatches(f.top(), PyExc_StopAsyncIteration)) {
        Ref raised = f.pop();
        raise_again(raised.get());
        throw PythonError{};
      }
      f.drop(2);
      break;
    case Op::BEFORE_ASYNC_WITH: {
      PyObject* manager = f.top();
      PyObject* leave = c.attributes.type_lookup(Py_TYPE(manager), MAGNETO_STR("__aexit__"));
      if (!leave || !PyFunction_Check(leave)) {
        c.side_exit(BreakReason::OpaqueObject,
                    std::string("a context manager of type ") + Py_TYPE(manager)->tp_name + " is entered");
      }
      const Ref leave_value = c.world.wrap(leave, c.sources.constant(leave));
      Ref bound_exit = checked(PyMethod_New(leave_value.get(), manager));
      Ref entered = call_special(manager, MAGNETO_STR("__aenter__"));
      f.drop(1);
      push_exit(std::move(bound_exit));
      f.push(std::move(entered));
      break;
    }
    default:
      return step_names(in);
  }
  return in.next;
}

}  // namespace magneto::capture
