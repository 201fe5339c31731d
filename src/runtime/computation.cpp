#include "runtime/computation.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "graph/symbols.h"
#include "python/imported.h"
#include "python/text.h"
#include "runtime/backward_inside.h"
#include "runtime/plan/thread_modes.h"
#include "runtime/plan/torch_errors.h"
#include "runtime/program/aten_program.h"
#include "runtime/program/torch_program.h"
#include "runtime/run_checks.h"
#include "support/gil.h"

namespace magneto::runtime {

namespace {

std::vector<const at::Tensor*> pointers_to(const std::vector<at::Tensor>& tensors) {
  std::vector<const at::Tensor*> pointers;
  pointers.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) pointers.push_back(&tensor);
  return pointers;
}

class AtenComputation final : public TensorComputation {
 public:
  explicit AtenComputation(const graph::Graph& graph) : program_(graph) {}

  void compute(const at::Tensor* const* inputs, at::Tensor* outputs) const override { program_.run(inputs, outputs); }
  size_t input_count() const override { return program_.input_count(); }
  size_t output_count() const override { return program_.output_count(); }
  std::string print() const override { return program_.print(); }

 private:
  AtenProgram program_;
};

/// Inputs of a run: references of our own, because operators may run Python code that drops the last one.
class HeldInputs {
 public:
  HeldInputs(PyObject* const* inputs, size_t count) {
    held_.reserve(count);
    pointers_.reserve(count);
    for (size_t i = 0; i < count; ++i) held_.push_back(THPVariable_Unpack(inputs[i]));
    for (const at::Tensor& tensor : held_) pointers_.push_back(&tensor);
  }
  const at::Tensor* const* data() const { return pointers_.data(); }

 private:
  c10::SmallVector<at::Tensor, 8> held_;
  c10::SmallVector<const at::Tensor*, 8> pointers_;
};

class CompiledComputation final : public TensorComputation {
 public:
  CompiledComputation(CompiledProgram program, std::shared_ptr<const Reference> captured)
      : program_(std::move(program)), captured_(std::move(captured)) {}

  void compute(const at::Tensor* const* inputs, at::Tensor* outputs) const override {
    run_program(inputs, outputs, nullptr);
  }
  void consume(std::vector<at::Tensor>& inputs, at::Tensor* outputs) const override {
    const std::vector<const at::Tensor*> pointers = pointers_to(inputs);
    run_program(pointers.data(), outputs, inputs.data());
  }
  size_t input_count() const override { return program_.input_count(); }
  size_t output_count() const override { return program_.output_count(); }
  std::string print() const override { return program_.print(); }
  std::unique_ptr<TensorComputation> tensors_for_other_weights() const override {
    std::optional<CompiledProgram> program = program_.for_other_weights();
    return program ? std::make_unique<CompiledComputation>(std::move(*program), captured_) : nullptr;
  }
  OnError on_error() const override { return OnError::Untouched; }

 private:
  /// `owned`: see CompiledProgram::run.
  void run_program(const at::Tensor* const* inputs, at::Tensor* outputs, at::Tensor* owned) const {
    const bool checks = run_checks().active.load(std::memory_order_relaxed);
    const bool done = checks ? captured_->run_checked(program_, inputs, outputs) : program_.run(inputs, outputs, owned);
    if (!done) captured_->run(inputs, outputs);
  }

  CompiledProgram program_;
  std::shared_ptr<const Reference> captured_;
};

/// Torch calls mean what they mean for plain tensors without modes.
class TorchFunctionScope {
 public:
  explicit TorchFunctionScope(bool without) {
    if (without) Tls::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~TorchFunctionScope() { Tls::set_disabled_state(before_); }
  TorchFunctionScope(const TorchFunctionScope&) = delete;

 private:
  using Tls = at::impl::PythonTorchFunctionTLS;
  const at::impl::TorchFunctionDisabledState before_ = Tls::get_disabled_state();
};

/// Calls that freeze inputs for a while are in the graph: what raises in between leaves them as they were.
class FrozenInputs {
 public:
  explicit FrozenInputs(const graph::Graph& graph) : inputs_(graph.inputs.size()) {
    const auto freezes = [](const graph::TorchNode& node) {
      return PyUnicode_Check(node.target.get()) &&
             PyUnicode_CompareWithASCIIString(node.target.get(), "requires_grad_") == 0;
    };
    any_ = std::ranges::any_of(graph.torch_nodes, freezes);
  }
  template <typename Run>
  void around(PyObject* const* inputs, const Run& run) const {
    if (!any_) return run();
    std::vector<at::Tensor> leaves;
    for (size_t i = 0; i < inputs_; ++i) {
      const at::Tensor& input = THPVariable_Unpack(inputs[i]);
      if (input.is_leaf() && input.requires_grad()) leaves.push_back(input);
    }
    try {
      run();
    } catch (const PythonError&) {
      for (const at::Tensor& leaf : leaves) leaf.set_requires_grad(true);
      throw;
    }
  }

 private:
  size_t inputs_;
  bool any_;
};

/// Calls that turn hooks on saved tensors on and off are in the graph: what raises in between leaves none on.
class HooksOnSaved {
 public:
  explicit HooksOnSaved(const graph::Graph& graph) {
    static constinit Imported pop("torch._C._autograd", "_pop_saved_tensors_default_hooks");
    any_ = std::ranges::any_of(graph.torch_nodes, [](const auto& node) { return node.target.get() == pop.get(); });
  }
  template <typename Run>
  void around(const Run& run) const {
    if (!any_) return run();
    const at::impl::SavedTensorDefaultHooksTLS before = at::SavedTensorDefaultHooks::get_tls_state();
    try {
      run();
    } catch (const PythonError&) {
      const SavedError error;
      at::SavedTensorDefaultHooks::set_tls_state(before);
      throw;
    }
  }

 private:
  bool any_;
};

class TorchComputation final : public Computation {
 public:
  explicit TorchComputation(const graph::Graph& graph)
      : program_(graph),
        backward_inside_(graph),
        frozen_inputs_(graph),
        hooks_on_saved_(graph),
        outputs_(graph.outputs.size()),
        without_torch_function_(graph.without_torch_function) {}

  void run(PyObject* const* inputs, PyObject** outputs) const override {
    backward_inside_.refuse(inputs);
    std::vector<Ref> results(outputs_);
    const TorchFunctionScope scope(without_torch_function_);
    frozen_inputs_.around(inputs, [&] { hooks_on_saved_.around([&] { program_.run(inputs, results.data()); }); });
    for (size_t i = 0; i < outputs_; ++i) outputs[i] = results[i].release();
  }
  std::string print() const override { return "the torch level, call by call, under autograd\n"; }

 private:
  TorchProgram program_;
  BackwardInside backward_inside_;
  FrozenInputs frozen_inputs_;
  HooksOnSaved hooks_on_saved_;
  size_t outputs_;
  bool without_torch_function_;
};

class CallableComputation final : public Computation {
 public:
  CallableComputation(Ref callable, const graph::Graph& graph, bool users)
      : callable_(std::move(callable)),
        backward_inside_(graph),
        inputs_(graph.inputs.size()),
        outputs_(graph.outputs.size()),
        users_(users),
        without_torch_function_(graph.without_torch_function),
        reader_(graph) {
    for (const auto& symbol : graph.symbols_of(graph::ValueKind::Input)) symbols_.push_back(symbol.symbol);
  }

  void run(PyObject* const* inputs, PyObject** outputs) const override {
    backward_inside_.refuse(inputs);
    const ModesKeptOnError modes;
    const TorchFunctionScope scope(without_torch_function_);
    std::vector<Ref> held;
    for (size_t i = 0; i < inputs_; ++i) held.push_back(Ref::borrow(inputs[i]));
    std::vector<Ref> numbers;
    std::vector<PyObject*> with_numbers;
    if (!symbols_.empty()) {
      numbers = symbol_numbers(inputs);
      for (const Ref& number : numbers) with_numbers.push_back(number.get());
      with_numbers.insert(with_numbers.end(), inputs, inputs + inputs_);
      inputs = with_numbers.data();
    }
    Ref result = checked(PyObject_Vectorcall(callable_.get(), inputs, numbers.size() + inputs_, nullptr));
    PyObject* value = result.get();
    if (outputs_ == 1 && THPVariable_Check(value)) {
      outputs[0] = Py_NewRef(value);
      return;
    }
    static constinit Imported failed("magneto.exc", "BackendFailed");
    if (!PyTuple_Check(value) && !PyList_Check(value)) {
      PyErr_Format(failed.get(),
                   "%s, which the backend gave, returned an object of type %s; it must return a tuple or list of %zu "
                   "tensors",
                   name().c_str(), Py_TYPE(value)->tp_name, outputs_);
      throw PythonError{};
    }
    if (static_cast<size_t>(PySequence_Fast_GET_SIZE(value)) != outputs_) {
      PyErr_Format(failed.get(),
                   "%s, which the backend gave, returned %zd results; it must return %zu, those of the graph",
                   name().c_str(), PySequence_Fast_GET_SIZE(value), outputs_);
      throw PythonError{};
    }
    for (size_t i = 0; i < outputs_; ++i) {
      PyObject* item = PySequence_Fast_GET_ITEM(value, i);
      if (!THPVariable_Check(item)) {
        PyErr_Format(failed.get(),
                     "%s, which the backend gave, returned an object of type %s as result %zu; it must return a tensor",
                     name().c_str(), Py_TYPE(item)->tp_name, i);
        throw PythonError{};
      }
    }
    for (size_t i = 0; i < outputs_; ++i) outputs[i] = Py_NewRef(PySequence_Fast_GET_ITEM(value, i));
  }
  std::string print() const override { return "a backend's callable\n"; }
  bool is_users() const override { return users_; }

 private:
  /// "run (mine.py:12)", for messages.
  std::string name() const {
    if (!PyFunction_Check(callable_.get()))
      return std::string("an object of type ") + Py_TYPE(callable_.get())->tp_name;
    const auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(callable_.get()));
    return std::string(text_argument(code->co_qualname)) + " (" + std::string(text_argument(code->co_filename)) + ":" +
           std::to_string(code->co_firstlineno) + ")";
  }

  std::vector<Ref> symbol_numbers(PyObject* const* inputs) const {
    const HeldInputs tensors(inputs, inputs_);
    const graph::SymbolValues values = reader_.read(tensors.data());
    std::vector<Ref> numbers;
    for (const int32_t symbol : symbols_) {
      numbers.push_back(checked(PyLong_FromLongLong(values(shapes::Expr::symbol(symbol)))));
    }
    return numbers;
  }

  Ref callable_;
  BackwardInside backward_inside_;
  size_t inputs_, outputs_;
  bool users_;
  bool without_torch_function_;
  graph::SymbolReader reader_;
  std::vector<int32_t> symbols_;
};

}  // namespace

void TensorComputation::consume(std::vector<at::Tensor>& inputs, at::Tensor* outputs) const {
  compute(pointers_to(inputs).data(), outputs);
}

void TensorComputation::run(PyObject* const* inputs, PyObject** outputs) const {
  const HeldInputs tensors(inputs, input_count());
  c10::SmallVector<at::Tensor, 4> results(output_count());
  const bool ok = with_torch_errors([&] {
    const WithoutGil without_gil;
    compute(tensors.data(), results.data());
  });
  if (!ok) throw PythonError{};
  for (size_t i = 0; i < results.size(); ++i) outputs[i] = checked(THPVariable_Wrap(std::move(results[i]))).release();
}

std::unique_ptr<TensorComputation> make_aten_computation(const graph::Graph& graph) {
  return std::make_unique<AtenComputation>(graph);
}

std::unique_ptr<TensorComputation> make_compiled_computation(CompiledProgram program, graph::Graph graph,
                                                             Origin origin) {
  auto captured = std::make_shared<const Reference>(std::move(graph), std::move(origin));
  return std::make_unique<CompiledComputation>(std::move(program), std::move(captured));
}

std::unique_ptr<Computation> make_torch_computation(const graph::Graph& graph) {
  return std::make_unique<TorchComputation>(graph);
}
std::unique_ptr<Computation> make_callable_computation(Ref callable, const graph::Graph& graph, bool users) {
  return std::make_unique<CallableComputation>(std::move(callable), graph, users);
}

}  // namespace magneto::runtime
