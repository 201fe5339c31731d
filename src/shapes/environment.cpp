#include "shapes/environment.h"

#include <algorithm>

namespace magneto::shapes {

using Kind = Relation::Kind;

namespace {

/// Facts beyond this many are not looked through: a question that they decide becomes one more assumption.
constexpr size_t kMostFacts = 128;
/// Of more assumptions than this none is left out for following from the others: that takes a proof for each.
constexpr size_t kMostMinimised = 24;

int64_t checked(std::optional<int64_t> value) {
  if (!value) throw SizeOverflow("a size does not fit in 64 bits");
  return *value;
}

std::optional<int64_t> product(int64_t a, int64_t b) {
  int64_t result;
  return __builtin_mul_overflow(a, b, &result) ? std::nullopt : std::optional(result);
}

std::optional<int64_t> sum(int64_t a, int64_t b) {
  int64_t result;
  return __builtin_add_overflow(a, b, &result) ? std::nullopt : std::optional(result);
}

/// `a` divides all of `b`: the rest of the factors.
std::optional<std::vector<Expr>> without_factor(std::vector<Expr> factors, Expr factor) {
  const auto found = std::find(factors.begin(), factors.end(), factor);
  if (found == factors.end()) return std::nullopt;
  factors.erase(found);
  return factors;
}

/// Bounds add up by terms: what shares none with a fact is not bounded better by it.
bool have_common_term(Expr a, Expr b) {
  const auto has = [](Expr whole, Expr term) {
    if (whole.kind() != ExprKind::Sum) return whole == term;
    return std::find(whole.operands().begin(), whole.operands().end(), term) != whole.operands().end();
  };
  if (a.kind() != ExprKind::Sum) return has(b, a);
  return std::any_of(a.operands().begin(), a.operands().end(), [&](Expr term) { return has(b, term); });
}

std::vector<Expr> factors_of(Expr term) {
  return term.kind() == ExprKind::Product ? term.operands() : std::vector<Expr>{term};
}

}  // namespace

// -- symbols ---------------------------------------------------------------------------------------------------------

Expr Environment::add(Symbol symbol) {
  symbols_.push_back(symbol);
  return Expr::symbol(static_cast<int32_t>(symbols_.size()) - 1);
}

Expr Environment::symbol(int64_t value, Range range) { return add({value, value, range, range, {}, {}}); }

Expr Environment::unbacked(Range range, int64_t example) {
  unbacked_.push_back({{}, example, range, range, {}, {}});
  return Expr::symbol(-static_cast<int32_t>(unbacked_.size()));
}

template <typename Visit>
void Environment::for_each_symbol(const Visit& visit) {
  for (std::vector<Symbol>* symbols : {&symbols_, &unbacked_}) {
    for (Symbol& symbol : *symbols) visit(symbol);
  }
}

template <typename ValueOf>
std::optional<int64_t> Environment::find_value(Expr expr, const ValueOf& value_of) const {
  std::vector<int64_t> parts;
  for (const Expr operand : expr.operands()) {
    const std::optional<int64_t> part = value_of(operand);
    if (!part) return std::nullopt;
    parts.push_back(*part);
  }
  int64_t total;
  switch (expr.kind()) {
    case ExprKind::Sum:
      total = expr.number();
      for (size_t i = 0; i < parts.size(); ++i) {
        total = checked(sum(total, checked(product(expr.coefficients()[i], parts[i]))));
      }
      return total;
    case ExprKind::Product:
      total = 1;
      for (const int64_t part : parts) total = checked(product(total, part));
      return total;
    case ExprKind::FloorDiv:
      return floor_div(parts[0], parts[1]);
    case ExprKind::Mod:
      return mod(parts[0], parts[1]);
    case ExprKind::Min:
      return std::min(parts[0], parts[1]);
    case ExprKind::Max:
      return std::max(parts[0], parts[1]);
    default:
      return std::nullopt;
  }
}

std::optional<int64_t> Environment::value(Expr expr) const {
  if (expr.is_constant()) return expr.number();
  if (expr.kind() == ExprKind::Symbol) return at(expr.id()).value;
  const auto known = values_.find(expr.identity());
  if (known != values_.end()) return known->second;
  const std::optional<int64_t> found = find_value(expr, [&](Expr part) { return value(part); });
  values_.emplace(expr.identity(), found);
  return found;
}

int64_t Environment::example(Expr expr) const {
  if (const std::optional<int64_t> now = value(expr)) return *now;
  if (expr.kind() == ExprKind::Symbol) return at(expr.id()).example;
  return *find_value(expr, [&](Expr part) { return std::optional(example(part)); });
}

Expr Environment::original(Expr expr) const {
  if (expr.is_constant()) return expr;
  if (expr.kind() == ExprKind::Symbol) {
    const std::optional<Expr>& of = at(expr.id()).of;
    return of ? original(*of) : expr;
  }
  if (expr.operands().empty()) return expr;
  const auto known = originals_.find(expr.identity());
  if (known != originals_.end()) return known->second;
  const Expr found = rebuild(expr, [&](Expr part) { return original(part); });
  originals_.emplace(expr.identity(), found);
  return found;
}

Range Environment::leaf_range(Expr leaf) const {
  return leaf.kind() == ExprKind::Symbol ? at(leaf.id()).range : Range{};
}

std::optional<Expr> Environment::leaf_value(Expr leaf) const {
  if (leaf.kind() != ExprKind::Symbol) return std::nullopt;
  const std::optional<Expr>& is = at(leaf.id()).is;
  return is ? is : Knowledge::leaf_value(leaf);
}

bool Environment::divides(Expr divisor, Expr dividend) const {
  return !no_rest_.empty() && no_rest_.count(mod(dividend, divisor).identity()) != 0;
}

// -- questions -------------------------------------------------------------------------------------------------------

/// With what is equal replaced, and without factors that are positive and common to all terms: s0*s1 == s0*s2 asks
/// whether s1 == s2.
Relation Environment::known_form(const Relation& relation) {
  Relation known = with_difference(relation, simplified(relation.difference));
  while (known.difference.kind() == ExprKind::Sum && known.difference.number() == 0) {
    const std::vector<Expr>& terms = known.difference.operands();
    std::optional<Expr> divided;
    for (const Expr factor : factors_of(terms[0])) {
      if (range(factor).low < 1) continue;
      Expr rest = 0;
      const bool common = std::all_of(terms.begin(), terms.end(), [&](const Expr& term) {
        const auto others = without_factor(factors_of(term), factor);
        if (!others) return false;
        Expr left = known.difference.coefficients()[&term - terms.data()];
        for (const Expr other : *others) left *= other;
        rest += left;
        return true;
      });
      if (common) divided = rest;
      if (common) break;
    }
    if (!divided) break;
    known = with_difference(known, simplified(*divided));
  }
  return known;
}

/// The range that p*(a + b) + c has, which that of p*a + p*b + c may not tell.
Range Environment::factored_range(Expr difference) {
  if (difference.kind() != ExprKind::Sum) return {};
  const Expr terms = difference - difference.number();
  if (terms.kind() != ExprKind::Sum || terms.operands().size() < 2) return {};
  for (const Expr factor : factors_of(terms.operands()[0])) {
    const std::optional<Expr> rest = exact_quotient(terms, factor);
    if (!rest) continue;
    const Range outer = range(factor), inner = range(*rest);
    if (outer.low < 1) continue;
    Range bounds;
    if (inner.low >= 1) bounds.low = checked(sum(std::max(outer.low, inner.low), difference.number()));
    if (inner.high <= -1) bounds.high = checked(sum(-outer.low, difference.number()));
    if (bounds.low != INT64_MIN || bounds.high != INT64_MAX) return bounds;
  }
  return {};
}

/// A fact says that the difference is at least zero.
bool Environment::follows(Expr difference) {
  size_t looked = 0;
  for (const Relation& fact : facts_) {
    if (fact.kind == Kind::NonZero || !have_common_term(difference, fact.difference)) continue;
    if (++looked > kMostFacts) return false;
    if (range(difference - fact.difference).low >= 0) return true;
    if (fact.kind == Kind::Zero && range(difference + fact.difference).low >= 0) return true;
  }
  return false;
}

std::optional<bool> Environment::decide_known(const Relation& relation) {
  const Expr difference = relation.difference;
  if (difference.is_constant()) return holds(relation.kind, difference.number());
  if (const std::optional<bool> answer = holds(relation.kind, range(difference))) return answer;
  if (const std::optional<bool> answer = holds(relation.kind, factored_range(difference))) return answer;
  for (const Relation& fact : facts_) {
    if (fact == relation) return true;
    if (fact == !relation) return false;
  }
  if (facts_.empty()) return std::nullopt;
  if (relation.kind == Kind::AtLeastZero) {
    if (follows(difference)) return true;
    if (follows(-1 - difference)) return false;
    return std::nullopt;
  }
  if (follows(difference - 1) || follows(-1 - difference)) return relation.kind == Kind::NonZero;
  if (follows(difference) && follows(0 - difference)) return relation.kind == Kind::Zero;
  return std::nullopt;
}

std::optional<bool> Environment::decide(const Relation& relation) {
  auto& memo = decided_[static_cast<int>(relation.kind)];
  const auto known = memo.find(relation.difference.identity());
  if (known != memo.end() && (known->second.answer || known->second.learnt == learnt_)) return known->second.answer;
  const std::optional<bool> answer = decide_known(known_form(relation));
  memo.insert_or_assign(relation.difference.identity(), Answer{answer, learnt_});
  return answer;
}

std::optional<bool> Environment::evaluate(const Relation& relation) {
  if (const std::optional<bool> answer = decide(relation)) return answer;
  const std::optional<int64_t> now = value(relation.difference);
  if (!now) return std::nullopt;
  const bool answer = holds(relation.kind, *now);
  assume(answer ? relation : !relation);
  return answer;
}

std::optional<int64_t> Environment::specialise(Expr expr) {
  const Expr known = simplified(expr);
  if (known.is_constant()) return known.number();
  const std::optional<int64_t> now = value(expr);
  if (now) assume(equal(expr, *now));
  return now;
}

bool Environment::assume(const Relation& relation) {
  if (const std::optional<bool> answer = decide(relation)) return *answer;
  const std::optional<int64_t> now = value(relation.difference);
  if (now && !holds(relation.kind, *now)) return false;
  assumed_.push_back({relation.kind, original(relation.difference)});
  if (on_assume) on_assume(assumed_.back());
  learn(relation);
  return true;
}

// -- what is learnt --------------------------------------------------------------------------------------------------

void Environment::learn(const Relation& relation) {
  learn_known(known_form(relation));
  ++learnt_;
  if (!reworded_) return;
  // Facts in terms of what is known now; those that say something in ranges or replacements are learnt by that.
  reworded_ = false;
  forget();
  std::vector<Relation> before = std::move(facts_);
  facts_.clear();
  for (const Relation& fact : before) {
    const Relation now = known_form(fact);
    if (now == fact) {
      facts_.push_back(fact);
    } else if (!decide_known(now)) {
      learn(now);
    }
  }
}

void Environment::learn_known(const Relation& known) {
  switch (known.kind) {
    case Kind::Zero:
      return learn_zero(known.difference);
    case Kind::AtLeastZero:
      return learn_at_least_zero(known.difference);
    case Kind::NonZero:
      break;
  }
  const Range bounds = range(known.difference);
  if (bounds.low == 0) return learn_at_least_zero(known.difference - 1);
  if (bounds.high == 0) return learn_at_least_zero(-1 - known.difference);
  add_fact(known);
}

void Environment::add_fact(const Relation& known) {
  facts_.push_back(known);
  if (known.kind != Kind::Zero || known.difference.kind() != ExprKind::Mod) return;
  if (no_rest_.insert(known.difference.identity()).second) reworded_ = true;
}

void Environment::narrow(int32_t symbol, Range range) {
  Range& known = at(symbol).range;
  if (range.low <= known.low && range.high >= known.high) return;
  known = {std::max(known.low, range.low), std::min(known.high, range.high)};
  reworded_ = true;
}

/// False: the symbol stands in what would replace it.
bool Environment::replace(Expr symbol, Expr by) {
  if (depends_on(by, symbol)) return false;
  Symbol& replaced = at(symbol.id());
  replaced.is = by;
  const Range bounds = replaced.range;
  for_each_symbol([&](Symbol& other) {
    if (other.is && depends_on(*other.is, symbol)) {
      other.is = substitute(*other.is, [&](Expr leaf) { return leaf == symbol ? std::optional(by) : std::nullopt; });
    }
  });
  reworded_ = true;
  forget();
  // What was known of the symbol holds for what it is.
  if (bounds.low != INT64_MIN) learn(at_most(bounds.low, by));
  if (bounds.high != INT64_MAX) learn(at_most(by, bounds.high));
  return true;
}

void Environment::learn_zero(Expr difference) {
  // A symbol that stands alone is replaced: one without a value first, then the newest.
  std::optional<Expr> best;
  const auto better = [&](Expr leaf) {
    if (!best) return true;
    const bool old_backed = at(best->id()).value.has_value(), backed = at(leaf.id()).value.has_value();
    return old_backed != backed ? old_backed : std::abs(leaf.id()) > std::abs(best->id());
  };
  any_leaf(difference, [&](Expr leaf) {
    if (leaf.kind() != ExprKind::Symbol) return false;
    const std::optional<Linear> linear = linear_in(difference, leaf);
    const bool alone = linear && (linear->coefficient == Expr(1) || linear->coefficient == Expr(-1));
    if (alone && better(leaf)) best = leaf;
    return false;
  });
  if (best) {
    const Linear linear = *linear_in(difference, *best);
    replace(*best, linear.coefficient == Expr(1) ? 0 - linear.rest : linear.rest);
    return;
  }
  // A symbol that is a multiple of a number: s0 % 8 == 0, or 3*s0 == 8*s1.
  const auto multiple = [&](Expr symbol, int64_t number) {
    const Range bounds = at(symbol.id()).range;
    const std::optional<int64_t> now = at(symbol.id()).value;
    Range range;
    if (bounds.low != INT64_MIN) range.low = -floor_div(-bounds.low, number);
    if (bounds.high != INT64_MAX) range.high = floor_div(bounds.high, number);
    const Expr quotient = add({now ? std::optional(floor_div(*now, number)) : std::nullopt,
                               floor_div(at(symbol.id()).example, number),
                               range,
                               range,
                               {},
                               floor_div(symbol, number)});
    replace(symbol, number * quotient);
  };
  if (difference.kind() == ExprKind::Mod && difference.operands()[0].kind() == ExprKind::Symbol &&
      difference.operands()[1].is_constant() && difference.operands()[1].number() > 1) {
    return multiple(difference.operands()[0], difference.operands()[1].number());
  }
  add_fact({Kind::Zero, difference});
}

void Environment::learn_at_least_zero(Expr difference) {
  // Bounds of each symbol that stands alone, from the bounds of the rest.
  bool expressed = false;
  std::vector<std::pair<int32_t, Range>> found;
  any_leaf(difference, [&](Expr leaf) {
    if (leaf.kind() != ExprKind::Symbol) return false;
    const std::optional<Linear> linear = linear_in(difference, leaf);
    if (!linear || !linear->coefficient.is_constant()) return false;
    const int64_t coefficient = linear->coefficient.number();
    const int64_t most = range(linear->rest).high;
    if (most == INT64_MAX || coefficient == 0) return false;
    // coefficient*leaf >= -most
    Range bounds;
    if (coefficient > 0) bounds.low = -floor_div(most, coefficient);
    if (coefficient < 0) bounds.high = floor_div(most, -coefficient);
    found.emplace_back(leaf.id(), bounds);
    expressed = expressed || linear->rest.is_constant();
    return false;
  });
  for (const auto& [symbol, bounds] : found) narrow(symbol, bounds);
  if (!expressed) add_fact({Kind::AtLeastZero, difference});
}

// -- the guards of a capture -----------------------------------------------------------------------------------------

std::vector<Relation> Environment::guards() const {
  const auto without = [&](const std::vector<Relation>& relations, size_t left_out) {
    Environment environment;
    for (const Symbol& symbol : symbols_) {
      environment.symbols_.push_back({symbol.value, symbol.example, symbol.given, symbol.given, {}, symbol.of});
    }
    for (size_t i = 0; i < relations.size(); ++i) {
      if (i != left_out) environment.assume(relations[i]);
    }
    return environment;
  };
  std::vector<Relation> kept = assumed_;
  std::erase_if(kept, [&](const Relation& relation) { return is_unbacked(relation.difference); });
  if (kept.size() > kMostMinimised) return kept;
  for (size_t i = 0; i < kept.size();) {
    if (without(kept, i).decide(kept[i]) == std::optional(true)) {
      kept.erase(kept.begin() + static_cast<ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  return kept;
}

}  // namespace magneto::shapes
