#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Device.h>

#include "guards/guards.h"
#include "guards/objects.h"
#include "python/imported.h"
#include "support/autocast_depth.h"
#include "support/tensor_object.h"

namespace magneto::guards {

namespace {

/// Tells stacks of modes apart: by address, or contexts of torch.device, made anew each time, by their device.
uint64_t mode_stack() {
  uint64_t key = 0;
  for (PyObject* mode : function_modes()) {
    uint64_t one = reinterpret_cast<uint64_t>(mode);
    if (const std::optional<c10::Device> device = device_of_context(mode)) {
      one = 1 + static_cast<uint64_t>(std::hash<c10::Device>()(*device));
    }
    key = (key ^ one) * 0x9e3779b97f4a7c15ull;
  }
  return key;
}

}  // namespace

std::vector<PyObject*> function_modes() {
  using at::impl::PythonTorchFunctionTLS;
  std::vector<PyObject*> modes;
  for (int64_t i = 0; i < PythonTorchFunctionTLS::stack_len(); ++i) {
    modes.push_back(PythonTorchFunctionTLS::get_stack_at(i)->ptr(python_interpreter()));
  }
  return modes;
}

std::optional<c10::Device> device_of_context(PyObject* mode) {
  static constinit Imported context_type("torch.utils._device", "DeviceContext");
  static PyObject* const name = PyUnicode_InternFromString("device");
  if (Py_TYPE(mode) != context_type.type()) return std::nullopt;
  PyObject* dict = instance_dict(mode);
  PyObject* device = dict ? find_item(dict, name, PyObject_Hash(name)).value : nullptr;
  if (!device || !THPDevice_Check(device)) return std::nullopt;
  return reinterpret_cast<THPDevice*>(device)->device;
}

// What this costs is a dozen calls that each read a thread-local word, 2 to 4 ns a call on an idle machine. None of
// them stands out (at::get_num_threads is one of them once OpenMP runs), so none is cached: a cache would have to be
// told of changes, and nothing tells.
GlobalState GlobalState::read() {
  using at::impl::PythonTorchFunctionTLS;
  auto keys = c10::impl::tls_local_dispatch_key_set();
  // Autocast is on for a device when its dispatch key is not excluded; reading the bit costs nothing.
  auto autocast = [&keys](c10::DispatchKey key) { return !keys.excluded_.has(key); };
  const auto& autograd = c10::AutogradState::get_tls_state();
  const auto& context = at::globalContext();
  auto torch_function = PythonTorchFunctionTLS::get_disabled_state();
  GlobalState state;
  state.grad_mode = autograd.get_grad_mode();
  state.inference_mode = autograd.get_inference_mode();
  state.autocast_cpu = autocast(c10::DispatchKey::AutocastCPU);
  state.autocast_cuda = autocast(c10::DispatchKey::AutocastCUDA);
  state.autocast_cache = at::autocast::is_autocast_cache_enabled();
  state.autocast_region = autocast_depth() > 0;
  state.deterministic = context.deterministicAlgorithms();
  state.deterministic_warn_only = context.deterministicAlgorithmsWarnOnly();
  state.torch_function_enabled = torch_function == at::impl::TorchFunctionDisabledState::ENABLED;
  state.torch_function_modes_enabled = torch_function != at::impl::TorchFunctionDisabledState::ALL_DISABLED;
  state.torch_function_modes = PythonTorchFunctionTLS::stack_len();
  if (state.torch_function_modes) state.torch_function_stack = mode_stack();
  state.default_dtype = c10::get_default_dtype_as_scalartype();
  state.autocast_cpu_dtype = at::autocast::get_autocast_dtype(at::kCPU);
  state.autocast_cuda_dtype = at::autocast::get_autocast_dtype(at::kCUDA);
  state.num_threads = at::get_num_threads();
  state.dispatch_included = keys.included_.raw_repr();
  state.dispatch_excluded = keys.excluded_.raw_repr();
  return state;
}

namespace {

std::string text(bool value) { return value ? "True" : "False"; }
std::string text(int64_t value) { return std::to_string(value); }
std::string text(int32_t value) { return std::to_string(value); }
std::string text(c10::ScalarType value) { return c10::toString(value); }
std::string text(uint64_t keys) { return c10::toString(c10::DispatchKeySet(c10::DispatchKeySet::RAW, keys)); }

}  // namespace

std::string GlobalState::difference(const GlobalState& now) const {
#define COMPARE(field, what) \
  if (field != now.field) return what " changed: was " + text(field) + ", is " + text(now.field);
  COMPARE(grad_mode, "grad mode")
  COMPARE(inference_mode, "inference mode")
  COMPARE(autocast_cpu, "autocast on CPU")
  COMPARE(autocast_cuda, "autocast on CUDA")
  COMPARE(autocast_cache, "autocast cache")
  COMPARE(autocast_region, "region of autocast around")
  COMPARE(autocast_cpu_dtype, "autocast dtype on CPU")
  COMPARE(autocast_cuda_dtype, "autocast dtype on CUDA")
  COMPARE(deterministic, "deterministic algorithms")
  COMPARE(deterministic_warn_only, "deterministic algorithms (warn only)")
  COMPARE(torch_function_enabled, "torch function")
  COMPARE(torch_function_modes_enabled, "torch function modes enabled")
  COMPARE(torch_function_modes, "number of torch function modes")
  if (torch_function_stack != now.torch_function_stack) return "torch function modes changed";
  COMPARE(default_dtype, "default dtype")
  COMPARE(num_threads, "number of threads")
  COMPARE(dispatch_included, "included dispatch keys")
  COMPARE(dispatch_excluded, "excluded dispatch keys")
#undef COMPARE
  return "";
}

}  // namespace magneto::guards
