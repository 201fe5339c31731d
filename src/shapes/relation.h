// Questions about sizes, in one normal form, so that equal questions are equal objects.
#pragma once

#include "shapes/expr.h"

namespace magneto::shapes {

/// What is said of a difference of two expressions.
struct Relation {
  enum class Kind : uint8_t { Zero, NonZero, AtLeastZero };
  Kind kind;
  Expr difference;  // without a common factor of its coefficients; of (in)equalities, with a positive first one

  friend bool operator==(const Relation&, const Relation&) = default;
};

Relation equal(Expr a, Expr b);
Relation not_equal(Expr a, Expr b);
Relation at_most(Expr a, Expr b);
Relation less(Expr a, Expr b);
Relation operator!(const Relation& relation);
/// The same of another difference, in normal form.
Relation with_difference(const Relation& relation, Expr difference);

/// Whether it holds where the difference has this value.
bool holds(Relation::Kind kind, int64_t difference);
/// What follows from the bounds of the difference alone.
std::optional<bool> holds(Relation::Kind kind, Range difference);

/// `Eq(s0, 2*s1)`, `Ne(s0, 4)`, `s0 <= 512`, as torch.compile prints guards.
std::string text(const Relation& relation);
/// Reads `a == b`, `!=`, `<=`, `<`, `>=`, `>`. Errors are std::invalid_argument.
Relation parse_relation(std::string_view text);

}  // namespace magneto::shapes
