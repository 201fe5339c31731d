// The interpreter's opcodes of names in the body of a class, which are entries of a mapping.
#include "capture/calls/native_mode.h"
#include "capture/interpreter/errors.h"
#include "capture/interpreter/interpreter.h"

namespace magneto::capture {

namespace {

/// The mapping may be one of a library (an enumeration's), whose Python code is none of the program.
template <class Run>
void in_names(Capture& c, const Run& run) {
  const NativeScope scope(c.mode);
  c.mode.callbacks_allowed = false;
  c.mode.plain = true;
  run();
}

/// For type.__new__ alone, which fills the cell.
bool is_cell_of_class(PyObject* key) {
  return PyUnicode_CompareWithASCIIString(key, "__classcell__") == 0 ||
         PyUnicode_CompareWithASCIIString(key, "__classdictcell__") == 0;
}

}  // namespace

Ref Interpreter::load_name(PyObject* key) {
  Ref value;
  in_names(c, [&] { value = Ref::steal(PyObject_GetItem(f.body.names.get(), key)); });
  if (value) return value;
  if (!PyErr_ExceptionMatches(PyExc_KeyError)) throw PythonError{};
  PyErr_Clear();
  return {};
}

void Interpreter::store_name(PyObject* key, PyObject* value) {
  int done = 0;
  in_names(c, [&] {
    done = value ? PyObject_SetItem(f.body.names.get(), key, value) : PyObject_DelItem(f.body.names.get(), key);
  });
  if (done < 0 && !value && PyErr_ExceptionMatches(PyExc_KeyError)) {
    PyErr_Format(PyExc_NameError, "name '%U' is not defined", key);
  }
  if (done < 0) throw PythonError{};
  if (is_cell_of_class(key)) return;
  if ((value ? PyDict_SetItem(f.body.entries.get(), key, value) : PyDict_DelItem(f.body.entries.get(), key)) < 0)
    PyErr_Clear();
}

int32_t Interpreter::step_names(const Instr& in) {
  if (!f.body.names) {
    c.side_exit(BreakReason::Opcode, std::string("the instruction ") + op_name(in.op) + " is not interpreted");
  }
  switch (in.op) {
    case Op::LOAD_NAME: {
      Ref value = load_name(name(in.arg));
      f.push(value ? std::move(value) : load_global(name(in.arg)));
      break;
    }
    case Op::STORE_NAME:
      store_name(name(in.arg), f.top());
      f.drop(1);
      break;
    case Op::DELETE_NAME:
      store_name(name(in.arg), nullptr);
      break;
    case Op::LOAD_LOCALS:
      f.push(f.body.names);
      break;
    case Op::LOAD_FROM_DICT_OR_GLOBALS: {
      if (f.top() != f.body.names.get()) c.side_exit(BreakReason::Opcode, "names of another class are read");
      Ref value = load_name(name(in.arg));
      replace(1, value ? std::move(value) : load_global(name(in.arg)));
      break;
    }
    case Op::LOAD_CLASSDEREF:
    case Op::LOAD_FROM_DICT_OR_DEREF: {
      const bool on_stack = in.op == Op::LOAD_FROM_DICT_OR_DEREF;
      if (on_stack && f.top() != f.body.names.get())
        c.side_exit(BreakReason::Opcode, "names of another class are read");
      Ref value = load_name(PyTuple_GET_ITEM(f.info->localsplus_names.get(), in.arg));
      replace(on_stack ? 1 : 0, value ? std::move(value) : load_cell(in.arg));
      break;
    }
    case Op::SETUP_ANNOTATIONS:
      if (!load_name(MAGNETO_STR("__annotations__"))) {
        store_name(MAGNETO_STR("__annotations__"), checked(PyDict_New()).get());
      }
      break;
    default:
      c.side_exit(BreakReason::Opcode, std::string("the instruction ") + op_name(in.op) + " is not interpreted");
  }
  return in.next;
}

}  // namespace magneto::capture
