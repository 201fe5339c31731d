// Numbers that only the backward reads of tensors: the forward reads them, so that both are of graphs that know them.
#include <utility>

#include "capture/capture.h"
#include "capture/torch/gradients.h"
#include "capture/torch/tensor_map.h"
#include "graph/operator_run.h"
#include "support/tensor_object.h"

namespace magneto::capture {

bool Gradients::read_for_backward(const graph::Graph& numbers) {
  if (std::exchange(has_read_numbers_, true)) return false;
  std::vector<at::Tensor> given;
  for (const graph::ValueId id : numbers.inputs) {
    const auto input = c.tensors.inputs.find(id);
    if (input == c.tensors.inputs.end()) return false;
    given.push_back(unpack_tensor(c.tensors.fake_of.at(input->second.real.get()).get()));
  }
  const graph::OperatorRun::StandIns stand_ins = {
      .constant = [&](const at::Tensor& constant) { return c.session->make_constant(constant); },
      .size = [&](shapes::Expr size) { return c.session->symint(size); },
      .number = [](const at::Tensor&) -> c10::SymFloat { throw std::invalid_argument("a float that data says"); }};
  const fake::Session::Mark before = c.session->mark();
  const bool took = std::exchange(c.session->takes.numbers, true);
  bool all = true;
  try {
    const c10::AutoGradMode no_grad(false);
    for (const at::Tensor& tensor : graph::OperatorRun(numbers, stand_ins).run(given)) tensor.item();
  } catch (const std::exception&) {
    PyErr_Clear();
    all = false;
  }
  c.session->takes.numbers = took;
  all = !c.session->take_refusal() && all;
  if (!all) c.session->rollback(before);
  return all;
}

}  // namespace magneto::capture
