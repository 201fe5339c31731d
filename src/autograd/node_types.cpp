#include "autograd/node_types.h"

#include <Python.h>
#include <torch/csrc/autograd/python_cpp_function.h>

#include "python/imported.h"

namespace magneto::autograd {

namespace {

constexpr const char* kName = "CompiledFunctionBackward";

PyTypeObject* made_type() {
  static PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  PyTypeObject* const made = torch::autograd::_initFunctionPyTypeObject(type, kName, nullptr, nullptr);
  // Where torch.autograd.graph.Node looks whether a class is one of nodes.
  static constinit Imported functions("torch._C", "_functions");
  if (PyObject_SetAttrString(functions.get(), kName, reinterpret_cast<PyObject*>(made)) < 0) PyErr_Clear();
  return made;
}

}  // namespace

void show_as_compiled_function(const std::type_info& node) {
  static PyTypeObject* const type = made_type();
  torch::autograd::registerCppFunction(node, type);
}

}  // namespace magneto::autograd
