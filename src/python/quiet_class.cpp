#include "python/quiet_class.h"

#include <utility>
#include <vector>

#include "python/abi/paused_collector.h"
#include "python/abi/private.h"

namespace magneto {

namespace {

PyObject* nothing(PyObject*, PyObject* const*, size_t, PyObject*) { Py_RETURN_NONE; }

/// While this lives, a call of the functions by C code does nothing. The GIL must be held throughout: no Python code
/// runs, so nobody else calls them.
class Silence {
 public:
  Silence() = default;
  Silence(const Silence&) = delete;
  ~Silence() {
    for (auto each = silenced_.rbegin(); each != silenced_.rend(); ++each) each->first->vectorcall = each->second;
  }
  void silence(PyObject* hook) {
    PyObject* function = hook ? function_of_hook(hook) : nullptr;
    if (!function) return;
    auto* object = reinterpret_cast<PyFunctionObject*>(function);
    silenced_.emplace_back(object, object->vectorcall);
    object->vectorcall = nothing;
  }

 private:
  std::vector<std::pair<PyFunctionObject*, vectorcallfunc>> silenced_;
};

}  // namespace

PyObject* function_of_hook(PyObject* hook) {
  if (PyFunction_Check(hook)) return hook;
  if (Py_TYPE(hook) != &PyClassMethod_Type) return nullptr;
  PyObject* function = Ref::steal(PyObject_GetAttrString(hook, "__func__")).get();  // the hook keeps it alive
  if (!function) PyErr_Clear();
  return function && PyFunction_Check(function) ? function : nullptr;
}

Ref quiet_class(PyTypeObject* metaclass, PyObject* name, PyObject* bases, PyObject* names) {
  const Ref args = Ref::steal(PyTuple_Pack(3, name, bases, names));
  if (!args) return {};
  static PyObject* const of_base = PyUnicode_InternFromString("__init_subclass__");
  static PyObject* const of_value = PyUnicode_InternFromString("__set_name__");
  const PausedCollector paused;
  Silence silence;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(bases); ++i) {
    silence.silence(lookup_in_type(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(bases, i)), of_base));
  }
  PyObject* value;
  for (Py_ssize_t position = 0; PyDict_Next(names, &position, nullptr, &value);) {
    silence.silence(lookup_in_type(Py_TYPE(value), of_value));
  }
  return Ref::steal(PyType_Type.tp_new(metaclass, args.get(), nullptr));
}

}  // namespace magneto
