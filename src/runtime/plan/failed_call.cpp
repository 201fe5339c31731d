#include "runtime/plan/failed_call.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <string>
#include <unordered_set>
#include <utility>

#include "fake/dispatch_key.h"
#include "python/text.h"
#include "runtime/plan/issued_collectives.h"
#include "runtime/plan/torch_errors.h"

namespace magneto::runtime {

namespace {
thread_local RaiseAgain* waiting = nullptr;
}  // namespace

void raise_or_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto call = [&] {
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, fake::kFirstKey), stack);
  };
  if (!waiting || waiting->call_->op != op || waiting->call_->before-- != 0) return call();
  RaiseAgain* const found = std::exchange(waiting, nullptr);
  c10::impl::tls_set_dispatch_key_included(fake::kFirstKey, false);
  if (!found->error_) {
    with_python([&] { found->note_place(); });
    return call();
  }
  const Ref error = std::move(found->error_);
  if (op.schema().is_mutable()) {
    // It does once more what it did before it raised. An interrupt from outside does not come again by itself.
    call();
    if (PyType_IsSubtype(Py_TYPE(error.get()), reinterpret_cast<PyTypeObject*>(PyExc_Exception))) return;
  }
  with_python([&] {
    PyErr_Restore(Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(error.get()))), Py_NewRef(error.get()),
                  PyException_GetTraceback(error.get()));
    throw PythonError{};
  });
}

namespace {

/// For ever: the dispatcher outlives us.
void catch_calls(const c10::OperatorHandle& op) {
  static auto* caught = new std::unordered_set<c10::OperatorName>;
  const c10::OperatorName& name = op.operator_name();
  if (is_caught(op) || !caught->insert(name).second) return;
  const std::string library = name.name.substr(0, name.name.find("::"));
  auto* made = new torch::Library(torch::Library::IMPL, library, fake::kFirstKey, __FILE__, __LINE__);
  const std::string own = name.name.substr(name.name.find("::") + 2);
  made->impl((name.overload_name.empty() ? own : own + "." + name.overload_name).c_str(),
             torch::CppFunction::makeFromBoxedFunction<&raise_or_call>());
}

}  // namespace

RaiseAgain::RaiseAgain(PyObject* error) : call_(std::exchange(failed_call(), std::nullopt)), outer_(waiting) {
  if (!call_) return;
  error_ = error ? Ref::borrow(error) : Ref();
  catch_calls(call_->op);
  waiting = this;
  c10::impl::tls_set_dispatch_key_included(fake::kFirstKey, true);
}

void RaiseAgain::note_place() {
  Ref frame = Ref::borrow(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame) {
    auto* const own = reinterpret_cast<PyFrameObject*>(frame.get());
    code_ = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(own)));
    line_ = PyFrame_GetLineNumber(own);
    const std::string_view file = text_argument(reinterpret_cast<PyCodeObject*>(code_.get())->co_filename);
    if (file.find("/torch/") == file.npos) return;
    frame = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetBack(own)));
  }
}

RaiseAgain::~RaiseAgain() {
  if (!call_) return;
  waiting = outer_;
  c10::impl::tls_set_dispatch_key_included(fake::kFirstKey, outer_ != nullptr);
}

bool RaiseAgain::waits() { return waiting != nullptr; }

}  // namespace magneto::runtime
