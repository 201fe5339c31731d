#include "runtime/computation.h"

#include <torch/csrc/autograd/python_variable.h>

#include "runtime/aten_program.h"
#include "runtime/torch_errors.h"
#include "runtime/torch_program.h"

namespace magneto::runtime {

namespace {

class AtenComputation final : public Computation {
 public:
  explicit AtenComputation(const graph::Graph& graph) : program_(graph) {}

  void run(PyObject* const* inputs, PyObject** outputs) const override {
    // References of our own: operators may run Python code that drops the last one of an input.
    c10::SmallVector<at::Tensor, 8> held;
    c10::SmallVector<const at::Tensor*, 32> tensors;
    const size_t count = program_.input_count();
    held.reserve(count);
    for (size_t i = 0; i < count; ++i) held.push_back(THPVariable_Unpack(inputs[i]));
    for (const at::Tensor& tensor : held) tensors.push_back(&tensor);
    c10::SmallVector<at::Tensor, 4> results(program_.output_count());
    const bool ok = with_torch_errors([&] {
      const WithoutGil without_gil;
      program_.run(tensors.data(), results.data());
    });
    if (!ok) throw PythonError{};
    for (size_t i = 0; i < results.size(); ++i) outputs[i] = checked(THPVariable_Wrap(std::move(results[i]))).release();
  }
  std::string print() const override { return program_.print(); }

 private:
  AtenProgram program_;
};

class TorchComputation final : public Computation {
 public:
  explicit TorchComputation(const graph::Graph& graph) : program_(graph), outputs_(graph.outputs.size()) {}

  void run(PyObject* const* inputs, PyObject** outputs) const override {
    std::vector<Ref> results(outputs_);
    program_.run(inputs, results.data());
    for (size_t i = 0; i < outputs_; ++i) outputs[i] = results[i].release();
  }
  std::string print() const override { return "the torch level, call by call, under autograd\n"; }

 private:
  TorchProgram program_;
  size_t outputs_;
};

class CallableComputation final : public Computation {
 public:
  CallableComputation(Ref callable, size_t inputs, size_t outputs)
      : callable_(std::move(callable)), inputs_(inputs), outputs_(outputs) {}

  void run(PyObject* const* inputs, PyObject** outputs) const override {
    std::vector<Ref> held;
    for (size_t i = 0; i < inputs_; ++i) held.push_back(Ref::borrow(inputs[i]));
    Ref result = checked(PyObject_Vectorcall(callable_.get(), inputs, inputs_, nullptr));
    PyObject* value = result.get();
    if (outputs_ == 1 && THPVariable_Check(value)) {
      outputs[0] = Py_NewRef(value);
      return;
    }
    if ((!PyTuple_Check(value) && !PyList_Check(value)) ||
        static_cast<size_t>(PySequence_Fast_GET_SIZE(value)) != outputs_) {
      PyErr_Format(PyExc_TypeError, "the backend's callable must return a tuple or list of %zu tensors, not %R",
                   outputs_, value);
      throw PythonError{};
    }
    for (size_t i = 0; i < outputs_; ++i) {
      PyObject* item = PySequence_Fast_GET_ITEM(value, i);
      if (!THPVariable_Check(item)) {
        PyErr_Format(PyExc_TypeError, "the backend's callable returned %R where the graph has a tensor (output %zu)",
                     item, i);
        throw PythonError{};
      }
    }
    for (size_t i = 0; i < outputs_; ++i) outputs[i] = Py_NewRef(PySequence_Fast_GET_ITEM(value, i));
  }
  std::string print() const override { return "a backend's callable\n"; }

 private:
  Ref callable_;
  size_t inputs_, outputs_;
};

}  // namespace

std::unique_ptr<Computation> make_aten_computation(const graph::Graph& graph) {
  return std::make_unique<AtenComputation>(graph);
}
std::unique_ptr<Computation> make_torch_computation(const graph::Graph& graph) {
  return std::make_unique<TorchComputation>(graph);
}
std::unique_ptr<Computation> make_callable_computation(Ref callable, size_t inputs, size_t outputs) {
  return std::make_unique<CallableComputation>(std::move(callable), inputs, outputs);
}

}  // namespace magneto::runtime
