#include "runtime/user_half.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "graph/symbols.h"
#include "python/imported.h"
#include "runtime/plan/torch_errors.h"
#include "runtime/program/dispatch_scope.h"
#include "support/tensor_object.h"

namespace magneto::runtime {
namespace {

/// The graph has its casts already.
class WithoutAutocast {
 public:
  WithoutAutocast() { at::autocast::set_autocast_enabled(at::kCPU, false); }
  ~WithoutAutocast() { at::autocast::set_autocast_enabled(at::kCPU, before_); }
  WithoutAutocast(const WithoutAutocast&) = delete;

 private:
  const bool before_ = at::autocast::is_autocast_enabled(at::kCPU);
};

bool is_same(const at::Tensor& a, const at::Tensor& b) { return a.defined() && a.is_same(b); }

class UserComputation final : public TensorComputation {
 public:
  UserComputation(UserHalf half, const graph::Graph& graph)
      : half_(std::move(half)), inputs_(graph.inputs.size()), reader_(graph) {
    for (const auto& symbol : graph.symbols_of(graph::ValueKind::Input)) symbols_.push_back(symbol.symbol);
    half_.given.resize(inputs_, Given::Tensor);
  }

  void compute(const at::Tensor* const* inputs, at::Tensor* outputs) const override {
    const c10::AutoGradMode no_grad(false);
    const WithoutAutocast without_autocast;
    const graph::SymbolValues values = reader_.read(inputs);
    std::vector<at::Tensor> results = call(inputs, values);
    own(inputs, results);
    write(inputs, results);
    for (size_t i = 0; i < half_.outputs.size(); ++i) outputs[i] = output(inputs, results, i);
    keep_apart(inputs, outputs);
    for (size_t i = 0; half_.gives_symbols && i < symbols_.size(); ++i) {
      outputs[half_.outputs.size() + i] = at::scalar_tensor(values(shapes::Expr::symbol(symbols_[i])), at::kLong);
    }
  }
  size_t input_count() const override { return inputs_; }
  size_t output_count() const override { return half_.outputs.size() + (half_.gives_symbols ? symbols_.size() : 0); }
  std::string print() const override { return half_.name + "\n"; }
  OnError on_error() const override { return OnError::Untouched; }
  bool is_users() const override { return true; }

 private:
  using Write = UserHalf::Write;
  using Given = UserHalf::Given;

  std::vector<at::Tensor> call(const at::Tensor* const* inputs, const graph::SymbolValues& values) const {
    std::vector<at::Tensor> results;
    with_python([&] {
      std::vector<Ref> args;
      for (const int32_t symbol : symbols_) {
        if (half_.takes_symbols) args.push_back(number(values(shapes::Expr::symbol(symbol))));
      }
      for (size_t i = 0; i < inputs_; ++i) {
        if (half_.given[i] == Given::Number) args.push_back(number(inputs[i]->item<int64_t>()));
      }
      for (size_t i = 0; i < inputs_; ++i) {
        if (half_.given[i] == Given::Tensor) args.push_back(checked(tensor_object(*inputs[i])));
      }
      unpack(called(std::move(args)), results);
    });
    return results;
  }

  static Ref number(int64_t value) { return checked(PyLong_FromLongLong(value)); }

  Ref called(std::vector<Ref> args) const {
    if (half_.boxed) {
      const Ref list = checked(PyList_New(static_cast<Py_ssize_t>(args.size())));
      for (size_t i = 0; i < args.size(); ++i) PyList_SET_ITEM(list.get(), i, args[i].release());
      return checked(PyObject_CallOneArg(half_.callable.get(), list.get()));
    }
    std::vector<PyObject*> pointers;
    for (const Ref& arg : args) pointers.push_back(arg.get());
    return checked(PyObject_Vectorcall(half_.callable.get(), pointers.data(), pointers.size(), nullptr));
  }

  [[noreturn]] void fail(const std::string& what) const {
    static constinit Imported failed("magneto.exc", "BackendFailed");
    PyErr_Format(failed.get(), "%s returned %s", half_.name.c_str(), what.c_str());
    throw PythonError{};
  }

  void unpack(const Ref& returned, std::vector<at::Tensor>& results) const {
    PyObject* value = returned.get();
    if (half_.returned == 1 && is_tensor_object(value)) {
      results.push_back(unpack_tensor(value));
      return;
    }
    if (!PyTuple_Check(value) && !PyList_Check(value)) {
      fail(std::string("an object of type ") + Py_TYPE(value)->tp_name + "; it must return a tuple or list of " +
           std::to_string(half_.returned) + " tensors");
    }
    const auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(value));
    if (count != half_.returned) {
      fail(std::to_string(count) + " results; it must return " + std::to_string(half_.returned) +
           ", those of the graph");
    }
    for (size_t i = 0; i < count; ++i) {
      PyObject* item = PySequence_Fast_GET_ITEM(value, i);
      if (is_tensor_object(item)) {
        results.push_back(unpack_tensor(item));
      } else if (PyLong_Check(item)) {
        results.push_back(at::scalar_tensor(PyLong_AsLongLong(item), at::kLong));
      } else if (item == Py_None && is_optional(i)) {
        results.emplace_back();
      } else {
        fail(std::string("an object of type ") + Py_TYPE(item)->tp_name + " as result " + std::to_string(i) +
             "; it must return a tensor");
      }
    }
  }

  /// A result that nobody reads, or a gradient.
  bool is_optional(size_t result) const {
    return half_.may_be_none || (!std::ranges::count(half_.outputs, static_cast<int32_t>(result)) &&
                                 !std::ranges::count(half_.writes, static_cast<int32_t>(result), &Write::result));
  }

  /// What is handed out of an input's memory is what it was before the writes.
  void own(const at::Tensor* const* inputs, std::vector<at::Tensor>& results) const {
    for (const Write& write : half_.writes) {
      for (at::Tensor& result : results) {
        if (result.defined() && result.is_alias_of(*inputs[write.input])) result = result.clone();
      }
    }
  }

  void write(const at::Tensor* const* inputs, const std::vector<at::Tensor>& results) const {
    DispatchScope scope;
    scope.enter(/*with_tracking=*/false);
    for (const Write& write : half_.writes) {
      const at::Tensor& input = *inputs[write.input];
      if (write.result >= 0) input.copy_(results[static_cast<size_t>(write.result)]);
      bump(input, write.versions);
    }
  }

  static void bump(const at::Tensor& tensor, int32_t count) {
    if (!tensor.defined() || tensor.is_inference()) return;
    for (int32_t i = 0; i < count; ++i) tensor.unsafeGetTensorImpl()->bump_version();
  }

  /// The new contents of an input are that input.
  at::Tensor output(const at::Tensor* const* inputs, const std::vector<at::Tensor>& results, size_t index) const {
    for (const Write& write : half_.writes) {
      if (write.result == half_.outputs[index]) return *inputs[write.input];
    }
    const at::Tensor& result = results[static_cast<size_t>(half_.outputs[index])];
    if (index < half_.versions.size()) bump(result, half_.versions[index]);
    return result;
  }

  /// Results are tensors of their own, as in eager, and what is saved does not own the history that owns it.
  void keep_apart(const at::Tensor* const* inputs, at::Tensor* outputs) const {
    if (half_.may_be_none) return;  // gradients belong to nobody yet
    for (size_t i = 0; i < half_.outputs.size(); ++i) {
      at::Tensor& tensor = outputs[i];
      const auto is_it = [&](const at::Tensor& other) { return is_same(tensor, other); };
      const bool again = std::any_of(outputs, outputs + std::min(i, half_.first_saved), is_it);
      if (i >= half_.first_saved) {
        const bool written =
            std::ranges::any_of(half_.writes, [&](const Write& write) { return is_it(*inputs[write.input]); });
        if (again || written) tensor = tensor.detach();
      } else if (again ||
                 std::any_of(inputs, inputs + inputs_, [&](const at::Tensor* input) { return is_it(*input); })) {
        tensor = tensor.clone();
      }
    }
  }

  UserHalf half_;
  size_t inputs_;
  graph::SymbolReader reader_;
  std::vector<int32_t> symbols_;
};

}  // namespace

std::unique_ptr<TensorComputation> make_user_computation(UserHalf half, const graph::Graph& graph) {
  return std::make_unique<UserComputation>(std::move(half), graph);
}

}  // namespace magneto::runtime
