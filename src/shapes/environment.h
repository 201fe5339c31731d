// What a capture knows of sizes: symbols with the values that they have in this run, and what was assumed of them.
//
// A size that may differ from call to call is a symbol, s0. Questions about sizes are decided from what is known; what
// is not known is answered as it is in this run and assumed from there on: that is a guard of the capture. Equalities
// replace symbols, so that what is equal is the same expression; a symbol that is a multiple of a number is written as
// that number times a new symbol. Unbacked symbols have no value in this run (the size of a `nonzero`): a question
// about them that what is known does not decide has no answer.
#pragma once

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "shapes/knowledge.h"
#include "shapes/relation.h"

namespace magneto::shapes {

/// A size beyond 64 bits.
struct SizeOverflow : std::overflow_error {
  using std::overflow_error::overflow_error;
};

class Environment final : public Knowledge {
 public:
  Environment() { remember(); }

  /// A symbol for a size that is `value` in this run and lies in `range` in all runs.
  Expr symbol(int64_t value, Range range);
  /// u0: one without a value. `example` stands for it where some number is needed and nothing follows from it.
  Expr unbacked(Range range, int64_t example = 1031);

  /// True or false if that holds for all sizes that fit what is known; nothing: it depends.
  std::optional<bool> decide(const Relation& relation);
  /// The same; what depends is answered as in this run, and assumed. Nothing: it depends on an unbacked symbol.
  std::optional<bool> evaluate(const Relation& relation);
  /// The value in this run, which is assumed to be so in all runs; nothing: as above.
  std::optional<int64_t> specialise(Expr expr);
  /// Takes a relation for granted: torch._check. False: it contradicts what is known.
  bool assume(const Relation& relation);

  /// Called with each assumption, as it is made, in terms of the original symbols.
  std::function<void(const Relation&)> on_assume;

  /// The value in this run; nothing: an unbacked symbol is in it. Throws SizeOverflow.
  std::optional<int64_t> value(Expr expr) const;
  /// The value in this run, with examples for unbacked symbols. Throws SizeOverflow.
  int64_t example(Expr expr) const;
  /// Some unbacked symbol is in it, or what stands for one.
  bool is_unbacked(Expr expr) const { return !value(expr); }
  /// In terms of the symbols that `symbol` and `unbacked` gave.
  Expr original(Expr expr) const;

  /// What was assumed of symbols with values, in order, in terms of the original symbols; with nothing that follows
  /// from the rest.
  std::vector<Relation> guards() const;

 protected:
  Range leaf_range(Expr leaf) const override;
  std::optional<Expr> leaf_value(Expr leaf) const override;
  bool divides(Expr divisor, Expr dividend) const override;

 private:
  struct Symbol {
    std::optional<int64_t> value;
    int64_t example;         // the value, if it has one
    Range range;             // now
    Range given;             // at first
    std::optional<Expr> is;  // replaced by that
    std::optional<Expr> of;  // made for a multiple: what it stands for
  };

  Expr add(Symbol symbol);
  Symbol& at(int32_t symbol) { return symbol < 0 ? unbacked_[-1 - symbol] : symbols_[symbol]; }
  const Symbol& at(int32_t symbol) const { return const_cast<Environment*>(this)->at(symbol); }
  template <typename Visit>
  void for_each_symbol(const Visit& visit);
  template <typename ValueOf>
  std::optional<int64_t> find_value(Expr expr, const ValueOf& value_of) const;
  Relation known_form(const Relation& relation);
  std::optional<bool> decide_known(const Relation& relation);
  Range factored_range(Expr difference);
  bool follows(Expr difference);
  void learn(const Relation& relation);
  void learn_known(const Relation& known);
  void add_fact(const Relation& known);
  void learn_zero(Expr difference);
  void learn_at_least_zero(Expr difference);
  bool replace(Expr symbol, Expr by);
  void narrow(int32_t symbol, Range range);

  std::vector<Symbol> symbols_, unbacked_;   // s0, s1...; u0, u1...
  std::vector<Relation> assumed_;            // as they were asked, original symbols
  std::vector<Relation> facts_;              // known, and not expressed by ranges and replacements
  std::unordered_set<const void*> no_rest_;  // modulos that are zero
  int64_t learnt_ = 0;                       // counts what became known
  bool reworded_ = false;                    // expressions and ranges that were found before may be better now

  struct Answer {
    std::optional<bool> answer;
    int64_t learnt;  // one that depends holds as long as nothing more is known
  };
  std::unordered_map<const void*, Answer> decided_[3];  // by kind and identity of the difference
  mutable std::unordered_map<const void*, std::optional<int64_t>> values_;
  mutable std::unordered_map<const void*, Expr> originals_;
};

}  // namespace magneto::shapes
