// What lowering rules see of an operator's call: its arguments as numbers and expressions, and where its result goes.
#include <algorithm>

#include "graph/text.h"
#include "lower/lowering.h"

namespace magneto::lower {

using graph::kNoValue;
using graph::TensorMeta;
using graph::ValueId;

int Call::at(std::string_view name) const {
  const auto& arguments = node_.op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == name) return static_cast<int>(i);
  }
  return -1;
}

bool Call::given(int i) const {
  if (i < 0 || static_cast<size_t>(i) >= node_.args.size()) return false;
  if (const auto* id = std::get_if<ValueId>(&node_.args[i])) return *id != kNoValue;
  const auto* constant = std::get_if<c10::IValue>(&node_.args[i]);
  return !constant || !constant->isNone();
}

bool Call::is_tensor(int i) const { return std::holds_alternative<ValueId>(node_.args[i]); }
namespace {

/// What has to be the same number in all runs.
const c10::IValue& constant_of(const graph::AtenArg& arg) {
  if (const auto* sizes = std::get_if<graph::SizeArg>(&arg)) {
    throw shapes::UnknownSize("the size " + shapes::text(sizes->sizes.at(0)) + " differs from run to run");
  }
  if (std::holds_alternative<ValueId>(arg)) throw shapes::UnknownSize("a number differs from run to run");
  return std::get<c10::IValue>(arg);
}

/// Eager takes a number by `Scalar::to<dtype>()`, which raises where it does not fit.
bool holds(c10::ScalarType dtype, const c10::Scalar& number) {
  const auto is_in = [&](auto zero) {
    using To = decltype(zero);
    if (number.isIntegral(/*includeBool=*/true)) return !c10::overflows<To, int64_t>(number.toLong());
    return !c10::overflows<To, double>(number.toDouble());
  };
  if (number.isComplex()) return false;
  switch (dtype) {
    case c10::kByte:
      return is_in(uint8_t{});
    case c10::kChar:
      return is_in(int8_t{});
    case c10::kShort:
      return is_in(int16_t{});
    case c10::kInt:
      return is_in(int32_t{});
    case c10::kLong:
      return is_in(int64_t{});
    case c10::kHalf:
      return is_in(c10::Half{});
    case c10::kBFloat16:
      return is_in(c10::BFloat16{});
    case c10::kFloat:
      return is_in(float{});
    default:
      return true;
  }
}

/// Whatever the number is in a run.
bool holds(c10::ScalarType dtype, Expr number, const shapes::SymbolFacts& symbols) {
  const shapes::Range range = shapes::range_of(number, [&](Expr symbol) { return symbols.range(symbol); });
  return holds(dtype, c10::Scalar(range.low)) && holds(dtype, c10::Scalar(range.high));
}

/// Each number of dtype `from`.
bool holds_all(c10::ScalarType dtype, c10::ScalarType from) {
  if (dtype == from || dtype == c10::kBool) return true;
  if (dtype == c10::kHalf && (from == c10::kInt || from == c10::kLong)) return false;
  return c10::promoteTypes(dtype, from) == dtype;
}

}  // namespace

double Call::number(int i) const {
  const c10::IValue& value = constant_of(node_.args[i]);
  const c10::Scalar number = value.toScalar();
  const bool is_scalar = node_.op.schema().arguments()[i].real_type()->kind() == c10::TypeKind::NumberType;
  if (is_scalar && !holds(read_result_meta().dtype, number)) throw Declined{};
  return number.toDouble();
}
bool Call::is_integral(int i) const {
  const auto* value = std::get_if<c10::IValue>(&node_.args[i]);
  if (is_tensor(i)) return c10::isIntegralType(meta(i).dtype, /*includeBool=*/true);
  return value ? value->isInt() || value->isBool() : std::holds_alternative<graph::SizeArg>(node_.args[i]);
}
int64_t Call::integer(int i) const { return constant_of(node_.args[i]).toInt(); }
bool Call::flag(int i) const { return constant_of(node_.args[i]).toBool(); }
std::vector<int64_t> Call::integers(int i) const {
  const c10::IValue& value = constant_of(node_.args[i]);
  if (value.isInt()) return {value.toInt()};
  return value.toIntVector();
}
Size Call::size(int i) const { return size_list(i).at(0); }
Sizes Call::size_list(int i) const {
  Sizes result;
  if (const auto* sizes = std::get_if<graph::SizeArg>(&node_.args[i])) {
    for (const Expr size : sizes->sizes) result.push_back(lowering_.dag.symbols.size(size));
    return result;
  }
  const std::vector<int64_t> numbers = integers(i);
  return {numbers.begin(), numbers.end()};
}
std::string Call::text(int i) const { return constant_of(node_.args[i]).toStringRef(); }
const TensorMeta& Call::meta(int i) const { return lowering_.meta(std::get<ValueId>(node_.args[i])); }
const TensorMeta& Call::result_meta(size_t k) const {
  const ValueId id = node_.results.at(k);
  if (id == kNoValue) throw std::logic_error("a rule asks about a result that nobody reads");
  return lowering_.meta(id);
}
const TensorMeta& Call::read_result_meta() const {
  const auto read = std::ranges::find_if(node_.results, [](ValueId id) { return id != kNoValue; });
  if (read == node_.results.end()) throw std::logic_error("a rule is asked for results that nobody reads");
  return lowering_.meta(*read);
}

Dtype Call::compute() const { return loops::value_dtype(*loop_dtype(read_result_meta().dtype)); }

T Call::number(Dtype dtype, double value) const { return {&lowering_.dag, lowering_.dag.number(dtype, value)}; }
T Call::index(Expr expr, Sizes sizes) const { return {&lowering_.dag, lowering_.dag.index(expr, std::move(sizes))}; }

T Call::raw(int i) { return {&lowering_.dag, lowering_.node_of(std::get<ValueId>(node_.args[i]))}; }

T Call::in(int i, std::optional<Dtype> dtype) {
  const Dtype wanted = dtype.value_or(compute());
  if (is_tensor(i)) return raw(i).to(wanted);
  if (std::holds_alternative<graph::SizeArg>(node_.args[i])) {
    const Expr number = size(i).expr();
    if (!dtype && !holds(read_result_meta().dtype, number, lowering_.dag.symbols)) throw Declined{};
    return index(number, {}).to(wanted);
  }
  const c10::Scalar value = std::get<c10::IValue>(node_.args[i]).toScalar();
  if (!dtype && !holds(read_result_meta().dtype, value)) throw Declined{};
  if (value.isIntegral(true) && !loops::is_float(wanted)) {
    return {&lowering_.dag, lowering_.dag.integer(wanted, value.toLong())};
  }
  return number(wanted, value.toDouble());
}

T Call::element(int i, c10::ScalarType dtype) {
  const Dtype wanted = loops::value_dtype(*loop_dtype(dtype));
  if (!is_tensor(i)) {
    const auto* number = std::get_if<c10::IValue>(&node_.args[i]);
    if (number ? !holds(dtype, number->toScalar()) : !holds(dtype, size(i).expr(), lowering_.dag.symbols)) {
      throw Declined{};
    }
    return in(i, wanted);
  }
  const graph::Value& value = lowering_.graph().values[std::get<ValueId>(node_.args[i])];
  const bool known = value.constant.defined() && value.constant.numel() == 1 && value.constant.is_cpu();
  if (known ? !holds(dtype, value.constant.item()) : !holds_all(dtype, value.meta.dtype)) throw Declined{};
  return in(i, wanted);
}

std::vector<T> Call::list(int i) {
  std::vector<T> result;
  for (const ValueId id : std::get<std::vector<ValueId>>(node_.args[i])) {
    result.push_back({&lowering_.dag, lowering_.node_of(id)});
  }
  return result;
}

T Call::indexable(int i) {
  const ValueId id = std::get<ValueId>(node_.args[i]);
  if (count(result_sizes()).hint() <= count(sizes(i)).hint()) return raw(i);
  return {&lowering_.dag, lowering_.leaf_of(id)};
}

std::optional<c10::ScalarType> Call::promoted(int a, int b) const {
  // As at::native::update_result_type_state: tensors with dimensions before those without before numbers.
  c10::ScalarType found[3] = {c10::ScalarType::Undefined, c10::ScalarType::Undefined, c10::ScalarType::Undefined};
  const auto add = [&](int rank, c10::ScalarType dtype) {
    found[rank] = found[rank] == c10::ScalarType::Undefined ? dtype : c10::promoteTypes(found[rank], dtype);
  };
  for (const int i : {a, b}) {
    if (const auto* id = std::get_if<ValueId>(&node_.args[i])) {
      const TensorMeta& meta = lowering_.meta(*id);
      c10::ScalarType dtype = meta.dtype;
      if (meta.wrapped && c10::isFloatingType(dtype)) dtype = c10::get_default_dtype_as_scalartype();
      add(meta.wrapped ? 2 : meta.sizes.empty() ? 1 : 0, dtype);
    } else {
      if (std::holds_alternative<graph::SizeArg>(node_.args[i])) {
        add(2, c10::kLong);
        continue;
      }
      const auto& constant = std::get<c10::IValue>(node_.args[i]);
      if (constant.isComplexDouble()) return std::nullopt;
      add(2, constant.isBool() ? c10::kBool : constant.isInt() ? c10::kLong : c10::get_default_dtype_as_scalartype());
    }
  }
  // A lower rank decides only if it is of a higher category: bool, integer, float.
  const auto category = [](c10::ScalarType dtype) {
    return dtype == c10::ScalarType::Undefined ? 0
           : dtype == c10::kBool               ? 1
           : c10::isIntegralType(dtype, false) ? 2
                                               : 3;
  };
  c10::ScalarType result = found[2];
  for (const int rank : {1, 0}) {
    if (category(found[rank]) >= category(result)) result = found[rank];
  }
  if (category(result) == 0 || c10::isComplexType(result)) return std::nullopt;
  return result;
}

bool Call::set_assembled_result(const std::vector<Piece>& pieces) {
  if (wanted(0)) lowering_.assemble(node_.results[0], pieces);
  return true;
}

bool Call::set_scattered_result(T base, T value, const std::vector<NodeId>& indices, std::vector<Expr> map,
                                Sizes checks) {
  Dag& dag = lowering_.dag;
  if (wanted(0)) {
    lowering_.scatter(node_.results[0], base, dag.scatter(value.id, indices, std::move(map), std::move(checks)));
  }
  return true;
}

bool Call::set_result(T value, size_t k) {
  if (wanted(k)) lowering_.set_value(node_.results[k], value);
  return true;
}

}  // namespace magneto::lower
