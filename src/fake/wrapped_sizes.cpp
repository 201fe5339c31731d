// A size as the other operand of a tensor. PyTorch's argument parser wraps it as a tensor that holds a placeholder, and
// hangs the size itself on its Python object.
#include <ATen/ScalarOps.h>

#include "fake/size_node.h"
#include "python/ref.h"
#include "support/gil.h"
#include "support/tensor_object.h"

namespace magneto::fake {

void fix_wrapped_sizes(std::span<c10::IValue> args) {
  for (c10::IValue& arg : args) {
    if (!arg.isTensor() || !arg.toTensor().defined()) continue;
    const at::Tensor& tensor = arg.toTensor();
    if (!tensor.unsafeGetTensorImpl()->is_wrapped_number()) continue;
    const WithGil gil;  // operators called from Python run without it
    Ref object = checked(tensor_object(tensor));
    Ref size = Ref::steal(PyObject_GetAttrString(object.get(), "_wrapped_number"));
    if (!size) {
      PyErr_Clear();
      continue;
    }
    at::Scalar number;
    if (tensor.scalar_type() == c10::kBool) {
      const int truth = PyObject_IsTrue(size.get());
      if (truth < 0) throw PythonError();
      number = truth != 0;
    } else if (tensor.is_floating_point()) {
      number = PyFloat_AsDouble(checked(PyNumber_Float(size.get())).get());
    } else {
      number = PyLong_AsLongLong(checked(PyNumber_Long(size.get())).get());
    }
    at::Tensor fixed = c10::scalar_to_tensor(number);
    fixed.unsafeGetTensorImpl()->set_wrapped_number(true);
    arg = std::move(fixed);
  }
}

}  // namespace magneto::fake
