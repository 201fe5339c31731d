// The operators that run regions. A region gets the tensors that it reads as operands: what is chosen is which region
// runs, or how often. Their results are new tensors (the regions give no operand back), of the sizes and strides that
// the graph says.
#include "runtime/program/regions.h"

#include <ATen/Functions.h>
#include <torch/custom_class.h>
#include <torch/library.h>

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

}  // namespace

c10::IValue region_operand(std::shared_ptr<const TensorComputation> computation) {
  c10::intrusive_ptr<torch::CustomClassHolder> operand = c10::make_intrusive<RegionOperand>(std::move(computation));
  return c10::IValue::make_capsule(std::move(operand));
}

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
  define("while_loop", "(Any condition, Any body, Tensor[] carried, Tensor[] operands) -> Tensor[]",
         [] { return torch::CppFunction::makeFromBoxedFunction<&run_while_loop>(); });
}

}  // namespace magneto::runtime
