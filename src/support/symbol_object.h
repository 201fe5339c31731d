// PyTorch's symbolic numbers (torch.SymInt, torch.SymFloat) as Python objects: the one place that needs pybind11's
// casts for them. What is inside such an object is a node, `.node`.
#pragma once

#include <Python.h>
#include <c10/core/SymFloat.h>
#include <c10/core/SymInt.h>

namespace magneto {

/// The Python object that holds the node. New reference, or null with an exception.
PyObject* node_object(const c10::SymNode& node);
/// The node that such an object holds.
c10::SymNode node_of_object(PyObject* object);
/// Where PyTorch has put a node's Python object into a node of its own: the first node. Else the node itself.
c10::SymNodeImpl* innermost_node(c10::SymNodeImpl* node);
/// The number that a torch.SymInt or an int, a torch.SymFloat or a float, is.
c10::SymInt symint_of_object(PyObject* object);
/// As a torch.SymInt or an int. New reference, or null with an exception.
PyObject* symint_of(const c10::SymInt& number);
c10::SymFloat symfloat_of_object(PyObject* object);

}  // namespace magneto
