// Faults planted in the compiler, for tests of the tools that find faults.
#include "api/bindings.h"
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

}  // namespace

PyMethodDef debug_test_methods[] = {
    {"plant_fault", plant_fault, METH_VARARGS, "plant_fault(place, subject) in the compiler; no subject takes it out."},
    {"clear_faults", clear_faults, METH_NOARGS, "Takes all planted faults out."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace magneto
