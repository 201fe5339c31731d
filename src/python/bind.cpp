#include "python/bind.h"

#include <algorithm>
#include <vector>

#include "python/ref.h"

namespace magneto {

namespace {

/// The parameters of one call, in CPython's slot order: positional ones, keyword-only ones, *args, **kwargs.
class Binder {
 public:
  Binder(PyFunctionObject* function, PyObject** slots)
      : function_(function),
        code_(reinterpret_cast<PyCodeObject*>(function->func_code)),
        slots_(slots),
        positional_(code_->co_argcount),
        named_(positional_ + code_->co_kwonlyargcount) {}

  /// The steps of CPython's initialize_locals (Python/ceval.c), in its order.
  bool bind(PyObject* const* args, size_t nargs, PyObject* kwnames) {
    return take_positional(args, nargs) && take_keywords(args + nargs, kwnames) && fill_defaults(nargs) &&
           fill_keyword_defaults();
  }

 private:
  bool has(int flag) const { return (code_->co_flags & flag) != 0; }
  PyObject* name_of(int slot) const { return PyTuple_GET_ITEM(code_->co_localsplusnames, slot); }

  bool take_positional(PyObject* const* args, size_t nargs) {
    const size_t taken = std::min<size_t>(nargs, positional_);
    for (size_t i = 0; i < taken; ++i) slots_[i] = Py_NewRef(args[i]);
    if (!has(CO_VARARGS)) return nargs == taken;
    PyObject* rest = PyTuple_New(nargs - taken);
    if (!rest) return false;
    for (size_t i = taken; i < nargs; ++i) PyTuple_SET_ITEM(rest, i - taken, Py_NewRef(args[i]));
    slots_[named_] = rest;
    return true;
  }

  bool take_keywords(PyObject* const* values, PyObject* kwnames) {
    PyObject* rest = nullptr;
    if (has(CO_VARKEYWORDS)) {
      rest = PyDict_New();
      if (!rest) return false;
      slots_[named_ + has(CO_VARARGS)] = rest;
    }
    const Py_ssize_t count = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* keyword = PyTuple_GET_ITEM(kwnames, i);
      if (!PyUnicode_CheckExact(keyword)) return false;  // not a str, or one with an __eq__ of its own
      const int slot = slot_of(keyword);
      if (slot >= 0) {
        if (slots_[slot]) return false;
        slots_[slot] = Py_NewRef(values[i]);
      } else if (!rest || PyDict_SetItem(rest, keyword, values[i]) < 0) {
        return false;
      }
    }
    return true;
  }

  /// The parameter that may be given by this keyword; -1 if there is none.
  int slot_of(PyObject* keyword) const {
    for (int slot = code_->co_posonlyargcount; slot < named_; ++slot) {
      if (name_of(slot) == keyword) return slot;  // nearly always: names are interned
    }
    for (int slot = code_->co_posonlyargcount; slot < named_; ++slot) {
      if (PyUnicode_Compare(name_of(slot), keyword) == 0) return slot;
    }
    return -1;
  }

  bool fill_defaults(size_t nargs) {
    if (nargs >= static_cast<size_t>(positional_)) return true;
    PyObject* defaults = function_->func_defaults;
    const int count = defaults ? static_cast<int>(PyTuple_GET_SIZE(defaults)) : 0;
    const int first = positional_ - count;  // negative if __defaults__ was set to more than there are parameters
    for (int slot = static_cast<int>(nargs); slot < positional_; ++slot) {
      if (slots_[slot]) continue;
      if (slot < first) return false;
      slots_[slot] = Py_NewRef(PyTuple_GET_ITEM(defaults, slot - first));
    }
    return true;
  }

  bool fill_keyword_defaults() {
    for (int slot = positional_; slot < named_; ++slot) {
      if (slots_[slot]) continue;
      PyObject* defaults = function_->func_kwdefaults;
      PyObject* value = defaults ? PyDict_GetItemWithError(defaults, name_of(slot)) : nullptr;
      if (!value) return false;
      slots_[slot] = Py_NewRef(value);
    }
    return true;
  }

  PyFunctionObject* function_;
  PyCodeObject* code_;
  PyObject** slots_;
  int positional_;  // parameters that positional arguments may fill
  int named_;       // these and the keyword-only ones
};

}  // namespace

bool bind_arguments(PyObject* object, PyObject* const* args, size_t nargs, PyObject* kwnames, PyObject** localsplus) {
  auto* function = reinterpret_cast<PyFunctionObject*>(object);
  auto* code = reinterpret_cast<PyCodeObject*>(function->func_code);
  const int slot_count = code->co_nlocalsplus;
  // As many positional arguments as parameters, and nothing else in the signature: most calls.
  if (!kwnames && code->co_kwonlyargcount == 0 && (code->co_flags & (CO_VARARGS | CO_VARKEYWORDS)) == 0 &&
      nargs == static_cast<size_t>(code->co_argcount)) {
    for (size_t i = 0; i < nargs; ++i) localsplus[i] = Py_NewRef(args[i]);
    std::fill(localsplus + nargs, localsplus + slot_count, nullptr);
    return true;
  }
  std::fill_n(localsplus, slot_count, nullptr);
  if (Binder(function, localsplus).bind(args, nargs, kwnames)) return true;
  PyErr_Clear();  // out of memory, or an unhashable keyword default: the real call says so
  for (int i = 0; i < slot_count; ++i) Py_CLEAR(localsplus[i]);
  return false;
}

PyObject* call_for_frame(PyObject* function) {
  auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function));
  const int positional = code->co_argcount, keywords = code->co_kwonlyargcount;
  std::vector<PyObject*> args(positional + keywords, Py_None);
  Ref names;
  if (keywords) {
    names = Ref::steal(PyTuple_New(keywords));
    if (!names) return nullptr;
    for (int i = 0; i < keywords; ++i) {
      PyTuple_SET_ITEM(names.get(), i, Py_NewRef(PyTuple_GET_ITEM(code->co_localsplusnames, positional + i)));
    }
  }
  return PyObject_Vectorcall(function, args.data(), positional, names.get());
}

}  // namespace magneto
