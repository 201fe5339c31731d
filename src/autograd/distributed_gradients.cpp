#include "autograd/distributed_gradients.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "fake/class_dispatch.h"
#include "python/dtensor.h"
#include "python/imported.h"
#include "python/ref.h"
#include "support/gil.h"
#include "support/tensor_object.h"

namespace magneto::autograd {

bool is_dtensor(const at::Tensor& tensor) {
  if (!tensor.defined() || !fake::has_class_dispatch(tensor)) return false;
  const WithGil gil;
  return magneto::is_dtensor(Py_TYPE(checked(tensor_object(tensor)).get()));
}

namespace {

Ref attribute(const Ref& object, const char* name) { return checked(PyObject_GetAttrString(object.get(), name)); }

/// One of PyTorch's three, asked without their classes, which are Python's.
struct Placement {
  enum class Kind { Shard, Replicate, Partial, Other };
  Kind kind = Kind::Other;
  Ref detail;  // of which dimension, or how it is added up

  explicit Placement(Kind known) : kind(known) {}
  explicit Placement(PyObject* object) {
    static constinit Imported shard("torch.distributed.tensor", "Shard"),
        partial("torch.distributed.tensor", "Partial"), replicate("torch.distributed.tensor", "Replicate");
    const auto is = [&](Imported& type) { return Py_TYPE(object) == type.type(); };
    if (is(replicate)) kind = Kind::Replicate;
    if (is(shard)) {
      kind = Kind::Shard;
      detail = checked(PyObject_GetAttrString(object, "dim"));
    } else if (is(partial)) {
      kind = Kind::Partial;
      detail = checked(PyObject_GetAttrString(object, "reduce_op"));
    }
  }
  bool operator==(const Placement& other) const {
    if (kind != other.kind || kind == Kind::Other) return false;
    return !detail || PyObject_RichCompareBool(detail.get(), other.detail.get(), Py_EQ) == 1;
  }
};

std::vector<Placement> all_of(PyObject* placements) {
  std::vector<Placement> all;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(placements); ++i) all.emplace_back(PyTuple_GET_ITEM(placements, i));
  return all;
}

/// The same tuple for equal ones, kept for good.
PyObject* kept(PyObject* placements) {
  static auto* const known = new std::vector<Ref>;
  for (const Ref& each : *known) {
    if (all_of(each.get()) == all_of(placements)) return each.get();
  }
  return known->emplace_back(Ref::borrow(placements)).get();
}

}  // namespace

LocalGradient local_gradient(const at::Tensor& gradient, const at::Tensor& input) {
  if (!is_dtensor(gradient) || gradient.dim() != input.dim()) return {};
  const WithGil gil;
  const Ref given = checked(tensor_object(gradient)), of = checked(tensor_object(input));
  const Ref spec = attribute(given, "_spec"), spec_of = attribute(of, "_spec");
  if (attribute(spec, "mesh").get() != attribute(spec_of, "mesh").get()) return {};
  for (int64_t i = 0; i < gradient.dim(); ++i) {
    if (gradient.sym_size(i) != input.sym_size(i) || gradient.sym_stride(i) != input.sym_stride(i)) return {};
  }
  const Ref placements = attribute(spec, "placements"), placements_of = attribute(spec_of, "placements");
  const std::vector<Placement> lies = all_of(placements.get());
  std::vector<Placement> by_default = all_of(placements_of.get());
  for (Placement& each : by_default) {
    if (each.kind == Placement::Kind::Partial) each = Placement(Placement::Kind::Replicate);
  }
  at::Tensor local = unpack_tensor(attribute(given, "_local_tensor").get());
  if (lies == by_default) return {std::move(local)};
  const auto is_other = [](const Placement& each) { return each.kind == Placement::Kind::Other; };
  if (std::ranges::any_of(lies, is_other)) return {};
  return {std::move(local), kept(placements.get())};
}

std::string placements_of(const at::Tensor& distributed) {
  const WithGil gil;
  const Ref found = attribute(attribute(checked(tensor_object(distributed)), "_spec"), "placements");
  std::string text;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(found.get()); ++i) {
    text += (i ? ", " : "") + std::string(Py_TYPE(PyTuple_GET_ITEM(found.get(), i))->tp_name);
  }
  return text;
}

torch::autograd::Edge edge_of_local(const at::Tensor& distributed, PyObject* placements) {
  const WithGil gil;
  static constinit Imported function("magneto._dtensor", "local_with_history");
  const Ref given = checked(tensor_object(distributed));
  PyObject* const lies = placements ? placements : Py_None;
  const Ref local = checked(PyObject_CallFunctionObjArgs(function.get(), given.get(), lies, nullptr));
  return torch::autograd::impl::gradient_edge(unpack_tensor(local.get()));
}

}  // namespace magneto::autograd
