// The kernel on the Fake key: every operator that a capture runs ends here.
//
// In order: what can't be captured is refused; a native rule infers the results; composite operators decompose into
// others that come here again (under autograd they do so above this key; in inference mode nothing else does it); the
// dispatcher's meta kernel infers what has no rule. Then the call is recorded. An operator that throws, throws what
// eager would throw and leaves the graph as it was.
#include <torch/library.h>

#include <algorithm>

#include "fake/class_dispatch.h"
#include "fake/ctc_loss.h"
#include "fake/data_sizes.h"
#include "fake/dispatch_key.h"
#include "fake/known.h"
#include "fake/matmul.h"
#include "fake/meta_kernel.h"
#include "fake/operator_facts.h"
#include "fake/own_gradients.h"
#include "fake/record.h"
#include "fake/recurrent.h"
#include "fake/resized_images.h"
#include "fake/size_node.h"
#include "fake/sparse_gradients.h"
#include "fake/zero_tensors.h"
#include "graph/versions.h"
#include "ops/operator.h"
#include "support/gil.h"

namespace magneto::fake {

namespace {

using torch::jit::Stack;

constexpr const char* kNeedsData = "it needs the data of a tensor, which is not known while code is being captured";

/// Indexing with a mask finds the mask's true entries first.
bool indexes_with_mask(std::span<const c10::IValue> args) {
  return std::ranges::any_of(args, [](const c10::IValue& arg) {
    return arg.isOptionalTensorList() && std::ranges::any_of(arg.toListRef(), [](const c10::IValue& index) {
             return index.isTensor() && index.toTensor().defined() &&
                    (index.toTensor().scalar_type() == c10::kBool || index.toTensor().scalar_type() == c10::kByte);
           });
  });
}

/// True if the shape of the result follows from data in this very call.
bool has_dynamic_shape(const c10::OperatorHandle& op, std::span<const c10::IValue> args) {
  const auto& schema = op.schema().arguments();
  bool indexing = false;
  for (size_t i = 0; i < args.size(); ++i) {
    indexing |= args[i].isOptionalTensorList();
    if (schema[i].name() == "output_size" && !args[i].isNone()) return false;  // repeat_interleave was told
  }
  return !indexing || indexes_with_mask(args);
}

/// The operator writes where a view may lie, nobody knows: what the one holds then, and whether the two overlap.
bool writes_unplaced(const c10::OperatorHandle& op, std::span<const c10::IValue> args) {
  const auto& schema = op.schema().arguments();
  const auto unplaced = [](const at::Tensor& tensor) {
    FakeImpl* fake = tensor.defined() ? as_fake(tensor) : nullptr;
    return fake && fake->is_unplaced();
  };
  for (size_t i = 0; i < args.size(); ++i) {
    if (!schema[i].alias_info() || !schema[i].alias_info()->isWrite()) continue;
    if (args[i].isTensor() && unplaced(args[i].toTensor())) return true;
    if (args[i].isTensorList() && std::ranges::any_of(args[i].toTensorVector(), unplaced)) return true;
  }
  return false;
}

/// Runs the operator on the real tensors it was given (profiler calls, reading numbers).
void run_below(const c10::OperatorHandle& op, Stack* stack) {
  BelowFake guard;
  op.callBoxed(stack);
}

/// torch.tensor([1, 2]) makes a new tensor at each run: a copy of the constant, so that in-place operators are free to
/// change it. A tensor that the graph made is new already.
void lift(Session& session, Stack* stack) {
  at::Tensor& tensor = stack->back().toTensor();
  if (is_fake(tensor)) return;
  static const c10::OperatorHandle copy = c10::Dispatcher::singleton().findSchemaOrThrow("aten::lift_fresh_copy", "");
  const c10::IValue constant = session.make_constant(tensor);
  const at::Tensor& fake = constant.toTensor();
  c10::IValue result = session.impl().empty(fake.sizes(), fake.strides(), fake.scalar_type(), fake.device());
  record(session, copy, facts_of(copy), {&constant, 1}, {&result, 1});
  as_fake(result.toTensor())->know(tensor);
  stack->back() = std::move(result);
}

bool reads_number(std::span<const c10::IValue> args) {
  return args.size() == 1 && args[0].isTensor() && args[0].toTensor().defined() && !is_fake(args[0].toTensor()) &&
         args[0].toTensor().unsafeGetTensorImpl()->is_wrapped_number();
}

void note(std::vector<std::string>& names, const c10::OperatorHandle& op) {
  std::string name = operator_name(op);
  if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
}

/// The operator has no symbolic rule for what it was given.
void specialise(Session& session, const c10::OperatorHandle& op, std::span<c10::IValue> args) {
  note(session.counters.specialised_ops, op);
  specialise(*session.impl().state, args);
}

/// The sizes of a custom operator's results in terms of its arguments', as its fake implementation says: that is run on
/// the fakes themselves, and what it records is forgotten. Nothing where it asks for plain numbers only, or raises.
std::optional<std::vector<SymSizes>> sizes_by_fake_kernel(Session& session, const c10::OperatorHandle& op,
                                                          std::span<const c10::IValue> args) {
  if (operator_name(op).starts_with("aten.") || !op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) return {};
  SessionState& state = *session.impl().state;
  const Session::Mark mark = session.mark();
  const auto refusal = state.refusal;
  std::optional<std::vector<SymSizes>> sizes;
  Stack stack(args.begin(), args.end());
  try {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
    sizes.emplace();
    const auto add = [&](const at::Tensor& tensor) {
      const c10::SymIntArrayRef list = tensor.sym_sizes();
      sizes->push_back(SymSizes(list.begin(), list.end()));
    };
    for (const c10::IValue& result : stack) {
      if (result.isTensor() && result.toTensor().defined()) add(result.toTensor());
      if (!result.isTensorList()) continue;
      for (const at::Tensor& tensor : result.toTensorVector()) add(tensor);
    }
  } catch (const std::exception&) {
    const WithGil gil;
    PyErr_Clear();
    sizes.reset();
  }
  session.rollback(mark);
  state.refusal = refusal;
  return sizes;
}

/// The operator's results in place of its arguments.
void give_results(Stack* stack, size_t arguments, std::vector<c10::IValue>& results) {
  torch::jit::drop(*stack, arguments);
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

/// A float among the arguments may say more than values: of those that are not ours, who knows.
bool float_decides_shape(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return ops::operator_of(op).is(ops::float_sizes) || (!name.starts_with("aten::") && !name.starts_with("magneto::"));
}

void fix_floats(std::span<c10::IValue> args) {
  for (c10::IValue& arg : args) {
    if (arg.isSymFloat()) arg = arg.toSymFloat().guard_float(__FILE__, __LINE__);
  }
}

bool takes_data(const Session& session, const OperatorFacts& facts) {
  return (facts.data_dependent && session.takes.numbers) || (facts.dynamic_shape && session.takes.sizes);
}

/// With the symbol that one of its results has made.
void record_bound(Session& session, const c10::OperatorHandle& op, const OperatorFacts& facts,
                  std::span<const c10::IValue> args, std::span<const c10::IValue> results) {
  record(session, op, facts, args, results);
  bind_symbol(session, results);
}

/// What the operator gives says only the data: symbols stand for it. False: not of this operator.
bool from_data(Session& session, const c10::OperatorHandle& op, const OperatorFacts& facts,
               std::span<const c10::IValue> args, Stack* stack) {
  std::vector<c10::IValue> results;
  if (facts.dynamic_shape) {
    auto inferred = infer_from_data(session, op, facts, args);
    if (!inferred) {
      session.impl().last_unbacked.reset();
      return false;
    }
    results = std::move(*inferred);
    const Hints hints(*session.impl().state);
    record_bound(session, op, facts, args, results);
  } else {
    if (op.operator_name().name != "aten::_local_scalar_dense") return false;
    auto number = infer_item(session, args);
    if (!number) return false;
    results.push_back(std::move(*number));
  }
  give_results(stack, args.size(), results);
  return true;
}

/// What a fake kernel has said that asked for a data-dependent size.
void give_sized(Session& session, const c10::OperatorHandle& op, const OperatorFacts& facts,
                std::span<const c10::IValue> args, Stack* stack, std::vector<c10::IValue>& results) {
  const Hints hints(*session.impl().state);
  record_bound(session, op, facts, args, results);
  give_results(stack, args.size(), results);
}

/// PyTorch has counted those to tensors. In lists, the operators do it that it calls for each.
void note_writes(const c10::OperatorHandle& op, const OperatorFacts& facts, std::span<const c10::IValue> args) {
  write_known(op, facts, args);
  if (c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView) || !graph::moves_versions(op)) return;
  for (size_t i = 0; i < args.size(); ++i) {
    const c10::AliasInfo* alias = op.schema().arguments()[i].alias_info();
    if (!alias || !alias->isWrite() || !args[i].isTensorList()) continue;
    for (const at::Tensor& tensor : args[i].toTensorVector()) {
      if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
    }
  }
}

void capture(Session& session, const c10::OperatorHandle& op, const OperatorFacts& facts, c10::DispatchKeySet keys,
             Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const std::span<c10::IValue> args(stack->data() + stack->size() - count, count);

  if (facts.observer) return run_below(op, stack);
  if (facts.lifts) return lift(session, stack);
  if (facts.takes_storage) {
    session.impl().refuse(Refusal::Kind::DataAccess, op, "it works on the storage of a tensor");
  }
  if (facts.replaces_storage) {
    session.impl().refuse(Refusal::Kind::Unsupported, op, "it gives a tensor the storage of another one");
  }
  if (session.impl().has_symbols) fix_wrapped_sizes(args);
  bool floats = has_floats(args);
  if (floats && float_decides_shape(op)) {
    fix_floats(args);
    floats = false;
  }
  // Numbers that PyTorch itself wrapped as tensors are constants of the code, and may be read.
  if (facts.data_dependent && reads_number(args)) return run_below(op, stack);
  replace_real_tensors(session, args);
  if (facts.mutates && writes_unplaced(op, args)) {
    session.impl().refuse(Refusal::Kind::DataDependent, op,
                          "it writes to a tensor of which a view lies where data says");
  }

  const auto decomposes = [&] {
    const bool own_kernel =
        facts.has_backend_kernels && op.hasKernelForDispatchKey(c10::highestPriorityBackendTypeId(keys));
    return facts.composite && !own_kernel;
  };
  SessionState& state = *session.impl().state;
  const bool symbolic = session.impl().has_symbols && (facts.rule || !decomposes()) && has_symbolic(state, args);
  // Beside a symbolic rule, what is wrong and what memory is shared says our rule for plain numbers, or PyTorch's.
  const bool has_rules = facts.symbolic_rule && (facts.rule || !decomposes());
  if (auto own = session.impl().has_symbols ? infer_own(session, op) : std::nullopt) {
    const Hints hints(state);
    record(session, op, facts, args, *own);
    return give_results(stack, count, *own);
  }
  if (takes_data(session, facts) && (facts.data_dependent || (facts.dynamic_shape && has_dynamic_shape(op, args))) &&
      !(!symbolic && is_known(op, facts, args))) {
    if (from_data(session, op, facts, args, stack)) return;
  }
  std::optional<std::vector<SymSizes>> own_sizes;
  if (symbolic && !has_rules && !(facts.rule && decomposes())) {
    if (!facts.mutates) own_sizes = sizes_by_fake_kernel(session, op, args);
    if (!own_sizes) specialise(session, op, args);
  }

  // What an operator makes of a float is known for the one of this run; the graph has the tensor that holds it.
  std::vector<c10::IValue> plain;
  const auto now = [&]() -> std::span<const c10::IValue> {
    if (!floats) return args;
    plain = with_floats_now(args);
    return plain;
  };
  Call call(now());
  bool inferred = false;
  if (facts.rule) {
    BelowFake guard;
    try {
      const Hints hints(state, symbolic);
      inferred = facts.rule(call);
    } catch (const c10::Error&) {
      fix_floats(args);
      if (symbolic) {  // with these sizes, it raises
        session.wanted = needed_of_data(op, args);
        specialise(session, op, args);
      }
      // With a mask of zeros it might find other words.
      const bool by_data =
          facts.data_dependent || indexes_with_mask(args) || (facts.dynamic_shape && has_dynamic_shape(op, args));
      if (by_data) throw;
      throw_as_eager(session, op, args);
    }
  }
  const bool dynamic = !inferred && facts.dynamic_shape && has_dynamic_shape(op, args);
  const bool by_meta_kernel =
      symbolic && (has_rules || own_sizes) && !inferred && !decomposes() && !facts.data_dependent && !dynamic;
  std::optional<std::vector<c10::IValue>> indices;
  const auto find_indices = [&] {
    if (!indices && dynamic && facts.rule) indices = without_masks(session, args);
    return indices.has_value();
  };
  if (symbolic && !inferred && !decomposes() && (facts.data_dependent || dynamic)) {
    // Before its sizes are taken for constants: CPython runs it with those of each run.
    if (!find_indices()) session.impl().refuse(Refusal::Kind::DataDependent, op, kNeedsData);
  }
  if (symbolic && !by_meta_kernel && (has_rules || inferred)) {
    const bool known = inferred && has_rules && infer_symbolic(state, facts.symbolic_rule, now(), call.results());
    if (!known) specialise(session, op, args);
  }
  if (inferred) {
    ++session.counters.native;
  } else if (auto known =
                 (facts.data_dependent || dynamic) && !symbolic ? read_known(session, op, facts, args) : std::nullopt) {
    if (!facts.recorded) {  // `.item()` of a known value is a number of the code
      return give_results(stack, count, *known);
    }
    call.results() = fakes_like(session, *known);
  } else if (find_indices()) {
    Call without(*indices);
    BelowFake guard;
    if (!facts.rule(without)) session.impl().refuse(Refusal::Kind::DataDependent, op, kNeedsData);
    call.results() = std::move(without.results());
  } else {
    if (decomposes()) {
      return op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
    }
    if (facts.data_dependent || dynamic) session.impl().refuse(Refusal::Kind::DataDependent, op, kNeedsData);
    if (by_meta_kernel) {
      const Hints hints(state);
      call.results() = run_meta_kernel(session, op, with_hints(state, now()));
    } else {
      call.results() = run_meta_kernel(session, op, now());
      if (session.impl().last_unbacked) return give_sized(session, op, facts, args, stack, call.results());
    }
    const bool known =
        !by_meta_kernel || (own_sizes ? give_sizes(state, *own_sizes, args, call.results())
                                      : infer_symbolic(state, facts.symbolic_rule, now(), call.results()));
    if (!known) specialise(session, op, args);
    ++session.counters.meta;
    note(session.counters.meta_ops, op);
  }
  const Hints hints(state, symbolic);
  if (facts.mutates) note_writes(op, facts, args);
  if (facts.recorded) {
    record_bound(session, op, facts, args, call.results());
    if (!symbolic) keep_known(op, facts, args, call.results());
  }
  give_results(stack, count, call.results());
}

thread_local ClassDispatchScope* class_dispatch = nullptr;

/// What PyTorch would take the operator apart with, above the class; Undefined: it is handed over as it is.
c10::DispatchKey decomposition_key(const c10::OperatorHandle& op, bool nested) {
  using Key = c10::DispatchKey;
  const auto has = [&](Key key) { return op.hasKernelForDispatchKey(key); };
  if (nested && (has(Key::NestedTensorCPU) || has(Key::CompositeExplicitAutograd))) return Key::Undefined;
  if (nested && has(Key::CompositeImplicitAutogradNestedTensor)) return Key::CompositeImplicitAutogradNestedTensor;
  return facts_of(op).composite ? Key::CompositeImplicitAutograd : Key::Undefined;
}

/// What autograd has saved of a result whose class it does not know: a wrapper's copy, without memory.
bool is_past_class(const at::Tensor& tensor) {
  if (is_fake(tensor) || !tensor.has_storage() || tensor.is_meta() || tensor.sym_numel().maybe_as_int() == 0)
    return false;
  return !tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
}

/// As PyTorch comes to a class's __torch_dispatch__. False: no tensor has one.
bool call_class(const c10::OperatorHandle& op, Stack* stack) {
  if (!class_dispatch) return false;
  // Autograd does a detach in place itself, and hands nothing on.
  const bool of_autograd = op.operator_name().name == "aten::detach_" && !c10::InferenceMode::is_enabled();
  bool found = class_dispatch->every && !of_autograd, nested = false;
  const auto look = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    nested |= tensor.is_nested();
    found |= nested || has_class_dispatch(tensor) || is_past_class(tensor);
  };
  for (const c10::IValue& arg : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (arg.isTensor()) look(arg.toTensor());
    if (!arg.isTensorList() && !arg.isOptionalTensorList()) continue;
    for (const c10::IValue& item : arg.toListRef()) {
      if (item.isTensor()) look(item.toTensor());
    }
  }
  if (!found) return false;
  const bool apart = !class_dispatch->below && !c10::InferenceMode::is_enabled();
  const c10::DispatchKey key = apart ? decomposition_key(op, nested) : c10::DispatchKey::Undefined;
  if (key != c10::DispatchKey::Undefined) {
    op.callBoxedForDispatchKey(key, *stack);
  } else {
    class_dispatch->dispatch(op, stack);
  }
  return true;
}

void run_on_fakes(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  Session* session = Session::current();
  if (!session) {
    // The key came along with a copy of the capturing thread's state (the threads of PyTorch's pools take one).
    C10_THROW_ERROR(Error, operator_name(op) + ": captured code called an operator from another thread");
  }
  const Session::Mark mark = session->mark();
  try {
    if (call_class(op, stack)) return;
    const OperatorFacts& facts = facts_of(op);
    const bool makes_zeros = facts.makes_zeros;
    session->impl().last_unbacked.reset();
    if (!call_on_zeros(*session, op, stack)) capture(*session, op, facts, keys, stack);
    if (makes_zeros) mark_as_zeros(stack->back().toTensor());
  } catch (...) {
    session->rollback(mark);
    throw;
  }
}

/// Above everything. Where autocast or a transform of torch.func has a say, the operator goes its usual way.
void run_whole(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  // What it calls goes by autocast, which knows nothing of it.
  if (!keys.has_any(kTransformKeys) && (call_lstm(op, stack) || call_resize(op, stack))) return;
  if (keys.has_any(c10::DispatchKeySet({c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA}) |
                   kTransformKeys)) {
    return op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kFirstKey), stack);
  }
  if (!call_ctc_loss(op, stack)) run_on_fakes(op, keys, stack);
}

void wait_at_once(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
  static const auto wait = c10::Dispatcher::singleton().findSchemaOrThrow("_c10d_functional::wait_tensor", "");
  wait.callBoxed(stack);
}

}  // namespace

ClassDispatchScope::ClassDispatchScope(ClassDispatch dispatch, bool below, bool every)
    : dispatch(std::move(dispatch)),
      below(below),
      every(every),
      outer_(std::exchange(class_dispatch, this)),
      past_torch_(c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})) {}
ClassDispatchScope::~ClassDispatchScope() { class_dispatch = outer_; }

void register_kernels() {
  // For ever: captures end before the process does.
  static const bool registered = [] {
    auto* fake = new torch::Library(torch::Library::IMPL, "_", kFakeKey, __FILE__, __LINE__);
    fake->fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_fakes>());
    auto* fall_through = new torch::Library(torch::Library::IMPL, "_", kFirstKey, __FILE__, __LINE__);
    fall_through->fallback(torch::CppFunction::makeFallthrough());
    auto* whole = new torch::Library(torch::Library::IMPL, "aten", kFirstKey, __FILE__, __LINE__);
    for (const RuleRow& row : whole_rules()) {
      whole->impl(std::string(row.op).c_str(), torch::CppFunction::makeFromBoxedFunction<&run_whole>());
    }
    register_matmul(*whole);
    register_products(*whole);
    register_extremes(*whole);
    register_selections(*whole);
    register_ctc_loss(*whole);
    register_autocast_casts(*whole);
    register_sparse_gradients(*whole);
    // Where PyTorch's own code makes a tensor that waits when it is used, the graph waits at once.
    auto* waiting = new torch::Library(torch::Library::IMPL, "_c10d_functional", kFakeKey, __FILE__, __LINE__);
    waiting->impl("_wrap_tensor_autograd", torch::CppFunction::makeFromBoxedFunction<&wait_at_once>());
    return true;
  }();
  (void)registered;
}

}  // namespace magneto::fake
