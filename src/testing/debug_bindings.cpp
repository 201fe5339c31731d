// Faults planted in the compiler, for tests of the tools that find faults.
#include "api/bindings.h"
#include "guards/planted.h"
#include "observe/faults.h"

namespace magneto {
namespace {

PyObject* plant_fault(PyObject*, PyObject* args) {
  const char *place, *subject;
  if (!PyArg_ParseTuple(args, "ss", &place, &subject)) return nullptr;
  observe::plant_fault(place, subject);
  Py_RETURN_NONE;
}

PyObject* clear_faults(PyObject*, PyObject*) {
  observe::clear_faults();
  Py_RETURN_NONE;
}

/// [(name, meaning)...]
PyObject* guard_faults(PyObject*, PyObject*) {
  Ref list = Ref::steal(PyList_New(0));
  for (const auto& [name, meaning] : guards::guard_faults()) {
    Ref row = Ref::steal(Py_BuildValue("(ss)", name.c_str(), meaning.c_str()));
    if (!row || PyList_Append(list.get(), row.get()) < 0) return nullptr;
  }
  return list.release();
}

PyObject* guard_fault_survey(PyObject*, PyObject*) {
  Ref list = Ref::steal(PyList_New(0));
  for (const std::string& name : guards::take_survey()) {
    Ref text = Ref::steal(PyUnicode_FromString(name.c_str()));
    if (!text || PyList_Append(list.get(), text.get()) < 0) return nullptr;
  }
  return list.release();
}

}  // namespace

PyMethodDef debug_test_methods[] = {
    {"plant_fault", plant_fault, METH_VARARGS, "plant_fault(place, subject) in the compiler; no subject takes it out."},
    {"clear_faults", clear_faults, METH_NOARGS, "Takes all planted faults out."},
    {"guard_faults", guard_faults, METH_NOARGS, "Names and meanings of the faults of the place `guard`."},
    {"guard_fault_survey", guard_fault_survey, METH_NOARGS,
     "Those that guards compiled under `survey` could have had."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace magneto
