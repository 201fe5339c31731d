#include "capture/torch/transforms.h"

#include <ATen/LegacyVmapMode.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "capture/capture.h"
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

namespace {

using torch::autograd::ForwardADLevel;

struct DualLevel {
  uint64_t number;
  std::optional<BreakSite> entry;  // the call that entered it; none: a transform did
};

/// The levels of forward-mode AD that the capture of this thread has entered: PyTorch's are the process's.
thread_local std::vector<DualLevel> dual_levels;

}  // namespace

BreakSite entry_of_region(const InterpFrame* f) {
  static constexpr std::string_view around[] = {"magneto._polyfills", "torch.autograd.forward_ad"};
  const auto is_around = [](PyObject* function) {
    PyObject* module = function && PyFunction_Check(function) ? PyFunction_GET_MODULE(function) : nullptr;
    return module && PyUnicode_Check(module) && std::ranges::count(around, std::string_view(PyUnicode_AsUTF8(module)));
  };
  while (f->caller && is_around(f->function.get())) f = f->caller;
  return {f->info->code, f->pc};
}

Ref enter_dual_level(Capture& capture, const CallArgs& args) {
  if (!args.values.empty()) capture.side_exit(BreakReason::OpaqueCall, "call of torch._C._enter_dual_level");
  const bool inside = transform_depth() > 0;
  dual_levels.push_back({ForwardADLevel::get_next_idx(), std::nullopt});
  if (!inside) dual_levels.back().entry = entry_of_region(capture.frame);
  return checked(PyLong_FromUnsignedLongLong(dual_levels.back().number));
}

const BreakSite* entry_of_dual_level() {
  return dual_levels.empty() || !dual_levels.front().entry ? nullptr : &*dual_levels.front().entry;
}

bool is_transforming() {
  return !dual_levels.empty() || transform_depth() > 0 || at::impl::VmapMode::current_vmap_level() > 0;
}

Ref exit_dual_level(Capture& capture, const CallArgs& args) {
  const bool own = args.values.size() == 1 && PyLong_CheckExact(args.values[0]) && !dual_levels.empty() &&
                   PyLong_AsUnsignedLongLong(args.values[0]) == dual_levels.back().number;
  if (!own) {
    PyErr_Clear();
    capture.side_exit(BreakReason::OpaqueCall, "call of torch._C._exit_dual_level");
  }
  ForwardADLevel::release_idx(dual_levels.back().number);
  dual_levels.pop_back();
  return Ref::borrow(Py_None);
}

void leave_transforms(size_t depth) {
  for (; !dual_levels.empty(); dual_levels.pop_back()) ForwardADLevel::release_idx(dual_levels.back().number);
  while (at::impl::VmapMode::current_vmap_level() > 0) at::impl::VmapMode::decrement_nesting();
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
        c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::FuncTorchBatched,
                             c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::Batched}));
  }
  if (depth == kDeepest || (!PyTuple_Check(object) && !PyList_Check(object))) return false;
  PyObject** items = PySequence_Fast_ITEMS(object);
  return std::any_of(items, items + PySequence_Fast_GET_SIZE(object),
                     [&](PyObject* item) { return holds_transformed(item, depth + 1); });
}

}  // namespace

bool holds_transformed(PyObject* object) { return holds_transformed(object, 0); }

}  // namespace magneto::capture
