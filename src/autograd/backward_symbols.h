// The numbers of a backward's piece as symbols: which of them are, and what a program assumes of all.
//
// A number that was another one in a backward of the same key before is a symbol. Numbers that have always been equal
// are one symbol, so that a length that happens to be equal to the batch's size this time is kept apart from it. What
// compiled segments have saved, their own captures have decided on: its sizes follow from the segments' symbols.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "autograd/backward_region.h"
#include "fake/fake.h"
#include "shapes/relation.h"

namespace magneto::autograd {

/// Which numbers are symbols: none, those that have changed, or all sizes but those of parameters.
enum class Varying : uint8_t { Nothing, Changed, All };

struct SymbolChoice {
  Varying varying = Varying::Nothing;
  /// Numbers that have always been equal are one symbol.
  bool duck = true;
  /// The numbers of pieces with the same key that were captured before.
  std::vector<std::vector<int64_t>> before = {};
};

/// What a program assumes of the numbers of a piece.
class NumberGuards {
 public:
  NumberGuards() = default;
  /// They are these, and no others.
  explicit NumberGuards(std::vector<int64_t> numbers) : captured_(std::move(numbers)), free_(captured_.size()) {}

  /// Pieces of the same key and programs.
  bool hold(const std::vector<int64_t>& numbers) const;
  bool has_symbols() const { return !symbols_.empty(); }
  /// For people, a line each.
  std::vector<std::string> lines() const;

 private:
  friend class BackwardSymbols;
  struct Symbol {
    int32_t id;
    size_t number;
    shapes::Range range;
    std::string name;
  };
  struct Same {
    size_t number;
    shapes::Expr is;
  };

  std::vector<int64_t> captured_;
  std::vector<bool> free_;  // of these, which may be others
  std::vector<Symbol> symbols_;
  std::vector<Same> same_;
  std::vector<shapes::Relation> relations_;
};

class BackwardSymbols {
 public:
  BackwardSymbols(const BackwardPiece& piece, fake::Session& session, const SymbolChoice& choice);

  /// A number of the piece; a plain one, where it is no symbol.
  c10::SymInt symint(size_t number) const { return session_.symint(numbers_[number]); }
  /// What stands for a tensor: those that are saved come first, then the tangents.
  at::Tensor stand_in(size_t tensor, std::string name);
  /// The symbols of a segment's backward; `given`: stand-ins for its inputs.
  std::map<int32_t, shapes::Expr> of_segment(const graph::Graph& backward, size_t first_tensor,
                                             const std::vector<at::Tensor>& given) const;

  /// When all is captured: sizes get their final form, symbols are bound. `further`: numbers that the graph is given as
  /// tensors of one element, behind its inputs.
  NumberGuards finish(graph::Graph& graph, std::vector<size_t>& further);

 private:
  using Kind = NumberPlace::Kind;

  const at::Tensor& real(size_t tensor) const;
  std::vector<int64_t> column(size_t number) const;
  bool is_of_parameter(const NumberPlace& place) const;
  bool is_of_workspace(const NumberPlace& place) const;
  bool varies(size_t number, const std::vector<int64_t>& column) const;
  shapes::Expr make_symbol(size_t number);
  void choose(size_t number);
  void choose_strides(size_t tensor);
  shapes::Expr symbol_of_segment(size_t number);
  void choose_of_segment(size_t first_tensor, const Backward& backward);
  std::string name_of(size_t number) const;

  const BackwardPiece& piece_;
  fake::Session& session_;
  const SymbolChoice& choice_;
  std::vector<shapes::Expr> numbers_;
  /// By all values that the number had, and, where only segments have it, by the one it has.
  std::map<std::vector<int64_t>, shapes::Expr> by_column_;
  std::map<int64_t, shapes::Expr> of_segments_;
  std::set<const c10::StorageImpl*> parameters_;
  NumberGuards guards_;
  std::vector<graph::ValueId> values_;  // by tensor: its stand-in
};

}  // namespace magneto::autograd
