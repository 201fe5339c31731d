#include "support/symbol_object.h"

#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/python_symnode.h>

#include "support/gil.h"

namespace magneto {

PyObject* node_object(const c10::SymNode& node) { return pybind11::cast(node).release().ptr(); }

c10::SymNode node_of_object(PyObject* object) { return pybind11::cast<c10::SymNode>(pybind11::handle(object)); }

c10::SymNodeImpl* innermost_node(c10::SymNodeImpl* node) {
  auto* python = dynamic_cast<torch::impl::PythonSymNodeImpl*>(node);
  if (!python) return node;
  const WithGil gil;
  return pybind11::cast<c10::SymNode>(python->getPyObj()).get();
}

c10::SymInt symint_of_object(PyObject* object) { return pybind11::cast<c10::SymInt>(pybind11::handle(object)); }

PyObject* symint_of(const c10::SymInt& number) {
  try {
    return pybind11::cast(number).release().ptr();
  } catch (pybind11::error_already_set& error) {
    error.restore();
    return nullptr;
  }
}

c10::SymFloat symfloat_of_object(PyObject* object) { return pybind11::cast<c10::SymFloat>(pybind11::handle(object)); }

}  // namespace magneto
