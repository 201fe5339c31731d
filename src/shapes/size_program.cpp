#include "shapes/size_program.h"

#include <algorithm>
#include <stdexcept>

namespace magneto::shapes {

int32_t SizeProgram::add(Expr expr) {
  const auto known = known_.find(expr.identity());
  if (known != known_.end()) return known->second;
  Step step{expr.kind()};
  switch (expr.kind()) {
    case ExprKind::Constant:
      step.number = expr.number();
      break;
    case ExprKind::Symbol:
      step.number = static_cast<int64_t>(Expr::place(expr.id()));
      break;
    case ExprKind::Variable:
    case ExprKind::Value:
      throw std::logic_error("a size with a loop's variable in it: " + text(expr));
    case ExprKind::Sum:
      step.number = expr.number();
      for (size_t i = 0; i < expr.operands().size(); ++i) {
        step.parts.push_back(expr.coefficients()[i]);
        step.parts.push_back(add(expr.operands()[i]));
      }
      break;
    default:
      for (const Expr operand : expr.operands()) step.parts.push_back(add(operand));
  }
  steps_.push_back(std::move(step));
  const auto index = static_cast<int32_t>(steps_.size() - 1);
  known_.emplace(expr.identity(), index);
  return index;
}

void SizeProgram::run(const int64_t* symbols, int64_t* results) const {
  for (const Step& step : steps_) {
    const auto part = [&](size_t i) { return results[step.parts[i]]; };
    int64_t number = step.number;
    switch (step.kind) {
      case ExprKind::Symbol:
        number = symbols[step.number];
        break;
      case ExprKind::Sum:
        for (size_t i = 0; i < step.parts.size(); i += 2) number += step.parts[i] * part(i + 1);
        break;
      case ExprKind::Product:
        number = 1;
        for (size_t i = 0; i < step.parts.size(); ++i) number *= part(i);
        break;
      case ExprKind::FloorDiv:
        number = floor_div(part(0), part(1));
        break;
      case ExprKind::Mod:
        number = mod(part(0), part(1));
        break;
      case ExprKind::Min:
        number = std::min(part(0), part(1));
        break;
      case ExprKind::Max:
        number = std::max(part(0), part(1));
        break;
      default:
        break;
    }
    results[&step - steps_.data()] = number;
  }
}

}  // namespace magneto::shapes
