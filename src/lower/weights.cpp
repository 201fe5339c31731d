#include "lower/weights.h"

#include <algorithm>

namespace magneto::lower {
namespace {

/// How many of a leaf's elements are one in memory: what is broadcast is loaded once for all of them.
float elements_of_load(const Node& leaf) {
  float result = 1;
  for (size_t dim = 0; dim < leaf.sizes.size(); ++dim) {
    if (leaf.data[dim + 2] == 0) result *= static_cast<float>(std::max<int64_t>(1, leaf.sizes[dim].hint()));
  }
  return result;
}

/// A function like exp is so many; a division of integers, which no vector instruction does.
constexpr int32_t kFunctionCode = 8, kIntegerDivisionCode = 16;

}  // namespace

float own_weight(const Node& node) {
  switch (node.kind) {
    case NodeKind::Leaf:
      return 1 / elements_of_load(node);
    case NodeKind::Gather:
      return 2;
    case NodeKind::Number:
    case NodeKind::View:
      return 0;
    case NodeKind::Math:
      break;
    default:
      return 0.25f;
  }
  switch (node.op) {
    case Op::Div:
    case Op::Sqrt:
    case Op::Rsqrt:
    case Op::Reciprocal:
    case Op::Mod:
    case Op::Fmod:
    case Op::FloorDiv:
      return 1;
    case Op::Neg:
    case Op::Abs:
    case Op::Add:
    case Op::Sub:
    case Op::Mul:
    case Op::Min:
    case Op::Max:
    case Op::Select:
    case Op::Cast:
    case Op::And:
    case Op::Or:
    case Op::Xor:
    case Op::Not:
    case Op::Fma:
    case Op::Floor:
    case Op::Ceil:
    case Op::Trunc:
    case Op::Round:
    case Op::Sign:
    case Op::RoundBF16:
    case Op::RoundF16:
      return 0.25f;
    default:
      return loops::facts(node.op).op_class == loops::OpClass::Compare ? 0.25f : 4;
  }
}

int32_t own_code(const Node& node) {
  if (node.kind == NodeKind::View) return 0;
  if (own_weight(node) >= kFunction) return kFunctionCode;
  const bool divides = node.kind == NodeKind::Math &&
                       (node.op == Op::Div || node.op == Op::Mod || node.op == Op::Fmod || node.op == Op::FloorDiv);
  return divides && !loops::is_float(node.dtype) ? kIntegerDivisionCode : 1;
}

}  // namespace magneto::lower
