#include "runtime/plan/issued_collectives.h"

#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <deque>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "fake/dispatch_key.h"
#include "ops/kinds.h"
#include "python/imported.h"
#include "runtime/plan/failed_call.h"

namespace magneto::runtime {

namespace {

using torch::jit::Stack;

struct Issued {
  c10::OperatorHandle op;
  Stack results;
};

/// Of the run that goes on, and of the last one that raised.
thread_local std::vector<Issued>* noting = nullptr;
thread_local std::deque<Issued> left;
thread_local bool gives_again = false;

c10::IValue waited(const c10::IValue& given) {
  static const auto wait = c10::Dispatcher::singleton().findSchemaOrThrow("_c10d_functional::wait_tensor", "");
  if (given.isTensorList()) {
    std::vector<at::Tensor> tensors;
    for (const at::Tensor& tensor : given.toTensorVector()) tensors.push_back(waited(tensor).toTensor());
    return tensors;
  }
  Stack stack{given};
  wait.callBoxed(stack);
  return stack[0].toTensor().detach().clone();
}

bool needs_grad(const Stack& stack, size_t count) {
  bool found = false;
  for (const c10::IValue& arg : torch::jit::last(stack, count)) {
    if (arg.isTensor()) found |= arg.toTensor().requires_grad();
    if (!arg.isTensorList()) continue;
    for (const at::Tensor& tensor : arg.toTensorVector()) found |= tensor.requires_grad();
  }
  return found && at::GradMode::is_enabled();
}

/// Above everything, for collectives.
void issue_or_give(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  if (gives_again && !left.empty()) {
    const size_t count = op.schema().arguments().size();
    // Other collectives than those of the run, or a history, which what was noted has not: nothing here is right.
    TORCH_CHECK(left.front().op == op && !needs_grad(*stack, count),
                "magneto: a compiled run raised behind a collective, and can't be run again without issuing it twice");
    torch::jit::drop(*stack, count);
    for (c10::IValue& result : left.front().results) stack->push_back(std::move(result));
    return left.pop_front();
  }
  raise_or_call(op, keys, stack);
  if (!noting) return;
  Issued issued{op, {}};
  for (const c10::IValue& result : torch::jit::last(*stack, op.schema().returns().size())) {
    issued.results.push_back(waited(result));
  }
  noting->push_back(std::move(issued));
}

/// For ever: the dispatcher outlives us.
void catch_collectives() {
  static const bool caught = [] {
    for (const char* library : {"_c10d_functional", "_c10d_functional_autograd"}) {
      auto* made = new torch::Library(torch::Library::IMPL, library, fake::kFirstKey, __FILE__, __LINE__);
      for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
        if (name.getNamespace() != library) continue;
        const auto op = c10::Dispatcher::singleton().findSchema(name);
        if (!op || !is_caught(*op)) continue;
        made->impl(name.name.substr(name.name.find("::") + 2).c_str(),
                   torch::CppFunction::makeFromBoxedFunction<&issue_or_give>());
      }
    }
    return true;
  }();
  (void)caught;
}

void include(bool included) { c10::impl::tls_set_dispatch_key_included(fake::kFirstKey, included); }

}  // namespace

bool is_caught(const c10::OperatorHandle& op) { return ops::is_kind(ops::operator_of(op), ops::starts_collective); }

NotedCollectives::NotedCollectives(bool wanted) : wanted_(wanted && !noting), exceptions_(std::uncaught_exceptions()) {
  if (!wanted_) return;
  catch_collectives();
  noting = new std::vector<Issued>;
  include(true);
}

NotedCollectives::~NotedCollectives() {
  if (!wanted_) return;
  include(false);
  const std::unique_ptr<std::vector<Issued>> noted(std::exchange(noting, nullptr));
  left.clear();
  if (std::uncaught_exceptions() > exceptions_) left.assign(noted->begin(), noted->end());
}

IssuedAgain::IssuedAgain() {
  if (left.empty()) return;
  gives_again = true;
  include(true);
  static constinit Imported mode("magneto._collectives", "FunctionalMode");
  mode_ = checked(PyObject_CallNoArgs(mode.get()));
  checked(PyObject_CallMethod(mode_.get(), "__enter__", nullptr));
}

IssuedAgain::~IssuedAgain() {
  if (!mode_) return;
  gives_again = false;
  left.clear();
  include(RaiseAgain::waits());
  const SavedError saved;
  if (!Ref::steal(PyObject_CallMethod(mode_.get(), "__exit__", "OOO", Py_None, Py_None, Py_None))) PyErr_Clear();
}

}  // namespace magneto::runtime
