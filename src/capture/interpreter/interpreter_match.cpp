// The interpreter's opcodes of pattern matching and exception groups.
#include "capture/calls/calls.h"
#include "capture/interpreter/interpreter.h"
#include "capture/interpreter/object_protocol.h"
#include "capture/world/attributes.h"
#include "capture/world/containers.h"
#include "capture/world/world.h"

namespace magneto::capture {

namespace {

PyObject* builtin(const char* name) { return PyDict_GetItemString(PyEval_GetBuiltins(), name); }

}  // namespace

/// `case {"a": x}`: the values of the keys as a tuple, or None.
void Interpreter::op_match_keys() {
  PyObject* subject = f.top(1);
  PyObject* keys = f.top();
  const Py_ssize_t count = PyTuple_GET_SIZE(keys);
  Ref seen = checked(PySet_New(nullptr));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* key = PyTuple_GET_ITEM(keys, i);
    const int known = PySet_Contains(seen.get(), key);
    if (known < 0) throw PythonError{};
    if (known) {
      PyErr_Format(PyExc_ValueError, "mapping pattern checks duplicate key (%R)", key);
      throw PythonError{};
    }
    if (PySet_Add(seen.get(), key) < 0) throw PythonError{};
  }
  static PyObject* const missing = PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type));
  Ref values = checked(PyTuple_New(count));
  Ref get = count ? c.attributes.load_attr(subject, MAGNETO_STR("get")) : Ref();
  for (Py_ssize_t i = 0; i < count; ++i) {
    Ref value = c.calls.call(get.get(), {PyTuple_GET_ITEM(keys, i), missing});
    if (value.get() == missing) return f.push(Ref::borrow(Py_None));
    PyTuple_SET_ITEM(values.get(), i, value.release());
  }
  f.push(std::move(values));
}

/// `case Class(a, b=c)`: the attributes as a tuple, or null. `positional`: how many patterns have no name.
Ref Interpreter::match_class(PyObject* subject, PyObject* type, int32_t positional, PyObject* names) {
  if (!PyType_Check(type)) {
    PyErr_SetString(PyExc_TypeError, "called match pattern must be a class");
    throw PythonError{};
  }
  Ref is_instance = c.calls.call(builtin("isinstance"), {subject, type});
  if (!c.protocol.truth(is_instance.get())) return {};
  const char* type_name = reinterpret_cast<PyTypeObject*>(type)->tp_name;
  Ref seen = checked(PySet_New(nullptr));
  Ref values = checked(PyList_New(0));
  auto add = [&](PyObject* attribute) {
    const int known = PySet_Contains(seen.get(), attribute);
    if (known < 0) throw PythonError{};
    if (known) {
      PyErr_Format(PyExc_TypeError, "%s() got multiple sub-patterns for attribute %R", type_name, attribute);
      throw PythonError{};
    }
    if (PySet_Add(seen.get(), attribute) < 0) throw PythonError{};
    try {
      Ref value = c.attributes.lookup_attr(subject, attribute);
      return value && PyList_Append(values.get(), value.get()) == 0;
    } catch (const PythonError&) {
      if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw;
      PyErr_Clear();
      return false;
    }
  };
  if (positional) {
    bool match_self = false;
    Ref match_args = c.attributes.lookup_attr(type, MAGNETO_STR("__match_args__"));
    if (match_args) {
      match_args = c.containers.resolve(match_args.get());
      if (!PyTuple_CheckExact(match_args.get())) {
        PyErr_Format(PyExc_TypeError, "%s.__match_args__ must be a tuple (got %s)", type_name,
                     Py_TYPE(match_args.get())->tp_name);
        throw PythonError{};
      }
    } else {
      match_args = checked(PyTuple_New(0));
      match_self = PyType_HasFeature(reinterpret_cast<PyTypeObject*>(type), _Py_TPFLAGS_MATCH_SELF);
    }
    const Py_ssize_t allowed = match_self ? 1 : PyTuple_GET_SIZE(match_args.get());
    if (allowed < positional) {
      PyErr_Format(PyExc_TypeError, "%s() accepts %d positional sub-pattern%s (%d given)", type_name,
                   static_cast<int>(allowed), allowed == 1 ? "" : "s", static_cast<int>(positional));
      throw PythonError{};
    }
    if (match_self) {
      if (PyList_Append(values.get(), subject) < 0) throw PythonError{};
    } else {
      for (int32_t i = 0; i < positional; ++i) {
        PyObject* attribute = PyTuple_GET_ITEM(match_args.get(), i);
        if (!PyUnicode_CheckExact(attribute)) {
          PyErr_Format(PyExc_TypeError, "__match_args__ elements must be strings (got %s)",
                       Py_TYPE(attribute)->tp_name);
          throw PythonError{};
        }
        if (!add(attribute)) return {};
      }
    }
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
    if (!add(PyTuple_GET_ITEM(names, i))) return {};
  }
  return checked(PyList_AsTuple(values.get()));
}

/// `except* Type`: splits the group on the stack into the rest, which stays, and what matches, which is pushed.
void Interpreter::op_check_exception_group() {
  PyObject* raised = f.top(1);
  Ref types = c.containers.resolve_deep(f.top());
  auto group_type = reinterpret_cast<PyObject*>(PyExc_BaseExceptionGroup);
  const auto is_plain = [&](PyObject* type) {
    return PyExceptionClass_Check(type) && !PyObject_IsSubclass(type, group_type);
  };
  bool plain = PyTuple_Check(types.get()) || is_plain(types.get());
  for (Py_ssize_t i = 0; PyTuple_Check(types.get()) && i < PyTuple_GET_SIZE(types.get()); ++i) {
    plain &= is_plain(PyTuple_GET_ITEM(types.get(), i));
  }
  if (!plain || c.world.is_outside(raised)) {
    c.side_exit(BreakReason::Exception, "an exception group is matched in a way that the capture does not follow");
  }
  Ref match = Ref::borrow(Py_None), rest = Ref::borrow(raised);
  if (raised != Py_None) {
    const bool is_group = PyObject_IsInstance(raised, group_type) == 1;
    if (PyErr_GivenExceptionMatches(raised, types.get())) {
      match = Ref::borrow(raised);
      if (!is_group) {
        Ref one = checked(PyTuple_Pack(1, raised));
        match = checked(PyObject_CallFunction(PyExc_BaseExceptionGroup, "sO", "", one.get()));
      }
      rest = Ref::borrow(Py_None);
    } else if (is_group) {
      Ref pair = c.calls.call_native([&] { return PyObject_CallMethod(raised, "split", "(O)", types.get()); });
      match = Ref::borrow(PyTuple_GET_ITEM(pair.get(), 0));
      rest = Ref::borrow(PyTuple_GET_ITEM(pair.get(), 1));
    }
  }
  f.drop(2);
  f.push(std::move(rest));
  if (match.get() != Py_None) PyErr_SetHandledException(match.get());
  f.push(std::move(match));
}

namespace {

/// Came of splitting the group, and was not raised anew.
bool is_part_of(PyObject* exception, PyObject* group) {
  const auto* left = reinterpret_cast<PyBaseExceptionObject*>(exception);
  const auto* right = reinterpret_cast<PyBaseExceptionObject*>(group);
  return left->notes == right->notes && left->traceback == right->traceback && left->cause == right->cause &&
         left->context == right->context;
}

void add_leaves(PyObject* exception, PyObject* leaves) {
  if (PyObject_IsInstance(exception, PyExc_BaseExceptionGroup) != 1) {
    if (PyList_Append(leaves, exception) < 0) throw PythonError{};
    return;
  }
  const Ref parts = checked(PyObject_GetAttrString(exception, "exceptions"));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts.get()); ++i) add_leaves(PyTuple_GET_ITEM(parts.get(), i), leaves);
}

}  // namespace

/// What `except*` raises of several exceptions: those raised anew, and as one group what was not caught of the old one.
Ref Interpreter::regrouped(PyObject* group, const std::vector<PyObject*>& exceptions) {
  const Ref all = checked(PyList_New(0)), leaves = checked(PyList_New(0));
  for (PyObject* exception : exceptions) {
    if (c.world.is_outside(exception)) {
      c.side_exit(BreakReason::Exception, "several exceptions leave `except*`, one of them from outside");
    }
    if (is_part_of(exception, group)) {
      add_leaves(exception, leaves.get());
    } else if (PyList_Append(all.get(), exception) < 0) {
      throw PythonError{};
    }
  }
  if (PyList_GET_SIZE(leaves.get())) {
    const Ref is_kept = c.calls.call_polyfill("is_one_of", CallArgs{{leaves.get()}});
    const Ref rest = c.calls.call_native([&] { return PyObject_CallMethod(group, "subgroup", "O", is_kept.get()); });
    if (PyList_Append(all.get(), rest.get()) < 0) throw PythonError{};
  }
  if (PyList_GET_SIZE(all.get()) == 1) return Ref::borrow(PyList_GET_ITEM(all.get(), 0));
  return checked(PyObject_CallFunction(PyExc_BaseExceptionGroup, "sO", "", all.get()));
}

/// At the end of `except*`: what is raised again, or None.
void Interpreter::op_prepare_reraise() {
  Ref left = c.containers.resolve(f.top());  // for each `except*` what it raised, or did not catch, or None
  std::vector<PyObject*> exceptions;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(left.get()); ++i) {
    PyObject* exception = PyList_GET_ITEM(left.get(), i);
    if (exception != Py_None) exceptions.push_back(exception);
  }
  Ref raised = Ref::borrow(exceptions.empty() ? Py_None : exceptions.front());
  if (exceptions.size() > 1) raised = regrouped(f.top(1), exceptions);
  f.drop(2);
  f.push(std::move(raised));
}

int32_t Interpreter::step_match(const Instr& in) {
  switch (in.op) {
    case Op::MATCH_SEQUENCE:
    case Op::MATCH_MAPPING: {
      const int flag = in.op == Op::MATCH_SEQUENCE ? Py_TPFLAGS_SEQUENCE : Py_TPFLAGS_MAPPING;
      f.push(Ref::borrow(PyType_HasFeature(Py_TYPE(f.top()), flag) ? Py_True : Py_False));
      break;
    }
    case Op::MATCH_KEYS:
      op_match_keys();
      break;
    case Op::MATCH_CLASS: {
      Ref values = match_class(f.top(2), f.top(1), in.arg, f.top());
      replace(3, values ? std::move(values) : Ref::borrow(Py_None));
      break;
    }
    case Op::CHECK_EG_MATCH:
      op_check_exception_group();
      break;
    case Op::PREP_RERAISE_STAR:
      op_prepare_reraise();
      break;
    case Op::RETURN_GENERATOR: {
      const bool generator = (f.info->code->co_flags & CO_GENERATOR) != 0;
      c.side_exit(BreakReason::Generator, generator ? "the body of a generator is captured with what iterates over it"
                                                    : "the body of a coroutine runs when it is awaited");
      break;
    }
    default:
      return step_coroutine(in);
  }
  return in.next;
}

}  // namespace magneto::capture
