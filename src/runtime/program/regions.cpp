// The operators that run regions. A region gets the tensors that it reads as operands: what is chosen is which region
// runs, or how often. Their results are new tensors (the regions give no operand back), of the sizes and strides that
// the graph says.
#include "runtime/program/regions.h"

#include <ATen/Functions.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <cstring>

namespace magneto::runtime {

namespace {

class RegionOperand final : public torch::CustomClassHolder {
 public:
  explicit RegionOperand(std::shared_ptr<const TensorComputation> computation) : computation_(std::move(computation)) {}

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& operands) const {
    TORCH_CHECK(operands.size() == computation_->input_count(), "magneto: a region is given ", operands.size(),
                " tensors and takes ", computation_->input_count());
    std::vector<const at::Tensor*> inputs;
    for (const at::Tensor& operand : operands) inputs.push_back(&operand);
    std::vector<at::Tensor> outputs(computation_->output_count());
    computation_->compute(inputs.data(), outputs.data());
    return outputs;
  }

  const TensorComputation& computation() const { return *computation_; }

 private:
  std::shared_ptr<const TensorComputation> computation_;
};

c10::intrusive_ptr<RegionOperand> region_of(const c10::IValue& operand) {
  TORCH_CHECK(operand.isCapsule(), "magneto: an operator with regions runs in compiled graphs only");
  return c10::static_intrusive_pointer_cast<RegionOperand>(operand.toCapsule());
}

/// cond(Tensor pred, Any true_graph, Any false_graph, Tensor[] operands) -> Tensor[]
void run_cond(const c10::OperatorHandle& /*op*/, torch::jit::Stack* stack) {
  const std::vector<at::Tensor> operands = torch::jit::pop(*stack).toTensorVector();
  const c10::IValue if_false = torch::jit::pop(*stack), if_true = torch::jit::pop(*stack);
  const bool taken = torch::jit::pop(*stack).toTensor().is_nonzero();
  torch::jit::push(*stack, region_of(taken ? if_true : if_false)->run(operands));
}

/// while_loop(Any condition, Any body, Tensor[] carried, Tensor[] operands) -> Tensor[]
void run_while_loop(const c10::OperatorHandle& /*op*/, torch::jit::Stack* stack) {
  const std::vector<at::Tensor> operands = torch::jit::pop(*stack).toTensorVector();
  std::vector<at::Tensor> carried = torch::jit::pop(*stack).toTensorVector();
  const c10::intrusive_ptr<RegionOperand> body = region_of(torch::jit::pop(*stack));
  const c10::intrusive_ptr<RegionOperand> condition = region_of(torch::jit::pop(*stack));
  const auto inputs = [&] {
    std::vector<at::Tensor> all = carried;
    all.insert(all.end(), operands.begin(), operands.end());
    return all;
  };
  bool ran = false;
  for (; condition->run(inputs()).at(0).is_nonzero(); ran = true) carried = body->run(inputs());
  if (!ran) {
    for (at::Tensor& tensor : carried) tensor = at::clone(tensor);
  }
  torch::jit::push(*stack, std::move(carried));
}

/// while_loop_backward(Any condition, Any body, Any step, int[] read, Tensor[] carried, Tensor[] state,
/// Tensor[] operands) -> Tensor[]: the loop runs again; then `step`, the body's backward, from its last turn on, on the
/// state that it gives and what was carried into that turn, as far as it is read.
void run_while_loop_backward(const c10::OperatorHandle& /*op*/, torch::jit::Stack* stack) {
  const std::vector<at::Tensor> operands = torch::jit::pop(*stack).toTensorVector();
  std::vector<at::Tensor> state = torch::jit::pop(*stack).toTensorVector();
  std::vector<at::Tensor> inputs = torch::jit::pop(*stack).toTensorVector();
  const std::vector<int64_t> read = torch::jit::pop(*stack).toIntVector();
  const c10::intrusive_ptr<RegionOperand> step = region_of(torch::jit::pop(*stack));
  const c10::intrusive_ptr<RegionOperand> body = region_of(torch::jit::pop(*stack));
  const c10::intrusive_ptr<RegionOperand> condition = region_of(torch::jit::pop(*stack));
  inputs.insert(inputs.end(), operands.begin(), operands.end());
  std::vector<std::vector<at::Tensor>> turns;
  while (condition->run(inputs).at(0).is_nonzero()) {
    std::vector<at::Tensor>& kept = turns.emplace_back();
    for (const int64_t i : read) kept.push_back(inputs[i]);
    std::vector<at::Tensor> carried = body->run(inputs);
    std::move(carried.begin(), carried.end(), inputs.begin());
  }
  if (turns.empty()) {
    for (at::Tensor& tensor : state) tensor = at::clone(tensor);
  }
  for (; !turns.empty(); turns.pop_back()) {
    state.insert(state.end(), turns.back().begin(), turns.back().end());
    state.insert(state.end(), operands.begin(), operands.end());
    state = step->run(state);
  }
  torch::jit::push(*stack, std::move(state));
}

/// The tensors of one step, next to those of the others.
class Stack {
 public:
  explicit Stack(int64_t steps) : steps_(steps) {}

  void put(int64_t place, const at::Tensor& step) {
    if (!all_.defined()) {
      std::vector<int64_t> sizes = {steps_};
      sizes.insert(sizes.end(), step.sizes().begin(), step.sizes().end());
      all_ = at::empty(sizes, step.options());
    }
    const bool plain = step.is_cpu() && step.is_contiguous() && !step.is_conj() && !step.is_neg();
    if (!plain) {
      all_.select(0, place).copy_(step);
      return;
    }
    const size_t bytes = step.nbytes();
    if (bytes) std::memcpy(static_cast<char*>(all_.mutable_data_ptr()) + place * bytes, step.const_data_ptr(), bytes);
  }

  at::Tensor all() const { return all_; }

 private:
  int64_t steps_;
  at::Tensor all_;
};

/// One slice of a tensor after the other, in the same tensor.
class Slices {
 public:
  explicit Slices(const at::Tensor& whole)
      : slice(whole.select(0, 0)), start_(whole.storage_offset()), stride_(whole.stride(0)) {}

  void move(int64_t place) { slice.unsafeGetTensorImpl()->set_storage_offset(start_ + place * stride_); }

  at::Tensor slice;

 private:
  int64_t start_, stride_;
};

/// scan(Any step, Tensor[] carried, Tensor[] xs, int[] kept, bool reverse, Tensor[] operands) -> Tensor[]: what is
/// carried behind the last step, what the steps gave, stacked, and what of the carried was given to them, likewise.
void run_scan(const c10::OperatorHandle& /*op*/, torch::jit::Stack* stack) {
  const std::vector<at::Tensor> operands = torch::jit::pop(*stack).toTensorVector();
  const bool reverse = torch::jit::pop(*stack).toBool();
  const std::vector<int64_t> kept = torch::jit::pop(*stack).toIntVector();
  const std::vector<at::Tensor> xs = torch::jit::pop(*stack).toTensorVector();
  std::vector<at::Tensor> inputs = torch::jit::pop(*stack).toTensorVector();
  const c10::intrusive_ptr<RegionOperand> step = region_of(torch::jit::pop(*stack));
  const size_t carried = inputs.size();
  const int64_t count = xs.at(0).size(0);
  TORCH_CHECK(count > 0, "magneto: a scan has at least one step");
  std::vector<Slices> slices;
  for (const at::Tensor& x : xs) inputs.push_back(slices.emplace_back(x).slice);
  inputs.insert(inputs.end(), operands.begin(), operands.end());
  std::vector<Stack> given, given_to(kept.size(), Stack(count));
  for (int64_t done = 0; done < count; ++done) {
    const int64_t place = reverse ? count - 1 - done : done;
    for (Slices& each : slices) each.move(place);
    for (size_t i = 0; i < kept.size(); ++i) given_to[i].put(place, inputs[kept[i]]);
    std::vector<at::Tensor> results = step->run(inputs);
    if (done == 0) given.assign(results.size() - carried, Stack(count));
    for (size_t i = 0; i < given.size(); ++i) given[i].put(place, results[carried + i]);
    std::move(results.begin(), results.begin() + static_cast<std::ptrdiff_t>(carried), inputs.begin());
  }
  inputs.resize(carried);
  for (const Stack& each : given) inputs.push_back(each.all());
  for (const Stack& each : given_to) inputs.push_back(each.all());
  torch::jit::push(*stack, std::move(inputs));
}

}  // namespace

c10::IValue region_operand(std::shared_ptr<const TensorComputation> computation) {
  c10::intrusive_ptr<torch::CustomClassHolder> operand = c10::make_intrusive<RegionOperand>(std::move(computation));
  return c10::IValue::make_capsule(std::move(operand));
}

const TensorComputation& computation_of(const c10::IValue& operand) { return region_of(operand)->computation(); }

TORCH_LIBRARY_FRAGMENT(magneto, library) {
  const auto define = [&](const char* name, const char* arguments, auto kernel) {
    // What draws random numbers is an overload of its own: passes ask the tag.
    library.def((std::string(name) + arguments).c_str());
    library.impl(name, c10::DispatchKey::CompositeExplicitAutograd, kernel());
    const std::string random = std::string(name) + ".random";
    library.def((random + arguments).c_str(), {at::Tag::nondeterministic_seeded});
    library.impl(random.c_str(), c10::DispatchKey::CompositeExplicitAutograd, kernel());
  };
  define("cond", "(Tensor pred, Any true_graph, Any false_graph, Tensor[] operands) -> Tensor[]",
         [] { return torch::CppFunction::makeFromBoxedFunction<&run_cond>(); });
  define("scan", "(Any step, Tensor[] carried, Tensor[] xs, int[] kept, bool reverse, Tensor[] operands) -> Tensor[]",
         [] { return torch::CppFunction::makeFromBoxedFunction<&run_scan>(); });
  define("while_loop_backward",
         "(Any condition, Any body, Any step, int[] read, Tensor[] carried, Tensor[] state, Tensor[] operands) -> "
         "Tensor[]",
         [] { return torch::CppFunction::makeFromBoxedFunction<&run_while_loop_backward>(); });
  define("while_loop", "(Any condition, Any body, Tensor[] carried, Tensor[] operands) -> Tensor[]",
         [] { return torch::CppFunction::makeFromBoxedFunction<&run_while_loop>(); });
}

}  // namespace magneto::runtime
