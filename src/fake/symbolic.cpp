#include "fake/symbolic.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "fake/size_node.h"

namespace magneto::fake {

namespace {

/// Calls `visit(tensor)` for each tensor in it, and `size(SymInt)` for each size.
template <typename Tensor, typename Size>
void for_each_part(const c10::IValue& value, const Tensor& tensor, const Size& size) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) tensor(value.toTensor());
  } else if (value.isSymInt()) {
    size(value.toSymInt());
  } else if (value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList()) {
    for (const c10::IValue& item : value.toListRef()) for_each_part(item, tensor, size);
  }
}

bool is_constant(SessionState& state, const c10::SymInt& size) {
  return !size.is_heap_allocated() || state.sizes.simplified(expr_of(size)).is_constant();
}

bool is_constant(SessionState& state, const FakeImpl& fake) {
  const FakeImpl::Symbolic* symbolic = fake.symbolic();
  if (!symbolic) return true;
  const auto constant = [&](const c10::SymInt& size) { return is_constant(state, size); };
  return std::ranges::all_of(symbolic->sizes, constant) && std::ranges::all_of(symbolic->strides, constant) &&
         constant(symbolic->offset);
}

/// Which layout the operator gives its results follows from the order of its operands' strides, and from whether they
/// are dense: both are assumed.
void assume_layout(const at::Tensor& tensor) {
  const FakeImpl* fake = as_fake(tensor);
  if (!fake || !fake->symbolic() || fake->state().hinting) return;
  std::vector<const void*> layout;
  for (const auto* list : {&fake->symbolic()->sizes, &fake->symbolic()->strides}) {
    for (const c10::SymInt& size : *list) layout.push_back(expr_of(size).identity());
  }
  if (!fake->state().layouts.insert(std::move(layout)).second) return;
  std::vector<int64_t> dims(tensor.dim());
  std::iota(dims.begin(), dims.end(), 0);
  const c10::IntArrayRef now = const_cast<FakeImpl*>(fake)->sizes_and_strides().strides_arrayref();
  std::ranges::stable_sort(dims, [&](int64_t a, int64_t b) { return now[a] > now[b]; });
  const auto& strides = fake->symbolic()->strides;
  for (size_t i = 1; i < dims.size(); ++i) {
    // Sizes of one leave the order as it is, and an exported graph's operators choose strides as they run.
    const shapes::Relation in_order = shapes::at_most(expr_of(strides[dims[i]]), expr_of(strides[dims[i - 1]]));
    if (fake->state().purpose.exports && fake->state().sizes.decide(in_order).value_or(false)) continue;
    (void)(strides[dims[i - 1]] == strides[dims[i]]);
    (void)(strides[dims[i - 1]] > strides[dims[i]]);
  }
  if (fake->state().purpose.exports) return;
  (void)tensor.is_contiguous();
  (void)tensor.is_contiguous(at::MemoryFormat::ChannelsLast);
  (void)tensor.is_non_overlapping_and_dense();
}

/// It is contiguous for all numbers of the one size that only the data says.
bool is_contiguous_for_all_data(const FakeImpl& fake) {
  if (!fake.has_contiguous_strides()) return false;
  int64_t unbacked = 0;
  for (const c10::SymInt& size : fake.symbolic()->sizes) {
    const shapes::Expr expr = fake.state().sizes.simplified(expr_of(size));
    const bool is_unbacked = fake.state().sizes.is_unbacked(expr);
    unbacked += is_unbacked;
    if (!is_unbacked && fake.state().sizes.range(expr).low < 2 && !expr.is_constant()) return false;
  }
  return unbacked == 1;
}

/// The layout of the results follows from the operands' without a question. Contiguous operands have contiguous
/// results; but for empty ones, where a dimension of size one stands as no formula says (`torch.empty(0, 1) * 2`: 1,
/// 0). Views have the strides that their rules compute.
bool needs_no_layout(SymbolicRule rule, std::span<const c10::IValue> args, std::span<const c10::IValue> results) {
  static const auto* views = [] {
    auto* views = new std::unordered_set<SymbolicRule>;
    for (const SymbolicRow& row : symbolic_view_rules()) views->insert(row.rule);
    return views;
  }();
  bool unbacked = false, contiguous = true, ones = false, in_general = false;
  for (const c10::IValue& arg : args) {
    for_each_part(
        arg,
        [&](const at::Tensor& tensor) {
          const FakeImpl* fake = as_fake(tensor);
          if (!fake || !fake->symbolic() || fake->state().hinting) return;
          const auto is_unbacked = [&](const c10::SymInt& size) {
            return size.is_heap_allocated() && fake->state().sizes.is_unbacked(expr_of(size));
          };
          unbacked |= std::ranges::any_of(fake->symbolic()->sizes, is_unbacked);
          in_general |= fake->state().in_general;
          contiguous = contiguous && is_contiguous_for_all_data(*fake);
        },
        [](const c10::SymInt&) {});
  }
  for (const c10::IValue& result : results) {
    for_each_part(
        result,
        [&](const at::Tensor& tensor) {
          const auto& sizes = as_fake(tensor)->sizes_and_strides();
          ones |= std::ranges::count(sizes.sizes_arrayref(), 1) > 0;
        },
        [](const c10::SymInt&) {});
  }
  return unbacked && (in_general || views->contains(rule) || (contiguous && !ones));
}

}  // namespace

// -- SymbolicCall ----------------------------------------------------------------------------------------------------

SymbolicCall::SymbolicCall(SessionState& state, std::span<const c10::IValue> args, std::span<const c10::IValue> results)
    : state_(state), args_(args) {
  for (const c10::IValue& result : results) {
    if (result.isTensor()) results_.push_back(result.toTensor());
    if (result.isTensorList()) {
      for (const at::Tensor& tensor : result.toTensorVector()) results_.push_back(tensor);
    }
  }
}

std::vector<at::Tensor> SymbolicCall::tensors(size_t i) const {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& item : args_[i].toListRef())
    tensors.push_back(item.isNone() ? at::Tensor() : item.toTensor());
  return tensors;
}

SymSizes SymbolicCall::sizes(size_t i) const {
  const c10::SymIntArrayRef sizes = tensor(i).sym_sizes();
  return SymSizes(sizes.begin(), sizes.end());
}

SymSizes SymbolicCall::symints(size_t i) const {
  SymSizes values;
  if (args_[i].isIntList()) {
    for (const int64_t number : args_[i].toIntVector()) values.push_back(number);
    return values;
  }
  for (const c10::IValue& item : args_[i].toListRef()) values.push_back(item.toSymInt());
  return values;
}

bool SymbolicCall::is_unbacked(const c10::SymInt& size) const {
  return size.is_heap_allocated() && state_.sizes.is_unbacked(expr_of(size));
}

bool SymbolicCall::set(const at::Tensor& result, at::ArrayRef<c10::SymInt> sizes, at::ArrayRef<c10::SymInt> strides,
                       c10::SymInt offset) {
  FakeImpl* fake = as_fake(result);
  const Hints hints(state_);  // in place, it has dynamic sizes already
  const auto& now = fake->sizes_and_strides();
  const auto is_now = [&](const c10::SymInt& size, int64_t number) {
    return state_.sizes.example(expr_of(size)) == number;
  };
  if (sizes.size() != now.size() || !is_now(offset, fake->storage_offset())) return false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (!is_now(sizes[i], now.sizes_arrayref()[i]) || !is_now(strides[i], now.strides_arrayref()[i])) return false;
  }
  auto symbolic = std::make_shared<FakeImpl::Symbolic>();
  symbolic->sizes.assign(sizes.begin(), sizes.end());
  symbolic->strides.assign(strides.begin(), strides.end());
  symbolic->offset = std::move(offset);
  fake->set_symbolic(std::move(symbolic));
  if (is_constant(state_, *fake)) fake->set_symbolic(nullptr);
  return true;
}

/// The stride of a dimension of size one may be any number. Where it is not what the others say, the result has it from
/// an operand.
std::optional<c10::SymInt> SymbolicCall::stride_of_operand(size_t dim, int64_t now, size_t rank) const {
  std::optional<c10::SymInt> found;
  for (const c10::IValue& arg : args_) {
    const FakeImpl* fake = arg.isTensor() && arg.toTensor().defined() ? as_fake(arg.toTensor()) : nullptr;
    if (!fake || static_cast<size_t>(fake->dim()) != rank) continue;
    if (const_cast<FakeImpl*>(fake)->sizes_and_strides().strides_arrayref()[dim] != now) continue;
    const c10::SymInt stride = fake->symbolic() ? fake->symbolic()->strides[dim] : c10::SymInt(now);
    if (found && !(expr_of(*found) == expr_of(stride))) return std::nullopt;
    found = stride;
  }
  return found;
}

bool SymbolicCall::dense(size_t k, at::ArrayRef<c10::SymInt> sizes) {
  const at::Tensor& tensor = result(k);
  if (!tensor.defined()) return true;
  for (const c10::IValue& arg : args_) {
    if (arg.isTensor() && arg.toTensor().is_same(tensor)) return true;  // in place: checked by the caller
  }
  if (static_cast<int64_t>(sizes.size()) != tensor.dim()) return false;
  const c10::IntArrayRef now = as_fake(tensor)->sizes_and_strides().strides_arrayref();
  std::vector<int64_t> order(sizes.size());
  std::iota(order.rbegin(), order.rend(), 0);  // the last dimension first, unless strides say otherwise
  // A dimension of size one stands as the next one does, wherever it is.
  const auto spreads = [&](int64_t dim) { return sizes[dim].maybe_as_int() != 1; };
  std::ranges::stable_sort(order, {}, [&](int64_t dim) { return std::pair(now[dim], spreads(dim)); });
  SymSizes strides(sizes.size());
  c10::SymInt next = 1;
  for (const int64_t dim : order) {
    strides[dim] = next;
    next = next_stride(state_, next, sizes[dim]);
  }
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    const Hints hints(state_);
    if (spreads(static_cast<int64_t>(dim)) || state_.sizes.example(expr_of(strides[dim])) == now[dim]) continue;
    if (const auto stride = stride_of_operand(dim, now[dim], sizes.size())) strides[dim] = *stride;
  }
  return set(tensor, sizes, strides, 0);
}

bool SymbolicCall::view(size_t k, at::ArrayRef<c10::SymInt> sizes, at::ArrayRef<c10::SymInt> strides,
                        c10::SymInt offset) {
  return set(result(k), sizes, strides, std::move(offset));
}

// -- rules -----------------------------------------------------------------------------------------------------------

SymbolicRule symbolic_rule_of(std::string_view op) {
  static const auto* table = [] {
    auto* table = new std::unordered_map<std::string_view, SymbolicRule>;
    const auto add = [&](std::span<const SymbolicRow> rows) {
      for (const SymbolicRow& row : rows) {
        TORCH_CHECK(table->emplace(row.op, row.rule).second, "magneto: two symbolic rules for ", std::string(row.op));
      }
    };
#define X(family) add(symbolic_##family##_rules());
    MAGNETO_SYMBOLIC_FAMILIES(X)
#undef X
#define ROW_symbolic_elementwise(op, ...) {op, broadcast_symbolically},
    constexpr SymbolicRow elementwise[] = {
#include "ops/rows.def"
    };
    add(elementwise);
    return table;
  }();
  const auto row = table->find(op);
  return row == table->end() ? nullptr : row->second;
}

c10::SymInt next_stride(SessionState& state, const c10::SymInt& stride, const c10::SymInt& size) {
  if (!size.is_heap_allocated()) return size.as_int_unchecked() > 1 ? stride * size : stride;
  return state.sizes.range(state.sizes.simplified(expr_of(size))).low >= 1 ? stride * size : stride * size.max(1);
}

SymSizes contiguous_strides(SessionState& state, at::ArrayRef<c10::SymInt> sizes) {
  SymSizes strides(sizes.size());
  c10::SymInt next = 1;
  for (size_t dim = sizes.size(); dim-- > 0;) {
    strides[dim] = next;
    next = next_stride(state, next, sizes[dim]);
  }
  return strides;
}

bool has_symbolic(SessionState& state, std::span<const c10::IValue> args) {
  bool found = false;
  for (const c10::IValue& arg : args) {
    for_each_part(
        arg,
        [&](const at::Tensor& tensor) {
          FakeImpl* fake = as_fake(tensor);
          if (!fake || !fake->symbolic()) return;
          if (!is_constant(state, *fake)) {
            found = true;
          } else {
            fake->set_symbolic(nullptr);  // numbers from here on: the operator may resize it
          }
        },
        [&](const c10::SymInt& size) { found |= !is_constant(state, size); });
    if (found) return true;
  }
  return false;
}

namespace {

/// Sizes among the arguments become numbers.
void give_numbers(SessionState& state, std::span<c10::IValue> args) {
  for (c10::IValue& arg : args) {
    bool has_sizes = false;
    for_each_part(arg, [](const at::Tensor&) {}, [&](const c10::SymInt&) { has_sizes = true; });
    if (!has_sizes) continue;
    const auto number = [&](const c10::IValue& size) { return state.number_of(expr_of(size.toSymInt())); };
    if (!arg.isList()) {
      arg = number(arg);
      continue;
    }
    std::vector<int64_t> numbers;
    for (const c10::IValue& item : arg.toListRef()) numbers.push_back(number(item));
    arg = std::move(numbers);
  }
}

}  // namespace

void specialise(SessionState& state, std::span<c10::IValue> args) {
  for (const c10::IValue& arg : args) {
    for_each_part(
        arg,
        [&](const at::Tensor& tensor) {
          if (FakeImpl* fake = as_fake(tensor)) fake->fix_sizes();  // what follows may change them (unsqueeze_)
        },
        [](const c10::SymInt&) {});
  }
  give_numbers(state, args);
}

std::vector<c10::IValue> with_hints(SessionState& state, std::span<const c10::IValue> args) {
  std::vector<c10::IValue> plain(args.begin(), args.end());
  const Hints hints(state);
  give_numbers(state, plain);
  return plain;
}

bool give_sizes(SessionState& state, std::span<const SymSizes> sizes, std::span<const c10::IValue> args,
                std::span<const c10::IValue> results) {
  SymbolicCall call(state, args, results);
  if (call.result_count() != sizes.size()) return false;
  for (size_t k = 0; k < sizes.size(); ++k) {
    if (!call.dense(k, sizes[k])) return false;
  }
  return true;
}

bool infer_symbolic(SessionState& state, SymbolicRule rule, std::span<const c10::IValue> args,
                    std::span<const c10::IValue> results) {
  const bool asks = !needs_no_layout(rule, args, results);
  for (const c10::IValue& arg : args) {
    if (asks) for_each_part(arg, [](const at::Tensor& tensor) { assume_layout(tensor); }, [](const c10::SymInt&) {});
  }
  SymbolicCall call(state, args, results);
  try {
    return rule(call);
  } catch (const c10::Error&) {
    return false;  // what is wrong, the rule for plain numbers would have said
  }
}

}  // namespace magneto::fake
