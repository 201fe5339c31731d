#include "capture/torch/data_parallel.h"

#include <optional>
#include <set>

#include "autograd/buckets.h"
#include "capture/capture.h"
#include "capture/torch/tensor_map.h"
#include "capture/world/world.h"
#include "python/imported.h"
#include "support/settings.h"

namespace magneto::capture {

namespace {

/// How many bytes a DistributedDataParallel gathers before it exchanges them.
std::vector<int64_t> limits_of(PyObject* module) {
  std::vector<int64_t> limits;
  // Since PyTorch 2.12 or so they can be given one by one.
  const Ref each = Ref::steal(PyObject_GetAttrString(module, "bucket_bytes_cap_list"));
  PyErr_Clear();
  for (Py_ssize_t i = 0; each && PyList_Check(each.get()) && i < PyList_GET_SIZE(each.get()); ++i) {
    limits.push_back(PyLong_AsLongLong(PyList_GET_ITEM(each.get(), i)));
  }
  if (!limits.empty()) return limits;
  static constinit Imported first("torch.distributed", "_DEFAULT_FIRST_BUCKET_BYTES");
  const Ref is_default = checked(PyObject_GetAttrString(module, "bucket_bytes_cap_default"));
  if (is_default.get() == Py_True) limits.push_back(PyLong_AsLongLong(first.get()));
  const Ref further = checked(PyObject_GetAttrString(module, "bucket_bytes_cap"));
  limits.push_back(PyLong_AsLongLong(further.get()));
  if (PyErr_Occurred()) throw PythonError{};
  return limits;
}

/// None of the graph's inputs are its parameters, or this PyTorch's module has no buckets that we know of: nothing.
std::optional<autograd::Buckets> buckets_of(const Capture& c, PyObject* module) {
  try {
    autograd::Buckets buckets{.limits = limits_of(module), .parameters = {}};
    const Ref parameters = checked(PyObject_GetAttrString(module, "_module_parameters"));
    const Ref all = checked(PySequence_Fast(parameters.get(), "the parameters are no list"));
    std::set<PyObject*> known;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(all.get()); ++i) {
      known.insert(PySequence_Fast_GET_ITEM(all.get(), i));
    }
    for (const graph::ValueId id : c.graph.inputs) {
      if (known.contains(c.tensors.inputs.at(id).real.get())) buckets.parameters.insert(id);
    }
    if (!buckets.parameters.empty()) return buckets;
  } catch (const PythonError&) {
    PyErr_Clear();
  }
  return {};
}

}  // namespace

void cut_at_buckets(const Capture& c, autograd::Joint& joint) {
  if (!settings().optimize_ddp) return;
  static constinit Imported data_parallel("torch.nn.parallel.distributed", "DistributedDataParallel");
  // Those that the segment has come through, and the one whose forward has called it.
  std::set<PyObject*> modules;
  for (const auto& [object, source] : c.world.outside) {
    if (PyObject_TypeCheck(object, data_parallel.type())) modules.insert(object);
  }
  const Ref active = Ref::steal(PyObject_GetAttrString(data_parallel.get(), "_active_ddp_module"));
  PyErr_Clear();
  if (active && active.get() != Py_None) modules.insert(active.get());
  std::vector<autograd::Buckets> all;
  for (PyObject* module : modules) {
    if (std::optional<autograd::Buckets> buckets = buckets_of(c, module)) all.push_back(*std::move(buckets));
  }
  autograd::cut_at_buckets(c.graph, all, joint);
}

}  // namespace magneto::capture
