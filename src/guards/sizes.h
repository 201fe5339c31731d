// What a capture assumed of dynamic sizes, checked at each call.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>
#include <vector>

#include "guards/source.h"
#include "shapes/relation.h"

namespace magneto::guards {

/// No tensor is larger: that a size is less is no assumption.
inline constexpr int64_t kMostSize = int64_t{1} << 62;

/// Where a number is read: a size or stride of a tensor, or an int itself.
struct SizePlace {
  enum class Kind : uint8_t { Size, Stride, Number };
  const Source* source;
  Kind kind = Kind::Size;
  int32_t dim = 0;

  /// `L['x'].size()[0]`
  std::string name() const;
  bool operator==(const SizePlace&) const = default;
};

/// All that was assumed, for one check.
struct SizeAssumptions {
  /// A symbol is what is found there, and lies in the range.
  struct Symbol {
    int32_t id;
    SizePlace place;
    shapes::Range range;
  };
  /// What is found there follows from the symbols.
  struct Same {
    SizePlace place;
    shapes::Expr is;
  };
  std::vector<Symbol> symbols;
  std::vector<Same> same;
  std::vector<shapes::Relation> relations;

  bool empty() const { return symbols.empty(); }
  /// A line for each, in terms of the places: "2*L['x'].size()[0] == L['y'].size()[0]".
  std::vector<std::string> lines() const;
};

/// The assumptions in the form in which they are checked.
class SizeCheck {
 public:
  /// `slot_of`: where the program has the tensor or int of a source.
  template <typename SlotOf>
  SizeCheck(const SizeAssumptions& assumptions, const SlotOf& slot_of);

  /// `values`: by slot.
  bool holds(PyObject* const* values) const;
  /// What does not hold, with the numbers found; empty: all does.
  std::string failure(PyObject* const* values, const SizeAssumptions& assumptions) const;
  const std::vector<int32_t>& slots() const { return slots_; }

 private:
  /// A sum of products of symbols, which nearly all expressions are; else the expression itself.
  struct Terms {
    struct Term {
      int64_t factor;
      std::vector<int32_t> symbols;
    };
    int64_t constant = 0;
    std::vector<Term> terms;
    bool is_polynomial = true;
    shapes::Expr expr;
  };
  struct Found {
    int32_t slot;
    SizePlace::Kind kind;
    int32_t dim;
  };

  static Terms terms_of(shapes::Expr expr);
  int64_t evaluate(const Terms& terms) const;
  static int64_t read(const Found& found, PyObject* const* values, bool* ok);
  bool check(PyObject* const* values, size_t* failed) const;

  std::vector<int32_t> slots_;
  std::vector<Found> symbols_, same_;
  std::vector<int32_t> ids_;
  std::vector<shapes::Range> ranges_;
  std::vector<Terms> same_terms_, relation_terms_;
  std::vector<shapes::Relation::Kind> relation_kinds_;
  mutable std::vector<int64_t> numbers_;  // by symbol; under the GIL
};

template <typename SlotOf>
SizeCheck::SizeCheck(const SizeAssumptions& assumptions, const SlotOf& slot_of) {
  const auto found = [&](const SizePlace& place) {
    const int32_t slot = slot_of(place.source);
    slots_.push_back(slot);
    return Found{slot, place.kind, place.dim};
  };
  for (const auto& symbol : assumptions.symbols) {
    symbols_.push_back(found(symbol.place));
    ids_.push_back(symbol.id);
    ranges_.push_back(symbol.range);
    const size_t place = shapes::Expr::place(symbol.id);
    if (numbers_.size() <= place) numbers_.resize(place + 1);
  }
  for (const auto& same : assumptions.same) {
    same_.push_back(found(same.place));
    same_terms_.push_back(terms_of(same.is));
  }
  for (const shapes::Relation& relation : assumptions.relations) {
    relation_kinds_.push_back(relation.kind);
    relation_terms_.push_back(terms_of(relation.difference));
  }
}

}  // namespace magneto::guards
