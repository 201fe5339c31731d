#include "capture/numbers/drafts.h"

#include <ATen/core/stack.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <vector>

#include "capture/calls/native_mode.h"
#include "capture/capture.h"
#include "capture/hints.h"
#include "capture/interpreter/operations.h"
#include "capture/numbers/comparisons.h"
#include "capture/numbers/computation.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/symbols.h"
#include "capture/numbers/tried_numbers.h"
#include "capture/torch/mask_loops.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "capture/world/modules.h"
#include "fake/session.h"
#include "python/imported.h"
#include "shapes/condition.h"
#include "support/gil.h"
#include "support/tensor_object.h"

namespace magneto::capture::drafts {

namespace {

/// An operator may stand here that runs each time.
bool is_possible(const Capture& c) { return c.options.drafts && !c.mode.backwards_run && transform_depth() == 0; }

/// What the sides of a branch would do is chosen behind them: an answer there would be one for both.
void leave_chosen_branches(Capture& c) { c.mask_loops.require_none("its body asks for data"); }

std::string text_of(bool answer) { return answer ? "True" : "False"; }

}  // namespace

void note(Capture& c, BreakReason reason, std::string question, std::string answer) {
  const BreakInfo info = break_info(reason, question);
  graph::Assumption made{
      .question = std::move(question), .answer = std::move(answer), .explanation = info.explanation, .hint = info.hint};
  if (reason == BreakReason::UnsupportedOperator) made.kind = graph::Assumption::Kind::MissingFake;
  const InterpFrame* frame = c.frame;
  while (frame && frame->caller && module_of(frame->globals).starts_with("torch.")) frame = frame->caller;
  if (frame) {
    made.code = Ref::borrow(reinterpret_cast<PyObject*>(frame->info->code));
    made.offset = frame->instr().start * 2;
    made.line = frame->instr().line;
  }
  c.assumptions.push_back(std::move(made));
}

namespace {

/// What an operator of a library gives that has no fake, on the tensors of this call.
std::optional<std::vector<c10::IValue>> results(Capture& c, const c10::OperatorHandle& op,
                                                std::span<const c10::IValue> args) {
  const WithGil gil;
  PyErr_Clear();  // of its fake
  if (!is_possible(c) || op.schema().is_mutable()) return {};
  std::vector<graph::ValueId> ids;
  for (const c10::IValue& arg : args) {
    if (arg.isTensorList() || arg.isOptionalTensorList() || arg.isSymInt()) return {};
    if (arg.isTensor()) ids.push_back(c.session->value_of(arg.toTensor()));
  }
  const Computation::Real scope;
  const auto values = Computation(c, Computation::Extent::All).values(ids);
  if (!values) return {};
  std::vector<c10::IValue> real(args.begin(), args.end());
  for (size_t i = 0, next = 0; i < real.size(); ++i) {
    if (real[i].isTensor()) real[i] = (*values)[next++];
  }
  torch::jit::Stack stack(real.begin(), real.end());
  try {
    op.callBoxed(&stack);
  } catch (const std::exception&) {  // the run will raise it
    PyErr_Clear();
    return {};
  }
  std::string answer;
  for (const c10::IValue& result : stack) {
    if (!result.isTensor()) return {};
    const at::Tensor& tensor = result.toTensor();
    answer += (answer.empty() ? "" : ", ") + std::string(c10::toString(tensor.scalar_type())) + " " +
              c10::str(tensor.sizes());
  }
  note(c, BreakReason::UnsupportedOperator, fake::operator_name(op), answer);
  return stack;
}

}  // namespace

void begin(Capture& c) {
  c.options.drafts = true;
  c.session->impl().run_for_real = [&c](const c10::OperatorHandle& op, std::span<const c10::IValue> args) {
    return results(c, op, args);
  };
}

std::optional<bool> truth(Capture& c, PyObject* object) {
  if (!is_possible(c) || !is_fake_tensor(object) || c.torch.is_overridden({&object, 1})) return {};
  const at::Tensor& tensor = unpack_tensor(object);
  if (tensor.numel() != 1 || c.session->value_of(tensor) == graph::kNoValue) return {};
  leave_chosen_branches(c);
  static constinit Imported ne("torch", "ne");
  static PyObject* const zero = PyLong_FromLong(0);
  const bool is_bool = tensor.scalar_type() == at::kBool;
  const Ref question = is_bool ? Ref::borrow(object) : c.torch.call_torch(ne.get(), {{object, zero}});
  const Ref now = bool_of_data(c, question.get());
  if (!now) return {};
  return now.get() == Py_True;
}

std::optional<bool> answer(Capture& c, const shapes::Relation& question) {
  if (!is_possible(c)) return {};
  leave_chosen_branches(c);
  const shapes::Expr asked = c.session->sizes().original(question.difference);
  const std::optional<int64_t> difference = Computation(c, Computation::Extent::All).size(asked);
  if (!difference) return {};
  const bool holds = shapes::holds(question.kind, *difference);
  const std::string text =
      "the program asks whether " + shapes::condition(question) + " (" + c.session->origins(asked) + ")";
  if (!c.symbols.check_questions({holds ? question : !question})) return {};
  note(c, BreakReason::DataDependentBranch, text, text_of(holds));
  return holds;
}

std::optional<int64_t> number(Capture& c, shapes::Expr size) {
  if (!is_possible(c)) return {};
  leave_chosen_branches(c);
  const shapes::Expr asked = c.session->sizes().original(size);
  const std::optional<int64_t> now = Computation(c, Computation::Extent::All).size(asked);
  if (!now) return {};
  const std::string text =
      "the program needs the number " + shapes::text(size) + " (" + c.session->origins(asked) + ")";
  if (!c.symbols.check_questions({shapes::equal(size, *now)})) return {};
  note(c, BreakReason::DataDependentValue, text, std::to_string(*now));
  return now;
}

Ref comparison(Capture& c, guards::Arithmetic operation, PyObject* left, PyObject* right) {
  if (!is_possible(c)) return {};
  const auto* const found = std::ranges::find(kByCPython, operation);
  if (found == std::end(kByCPython)) return {};
  const auto how = static_cast<int>(found - kByCPython);
  const Ref a = c.numbers.tensor_of_data_float(left), b = c.numbers.tensor_of_data_float(right);
  const std::optional<bool> holds = truth(c, compare(c, how, a.get(), b.get()).get());
  return holds ? Ref::borrow(*holds ? Py_True : Py_False) : Ref();
}

Ref number_in(Capture& c, PyObject* holder) {
  if (!is_possible(c)) return {};
  leave_chosen_branches(c);
  const graph::ValueId id = c.session->value_of(unpack_tensor(holder));
  if (id == graph::kNoValue) return {};
  constexpr auto read = +[](const at::Tensor& value) -> std::optional<double> { return value.item<double>(); };
  const std::optional<double> now = Computation(c, Computation::Extent::All).value(id, read);
  if (!now || std::isnan(*now)) return {};  // which equals nothing
  const Ref number = checked(PyFloat_FromDouble(*now));
  const Ref is_so = compare(c, Py_EQ, holder, number.get());
  const Ref text = checked(PyObject_Repr(number.get()));
  const std::string digits = PyUnicode_AsUTF8(text.get());
  assume_holds(c, is_so.get(), "a float that the data say is " + digits);
  note(c, BreakReason::DataDependentValue, "the program needs a data-dependent float", digits);
  return number;
}

}  // namespace magneto::capture::drafts
