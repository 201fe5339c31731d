#include "autograd/backward_symbols.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>

#include "fake/sized_input.h"
#include "graph/symbols.h"
#include "python/imported.h"
#include "shapes/condition.h"
#include "support/tensor_object.h"

namespace magneto::autograd {

using shapes::Expr;

namespace {

/// As in forward captures: sizes 0 and 1 are programs of their own, and no tensor is larger than this.
constexpr shapes::Range kSizes{2, int64_t{1} << 62};

bool is_constant(Expr size) { return size.is_constant(); }

/// Whether it is a size: what is 0 or 1 then is no symbol.
bool is_size(NumberPlace::Kind kind) { return kind != NumberPlace::Kind::Single && kind != NumberPlace::Kind::Content; }

}  // namespace

// -- guards

bool NumberGuards::hold(const std::vector<int64_t>& numbers) const {
  for (size_t i = 0; i < captured_.size(); ++i) {
    if (!free_[i] && numbers[i] != captured_[i]) return false;
  }
  graph::SymbolValues values;
  for (const Symbol& symbol : symbols_) {
    const int64_t number = numbers[symbol.number];
    if (number < symbol.range.low || number > symbol.range.high) return false;
    values.set(symbol.id, number);
  }
  const auto same = [&](const Same& same) { return values(same.is) == numbers[same.number]; };
  const auto holds = [&](const shapes::Relation& relation) {
    return shapes::holds(relation.kind, values(relation.difference));
  };
  return std::ranges::all_of(same_, same) && std::ranges::all_of(relations_, holds);
}

std::vector<std::string> NumberGuards::lines() const {
  std::vector<std::string> lines;
  for (const Symbol& symbol : symbols_) {
    const std::string text = shapes::text(Expr::symbol(symbol.id));
    lines.push_back("create_symbol " + text + " = " + std::to_string(captured_[symbol.number]) + " for " + symbol.name);
  }
  for (const shapes::Relation& relation : relations_) lines.push_back("guard " + shapes::condition(relation));
  return lines;
}

// -- which are symbols

BackwardSymbols::BackwardSymbols(const BackwardPiece& piece, fake::Session& session, const SymbolChoice& choice)
    : piece_(piece),
      session_(session),
      choice_(choice),
      numbers_(piece.numbers().begin(), piece.numbers().end()),
      guards_(piece.numbers()),
      values_(piece.tensors().size() + piece.tangents().size(), graph::kNoValue) {
  if (choice.varying == Varying::Nothing) return;
  const auto& steps = piece.region().steps();
  static constinit Imported parameter("torch.nn", "Parameter");
  for (const BackwardRegion::Step& step : steps) {
    const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(step.node.get());
    if (!leaf || !leaf->variable.has_storage()) continue;
    const Ref object = checked(tensor_object(leaf->variable));
    if (!PyObject_TypeCheck(object.get(), parameter.type())) continue;
    parameters_.insert(leaf->variable.storage().unsafeGetStorageImpl());
  }
  const auto choose_all = [&](const auto& wanted) {
    for (size_t i = 0; i < piece.outline(); ++i) {
      if (wanted(piece.places()[i].kind)) choose(i);
    }
  };
  choose_all([](Kind kind) { return kind == Kind::Size; });
  choose_all([](Kind kind) { return kind == Kind::Gradient || kind == Kind::Listed; });
  choose_all([](Kind kind) { return kind == Kind::Single; });
  for (size_t tensor = 0; tensor < values_.size(); ++tensor) choose_strides(tensor);
  for (size_t i = piece.first(); i < piece.end(); ++i) {
    if (steps[i].role != BackwardRegion::Role::Inside) continue;
    const auto* compiled = dynamic_cast<const CompiledNode*>(steps[i].node.get());
    if (compiled) choose_of_segment(piece.first_tensor(i), compiled->backward());
  }
}

const at::Tensor& BackwardSymbols::real(size_t tensor) const {
  const size_t saved = piece_.tensors().size();
  return tensor < saved ? piece_.tensors()[tensor] : piece_.tangents()[tensor - saved];
}

std::vector<int64_t> BackwardSymbols::column(size_t number) const {
  std::vector<int64_t> column;
  for (const std::vector<int64_t>& numbers : choice_.before) column.push_back(numbers[number]);
  column.push_back(piece_.numbers()[number]);
  return column;
}

/// It keeps its sizes.
bool BackwardSymbols::is_of_parameter(const NumberPlace& place) const {
  const bool of_tensor = place.kind == Kind::Size;
  return of_tensor && parameters_.contains(real(place.owner).storage().unsafeGetStorageImpl());
}

/// Bytes that an operator of the forward keeps for its own gradient. They may grow in pages, and so be as many as
/// before where other sizes have changed.
bool BackwardSymbols::is_of_workspace(const NumberPlace& place) const {
  if (place.kind != Kind::Size) return false;
  const at::Tensor& tensor = real(place.owner);
  return tensor.scalar_type() == at::kByte && tensor.dim() == 1;
}

bool BackwardSymbols::varies(size_t number, const std::vector<int64_t>& column) const {
  const NumberPlace& place = piece_.places()[number];
  if (is_size(place.kind) && column.back() < kSizes.low) return false;
  if (is_of_workspace(place)) return true;
  if (std::ranges::any_of(column, [&](int64_t other) { return other != column.back(); })) return true;
  return choice_.varying == Varying::All && place.kind != Kind::Stride && column.back() >= kSizes.low &&
         !is_of_parameter(place);
}

Expr BackwardSymbols::make_symbol(size_t number) {
  const shapes::Range range = is_size(piece_.places()[number].kind) ? kSizes : shapes::Range{};
  session_.use_symbols();
  const Expr symbol = session_.sizes().symbol(piece_.numbers()[number], range);
  guards_.symbols_.push_back({symbol.id(), number, range, name_of(number)});
  return symbol;
}

void BackwardSymbols::choose(size_t number) {
  std::vector<int64_t> known = column(number);
  if (!varies(number, known)) return;
  if (!choice_.duck) {
    numbers_[number] = make_symbol(number);
    return;
  }
  const auto [place, is_new] = by_column_.try_emplace(std::move(known));
  if (is_new) place->second = make_symbol(number);
  numbers_[number] = place->second;
}

/// Those that follow from sizes, and others that have changed.
void BackwardSymbols::choose_strides(size_t tensor) {
  const size_t first = piece_.first_number_of_tensor(tensor), rank = static_cast<size_t>(real(tensor).dim());
  if (first >= piece_.outline()) return;
  const std::vector<Expr> sizes(numbers_.begin() + first, numbers_.begin() + first + rank);
  const std::vector<Expr> strides = fake::strides_in(real(tensor), sizes);
  for (size_t dim = 0; dim < rank; ++dim) {
    numbers_[first + rank + dim] = strides[dim];
    if (is_constant(strides[dim])) choose(first + rank + dim);
  }
}

/// The segment's symbols are ours, where a number tells which.
Expr BackwardSymbols::symbol_of_segment(size_t number) {
  const int64_t now = piece_.numbers()[number];
  if (is_size(piece_.places()[number].kind) && now < kSizes.low) return now;
  std::vector<Expr> equal;
  for (const auto& [column, symbol] : by_column_) {
    if (column.back() == now) equal.push_back(symbol);
  }
  if (equal.size() == 1) return equal[0];
  if (!equal.empty() || !choice_.duck) return make_symbol(number);
  const auto [known, is_new] = of_segments_.try_emplace(now);
  if (is_new) known->second = make_symbol(number);
  return known->second;
}

void BackwardSymbols::choose_of_segment(size_t first_tensor, const Backward& backward) {
  std::map<int32_t, Expr> symbols;
  const auto number_at = [&](const graph::SymbolBinding& symbol) -> std::optional<size_t> {
    const auto input = std::ranges::find(backward.graph.inputs, symbol.value) - backward.graph.inputs.begin();
    if (static_cast<size_t>(input) >= backward.saved.size()) return std::nullopt;  // a tangent says it
    const size_t tensor = first_tensor + static_cast<size_t>(input);
    const int64_t holds = 2 * real(tensor).dim();
    return piece_.first_number_of_tensor(tensor) + static_cast<size_t>(symbol.dim < 0 ? holds : symbol.dim);
  };
  for (const graph::SymbolBinding& symbol : backward.graph.symbols) {
    const auto number = number_at(symbol);
    if (number) symbols[symbol.symbol] = numbers_[*number] = symbol_of_segment(*number);
  }
  const auto settle = [&](size_t number, Expr size) {
    if (!is_constant(numbers_[number]) || is_constant(size)) return;
    const auto unknown = [&](Expr leaf) { return !symbols.contains(leaf.id()); };
    const auto replaced = [&](Expr leaf) { return std::optional(symbols.at(leaf.id())); };
    numbers_[number] = shapes::any_leaf(size, unknown) ? symbol_of_segment(number) : shapes::substitute(size, replaced);
  };
  for (size_t i = 0; i < backward.saved.size(); ++i) {
    const graph::TensorMeta& meta = backward.graph.values[backward.graph.inputs[i]].meta;
    if (!meta.symbolic) continue;
    const size_t first = piece_.first_number_of_tensor(first_tensor + i), rank = meta.sizes.size();
    for (size_t dim = 0; dim < rank; ++dim) {
      settle(first + dim, meta.symbolic->sizes[dim]);
      settle(first + rank + dim, meta.symbolic->strides[dim]);
    }
  }
}

// -- the capture

at::Tensor BackwardSymbols::stand_in(size_t tensor, std::string name) {
  const at::Tensor& of = real(tensor);
  const auto first = numbers_.begin() + static_cast<std::ptrdiff_t>(piece_.first_number_of_tensor(tensor));
  const auto middle = first + of.dim(), end = middle + of.dim();
  at::Tensor made = std::all_of(first, end, is_constant)
                        ? session_.make_input(of, std::move(name))
                        : fake::make_sized_input(session_, of, std::move(name),
                                                 {{first, middle}, {middle, end}, Expr(of.storage_offset())});
  values_[tensor] = session_.value_of(made);
  return made;
}

std::map<int32_t, Expr> BackwardSymbols::of_segment(const graph::Graph& backward, size_t first_tensor,
                                                    const std::vector<at::Tensor>& given) const {
  std::map<int32_t, Expr> symbols;
  for (const graph::SymbolBinding& symbol : backward.symbols) {
    const auto input = static_cast<size_t>(std::ranges::find(backward.inputs, symbol.value) - backward.inputs.begin());
    if (symbol.dim >= 0) {
      symbols[symbol.symbol] = session_.sizes_of(given.at(input)).at(symbol.dim);
    } else {
      const size_t holds = 2 * static_cast<size_t>(given.at(input).dim());
      symbols[symbol.symbol] = numbers_[piece_.first_number_of_tensor(first_tensor + input) + holds];
    }
  }
  return symbols;
}

NumberGuards BackwardSymbols::finish(graph::Graph& graph, std::vector<size_t>& further) {
  shapes::Environment& environment = session_.sizes();
  const std::set<int32_t> used = fake::settle_sizes(session_, graph);
  for (size_t i = 0; i < numbers_.size(); ++i) {
    guards_.free_[i] = !is_constant(numbers_[i]);
    const bool own = std::ranges::count(guards_.symbols_, i, &NumberGuards::Symbol::number) > 0;
    if (guards_.free_[i] && !own) guards_.same_.push_back({i, numbers_[i]});
  }
  for (const NumberGuards::Symbol& symbol : guards_.symbols_) {
    if (!used.contains(symbol.id)) continue;
    const Expr expr = Expr::symbol(symbol.id);
    const auto tells = [&](size_t number) {
      const Kind kind = piece_.places()[number].kind;
      return numbers_[number] == expr && (kind == Kind::Size || kind == Kind::Content);
    };
    size_t number = symbol.number;
    while (number < numbers_.size() && !tells(number)) ++number;
    graph::SymbolBinding binding{.symbol = symbol.id,
                                 .value = graph::kNoValue,
                                 .dim = -1,
                                 .range = environment.range(environment.simplified(expr)),
                                 .hint = piece_.numbers()[symbol.number]};
    if (number < numbers_.size()) {
      const NumberPlace& place = piece_.places()[number];
      binding.value = values_[place.owner];
      if (place.kind == Kind::Size) binding.dim = place.dim;
    } else {
      further.push_back(symbol.number);
      binding.value = graph.add_input("numbers_" + std::to_string(further.size()), {.dtype = c10::kLong});
    }
    graph.symbols.push_back(binding);
  }
  guards_.relations_ = environment.guards();
  return std::move(guards_);
}

std::string BackwardSymbols::name_of(size_t number) const {
  const NumberPlace& place = piece_.places()[number];
  const auto saved = static_cast<int32_t>(piece_.tensors().size());
  const bool is_saved = place.owner < saved;
  const std::string tensor =
      (is_saved ? "saved_" : "tangents_") + std::to_string(is_saved ? place.owner + 1 : place.owner - saved + 1);
  switch (place.kind) {
    case Kind::Size:
      return tensor + ".size()[" + std::to_string(place.dim) + "]";
    case Kind::Stride:
      return tensor + ".stride()[" + std::to_string(place.dim) + "]";
    case Kind::Content:
      return tensor;
    case Kind::Gradient:
    case Kind::Listed:
    case Kind::Single:
      break;
  }
  const std::string which = std::to_string(number - piece_.first_number(place.owner) + 1);
  return "number " + which + " of " + piece_.region().steps()[place.owner].node->name();
}

}  // namespace magneto::autograd
