#include "dispatch/capture_setup.h"

#include "capture/numbers/drafts.h"
#include "compiler/pipeline.h"
#include "dispatch/report.h"
#include "fake/session.h"
#include "lower/fused.h"
#include "python/abi/private.h"
#include "support/tensor_object.h"

namespace magneto::dispatch {

namespace {

/// Which sizes may differ from run to run: what the callable says, else the settings.
capture::Dynamic dynamic_of(const Context& context) {
  using Dynamic = capture::Dynamic;
  if (context.dynamic >= 0) return context.dynamic ? Dynamic::Always : Dynamic::Never;
  if (!settings().assume_static_by_default) return Dynamic::Always;
  return settings().automatic_dynamic_shapes ? Dynamic::Automatic : Dynamic::Marked;
}

/// There is room for few more entries: they must not depend on dynamic values.
bool is_crowded(const Context& context, const Segment& segment) {
  constexpr int64_t reserve = 2;
  return static_cast<int64_t>(segment.entries.size()) + reserve >= entry_limit(context);
}

/// torch.export captures.
bool is_export(const Context& context) {
  return context.backend->operators == compiler::Backend::Operators::Users &&
         compiler::is_export(context.backend_callable.get());
}

/// What decorators were put around, as functools.wraps notes it. Borrowed.
PyObject* unwrapped(PyObject* function) {
  for (int depth = 0; depth < 100 && PyFunction_Check(function); ++depth) {
    PyObject* dict = reinterpret_cast<PyFunctionObject*>(function)->func_dict;
    PyObject* inner = dict ? PyDict_GetItemWithError(dict, MAGNETO_STR("__wrapped__")) : nullptr;
    if (!inner || !PyFunction_Check(inner)) break;
    function = inner;
  }
  return function;
}

/// The arguments of a call, by parameter. Of a module's call, which is PyTorch's code, those of its `forward`.
std::map<std::string, PyObject*> arguments_of(const Context& context, const capture::Start& start) {
  std::map<std::string, PyObject*> arguments;
  const PyCodeObject* code = start.info->code;
  const auto name = [](const PyCodeObject* of, Py_ssize_t i) {
    return std::string(PyUnicode_AsUTF8(PyTuple_GET_ITEM(of->co_localsplusnames, i)));
  };
  const CodePlace place = place_of(context, start);
  if (place.info != start.info) {
    PyObject *positional = start.slots[1], *named = start.slots[2];
    const PyCodeObject* forward = place.info->code;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(positional) && i + 1 < forward->co_argcount; ++i) {
      arguments[name(forward, i + 1)] = PyTuple_GET_ITEM(positional, i);
    }
    Py_ssize_t position = 0;
    PyObject *key, *value;
    while (PyDict_Next(named, &position, &key, &value)) arguments[PyUnicode_AsUTF8(key)] = value;
    return arguments;
  }
  for (int i = 0; i < code->co_argcount + code->co_kwonlyargcount; ++i) arguments[name(code, i)] = start.slots[i];
  return arguments;
}

}  // namespace

CodePlace place_of(const Context& context, const capture::Start& start) {
  if (start.instr == 0 && context.subject &&
      PyUnicode_CompareWithASCIIString(start.info->code->co_name, "_wrapped_call_impl") == 0) {
    PyObject* forward = lookup_in_type(context.subject, MAGNETO_STR("forward"));
    if (forward && PyFunction_Check(forward)) {
      return {&decode(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(unwrapped(forward)))), 0};
    }
  }
  return {start.info, start.instr};
}

int64_t entry_limit(const Context& context) { return context.settings[&Settings::cache_size_limit]; }

void set_up(capture::Capture& capture, const Context& context, const Segment& segment, const capture::Start& start) {
  capture.options.exit_every = settings().exit_every;
  capture.options.knows_buffers = !segment.data_changes;
  capture.options.wants_backward = settings().joint_graph && context.backend->wants_joint_graph();
  capture.options.partition = {.recompute = context.backend->partition == compiler::Backend::Partition::MinCut,
                               .memory_budget = settings().activation_memory_budget,
                               .whole = context.backend->operators == compiler::Backend::Operators::Users,
                               .is_fused = lower::is_fused};
  capture.options.dynamic = segment.memory.fixed_sizes ? capture::Dynamic::Never : dynamic_of(context);
  capture.options.use_duck_shape = settings().use_duck_shape;
  // Whoever wants no breaks wants these captured.
  const bool takes_sizes = context.fullgraph || settings().capture_dynamic_output_shape_ops;
  const bool is_ours = context.backend->level != compiler::Backend::Level::Module &&
                       context.backend->operators != compiler::Backend::Operators::Users;
  capture.options.tries_data_sizes = !takes_sizes && is_ours && !segment.memory.ends_at_data_sizes;
  capture.options.assumes_bools = is_ours && !segment.memory.ends_at_data_sizes;
  capture.session->takes = {context.fullgraph || settings().capture_scalar_outputs,
                            takes_sizes || capture.options.tries_data_sizes};
  capture.options.fullgraph = context.fullgraph;
  const bool exports = is_export(context);
  capture.session->impl().casts.begin(/*shares=*/!exports);
  // Nothing runs an exported program otherwise where the data are others: it is to be right for all of them.
  if (exports) {
    capture.session->set_in_general(true);
    capture.session->set_exports();
    if (compiler::is_draft(context.backend_callable.get())) capture::drafts::begin(capture);
  }
  capture.options.exits_on_change = start.prologue_done && !context.fullgraph && is_crowded(context, segment);
}

bool is_only_looked_at(Segment& segment) {
  if (stance() != Stance::EagerThenCompile || !segment.entries.empty()) return false;
  return !std::exchange(segment.has_learnt, true);
}

DeclaredShapes::DeclaredShapes(const Context& context, const capture::Start& start) {
  if (!context.shapes || start.instr != 0) return;
  const std::map<std::string, PyObject*> arguments = arguments_of(context, start);
  Py_ssize_t position = 0;
  PyObject *key, *dimensions;
  while (PyDict_Next(context.shapes, &position, &key, &dimensions)) {
    const std::string parameter = PyUnicode_AsUTF8(key);
    const auto given = arguments.find(parameter);
    if (given != arguments.end() && given->second) add(parameter, given->second, dimensions);
  }
}

DeclaredShapes::~DeclaredShapes() {
  const SavedError saved;
  for (auto change = before_.rbegin(); change != before_.rend(); ++change) {
    PyObject_SetAttrString(change->tensor.get(), change->name, change->value.get());  // null deletes it
    PyErr_Clear();
  }
}

void DeclaredShapes::mark(PyObject* tensor, const char* name, PyObject* value) {
  Ref before = Ref::steal(PyObject_GetAttrString(tensor, name));
  if (!before) PyErr_Clear();
  before_.push_back({Ref::borrow(tensor), name, std::move(before)});
  if (PyObject_SetAttrString(tensor, name, value) < 0) throw PythonError{};
}

void DeclaredShapes::add(const std::string& parameter, PyObject* argument, PyObject* dimensions) {
  const auto violated = [&](const std::string& what) {
    if (violation_.empty()) violation_ = "shapes_spec: " + parameter + what;
  };
  if (!is_tensor_object(argument)) return violated(std::string(" is no tensor, but ") + Py_TYPE(argument)->tp_name);
  const at::Tensor& tensor = unpack_tensor(argument);
  const auto rank = PyTuple_GET_SIZE(dimensions);
  if (tensor.dim() != rank) {
    return violated(" has " + std::to_string(tensor.dim()) + " dimensions, and " + std::to_string(rank) +
                    " are declared");
  }
  const Ref dynamic = checked(PySet_New(nullptr)), weak = checked(PySet_New(nullptr)),
            fixed = checked(PySet_New(nullptr)), ranges = checked(PyDict_New());
  for (Py_ssize_t dim = 0; dim < rank; ++dim) {
    PyObject* declared = PyTuple_GET_ITEM(dimensions, dim);
    const Ref index = checked(PyLong_FromSsize_t(dim));
    const int64_t now = tensor.size(dim);
    const std::string place = ".size()[" + std::to_string(dim) + "] is " + std::to_string(now) + ", and ";
    if (!PyTuple_Check(declared)) {
      if (declared != Py_None && PyLong_AsLongLong(declared) != now)
        violated(place + std::to_string(PyLong_AsLongLong(declared)) + " is declared");
      PySet_Add(fixed.get(), index.get());
      continue;
    }
    PyObject *low = PyTuple_GET_ITEM(declared, 1), *high = PyTuple_GET_ITEM(declared, 2);
    if (low != Py_None && now < PyLong_AsLongLong(low))
      violated(place + "at least " + std::to_string(PyLong_AsLongLong(low)) + " is declared");
    if (high != Py_None && now > PyLong_AsLongLong(high))
      violated(place + "at most " + std::to_string(PyLong_AsLongLong(high)) + " is declared");
    const Ref range = checked(PyTuple_Pack(2, low, high));
    if (PyDict_SetItem(ranges.get(), index.get(), range.get()) < 0) throw PythonError{};
    const std::string name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(declared, 0));
    const auto [known, added] = named_.try_emplace(name, now);
    if (known->second != now)
      violated(place + "another dimension of " + name.substr(0, name.find('#')) + " is " +
               std::to_string(known->second));
    // A size that is declared in several places is one symbol: only marks that may specialize give that.
    const bool several = PyObject_IsTrue(PyTuple_GET_ITEM(declared, 3)) == 1;
    PySet_Add(several ? weak.get() : dynamic.get(), index.get());
  }
  mark(argument, "_dynamo_dynamic_indices", dynamic.get());
  mark(argument, "_dynamo_weak_dynamic_indices", weak.get());
  mark(argument, "_dynamo_static_indices", fixed.get());
  mark(argument, "_dynamo_dynamic_range", ranges.get());
}

}  // namespace magneto::dispatch
