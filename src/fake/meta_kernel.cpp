#include "fake/meta_kernel.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_map>

#include "fake/data_sizes.h"
#include "fake/dispatch_key.h"
#include "fake/known.h"
#include "fake/operator_facts.h"
#include "fake/stand_ins.h"
#include "ops/operator.h"
#include "python/ref.h"
#include "support/gil.h"

namespace magneto::fake {

namespace {

/// Most elements of an argument that are computed on: for the sake of a layout, and to do without Python.
constexpr int64_t kMostZeros = int64_t{1} << 22, kMostZerosForSpeed = int64_t{1} << 18;

/// PyTorch's meta kernels in Python take a hundred times as long as native ones, and many of them load parts of
/// PyTorch's compiler, which takes up to seconds. Kernels that are made of other operators come to them.
bool meta_is_python(const c10::OperatorHandle& op) {
  // What a user's operator does besides is not to be done while capturing.
  if (op.operator_name().getNamespace() != "aten") return false;
  if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return false;
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) return true;
  const auto kernel = op.getComputedKernelForDispatchKey(c10::DispatchKey::Meta);
  return kernel.debug().find("_meta_registrations") != std::string::npos;
}

/// A tensor, or the place of the results, is not on the CPU.
bool is_elsewhere(const c10::IValue& arg) {
  const auto elsewhere = [](const at::Tensor& tensor) { return tensor.defined() && !tensor.is_cpu(); };
  if (arg.isTensor()) return elsewhere(arg.toTensor());
  if (arg.isTensorList()) return std::ranges::any_of(arg.toTensorVector(), elsewhere);
  return arg.isDevice() && !arg.toDevice().is_cpu();
}

/// The CPU's own kernel may be called with zeros in place of the arguments. Never for random numbers, whose stream
/// would move.
bool may_try(const c10::OperatorHandle& op, std::span<const c10::IValue> args, int64_t most) {
  if (op.operator_name().getNamespace() != "aten" || op.hasTag(at::Tag::nondeterministic_seeded)) return false;
  if (ops::operator_of(op).is(ops::trusts_numbers)) return false;
  const auto small = [&](const at::Tensor& tensor) {
    return !tensor.defined() || (tensor.is_cpu() && tensor.numel() <= most);
  };
  return std::ranges::none_of(args, [&](const c10::IValue& arg) {
    return (arg.isTensor() && !small(arg.toTensor())) ||
           (arg.isTensorList() && !std::ranges::all_of(arg.toTensorVector(), small)) ||
           (arg.isDevice() && !arg.toDevice().is_cpu());
  });
}

/// The kernel for the meta device gets the layout wrong.
bool try_zeros_first(const c10::OperatorHandle& op, std::span<const c10::IValue> args) {
  return ops::operator_of(op).is(ops::needs_zeros) && may_try(op, args, kMostZeros);
}

bool try_zeros_for_speed(const c10::OperatorHandle& op, std::span<const c10::IValue> args) {
  return meta_is_python(op) && may_try(op, args, kMostZerosForSpeed);
}

/// The kernel, made of other operators, that says what the one for the CPU gives: it is that one, or, of structured
/// operators, names its results with the same function. Nothing: there is none.
std::optional<StandIn> kernel_of_parts(const c10::OperatorHandle& op, std::span<const c10::IValue> args) {
  if (op.operator_name().getNamespace() != "aten" || std::ranges::any_of(args, is_elsewhere)) return std::nullopt;
  const bool own = op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
  const bool composite = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
  const bool structured = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
  if (!own) return composite || structured ? std::optional(StandIn::Parts) : std::nullopt;
  const bool own_layout = ops::operator_of(op).is(ops::own_layout);
  return structured && !own_layout ? std::optional(StandIn::Structured) : std::nullopt;
}

/// The overload of an operator that makes its results, of one that is given tensors to write them to (`out=`).
std::optional<c10::OperatorHandle> functional_of(const c10::OperatorHandle& op) {
  static const auto* const overloads = [] {
    auto* overloads = new std::unordered_map<std::string, std::vector<c10::OperatorName>>;
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (name.name.starts_with("aten::")) (*overloads)[name.name].push_back(name);
    }
    return overloads;
  }();
  const auto& given = op.schema().arguments();
  const auto is_output = [](const c10::Argument& argument) { return argument.is_out(); };
  const auto outputs = static_cast<size_t>(std::ranges::count_if(given, is_output));
  const auto found = overloads->find(op.operator_name().name);
  if (outputs == 0 || found == overloads->end()) return std::nullopt;
  for (const c10::OperatorName& name : found->second) {
    const auto other = c10::Dispatcher::singleton().findSchema(name);
    if (!other || other->schema().arguments().size() + outputs != given.size()) continue;
    if (other->schema().returns().size() != outputs || other->schema().is_mutable()) continue;
    const auto& wanted = other->schema().arguments();
    const auto same = [](const c10::Argument& one, const c10::Argument& two) {
      return one.name() == two.name() && *one.type() == *two.type();
    };
    if (std::ranges::equal(wanted, std::span(given).first(wanted.size()), same)) return other;
  }
  return std::nullopt;
}

/// A tensor that an operator may write its result to without a change to either: it looks like the result, and shares
/// its memory with no other argument.
bool takes_result(const at::Tensor& output, const at::Tensor& result, std::span<const c10::IValue> args) {
  if (!output.defined() || !result.defined() || output.sizes() != result.sizes()) return false;
  if (output.scalar_type() != result.scalar_type() || output.device() != result.device()) return false;
  if (!output.is_non_overlapping_and_dense() || output.is_conj() || output.is_neg()) return false;
  const auto shares = [&](const at::Tensor& other) {
    return other.defined() && as_fake(other) &&
           other.storage().unsafeGetStorageImpl() == output.storage().unsafeGetStorageImpl();
  };
  int64_t sharing = 0;  // with itself
  for (const c10::IValue& arg : args) {
    if (arg.isTensor()) sharing += shares(arg.toTensor());
    if (arg.isTensorList()) sharing += std::ranges::count_if(arg.toTensorVector(), shares);
  }
  return sharing == 1;
}

/// The message of a C++ exception, which may stand for the Python error that is set; clears that.
std::string first_line(const std::exception& error) {
  const WithGil gil;  // operators called from Python run without it
  std::string text = error.what();
  if (PyErr_Occurred()) {
    Ref raised = take_error();
    Ref message = Ref::steal(PyObject_Str(raised.get()));
    text = std::string(Py_TYPE(raised.get())->tp_name) + ": " + (message ? PyUnicode_AsUTF8(message.get()) : "");
    PyErr_Clear();
  }
  return text.substr(0, text.find('\n'));
}

/// What a call gives; nothing where it throws, which is then forgotten.
template <typename Call>
std::optional<std::vector<c10::IValue>> attempt(Session& session, const Call& call) {
  SessionState& state = *session.impl().state;
  const auto refusal = state.refusal;
  try {
    return call();
  } catch (const std::exception&) {
    const WithGil gil;
    PyErr_Clear();
    state.refusal = refusal;
    return std::nullopt;
  }
}

std::optional<std::vector<c10::IValue>> attempt(Session& session, const c10::OperatorHandle& op,
                                                std::span<const c10::IValue> args, StandIn stand_in) {
  return attempt(session, [&]() -> std::optional<std::vector<c10::IValue>> {
    return call_on_stand_ins(session, op, args, stand_in);
  });
}

/// The operators whose kernels made of parts run, on this thread: one may call its own overload that writes to `out=`.
thread_local std::vector<std::string_view> asked;

std::optional<std::vector<c10::IValue>> ask_parts(Session& session, const c10::OperatorHandle& op,
                                                  std::span<const c10::IValue> args) {
  const auto parts = kernel_of_parts(op, args);
  if (!parts) return std::nullopt;
  asked.push_back(op.operator_name().name);
  auto results = attempt(session, op, args, *parts);
  asked.pop_back();
  return results;
}

/// What the overload that makes its results says of them, where `out=` is given tensors that take these.
std::optional<std::vector<c10::IValue>> infer_outputs(Session& session, const c10::OperatorHandle& op,
                                                      std::span<const c10::IValue> args) {
  const auto functional = functional_of(op);
  if (!functional) return std::nullopt;
  const size_t count = functional->schema().arguments().size();
  const std::span<const c10::IValue> outputs = args.subspan(count);
  std::vector<c10::IValue> given(outputs.begin(), outputs.end());
  if (session.impl().trusts_outputs) return given;
  if (std::ranges::find(asked, op.operator_name().name) != asked.end()) return std::nullopt;
  const OperatorFacts facts = facts_of(*functional);
  if (facts.dynamic_shape || facts.data_dependent) return std::nullopt;
  return attempt(session, [&]() -> std::optional<std::vector<c10::IValue>> {
    Call call(args.first(count));
    bool inferred = false;
    if (facts.rule) {
      const BelowFake guard;
      inferred = facts.rule(call);
    }
    if (!inferred && facts.composite) return std::nullopt;
    const std::vector<c10::IValue> results =
        inferred ? std::move(call.results()) : run_meta_kernel(session, *functional, args.first(count));
    for (size_t i = 0; i < given.size(); ++i) {
      if (!given[i].isTensor() || !results[i].isTensor()) return std::nullopt;
      if (!takes_result(given[i].toTensor(), results[i].toTensor(), args)) return std::nullopt;
    }
    return given;
  });
}

/// Without PyTorch's Python; nothing where nothing knows.
std::optional<std::vector<c10::IValue>> infer_natively(Session& session, const c10::OperatorHandle& op,
                                                       std::span<const c10::IValue> args) {
  if (try_zeros_first(op, args)) {
    if (auto results = attempt(session, op, args, StandIn::Zeros)) return results;
  }
  if (!meta_is_python(op)) return std::nullopt;
  if (auto results = infer_outputs(session, op, args)) return results;
  if (auto results = ask_parts(session, op, args)) return results;
  // What zeros are refused for may be good arguments otherwise.
  return try_zeros_for_speed(op, args) ? attempt(session, op, args, StandIn::Zeros) : std::nullopt;
}

}  // namespace

std::map<std::string, int64_t>& python_meta_kernels() {
  static auto* const counts = new std::map<std::string, int64_t>;
  return *counts;
}

bool has_python_meta_kernel(const c10::OperatorHandle& op) {
  // What has no kernel for the meta device at all, but PyTorch's word that there is none, is refused.
  return op.hasKernelForDispatchKey(c10::DispatchKey::CPU) && op.hasKernelForDispatchKey(c10::DispatchKey::Meta) &&
         meta_is_python(op) && !facts_of(op).rule && !functional_of(op) && !kernel_of_parts(op, {});
}

void throw_as_eager(Session& session, const c10::OperatorHandle& op, std::span<const c10::IValue> args) {
  if (!session.refused() && may_try(op, args, kMostZeros)) {
    try {
      check_on_stand_ins(session, op, args, StandIn::Zeros);
    } catch (const c10::Error&) {
      const WithGil gil;
      PyErr_Clear();  // of the meta kernel, where that is in Python
      throw;
    }
  }
  throw;
}

std::vector<c10::IValue> run_meta_kernel(Session& session, const c10::OperatorHandle& op,
                                         std::span<const c10::IValue> args) {
  if (auto results = infer_natively(session, op, args)) return *std::move(results);
  const auto refuse = [&](Refusal::Kind kind, const std::string& message) { session.impl().refuse(kind, op, message); };
  const auto unknown = [&](const std::string& message) -> std::vector<c10::IValue> {
    const auto& run_for_real = session.impl().run_for_real;
    if (const auto real = run_for_real ? run_for_real(op, args) : std::nullopt) return fakes_like(session, *real);
    refuse(Refusal::Kind::Unsupported, message);
    return {};  // refusing throws
  };
  if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) {
    return unknown("it has no shape rule and no kernel for the meta device");
  }
  if (meta_is_python(op)) ++python_meta_kernels()[operator_name(op)];
  try {
    return call_on_stand_ins(session, op, args, StandIn::Meta);
  } catch (const c10::NotImplementedError& error) {
    return unknown(error.what_without_backtrace());
  } catch (const std::exception& error) {
    const std::string_view message = error.what();
    // How a meta tensor answers to .item().
    if (message.find("on meta tensors") != std::string_view::npos) {
      refuse(Refusal::Kind::DataDependent, "it needs the data of a tensor, which is not known during a capture");
    }
    if (message.find("torch.library.get_ctx") != std::string_view::npos) {
      if (auto results = infer_from_context(session, op, args)) return *std::move(results);
    }
    // An error that speaks of the device is about the stand-in: the real kernel will tell.
    if (message.find("meta") != std::string_view::npos) {
      return unknown("its kernel refuses the meta device: " + first_line(error));
    }
    // What the fake kernel of a user's operator raises may be no business of the program; the real kernel will tell.
    if (op.operator_name().getNamespace() == "aten") throw_as_eager(session, op, args);
    return unknown("its fake kernel raised " + first_line(error));
  }
}

}  // namespace magneto::fake
