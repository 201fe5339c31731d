// Tensors that copy.deepcopy copies: operators, where each fills memory of its own. Two that share memory have copies
// that share memory, too, and of a view all memory of its base is copied: those are CPython's.
#include <algorithm>

#include "capture/calls/handlers.h"
#include "capture/capture.h"
#include "capture/interpreter/interp_frame.h"
#include "capture/torch/gradients.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/attributes.h"
#include "capture/world/overlays.h"
#include "guards/guards.h"
#include "python/abi/dicts.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

/// Also of a stand-in, which has none that may be read.
const c10::StorageImpl* memory_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

/// A leaf, and nothing else lies in its memory but what shares all of it.
bool fills_memory(const at::Tensor& tensor) {
  if (tensor.layout() != c10::kStrided || tensor.is_quantized() || tensor.is_conj() || tensor.is_neg() ||
      tensor._is_zerotensor() || tensor.is_inference() || !memory_of(tensor) || !tensor.is_leaf()) {
    return false;
  }
  return tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense() &&
         memory_of(tensor)->nbytes() == tensor.numel() * tensor.element_size();
}

/// (tensor, count): one more, if the tensor fills memory in which none of the `count` tensors lies that this thread has
/// been called with before. What is computed so is in no snapshot: each run asks it of all, the first one first.
PyObject* count_memory(PyObject*, PyObject* const* args, Py_ssize_t) {
  thread_local std::vector<const void*> seen;
  const at::Tensor& tensor = unpack_tensor(args[0]);
  const auto count = static_cast<size_t>(PyLong_AsLong(args[1]));
  if (count > seen.size() || !fills_memory(tensor)) return PyErr_Format(PyExc_ValueError, "memory that is shared");
  seen.resize(count);
  const void* memory = memory_of(tensor);
  if (std::ranges::count(seen, memory)) return PyErr_Format(PyExc_ValueError, "memory that is shared");
  seen.push_back(memory);
  return PyLong_FromSize_t(seen.size());
}

PyObject* memory_counter() {
  static PyMethodDef method = {"memory_of", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&count_memory)),
                               METH_FASTCALL, nullptr};
  static PyObject* const function = checked(PyCFunction_New(&method, nullptr)).release();
  return function;
}

bool has_entries(PyObject* dict) { return dict && PyDict_GET_SIZE(dict) != 0; }

/// The program calls copy.deepcopy with one argument, so that the memo ends with the call. One of the program's own
/// may be used again behind a side exit, and says nothing of the memory that was copied.
bool memo_ends_with_the_call(const InterpFrame* frame) {
  static constinit Imported deepcopy("copy", "deepcopy");
  const InterpFrame* outermost = nullptr;
  for (; frame; frame = frame->caller) {
    if (frame->function.get() == deepcopy.get()) outermost = frame;
  }
  if (!outermost || !outermost->caller) return false;
  const Instr& call = outermost->caller->instr();
  return call.op == Op::CALL && call.arg == 1;
}

}  // namespace

/// Each run asks the same of the tensor that it is given.
bool TensorMap::guard_memory(PyObject* real, const guards::Source* source) {
  static PyObject* const zero = PyLong_FromLong(0);
  if (std::ranges::count(in_copied_memory_, source)) return true;
  const Ref before = checked(PyLong_FromSize_t(in_copied_memory_.size()));
  PyObject* args[] = {real, before.get()};
  if (!Ref::steal(count_memory(nullptr, args, 2))) {
    PyErr_Clear();
    return false;
  }
  copied_memory_ = c.sources.call(memory_counter(), source, copied_memory_ ? copied_memory_ : c.sources.constant(zero));
  c.guards.type(copied_memory_, &PyLong_Type);
  c.guards.length(c.sources.instance_dict(source), &PyDict_Type, 0);
  in_copied_memory_.push_back(source);
  return true;
}

bool TensorMap::is_copied_alone(PyObject* tensor, PyObject* memo) {
  if (!is_fake_tensor(tensor) || Py_TYPE(tensor) != reinterpret_cast<PyTypeObject*>(tensor_class()) ||
      is_transformed(tensor) || c.torch.is_overridden({&tensor, 1}) || c.gradients.data_of(tensor)) {
    return false;
  }
  if (!memo_ends_with_the_call(c.frame)) return false;
  const at::Tensor& fake = unpack_tensor(tensor);
  const auto input = inputs.find(c.session->value_of(fake));
  PyObject* const holder = input == inputs.end() ? tensor : input->second.real.get();
  if (has_entries(instance_dict(holder)) || c.overlays.find(holder, false)) return false;
  for (const auto& [of_memo, copied] : copied_) {
    if (of_memo.get() != memo || memory_of(unpack_tensor(copied.get())) != memory_of(fake)) continue;
    return copied.get() == tensor;
  }
  if (!fills_memory(fake)) return false;
  for (const auto& [id, of] : inputs) {  // itself, or what it lies in the memory of
    const auto known = fake_of.find(of.real.get());
    if (known == fake_of.end() || memory_of(unpack_tensor(known->second.get())) != memory_of(fake)) continue;
    if (of.number || of.array || !guard_memory(of.real.get(), of.source)) return false;
  }
  copied_.emplace_back(Ref::borrow(memo), Ref::borrow(tensor));
  return true;
}

/// `copy.copy` asks the tensor how it is made anew, and nobody else.
static bool asked_by_copy(const InterpFrame* frame) {
  static constinit Imported copy("copy", "copy");
  return frame->caller && frame->caller->function.get() == copy.get();
}

Ref handle_copied_plainly(Capture& capture, const CallArgs& args) {
  check_count(args, 1, 1, "copied_plainly");
  PyObject* const tensor = args.values[0];
  if (!is_fake_tensor(tensor) || !asked_by_copy(capture.frame) || is_transformed(tensor) ||
      capture.torch.is_overridden({&tensor, 1}) || capture.gradients.data_of(tensor)) {
    return boolean(false);
  }
  const at::Tensor& fake = unpack_tensor(tensor);
  const auto input = capture.tensors.inputs.find(capture.session->value_of(fake));
  PyObject* const holder = input == capture.tensors.inputs.end() ? tensor : input->second.real.get();
  const bool plain = fake.layout() == c10::kStrided && !fake.is_quantized() && !fake.is_conj() && !fake.is_neg() &&
                     !fake._is_zerotensor() && !fake.is_inference();
  if (!plain || has_entries(instance_dict(holder)) || capture.overlays.find(holder, false)) return boolean(false);
  if (input != capture.tensors.inputs.end()) {
    const guards::Source* attributes = capture.sources.instance_dict(input->second.source);
    capture.guards.length(attributes, &PyDict_Type, 0);
  }
  return boolean(true);
}

Ref handle_copied_alone(Capture& capture, const CallArgs& args) {
  check_count(args, 2, 2, "copied_alone");
  return boolean(capture.tensors.is_copied_alone(args.values[0], args.values[1]));
}

}  // namespace magneto::capture
