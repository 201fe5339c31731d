// What is known of index expressions: a loop variable lies in [0, extent), a symbol in the range of its size.
#pragma once

#include <functional>

#include "shapes/knowledge.h"
#include "shapes/size.h"

namespace magneto::shapes {

/// The symbols of a program: what is known of each, and its number in the run that was captured.
struct SymbolFacts {
  struct Fact {
    Range range;
    int64_t hint = 1;
  };

  void add(int32_t symbol, Fact fact);
  Range range(Expr symbol) const;
  /// An expression of symbols alone.
  Size size(Expr expr) const;

 private:
  std::vector<Fact> facts_;  // by Expr::place
};

class IndexKnowledge final : public Knowledge {
 public:
  /// The extent of a loop variable; null for others.
  using Extent = std::function<const Size*(int32_t variable)>;
  IndexKnowledge(const Extent& extent, const SymbolFacts& symbols) : extent_(extent), symbols_(symbols) {}

  /// expr >= 0 is known.
  bool is_natural(Expr expr);

 protected:
  Range leaf_range(Expr leaf) const override;
  bool is_rest(Expr a, Expr b) override;

 private:
  const Extent& extent_;
  const SymbolFacts& symbols_;
};

/// Some leaf is a loop variable.
bool has_variable(Expr expr);

}  // namespace magneto::shapes
