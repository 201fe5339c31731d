// Many expressions of symbols, computed at once: what a program does at entry for dynamic sizes.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "shapes/expr.h"

namespace magneto::shapes {

class SizeProgram {
 public:
  /// Where the expression's number is among the results. Equal parts of expressions are computed once.
  int32_t add(Expr expr);
  size_t size() const { return steps_.size(); }
  /// `symbols`: by Expr::place. `results`: one number for each step.
  void run(const int64_t* symbols, int64_t* results) const;

 private:
  struct Step {
    ExprKind kind;
    int64_t number = 0;  // a constant; a sum's constant; which symbol
    /// Of a sum: coefficient, operand, coefficient, operand... Of others: the operands.
    std::vector<int64_t> parts;
  };
  std::vector<Step> steps_;
  std::unordered_map<const void*, int32_t> known_;
};

}  // namespace magneto::shapes
