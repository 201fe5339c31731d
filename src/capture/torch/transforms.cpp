#include "capture/torch/transforms.h"

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "capture/kinds.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

// PyTorch's headers of these levels need a library that it does not come with: its Python functions are asked.

size_t transform_depth() {
  if (!c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode)) return 0;
  static constinit Imported function("torch._C._functorch", "get_dynamic_layer_stack_depth");
  const Ref depth = checked(PyObject_CallNoArgs(function.get()));
  return PyLong_AsSize_t(depth.get());
}

void leave_transforms(size_t depth) {
  if (transform_depth() <= depth) return;
  static constinit Imported function("torch._C._functorch", "pop_dynamic_layer_stack_and_undo_to_depth");
  checked(PyObject_CallFunction(function.get(), "n", static_cast<Py_ssize_t>(depth)));
}

bool is_without_grad_below() {
  if (transform_depth() == 0) return false;
  static constinit Imported stack("torch._C._functorch", "get_interpreter_stack"),
      kinds("torch._C._functorch", "TransformType"), as_grad("torch._C._functorch", "CGradInterpreterPtr");
  const Ref levels = checked(PyObject_CallNoArgs(stack.get()));
  const Ref grad = checked(PyObject_GetAttrString(kinds.get(), "Grad"));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(levels.get()); ++i) {
    PyObject* level = PyList_GET_ITEM(levels.get(), i);
    const Ref kind = checked(PyObject_CallMethod(level, "key", nullptr));
    if (PyObject_RichCompareBool(kind.get(), grad.get(), Py_EQ) != 1) continue;
    const Ref as_level = checked(PyObject_CallOneArg(as_grad.get(), level));
    if (checked(PyObject_CallMethod(as_level.get(), "prevGradMode", nullptr)).get() == Py_False) return true;
  }
  return false;
}

namespace {

constexpr int kDeepest = 4;

bool holds_transformed(PyObject* object, int depth) {
  if (is_tensor(object)) {
    return unpack_tensor(object).key_set().has_any(
        c10::DispatchKeySet({c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper}));
  }
  if (depth == kDeepest || (!PyTuple_Check(object) && !PyList_Check(object))) return false;
  PyObject** items = PySequence_Fast_ITEMS(object);
  return std::any_of(items, items + PySequence_Fast_GET_SIZE(object),
                     [&](PyObject* item) { return holds_transformed(item, depth + 1); });
}

}  // namespace

bool holds_transformed(PyObject* object) { return holds_transformed(object, 0); }

}  // namespace magneto::capture
