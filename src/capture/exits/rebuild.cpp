#include "capture/exits/rebuild.h"

#include <structmember.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/DynamicTypes.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "capture/calls/calls.h"
#include "capture/calls/native_mode.h"
#include "capture/exits/exit_builder.h"
#include "capture/interpreter/errors.h"
#include "capture/interpreter/frames.h"
#include "capture/interpreter/operations.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/strings.h"
#include "capture/numbers/symbols.h"
#include "capture/numpy/arrays.h"
#include "capture/numpy/numpy_capture.h"
#include "capture/torch/class_tensors.h"
#include "capture/torch/distributed_tensors.h"
#include "capture/torch/gradients.h"
#include "capture/torch/tensor_map.h"
#include "capture/torch/torch_calls.h"
#include "capture/world/containers.h"
#include "capture/world/overlays.h"
#include "capture/world/world.h"
#include "guards/objects.h"
#include "python/abi/frame_slots.h"
#include "python/abi/functions.h"
#include "python/abi/sets.h"
#include "python/abi/types.h"
#include "python/bytecode/liveness.h"
#include "python/dtensor.h"
#include "python/imported.h"
#include "runtime/jagged_results.h"
#include "runtime/program/numpy_calls.h"
#include "support/tensor_object.h"

namespace magneto::capture {

using runtime::PlanInstr;
using runtime::PlanOp;

Abandon Rebuilder::unbuildable(PyObject* value) {
  return {BreakReason::Rebuild,
          std::string("an object of type ") + Py_TYPE(value)->tp_name + " is alive at the segment's end", value};
}

const at::Tensor& Rebuilder::tensor_of(PyObject* object) const { return unpack_tensor(object); }

int32_t Rebuilder::emit(PlanOp op, std::vector<int32_t> args, PyObject* object, int32_t index) {
  PlanInstr instr{op};
  instr.dst = plan.register_count++;
  instr.args = std::move(args);
  instr.object = Ref::borrow(object);
  instr.index = index;
  plan.instrs.push_back(std::move(instr));
  return plan.instrs.back().dst;
}

void Rebuilder::emit_to(int32_t dst, PlanOp op, std::vector<int32_t> args, PyObject* object) {
  PlanInstr instr{op};
  instr.dst = dst;
  instr.args = std::move(args);
  instr.object = Ref::borrow(object);
  plan.instrs.push_back(std::move(instr));
}

int32_t Rebuilder::constant(PyObject* value) { return memo_[value] = emit(PlanOp::Const, {}, value); }

int32_t Rebuilder::load(const guards::Source* source) {
  const int32_t reg = emit(PlanOp::Slot);
  loads_.emplace_back(plan.instrs.size() - 1, source);
  return reg;
}

/// Immutable all the way down, with nothing from outside in it: one object serves all runs.
bool Rebuilder::is_constant(PyObject* value) {
  if (c.calls.classes.is_any(value)) return false;
  if (is_scalar(value) || is_identity_constant(value)) return true;
  const guards::Source* source = c.world.source_of(value);
  if (source && source->kind != guards::SourceKind::Const) return false;
  if (is_value(value) && !PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HEAPTYPE)) return true;  // NumPy's numbers
  if (PyTuple_CheckExact(value) || (PyTuple_Check(value) && std::strcmp(Py_TYPE(value)->tp_name, "torch.Size") == 0)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) {
      if (!is_constant(PyTuple_GET_ITEM(value, i))) return false;
    }
    return true;
  }
  if (Py_TYPE(value) == &PyRange_Type || Py_TYPE(value) == &PyCode_Type) return true;
  static constinit Imported union_type("types", "UnionType");  // int | None
  if (Py_TYPE(value) == union_type.type() || Py_TYPE(value) == &Py_GenericAliasType) return true;
  if (PyTraceBack_Check(value)) return true;  // of Capture::add_traceback: frames without values
  return Py_TYPE(value) == &PyFrozenSet_Type && holds_constants(value);
}

/// Each item of the set is one object in all runs.
bool Rebuilder::holds_constants(PyObject* set) {
  Ref items = checked(PySequence_List(set));
  const std::span<PyObject*> all(PySequence_Fast_ITEMS(items.get()), PyList_GET_SIZE(items.get()));
  return std::ranges::all_of(all, [&](PyObject* item) {
    const guards::Source* source = c.world.source_of(item);
    return !c.containers.is_shadow(item) &&
           (is_constant(item) || (source && source->kind == guards::SourceKind::Const));
  });
}

/// A text of values of the run: its parts, joined.
int32_t Rebuilder::build_text(PyObject* value) {
  static PyObject* const join = PyObject_GetAttrString(PyUnicode_InternFromString(""), "join");
  std::vector<int32_t> parts;
  for (const StringPart& part : c.strings.parts_to_hand_on(value)) {
    if (!part.function) {
      parts.push_back(constant(part.value.get()));
      continue;
    }
    std::vector<int32_t> args = {emit(PlanOp::Const, {}, part.function.get()), build(part.value.get())};
    if (part.format) args.push_back(constant(part.format.get()));
    parts.push_back(emit(PlanOp::Call, std::move(args)));
  }
  return memo_[value] = emit(PlanOp::Call, {emit(PlanOp::Const, {}, join), emit(PlanOp::Tuple, std::move(parts))});
}

/// The number that a tensor of the graph holds.
int32_t Rebuilder::read_number(PyObject* tensor) {
  static PyObject* const item = PyObject_GetAttrString(tensor_class(), "item");
  c.world.keep(Ref::borrow(tensor));
  return emit(PlanOp::Call, {constant(item), build(tensor)});
}

/// A bool that only the data says.
int32_t Rebuilder::build_truth(PyObject* value) {
  if (!c.session->sizes().is_unbacked(symbolic_bool_of(value)->difference)) {
    return memo_[value] = build(c.numbers.known(value).get());
  }
  return memo_[value] = read_number(c.symbols.tensor_of_question(*symbolic_bool_of(value)).get());
}

std::vector<int32_t> Rebuilder::build_items(PyObject* sequence) {
  std::vector<int32_t> items;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence); ++i) {
    items.push_back(build(PySequence_Fast_GET_ITEM(sequence, i)));
  }
  return items;
}

std::vector<int32_t> Rebuilder::build_entries(PyObject* dict) {
  std::vector<int32_t> entries;
  Ref keys = Ref::steal(PyObject_CallMethod(dict, "keys", nullptr));
  Ref order = PyODict_CheckExact(dict) ? checked(PySequence_List(keys.get())) : checked(PyDict_Keys(dict));
  std::unordered_map<PyObject*, PyObject*> values;  // no look-up, which would call a key's __hash__
  Py_ssize_t position = 0;
  PyObject *key, *value;
  while (PyDict_Next(dict, &position, &key, &value)) values[key] = value;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(order.get()); ++i) {
    key = PyList_GET_ITEM(order.get(), i);
    entries.push_back(build(key));
    entries.push_back(build(values.at(key)));
  }
  return entries;
}

/// The values of a jagged tensor that has a history, as the graph gives them.
int32_t Rebuilder::build_jagged_values(PyObject* jagged) {
  const Ref values = c.tensors.values_with_history(jagged);
  c.world.keep(values);
  const int32_t given = build(values.get());
  // What hangs on the tensor has none, unless it is a view of that.
  const Ref inside = checked(PyObject_GetAttr(jagged, MAGNETO_STR("_values")));
  static PyObject* const detach = PyObject_GetAttrString(tensor_class(), "detach");
  if (inside.get() != values.get() && !memo_.contains(inside.get())) {
    memo_[inside.get()] = emit(PlanOp::Call, {constant(detach), given});
  }
  static constexpr const char* kCaches[] = {"_sym_sizes_capsule", "_sym_sizes_capsule_len", "_sym_strides_capsule",
                                            "_sym_strides_capsule_len"};
  for (const char* cache : kCaches) {  // which PyTorch fills again when it is asked
    if (PyDict_DelItemString(instance_dict(jagged), cache) < 0) PyErr_Clear();
  }
  return given;
}

/// Of its local tensor. One with a history is made of one that has it, as by `from_local(to_local())`.
int32_t Rebuilder::build_distributed(PyObject* value) {
  const bool has_history = static_cast<bool>(unpack_tensor(value).grad_fn());
  if (has_history && c.mode.recording && c.frame) {  // what that call has recorded will be taken back
    throw c.exits.restart_before({c.frame->info->code, c.frame->pc},
                                 "a DTensor with a history is handed on: " + c.exits.exit->message);
  }
  if (keeps_mask(c, description_of(value))) throw unbuildable(value);
  const Ref given = has_history ? local_with_history(c, value) : Ref::borrow(local_tensor_of(value));
  c.world.keep(given);
  const int32_t local = build(given.get());
  PyObject* const is_leaf = unpack_tensor(value).requires_grad() ? Py_True : Py_False;
  const int32_t needs_grad = constant(has_history ? Py_None : is_leaf);
  const Ref bare = without_sizes(c, description_of(value));
  if (bare.get() == Py_None) {
    const int32_t spec = constant(description_of(value));
    return memo_[value] = emit(PlanOp::Call, {constant(distributed_maker()), local, spec, needs_grad});
  }
  const auto [shape, stride] = sizes_in(c, description_of(value));
  const int32_t sizes = build(shape.get()), strides = build(stride.get()), spec = constant(bare.get());
  return memo_[value] = emit(PlanOp::Call, {constant(sized_maker()), local, spec, sizes, strides, needs_grad});
}

/// The segment has made it.
int32_t Rebuilder::build_wrapper(PyObject* value, const ClassTensor& known) {
  const bool has_history = static_cast<bool>(unpack_tensor(value).grad_fn());
  if (is_dtensor(Py_TYPE(value))) return build_distributed(value);
  if (has_history && !fake::is_jagged(unpack_tensor(value))) {
    c.gradients.retry_without_classes("a tensor of the class is given that has a history");
  }
  const int32_t values = has_history ? build_jagged_values(value) : -1;
  const int32_t args = build(known.args.get()), kwargs = build(known.kwargs.get());
  const int32_t made = memo_[value] = emit(PlanOp::Call, {constant(wrapper_maker()), args, kwargs});
  fill_instance_dict(made, value);
  static PyObject* const with_history = PyCFunction_NewEx(&runtime::kWithHistoryOfValues, nullptr, nullptr);
  if (has_history) emit(PlanOp::Call, {constant(with_history), made, values});
  return made;
}

int32_t Rebuilder::build_tensor(PyObject* value) {
  const at::Tensor& tensor = unpack_tensor(value);
  if (const auto of_class = c.tensors.of_classes.find(value); of_class != c.tensors.of_classes.end()) {
    if (of_class->second.source) return memo_[value] = load(of_class->second.source);
    return build_wrapper(value, of_class->second);
  }
  const graph::ValueId id = c.session->value_of(tensor);
  if (id == graph::kNoValue) {
    throw unbuildable(value);
  }
  if (const auto made = c.numpy.array_by_tensor.find(value); made != c.numpy.array_by_tensor.end()) {
    static PyObject* const over = PyCFunction_NewEx(&runtime::kTensorOfArray, nullptr, nullptr);
    const int32_t array = build(made->second.get());
    return memo_[value] = emit(PlanOp::Call, {constant(over), array});
  }
  auto input = c.tensors.inputs.find(id);
  if (input != c.tensors.inputs.end()) {
    if (c.tensors.fake_of.at(input->second.real.get()).get() == value ||
        Py_TYPE(value) == Py_TYPE(input->second.real.get())) {
      return memo_[value] = load(input->second.source);
    }
  }
  if (tensor.requires_grad()) needs_grad_ = true;
  auto known = outputs_.find(id);
  int32_t index;
  if (known != outputs_.end()) {
    index = known->second;
    at::Tensor& other = output_tensors_[index];
    if (other.defined() && other.requires_grad() != tensor.requires_grad()) other.reset();
  } else {
    index = outputs_[id] = static_cast<int32_t>(c.graph.outputs.size());
    c.graph.outputs.push_back(id);
    output_tensors_.push_back(tensor);
  }
  const bool plain = Py_TYPE(value) == reinterpret_cast<PyTypeObject*>(tensor_class());
  const bool in_region = c.torch.inference.entry.has_value();
  if (in_region && is_view_of_inference_mode(tensor)) {
    throw c.exits.restart_before(*c.torch.inference.entry, "it hands on a view that was made in inference mode");
  }
  const PlanOp op = in_region && tensor.is_inference() ? PlanOp::InferenceOutput : PlanOp::Output;
  const int32_t output = memo_[value] =
      emit(op, {}, plain ? nullptr : reinterpret_cast<PyObject*>(Py_TYPE(value)), index);
  fill_instance_dict(output, value);
  if (tensor.requires_grad() && c.gradients.grads.contains(id)) c.gradients.set_at_end(value);
  return output;
}

int32_t Rebuilder::build_array(PyObject* value) {
  const ArrayStandIn& array = stand_in_of(value);
  if (!array.maker) return memo_[value] = build(PyTuple_GET_ITEM(array.parents, 0));
  if (c.numpy.is_written(array)) throw unbuildable(value);  // what the graph gives then is no memory of NumPy's own
  std::vector<int32_t> args = {constant(array.maker)};
  for (const int32_t parent : build_items(array.parents)) args.push_back(parent);
  return memo_[value] = emit(PlanOp::Call, std::move(args));
}

int32_t Rebuilder::build_container(PyObject* value) {
  PyTypeObject* type = Py_TYPE(value);
  if (type == &PyTuple_Type) return memo_[value] = emit(PlanOp::Tuple, build_items(value));
  if (type == &PyFrozenSet_Type) {
    Ref items = checked(PySequence_List(value));
    return memo_[value] = emit(PlanOp::FrozenSet, build_items(items.get()));
  }
  if (type == &PyList_Type) {
    const int32_t list = memo_[value] = emit(PlanOp::NewList);
    if (PyList_GET_SIZE(value)) emit_to(list, PlanOp::ListFill, build_items(value));
    return list;
  }
  if (type == &PyDict_Type) {
    const int32_t dict = memo_[value] = emit(PlanOp::NewDict);
    if (PyDict_Size(value)) emit_to(dict, PlanOp::DictFill, build_entries(value));
    return dict;
  }
  if (type == &PySet_Type) {
    const int32_t set = memo_[value] = emit(PlanOp::NewSet);
    fill_set(set, value);
    return set;
  }
  if (type == &PyODict_Type) {
    const int32_t dict = memo_[value] = emit(PlanOp::NewInstance, {}, reinterpret_cast<PyObject*>(type));
    emit_to(dict, PlanOp::DictFill, build_entries(value));
    fill_instance_dict(dict, value);  // state_dict() keeps versions there
    return dict;
  }
  return build_reduced(value);  // deque, defaultdict
}

/// Gives the new set in register `set` the items of `contents`. The order of a set comes of all that was added and
/// removed before, so items that are known now are copied with the table that holds them.
void Rebuilder::fill_set(int32_t set, PyObject* contents) {
  if (holds_constants(contents)) {
    emit_to(set, PlanOp::ReplaceSet, {emit(PlanOp::Const, {}, clone_set(contents).get())});
  } else {
    Ref items = checked(PySequence_List(contents));
    emit_to(set, PlanOp::SetFill, build_items(items.get()));
  }
}

namespace {

/// What C code keeps in instances of the class is filled in by build_instance.
bool is_filled_in(PyTypeObject* type) {
  static constexpr PyTypeObject* known[] = {&PyBaseObject_Type, &PyDict_Type, &PyODict_Type,
                                            &PyList_Type,       &PySet_Type,  &PyFrozenSet_Type};
  return type == guards::namespace_type() || layout_class(type) == guards::deque_type() ||
         PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(PyExc_BaseException)) ||
         std::ranges::find(known, layout_class(type)) != std::end(known);
}

}  // namespace

void Rebuilder::fill_instance_dict(int32_t instance, PyObject* value) {
  Ref dict = Ref::steal(PyObject_GenericGetDict(value, nullptr));
  if (!dict) PyErr_Clear();
  if (dict && PyDict_Size(dict.get())) emit_to(instance, PlanOp::InstanceFill, build_entries(dict.get()));
}

int32_t Rebuilder::build_instance(PyObject* value) {
  PyTypeObject* type = Py_TYPE(value);
  std::vector<int32_t> args;
  if (PyExceptionInstance_Check(value)) {
    Ref exception_args = checked(PyObject_GetAttrString(value, "args"));
    args = build_items(exception_args.get());
  }
  if (PyTuple_Check(value)) {
    Ref items = checked(PySequence_List(value));
    if (is_named_tuple(reinterpret_cast<PyObject*>(type)) || c.calls.classes.is_class(type)) {
      const int32_t made = memo_[value] = build_maker(type, {emit(PlanOp::Tuple, build_items(items.get()))});
      fill_instance_dict(made, value);
      return made;
    }
    const int32_t tuple = memo_[value] =
        emit(PlanOp::Tuple, build_items(items.get()), reinterpret_cast<PyObject*>(type));
    fill_instance_dict(tuple, value);
    return tuple;
  }
  if (!is_filled_in(type)) throw unbuildable(value);
  const bool of_made_class = c.calls.classes.is_class(type);
  if (PyFrozenSet_Check(value)) args = {build(checked(PySequence_List(value)).get())};
  const int32_t instance = memo_[value] =
      of_made_class ? build_maker(type, std::move(args))
                    : emit(PlanOp::NewInstance, std::move(args), reinterpret_cast<PyObject*>(type));
  if (PyDict_Check(value) && PyDict_Size(value)) emit_to(instance, PlanOp::DictFill, build_entries(value));
  if (PyList_Check(value) && PyList_GET_SIZE(value)) emit_to(instance, PlanOp::ListFill, build_items(value));
  if (PySet_Check(value)) fill_set(instance, value);
  if (PyObject_TypeCheck(value, guards::deque_type())) {
    static constinit Imported init("collections", "deque.__init__");
    const Ref items = checked(PySequence_List(value)), limit = guards::deque_limit(value);
    c.world.keep(items);
    emit(PlanOp::Call, {constant(init.get()), instance, build(items.get()), constant(limit.get())});
  }
  fill_instance_dict(instance, value);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    auto* base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, i));
    // Python's own exceptions keep more than their arguments (StopIteration.value, ImportError.name...).
    if (!PyType_HasFeature(base, Py_TPFLAGS_HEAPTYPE) && !PyExceptionInstance_Check(value)) continue;
    PyObject *name, *descriptor;
    Py_ssize_t position = 0;
    while (PyDict_Next(type_dict(base), &position, &name, &descriptor)) {
      if (Py_TYPE(descriptor) != &PyMemberDescr_Type) continue;
      if (reinterpret_cast<PyMemberDescrObject*>(descriptor)->d_member->flags & READONLY) continue;
      Ref slot = Ref::steal(Py_TYPE(descriptor)->tp_descr_get(descriptor, value, reinterpret_cast<PyObject*>(type)));
      if (!slot) {
        PyErr_Clear();
        continue;
      }
      c.world.keep(slot);
      if (c.calls.classes.is_class(base)) {
        static constinit Imported set("builtins", "object.__setattr__");
        emit(PlanOp::Call, {constant(set.get()), instance, build(name), build(slot.get())});
        continue;
      }
      emit_to(instance, PlanOp::SlotFill, {build(slot.get())}, descriptor);
    }
  }
  if (PyExceptionInstance_Check(value)) {
    Ref context = Ref::steal(PyException_GetContext(value));
    Ref cause = Ref::steal(PyException_GetCause(value));
    Ref traceback = Ref::steal(PyException_GetTraceback(value));
    // Raised while the segment itself handled nothing: the context is what its caller handles.
    if (traceback && !context) context = c.errors.handled_at_start;
    std::vector<int32_t> state = {build(context.get()), build(cause.get()), build(traceback.get())};
    // Setting a cause suppresses the context, so the flag comes last.
    emit_to(instance, PlanOp::ExceptionState, std::move(state),
            reinterpret_cast<PyBaseExceptionObject*>(value)->suppress_context ? Py_True : Py_False);
  }
  return instance;
}

/// A generator is called for anew, and its frame filled: the call itself runs none of the body.
int32_t Rebuilder::build_generator(PyObject* value) {
  Frame* suspended = generator_frame(value);
  if (!suspended || generator_handles_exception(value)) {
    throw unbuildable(value);
  }
  const CodeInfo& info = decode(frame_code(suspended));
  const int32_t generator = memo_[value] = emit(PlanOp::NewGenerator, {build(frame_function(suspended))});
  const int32_t depth = frame_stack_depth(suspended);
  std::vector<int32_t> state;
  for (int32_t i = 0; i < info.nlocals + depth; ++i) {
    const bool free_variable = i >= info.first_free && i < info.nlocals;
    state.push_back(free_variable ? -1 : build(frame_slot(suspended, i).get()));
  }
  PlanInstr fill{PlanOp::GeneratorFill};
  fill.dst = generator;
  fill.args = std::move(state);
  fill.index = frame_next_instr(suspended, info);
  fill.object = Ref::borrow(generator_is_started(value) ? Py_True : Py_False);
  plan.instrs.push_back(std::move(fill));
  return generator;
}

int32_t Rebuilder::build_function(PyObject* value) {
  auto* function = reinterpret_cast<PyFunctionObject*>(value);
  std::vector<int32_t> args;
  for (PyObject** part : function_parts(function)) args.push_back(build(*part));
  Ref facts = checked(
      PyTuple_Pack(4, function->func_code, function->func_globals, function->func_name, function->func_qualname));
  const int32_t made = memo_[value] = emit(PlanOp::Function, std::move(args), facts.get());
  if (function->func_dict && PyDict_Size(function->func_dict)) {
    emit_to(made, PlanOp::InstanceFill, build_entries(function->func_dict));
  }
  return made;
}

// -- frames ----------------------------------------------------------------------------------------------------------

/// Tensors and containers of them: nobody notices when they end early.
bool Rebuilder::is_plain_data(PyObject* value, int depth) {
  if (is_scalar(value) || is_tensor(value)) return true;
  if (c.world.is_outside(value) || depth > 4) return false;
  auto all_plain = [&](PyObject* sequence) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence); ++i) {
      if (!is_plain_data(PySequence_Fast_GET_ITEM(sequence, i), depth + 1)) return false;
    }
    return true;
  };
  if (PyTuple_CheckExact(value) || PyList_CheckExact(value)) return all_plain(value);
  if (!PyDict_CheckExact(value)) return false;
  Ref values = checked(PyDict_Values(value));
  return all_plain(values.get());
}

/// A local that the program does not read again. Data is dropped: it need not be computed, or not be kept in memory;
/// but not what is handed out anyway, to which somebody may then refer weakly. Other objects are kept, for what their
/// destructors do, unless they can't be rebuilt.
int32_t Rebuilder::build_dead(PyObject* value) {
  if (const auto known = memo_.find(value); value && known != memo_.end()) return known->second;
  if (!value || (is_plain_data(value, 0) && !is_scalar(value))) return -1;
  const size_t instrs = plan.instrs.size(), loads = loads_.size();
  const auto memo = memo_;
  try {
    return build(value);
  } catch (const Abandon&) {
    plan.instrs.resize(instrs);
    loads_.resize(loads);
    memo_ = memo;
    return -1;
  }
}

runtime::FrameState Rebuilder::frame_state(InterpFrame& f, bool innermost) {
  runtime::FrameState state;
  state.info = f.info;
  state.instr = f.pc;
  if (&f != &c.frames.root) state.function = build(f.function.get());
  const bool prologue_done = f.pc >= f.info->entry;
  std::vector<int32_t> dead;
  for (int32_t i = 0; i < f.info->nlocals; ++i) {
    const bool free_variable = i >= f.info->first_free;
    if (free_variable) {
      state.locals.push_back(-1);
    } else if (&f == &c.frames.root && f.raw[i]) {
      state.locals.push_back(runtime::kUnchanged);
    } else if (!prologue_done || is_live(*f.info, f.pc, i)) {
      state.locals.push_back(build(f.slots[i]));
    } else {
      dead.push_back(i);
      state.locals.push_back(-1);
    }
  }
  const int32_t depth = innermost ? f.depth : f.depth - f.pops;
  for (int32_t i = 0; i < depth; ++i) {
    const bool raw = &f == &c.frames.root && i >= f.raw_stack && i < c.frames.start_depth;
    state.stack.push_back(raw && c.frames.reading_start ? runtime::kUnchanged : build(f.stack()[i]));
  }
  if (!innermost) state.result = build(f.result_override.get());
  for (const int32_t i : dead) state.locals[i] = build_dead(f.slots[i]);
  return state;
}

void Rebuilder::handled_exception() {
  Ref handled = Ref::steal(PyErr_GetHandledException());
  if (handled.get() != c.start_handled()) handled_ = build(handled ? handled.get() : Py_None);
}

void Rebuilder::set_handled_exception() {
  if (handled_ < 0) return;
  PlanInstr instr{PlanOp::SetHandled};
  instr.args = {handled_};
  plan.instrs.push_back(std::move(instr));
}

void Rebuilder::require_sources() {
  for (const auto& [instr, source] : loads_) c.guards.require(source);
}

void Rebuilder::resolve_slots(const guards::GuardProgram& program) {
  for (const auto& [instr, source] : loads_) plan.instrs[instr].index = program.slot_of(source);
}

}  // namespace magneto::capture
