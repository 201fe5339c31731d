// Questions about where tensors lie: whether two share memory, whether one is a view, how large a storage is.
//
// Of tensors that the segment makes, stand-ins know: they share a storage where eager's would. Of tensors from outside
// each run asks, under a guard. An address itself is no run's business: it is compared, and divided by an alignment.
#include "capture/torch/memory_questions.h"

#include <map>
#include <span>
#include <vector>

#include "capture/calls/handlers.h"
#include "capture/capture.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/unknown_number.h"
#include "capture/torch/gradients.h"
#include "capture/torch/tensor_map.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

using Reader = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

uintptr_t start_of(const at::Tensor& tensor) { return reinterpret_cast<uintptr_t>(storage_of(tensor)->data()); }

/// How the storages of two tensors lie.
enum class Placing : uint8_t { Same, Apart, SameStart, Overlapping };

PyObject* placing_of(PyObject*, PyObject* const* tensors, Py_ssize_t) {
  const at::Tensor &a = unpack_tensor(tensors[0]), &b = unpack_tensor(tensors[1]);
  const uintptr_t at = start_of(a), other = start_of(b);
  const bool apart = at + storage_of(a)->nbytes() <= other || other + storage_of(b)->nbytes() <= at;
  const Placing placing = storage_of(a) == storage_of(b) ? Placing::Same
                          : at == other                  ? Placing::SameStart
                          : apart                        ? Placing::Apart
                                                         : Placing::Overlapping;
  return PyLong_FromLong(static_cast<long>(placing));
}

PyObject* misplaced_by(PyObject*, PyObject* const* args, Py_ssize_t) {
  return PyLong_FromUnsignedLongLong(start_of(unpack_tensor(args[0])) % PyLong_AsUnsignedLongLong(args[1]));
}

PyObject* bytes_of(PyObject*, PyObject* const* args, Py_ssize_t) {
  return PyLong_FromSize_t(storage_of(unpack_tensor(args[0]))->nbytes());
}

PyObject* offset_of(PyObject*, PyObject* const* args, Py_ssize_t) {
  return PyLong_FromLongLong(unpack_tensor(args[0]).storage_offset());
}

PyObject* view_number(PyObject*, PyObject* const* args, Py_ssize_t) {
  return PyLong_FromLong(unpack_tensor(args[0]).is_view());
}

template <Reader reader>
PyObject* function_of_reader() {
  static PyMethodDef method = {"memory", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(reader)),
                               METH_FASTCALL, nullptr};
  static PyObject* const function = checked(PyCFunction_New(&method, nullptr)).release();
  return function;
}

/// The tensors from outside that share its memory while capturing, in the order of their values; none: the segment has
/// made that.
std::vector<const TensorInput*> owners_of(Capture& c, const at::Tensor& fake) {
  std::map<graph::ValueId, const TensorInput*> found;
  for (const auto& [real, stand_in] : c.tensors.fake_of) {
    if (storage_of(unpack_tensor(stand_in.get())) != storage_of(fake)) continue;
    const graph::ValueId id = c.session->value_of(unpack_tensor(stand_in.get()));
    if (const auto input = c.tensors.inputs.find(id); input != c.tensors.inputs.end()) found[id] = &input->second;
  }
  std::vector<const TensorInput*> owners;
  for (const auto& [id, input] : found) owners.push_back(input);
  return owners;
}

/// The first of them.
const TensorInput* owner_of(Capture& c, const at::Tensor& fake) {
  const std::vector<const TensorInput*> owners = owners_of(c, fake);
  return owners.empty() ? nullptr : owners[0];
}

/// What each run asks of one or two sources, as it is now.
template <Reader reader>
long asked(Capture& c, const TensorInput& of, PyObject* other, const guards::Source* other_source) {
  PyObject* const values[] = {of.real.get(), other};
  const Ref answer = checked(reader(nullptr, values, other ? 2 : 1));
  c.guards.equals(c.sources.call(function_of_reader<reader>(), of.source, other_source), answer.get());
  return PyLong_AsLong(answer.get());
}

/// How many bytes behind the start of its storage, which is under a guard, what the address tells begins.
int64_t offset_in_storage(Capture& c, const Address& address) {
  if (address.of_storage) return 0;
  const at::Tensor& tensor = unpack_tensor(address.tensor.get());
  for (const TensorInput* owner : owners_of(c, tensor)) asked<offset_of>(c, *owner, nullptr, nullptr);
  return tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
}

/// What only a run knows, or nobody.
bool is_hidden(Capture& c, PyObject* tensor) {
  return !is_fake_tensor(tensor) || is_transformed(tensor) || c.gradients.data_of(tensor) ||
         unpack_tensor(tensor).layout() != at::kStrided;
}

/// Sizes are numbers, and there is memory.
bool is_plain(Capture& c, const at::Tensor& fake) {
  return !c.graph.values[c.session->value_of(fake)].meta.symbolic && fake.numel() != 0 &&
         storage_of(fake)->nbytes() != 0;
}

[[noreturn]] void refuse(Capture& c) { c.side_exit(BreakReason::DataAccess, "the address of a tensor is looked at"); }

Placing placing(Capture& c, PyObject* left, PyObject* right) {
  if (is_hidden(c, left) || is_hidden(c, right)) refuse(c);
  const at::Tensor &a = unpack_tensor(left), &b = unpack_tensor(right);
  if (storage_of(a) == storage_of(b)) {
    const std::vector<const TensorInput*> owners = owners_of(c, a);
    for (size_t i = 1; i < owners.size(); ++i) {
      asked<placing_of>(c, *owners[0], owners[i]->real.get(), owners[i]->source);
    }
    return Placing::Same;
  }
  const TensorInput *of_a = owner_of(c, a), *of_b = owner_of(c, b);
  if (!of_a || !of_b) {
    if (!is_plain(c, a) || !is_plain(c, b)) refuse(c);  // without items both may begin nowhere
    return Placing::Apart;
  }
  if (of_a->number || of_b->number) refuse(c);
  return static_cast<Placing>(asked<placing_of>(c, *of_a, of_b->real.get(), of_b->source));
}

bool begin_together(Capture& c, const Address& left, const Address& right) {
  const Placing how = placing(c, left.tensor.get(), right.tensor.get());
  if (left.of_storage && right.of_storage) return how == Placing::Same || how == Placing::SameStart;
  const at::Tensor &a = unpack_tensor(left.tensor.get()), &b = unpack_tensor(right.tensor.get());
  if (!is_plain(c, a) || !is_plain(c, b) || how == Placing::Overlapping) refuse(c);
  return how != Placing::Apart && offset_in_storage(c, left) == offset_in_storage(c, right);
}

/// What is left of the address, divided by a number.
Ref remainder(Capture& c, const Address& address, PyObject* by) {
  constexpr int64_t aligned = 64;  // what PyTorch's allocators give begins so
  const int64_t divisor = PyLong_CheckExact(by) ? PyLong_AsLongLong(by) : 0;
  const at::Tensor& tensor = unpack_tensor(address.tensor.get());
  PyErr_Clear();
  if (divisor <= 0 || is_hidden(c, address.tensor.get()) || !is_plain(c, tensor)) refuse(c);
  const std::vector<const TensorInput*> owners = owners_of(c, tensor);
  if (owners.empty() ? aligned % divisor != 0 : owners[0]->number) refuse(c);
  int64_t start = 0;
  for (const TensorInput* owner : owners) start = asked<misplaced_by>(c, *owner, by, c.sources.constant(by));
  return checked(PyLong_FromLongLong((start + offset_in_storage(c, address)) % divisor));
}

Ref handle_address(Capture& c, const CallArgs& args) {
  check_count(args, 1, 1, "data_ptr");
  const auto* storage = meaning_of<OfStorage>(args.values[0]);
  PyObject* const tensor = storage ? storage->tensor.get() : args.values[0];
  if (is_hidden(c, tensor) || c.feedback.needs_all) refuse(c);
  static PyObject* const some = PyLong_FromLong(64);
  return make_unknown(some, Address{Ref::borrow(tensor), storage != nullptr});
}

Ref handle_is_view(Capture& c, const CallArgs& args) {
  check_count(args, 1, 1, "_is_view");
  if (is_hidden(c, args.values[0])) c.side_exit(BreakReason::OpaqueObject, "call of torch._C.TensorBase._is_view");
  return boolean(is_view(c, args.values[0]));
}

Ref handle_is_alias(Capture& c, const CallArgs& args) {
  check_count(args, 2, 2, "_is_alias_of");
  return boolean(placing(c, args.values[0], args.values[1]) == Placing::Same);
}

Ref handle_is_set_to(Capture& c, const CallArgs& args) {
  check_count(args, 2, 2, "is_set_to");
  if (placing(c, args.values[0], args.values[1]) != Placing::Same) return boolean(false);
  const at::Tensor &a = unpack_tensor(args.values[0]), &b = unpack_tensor(args.values[1]);
  if (!is_plain(c, a) || !is_plain(c, b)) refuse(c);
  const int64_t start = offset_in_storage(c, {Ref::borrow(args.values[0]), false});
  return boolean(start == offset_in_storage(c, {Ref::borrow(args.values[1]), false}) && a.sizes() == b.sizes() &&
                 a.strides() == b.strides());
}

}  // namespace

bool is_view(Capture& c, PyObject* tensor) {
  const auto [real, source] = c.tensors.original(tensor);
  if (!real) return unpack_tensor(tensor).is_view();
  return asked<view_number>(c, {Ref::borrow(real), source}, nullptr, nullptr) != 0;
}

Ref storage_bytes(Capture& c, PyObject* tensor) {
  const at::Tensor& fake = unpack_tensor(tensor);
  const bool hidden = is_hidden(c, tensor);
  const std::vector<const TensorInput*> owners = hidden ? std::vector<const TensorInput*>{} : owners_of(c, fake);
  if (hidden || (owners.empty() ? !is_plain(c, fake) : owners[0]->number)) {
    c.side_exit(BreakReason::DataAccess, "the storage of a tensor is looked at");
  }
  if (owners.empty()) return checked(bytes_of(nullptr, &tensor, 1));
  long bytes = 0;
  for (const TensorInput* owner : owners) bytes = asked<bytes_of>(c, *owner, nullptr, nullptr);
  return checked(PyLong_FromLong(bytes));
}

Ref address_operation(Capture& c, guards::Arithmetic operation, PyObject* left, PyObject* right) {
  const Address *a = meaning_of<Address>(left), *b = meaning_of<Address>(right);
  const bool equal = operation == guards::Arithmetic::Equal, unequal = operation == guards::Arithmetic::NotEqual;
  if (a && b && (equal || unequal)) return boolean(begin_together(c, *a, *b) == equal);
  if (a && operation == guards::Arithmetic::Remainder) return remainder(c, *a, c.numbers.known(right).get());
  refuse(c);
}

std::span<const HandlerRow> memory_handlers() {
  static constexpr HandlerRow rows[] = {
      {"torch._C.TensorBase.data_ptr", handle_address},    {"magneto._C.UnknownNumber.data_ptr", handle_address},
      {"torch._C.TensorBase._is_view", handle_is_view},    {"torch._C._is_alias_of", handle_is_alias},
      {"torch._C.TensorBase.is_set_to", handle_is_set_to},
  };
  return rows;
}

}  // namespace magneto::capture
