#include "runtime/plan/plan.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cmath>

#include "guards/array.h"
#include "python/abi/frame.h"
#include "python/abi/functions.h"
#include "python/abi/sets.h"
#include "python/abi/types.h"
#include "python/bind.h"
#include "python/imported.h"
#include "runtime/computation.h"
#include "runtime/plan/failed_call.h"
#include "runtime/plan/inference_mode.h"
#include "runtime/plan/issued_collectives.h"
#include "runtime/plan/saved_state.h"
#include "runtime/plan/torch_errors.h"

namespace magneto::runtime {

Registers::Registers(size_t count) : count_(count) {
  if (count > kInline) {
    heap_ = std::make_unique<PyObject*[]>(count);
    values_ = heap_.get();
  } else {
    values_ = inline_;
  }
  std::fill_n(values_, count, nullptr);
}

void Registers::clear() {
  for (size_t i = 0; i < count_; ++i) Py_XDECREF(std::exchange(values_[i], nullptr));
}

void Registers::set(int32_t index, PyObject* value) {
  PyObject* old = std::exchange(values_[index], value);
  Py_XDECREF(old);
}

namespace {

void check(int failed) {
  if (failed < 0) throw PythonError{};
}

PyObject* require(PyObject* object) {
  if (!object) throw PythonError{};
  return object;
}

/// Makes an instance without state: what the C code that lays it out makes of the arguments. The class's own __new__
/// does not run: the capture has run it.
PyObject* new_instance(PyTypeObject* type, const PlanInstr& instr, const Registers& registers) {
  Ref args = checked(PyTuple_New(static_cast<Py_ssize_t>(instr.args.size())));
  for (size_t i = 0; i < instr.args.size(); ++i)
    PyTuple_SET_ITEM(args.get(), i, Py_NewRef(registers.get(instr.args[i])));
  return require(layout_class(type)->tp_new(type, args.get(), nullptr));
}

PyObject* new_function(const PlanInstr& instr, const Registers& registers) {
  PyObject* facts = instr.object.get();
  Ref function = checked(PyFunction_New(PyTuple_GET_ITEM(facts, 0), PyTuple_GET_ITEM(facts, 1)));
  auto* made = reinterpret_cast<PyFunctionObject*>(function.get());
  Py_SETREF(made->func_name, Py_NewRef(PyTuple_GET_ITEM(facts, 2)));
  Py_SETREF(made->func_qualname, Py_NewRef(PyTuple_GET_ITEM(facts, 3)));
  const std::vector<PyObject**> places = function_parts(made);
  for (size_t i = 0; i < places.size(); ++i) {
    if (instr.args[i] >= 0) Py_XSETREF(*places[i], Py_NewRef(registers.get(instr.args[i])));
  }
  return function.release();
}

/// Past any override; an ordered dict keeps its order in a list of its own, which dict's functions leave alone.
void replace_dict(PyObject* dict, PyObject* contents) {
  if (!PyODict_Check(dict)) {
    PyDict_Clear(dict);
    return check(PyDict_Update(dict, contents));
  }
  static PyObject* const clear = PyObject_GetAttrString(reinterpret_cast<PyObject*>(&PyODict_Type), "clear");
  Py_DECREF(require(PyObject_CallOneArg(clear, dict)));
  PyObject *key, *value;
  Py_ssize_t position = 0;
  while (PyDict_Next(contents, &position, &key, &value)) check(PyODict_SetItem(dict, key, value));
}

void fill_set(PyObject* set, const PlanInstr& instr, const Registers& registers) {
  for (int32_t arg : instr.args) check(PySet_Add(set, registers.get(arg)));
}

void run_instr(const PlanInstr& instr, PyObject* const* outputs, Registers& registers) {
  auto arg = [&](size_t i) { return registers.get(instr.args[i]); };
  PyObject* dst = instr.dst >= 0 ? registers.get(instr.dst) : nullptr;
  switch (instr.op) {
    case PlanOp::Slot:
      break;  // loaded before the computation
    case PlanOp::Const:
      registers.set(instr.dst, Py_NewRef(instr.object.get()));
      break;
    case PlanOp::Output:
    case PlanOp::InferenceOutput: {
      Ref made = Ref::borrow(outputs[instr.index]);
      if (instr.op == PlanOp::InferenceOutput && !THPVariable_Unpack(made.get()).is_inference()) {
        made = Ref::steal(require(THPVariable_Wrap(as_inference(THPVariable_Unpack(made.get())))));
      }
      PyObject* tensor = made.get();
      if (instr.object && Py_TYPE(tensor) != reinterpret_cast<PyTypeObject*>(instr.object.get())) {
        // As Tensor.as_subclass: the tensor has an object of its own class already.
        registers.set(instr.dst, require(THPVariable_Wrap(THPVariable_Unpack(tensor).alias(),
                                                          reinterpret_cast<PyTypeObject*>(instr.object.get()))));
      } else {
        registers.set(instr.dst, Py_NewRef(tensor));
      }
      break;
    }
    case PlanOp::Tuple: {
      Ref tuple = checked(PyTuple_New(static_cast<Py_ssize_t>(instr.args.size())));
      for (size_t i = 0; i < instr.args.size(); ++i) PyTuple_SET_ITEM(tuple.get(), i, Py_NewRef(arg(i)));
      if (instr.object) {
        auto* type = reinterpret_cast<PyTypeObject*>(instr.object.get());
        Ref args = checked(PyTuple_Pack(1, tuple.get()));
        tuple = checked(PyTuple_Type.tp_new(type, args.get(), nullptr));
      }
      registers.set(instr.dst, tuple.release());
      break;
    }
    case PlanOp::FrozenSet: {
      Ref set = checked(PySet_New(nullptr));
      fill_set(set.get(), instr, registers);
      registers.set(instr.dst, require(PyFrozenSet_New(set.get())));
      break;
    }
    case PlanOp::Slice:
      registers.set(instr.dst, require(PySlice_New(arg(0), arg(1), arg(2))));
      break;
    case PlanOp::Method:
      registers.set(instr.dst, require(PyMethod_New(arg(0), arg(1))));
      break;
    case PlanOp::Function:
      registers.set(instr.dst, new_function(instr, registers));
      break;
    case PlanOp::NewList:
      registers.set(instr.dst, require(PyList_New(0)));
      break;
    case PlanOp::NewDict:
      registers.set(instr.dst, require(PyDict_New()));
      break;
    case PlanOp::NewSet:
      registers.set(instr.dst, require(PySet_New(nullptr)));
      break;
    case PlanOp::NewCell:
      registers.set(instr.dst, require(PyCell_New(nullptr)));
      break;
    case PlanOp::NewInstance:
      registers.set(instr.dst, new_instance(reinterpret_cast<PyTypeObject*>(instr.object.get()), instr, registers));
      break;
    case PlanOp::Call: {
      std::vector<PyObject*> args;
      for (size_t i = 1; i < instr.args.size(); ++i) args.push_back(arg(i));
      registers.set(instr.dst, require(PyObject_Vectorcall(arg(0), args.data(), args.size(), nullptr)));
      break;
    }
    case PlanOp::ListFill:
      for (size_t i = 0; i < instr.args.size(); ++i) check(PyList_Append(dst, arg(i)));
      break;
    case PlanOp::DictFill: {
      const bool ordered = PyODict_Check(dst);
      for (size_t i = 0; i < instr.args.size(); i += 2) {
        check(ordered ? PyODict_SetItem(dst, arg(i), arg(i + 1)) : PyDict_SetItem(dst, arg(i), arg(i + 1)));
      }
      break;
    }
    case PlanOp::SetFill:
      fill_set(dst, instr, registers);
      break;
    case PlanOp::CellFill:
    case PlanOp::StoreCell:
      check(PyCell_Set(dst, instr.args.empty() ? nullptr : arg(0)));
      break;
    case PlanOp::InstanceFill: {
      Ref dict = checked(PyObject_GenericGetDict(dst, nullptr));
      for (size_t i = 0; i < instr.args.size(); i += 2) check(PyDict_SetItem(dict.get(), arg(i), arg(i + 1)));
      break;
    }
    case PlanOp::SlotFill:
      check(Py_TYPE(instr.object.get())->tp_descr_set(instr.object.get(), dst, arg(0)));
      break;
    case PlanOp::ExtendFrom:
      Py_DECREF(require(PyObject_CallMethod(dst, "extend", "O", arg(0))));
      break;
    case PlanOp::SetState: {
      static PyObject* const set_state = PyUnicode_InternFromString("__setstate__");
      Py_DECREF(require(PyObject_CallMethodOneArg(dst, set_state, arg(0))));
      break;
    }
    case PlanOp::StoreAttr:
      check((PyType_Check(dst) ? PyType_Type.tp_setattro : PyObject_GenericSetAttr)(
          dst, instr.object.get(), instr.args.empty() ? nullptr : arg(0)));
      break;
    case PlanOp::StoreItem:
      if (PyODict_Check(dst)) {
        check(instr.args.empty() ? PyODict_DelItem(dst, instr.object.get())
                                 : PyODict_SetItem(dst, instr.object.get(), arg(0)));
      } else {
        check(instr.args.empty() ? PyDict_DelItem(dst, instr.object.get())
                                 : PyDict_SetItem(dst, instr.object.get(), arg(0)));
      }
      break;
    case PlanOp::ReplaceList:
      check(PyList_SetSlice(dst, 0, PyList_GET_SIZE(dst), arg(0)));
      break;
    case PlanOp::ReplaceDict:
      replace_dict(dst, arg(0));
      break;
    case PlanOp::ReplaceSet:
      assign_set(dst, arg(0));
      break;
    case PlanOp::NewGenerator:
      registers.set(instr.dst, require(call_for_frame(arg(0))));
      break;
    case PlanOp::GeneratorFill: {
      Frame* frame = generator_frame(dst);
      const CodeInfo& info = decode(frame_code(frame));
      PyObject** slots = frame_localsplus(frame);
      for (size_t i = 0; i < instr.args.size(); ++i) {
        const bool kept = static_cast<int32_t>(i) >= info.first_free && static_cast<int32_t>(i) < info.nlocals;
        PyObject* old = kept ? nullptr : static_cast<int32_t>(i) < info.nlocals ? slots[i] : nullptr;
        if (!kept) slots[i] = instr.args[i] < 0 ? nullptr : Py_NewRef(arg(i));
        Py_XDECREF(old);
      }
      generator_set(dst, info, instr.index, static_cast<int32_t>(instr.args.size()) - info.nlocals,
                    instr.object.get() == Py_True);
      break;
    }
    case PlanOp::ExceptionState: {
      auto state = [&](size_t i) { return instr.args[i] < 0 || arg(i) == Py_None ? nullptr : Py_NewRef(arg(i)); };
      PyException_SetContext(dst, state(0));
      PyException_SetCause(dst, state(1));
      if (instr.args[2] >= 0) check(PyException_SetTraceback(dst, arg(2)));
      reinterpret_cast<PyBaseExceptionObject*>(dst)->suppress_context = instr.object.get() == Py_True;
      break;
    }
    case PlanOp::Handled: {
      PyObject* handled = PyErr_GetHandledException();
      registers.set(instr.dst, handled ? handled : Py_NewRef(Py_None));
      break;
    }
    case PlanOp::SetHandled:
      PyErr_SetHandledException(arg(0) == Py_None ? nullptr : arg(0));
      break;
    case PlanOp::GradMode:
      at::GradMode::set_enabled(instr.index != 0);
      break;
  }
}

/// The computation's results, owned.
class Outputs {
 public:
  explicit Outputs(int32_t count) : values_(count, nullptr) {}
  ~Outputs() {
    for (PyObject* value : values_) Py_XDECREF(value);
  }
  PyObject** data() { return values_.data(); }

 private:
  c10::SmallVector<PyObject*, 8> values_;
};

/// What is kept of a plan's inputs for an error.
SavedState saved_state(const Plan& plan, const c10::SmallVectorImpl<PyObject*>& inputs, OnError state) {
  c10::SmallVector<const at::Tensor*, 32> tensors;
  for (PyObject* input : inputs) tensors.push_back(THPVariable_Check(input) ? &THPVariable_Unpack(input) : nullptr);
  SavedState saved;
  // Where memory is short, CPython runs the segment without copies.
  if (!with_torch_errors([&] { saved = SavedState(plan.undo, tensors.data(), state != OnError::Untouched); })) {
    throw ComputationError{};
  }
  return saved;
}

/// Whether what a computation raised goes to the caller as it is, with tensors as they are. Else CPython runs the
/// segment, and raises at the program's own line.
bool is_for_the_caller(const Plan& plan) {
  // KeyboardInterrupt and the like. CPython raises it again in the operator that was interrupted, if that is known.
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return !failed_call();
  // A hook that packs saved tensors, which autograd calls, stops the run (activation checkpointing does so).
  if (at::SavedTensorDefaultHooks::get_hooks()) return true;
  PyObject *failed, *verified;
  {
    SavedError saved;
    static constinit Imported of_backend("magneto.exc", "BackendFailed"), of_check("magneto.exc", "AccuracyError");
    failed = of_backend.get();
    verified = of_check.get();
  }
  return PyErr_ExceptionMatches(failed) || PyErr_ExceptionMatches(verified) ||
         (plan.computation->is_users() && !plan.undo.may_raise);
}

}  // namespace

namespace {

/// A plan that may run only once at a time runs. A second run, by another thread or from inside, is left to CPython.
class Exclusive {
 public:
  explicit Exclusive(const Plan& plan) : plan_(plan.exclusive ? &plan : nullptr) {
    if (!plan_) return;
    if (plan_->running) {
      PyErr_Format(PyExc_RuntimeError, "%sno other thread and no outer call runs it", kNotSo);
      throw ComputationError{};
    }
    plan_->running = true;
  }
  ~Exclusive() {
    if (plan_) plan_->running = false;
  }
  Exclusive(const Exclusive&) = delete;

 private:
  const Plan* plan_;
};

}  // namespace

Ref tensor_of_number(PyObject* number) {
  c10::Scalar scalar;
  if (PyFloat_CheckExact(number)) {
    scalar = PyFloat_AS_DOUBLE(number);
  } else {
    const long long value = PyLong_AsLongLong(number);
    if (value == -1 && PyErr_Occurred()) throw PythonError{};
    scalar = static_cast<int64_t>(value);
  }
  return checked(THPVariable_Wrap(at::native::wrapped_scalar_tensor(scalar)));
}

namespace {

[[noreturn]] void not_in_graph(PyObject* number) {
  PyErr_Format(PyExc_OverflowError, "%s%R is a number of all dtypes of the graph", kNotSo, number);
  throw ComputationError{};
}

bool holds(shapes::Range range, PyObject* integer) {
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(integer, &overflow);
  return overflow || (range.low <= value && value <= range.high);  // what is no int64 raises by itself
}

/// Numbers among the inputs become tensors, which `made` holds.
void add_numbers(const Plan& plan, c10::SmallVectorImpl<PyObject*>& inputs, c10::SmallVectorImpl<Ref>& made) {
  for (size_t i = 0; i < plan.number_inputs.size(); ++i) {
    const int32_t index = plan.number_inputs[i];
    // PyTorch raises where it converts such a number; generated code would make infinity of it.
    if (PyFloat_CheckExact(inputs[index]) && std::isfinite(PyFloat_AS_DOUBLE(inputs[index])) &&
        std::abs(PyFloat_AS_DOUBLE(inputs[index])) > plan.most_of_numbers) {
      not_in_graph(inputs[index]);
    }
    if (PyLong_CheckExact(inputs[index]) && !holds(plan.integers[i], inputs[index])) not_in_graph(inputs[index]);
    try {
      made.push_back(tensor_of_number(inputs[index]));
    } catch (const PythonError&) {
      throw ComputationError{};
    }
    inputs[index] = made.back().get();
  }
}

}  // namespace

void run_plan(const Plan& plan, PyObject* const* slots, Registers& registers) {
  const Exclusive exclusive(plan);
  // What the plan hands on from outside is loaded first: the slots are borrowed, and operators may run Python code.
  for (const PlanInstr& instr : plan.instrs) {
    if (instr.op == PlanOp::Slot) registers.set(instr.dst, Py_XNewRef(slots[instr.index]));
  }
  Outputs outputs(plan.output_count);
  if (plan.computation) {
    c10::SmallVector<PyObject*, 32> inputs;
    for (int32_t slot : plan.input_slots) inputs.push_back(slots[slot]);
    c10::SmallVector<Ref, 4> made;
    for (const int32_t index : plan.array_inputs) {
      made.push_back(checked(THPVariable_Wrap(guards::tensor_of_array(inputs[index]))));
      inputs[index] = made.back().get();
    }
    add_numbers(plan, inputs, made);
    const OnError state = plan.undo.empty() ? OnError::Untouched : plan.computation->on_error();
    const bool leaves = state == OnError::AsEager && !plan.undo.needs_rerun;
    SavedState saved;
    if (!leaves && !plan.undo.empty()) saved = saved_state(plan, inputs, state);
    failed_call().reset();
    try {
      const NotedCollectives noted(plan.undo.reissues);
      plan.computation->run(inputs.data(), outputs.data());
    } catch (const PythonError&) {
      if (leaves || is_for_the_caller(plan)) throw;
      const SavedError error;
      saved.restore();
      throw ComputationError{};
    }
  }
  for (const PlanInstr& instr : plan.instrs) run_instr(instr, outputs.data(), registers);
}

int Plan::traverse(visitproc visit, void* arg) const {
  for (const PlanInstr& instr : instrs) Py_VISIT(instr.object.get());
  return 0;
}

std::unique_ptr<Plan> Plan::share() const {
  if (exclusive) return nullptr;
  auto plan = std::make_unique<Plan>();
  plan->computation = computation;
  if (computation) {
    if (std::unique_ptr<Computation> own = computation->for_other_weights()) plan->computation = std::move(own);
  }
  plan->input_slots = input_slots;
  plan->number_inputs = number_inputs;
  plan->integers = integers;
  plan->most_of_numbers = most_of_numbers;
  plan->array_inputs = array_inputs;
  plan->undo = undo;
  plan->output_count = output_count;
  plan->instrs = instrs;
  plan->register_count = register_count;
  plan->return_register = return_register;
  if (exit) plan->exit = std::make_unique<Exit>(*exit);
  return plan;
}

std::string Plan::print() const {
  static const char* const names[] = {
#define X(op, doc) #op,
      MAGNETO_PLAN_OPS(X)
#undef X
  };
  auto text = [](PyObject* object) {
    Ref repr = Ref::steal(PyObject_Repr(object));
    if (!repr) PyErr_Clear();
    std::string printed = repr ? PyUnicode_AsUTF8(repr.get()) : "?";
    return printed.size() > 60 ? printed.substr(0, 57) + "..." : printed;
  };
  std::string result = "plan {\n";
  if (computation) {
    result += "  compute " + std::to_string(output_count) + " outputs from slots (";
    for (size_t i = 0; i < input_slots.size(); ++i) result += (i ? ", s" : "s") + std::to_string(input_slots[i]);
    result += ")\n";
  }
  for (const PlanInstr& instr : instrs) {
    result += "  ";
    if (instr.dst >= 0) result += "r" + std::to_string(instr.dst) + " = ";
    result += names[static_cast<int>(instr.op)];
    if (instr.op == PlanOp::Slot || instr.op == PlanOp::Output || instr.op == PlanOp::InferenceOutput ||
        instr.op == PlanOp::GradMode) {
      result += " " + std::to_string(instr.index);
    }
    if (instr.object) result += " " + text(instr.object.get());
    for (int32_t arg : instr.args) result += arg < 0 ? " null" : " r" + std::to_string(arg);
    result += "\n";
  }
  if (return_register >= 0) result += "  return r" + std::to_string(return_register) + "\n";
  if (exit) {
    result += std::string("  exit ") + break_info(exit->reason).name + ": " + exit->message + "\n";
    for (const FrameState& frame : exit->frames) {
      const Instr& instr = frame.info->instrs[frame.instr];
      result += std::string("    frame ") + PyUnicode_AsUTF8(frame.info->code->co_qualname) + " at " +
                op_name(instr.op) + " line " + std::to_string(instr.line) + "\n";
    }
  }
  return result + "}\n";
}

}  // namespace magneto::runtime
