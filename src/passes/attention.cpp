// Attention as programs write it out, softmax(query @ key^T * scale + mask) @ value, by one operator that never has all
// scores in memory (runtime/program/attention.cpp).
//
// The law: the operator gives what the operators written out give, rounding aside, for all values, NaN, infinity and
// rows without a key included. It sees to that itself. So a form is taken whose scores are
//
//     product                    bmm(query, key^T), or baddbmm with beta 0 or 1 (the mask) and alpha (the scale)
//     then a scale, or none      mul or div by a number
//     then a mask, or none       add of a tensor; masked_fill or where with a number of which softmax leaves nothing
//
// in this order, in float32 (narrower dtypes are rounded at each of these operators, which the kernel does not do),
// with views and copies between them, and nothing in between read by anybody else. A scale of the query or of the key
// in front of the product is not part of it: it stays in the kernel that makes these.
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <string_view>

#include "graph/aliases.h"
#include "graph/text.h"
#include "passes/effects.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace magneto::passes {
namespace {

using graph::AtenNode;
using graph::kNoValue;
using graph::TensorMeta;
using graph::ValueId;
using graph::ValueKind;
using Sizes = std::vector<int64_t>;

int64_t count(const Sizes& sizes) {
  int64_t result = 1;
  for (const int64_t size : sizes) result *= size;
  return result;
}

// -- what it costs ---------------------------------------------------------------------------------------------------

/// Measured with one thread over head sizes of 32 to 128, lengths of 1 to 1024 and 4 to 96 heads in all. Written out,
/// scores are written and read twice, which costs where they are more than the caches keep, and operands are copied to
/// where bmm wants them. The fused operator packs keys and values anew for each block of queries.
constexpr double kNanosecondsPerByte = 1.0 / 30;
constexpr int64_t kKeptScores = 6 << 20;
constexpr double kCall = 5000;

bool pays(const Sizes& query, int64_t keys, int64_t copied) {
  const int64_t heads = query[0] * query[1], queries = query[2], head_size = query[3];
  const int64_t scores = heads * queries * keys * static_cast<int64_t>(sizeof(float));
  const double saved = kNanosecondsPerByte * static_cast<double>((scores > kKeptScores ? 4 * scores : 0) + 2 * copied);
  const double packing = static_cast<double>(heads * keys) * (30 + static_cast<double>(head_size) / 2) *
                         std::min(1.0, static_cast<double>(queries) / 64);
  return saved > kCall + packing;
}

// -- views -----------------------------------------------------------------------------------------------------------

/// Which dimension of the operand each dimension of a permuted tensor is; nothing for other operators.
std::optional<Sizes> turned_dims(const AtenNode& node, size_t rank) {
  const std::string& name = node.op.operator_name().name;
  const auto known = static_cast<int64_t>(rank);
  if (name == "aten::permute") {
    Sizes dims = std::get<c10::IValue>(node.args[1]).toIntVector();
    for (int64_t& dim : dims) dim += dim < 0 ? known : 0;
    return dims;
  }
  if (name != "aten::transpose" || rank == 0) return std::nullopt;
  Sizes dims(rank);
  std::iota(dims.begin(), dims.end(), 0);
  const auto dim = [&](size_t i) { return (std::get<c10::IValue>(node.args[i]).toInt() + known) % known; };
  std::swap(dims[dim(1)], dims[dim(2)]);
  return dims;
}

enum class Order : uint8_t { Other, Same, LastTwoSwapped };

/// How elements stand to those of a tensor of these sizes whose dimensions they have in the order `dims`.
Order order_of(Sizes dims, const Sizes& sizes) {
  std::erase_if(dims, [&](int64_t dim) { return sizes[dim] == 1; });
  if (std::is_sorted(dims.begin(), dims.end())) return Order::Same;
  std::swap(dims[dims.size() - 2], dims.back());
  return std::is_sorted(dims.begin(), dims.end()) ? Order::LastTwoSwapped : Order::Other;
}

/// A tensor that holds an operand of a product: as [batch, heads, rows, columns] or [heads, rows, columns].
struct Holder {
  ValueId value = kNoValue;
  /// Rows and columns have changed places.
  bool swapped = false;
  /// Bytes of the copies between it and the product that are no part of a kernel that computes something.
  int64_t copied = 0;
};

struct Form {
  Holder query, key, value;
  /// [batch, heads, queries, head size] of the query.
  Sizes sizes;
  double scale = 1;
  bool scaled = false;
  ValueId mask = kNoValue;
  /// Of the scores that it is added to.
  Sizes masked_sizes;
  /// The mask is of bools: scores become `fill` where it is `fill_where`.
  std::optional<double> fill;
  bool fill_where = true;

  bool masked() const { return mask != kNoValue; }
};

// -- finding forms ---------------------------------------------------------------------------------------------------

class Finder {
 public:
  explicit Finder(const Functional& functional) : graph_(functional.graph), readers_(graph_.values.size(), 0) {
    for (const AtenNode& node : graph_.aten_nodes) graph::for_each_operand(node, [&](ValueId id) { ++readers_[id]; });
    for (const ValueId id : graph_.outputs) ++readers_[id];
    for (const auto& write : functional.writes) ++readers_[write.value];
  }

  /// `node` as the last product of a form that pays.
  std::optional<Form> find(const AtenNode& node) const {
    if (node.op.operator_name().name != "aten::bmm") return std::nullopt;
    const ValueId weights = operand(node, 0), value = operand(node, 1);
    if (!plain(weights) || !plain(value)) return std::nullopt;
    Form form;
    const AtenNode* softmax = maker(weights);
    if (!softmax || !is_softmax(*softmax)) return std::nullopt;
    // Rows of the softmax are rows of the product.
    if (sizes(softmax->results[0]).back() != sizes(weights).back()) return std::nullopt;
    const AtenNode* product = find_product(operand(*softmax, 0), form);
    if (!product) return std::nullopt;
    const bool added = product->op.operator_name().name == "aten::baddbmm";
    if (!hold(operand(*product, added), operand(*product, added + 1), value, form)) return std::nullopt;
    if (form.masked() && !fits(form.mask, form)) return std::nullopt;
    const int64_t copied = form.query.copied + form.key.copied + form.value.copied;
    if (!pays(form.sizes, sizes(value)[1], copied)) return std::nullopt;
    return form;
  }

 private:
  using Step = bool (Finder::*)(const AtenNode& node, int scores, Form& form) const;
  /// Operators between the product and the softmax, by what they do to the form; `scores`: the position of what comes
  /// from the product.
  struct Row {
    std::string_view name;
    Step step;
    std::array<int, 2> scores;
  };
  static constexpr std::array<Row, 5> rows() {
    return {{{"aten::mul", &Finder::scale<false>, {0, 1}},
             {"aten::div", &Finder::scale<true>, {0, -1}},
             {"aten::add", &Finder::add_mask, {0, 1}},
             {"aten::masked_fill", &Finder::masked_fill, {0, -1}},
             {"aten::where", &Finder::where, {1, 2}}}};
  }

  const Sizes& sizes(ValueId id) const { return graph_.values[id].meta.sizes; }
  static ValueId operand(const AtenNode& node, size_t i) {
    const auto* id = std::get_if<ValueId>(&node.args[i]);
    return id ? *id : kNoValue;
  }
  const AtenNode* producer(ValueId id) const {
    const int32_t index = graph_.values[id].producer;
    return index < 0 ? nullptr : &graph_.aten_nodes[index];
  }

  /// Its sizes are numbers, and kernels know it.
  bool plain(ValueId id) const {
    if (id == kNoValue) return false;
    const TensorMeta& meta = graph_.values[id].meta;
    return !meta.symbolic && meta.device.is_cpu() && meta.dtype == c10::kFloat && count(meta.sizes) != 0;
  }

  /// What a tensor is a view or a copy of, and how it stands to it. `lone`: nobody else may read what is in between.
  struct Earlier {
    ValueId value = kNoValue;
    Order order = Order::Other;
    bool copied = false;
  };
  Earlier look_through(ValueId id, bool lone) const {
    const AtenNode* node = producer(id);
    const ValueId from = node && !node->args.empty() && node->results.size() == 1 ? operand(*node, 0) : kNoValue;
    if (!plain(from) || count(sizes(from)) != count(sizes(id))) return {};
    if (traits_of(node->op).is(ops::keeps_order)) {
      return {from, Order::Same, node->op.operator_name().name == "aten::clone"};
    }
    auto dims = turned_dims(*node, sizes(from).size());
    Earlier earlier{from};
    while (dims) {
      earlier.order = order_of(*dims, sizes(earlier.value));
      if (earlier.order != Order::Other) return earlier;
      // Turned there and back, as einsum does it.
      node = lone && readers_[earlier.value] != 1 ? nullptr : producer(earlier.value);
      const auto further = node ? turned_dims(*node, dims->size()) : std::nullopt;
      if (!further) break;
      for (int64_t& dim : *dims) dim = (*further)[dim];
      earlier.value = operand(*node, 0);
    }
    return {};
  }

  /// What computes `id`, views and copies aside; null unless only this form reads it.
  const AtenNode* maker(ValueId id) const {
    while (true) {
      if (!plain(id) || readers_[id] != 1) return nullptr;
      const Earlier earlier = look_through(id, true);
      if (earlier.order != Order::Same) return producer(id);
      id = earlier.value;
    }
  }

  bool is_softmax(const AtenNode& node) const {
    if (node.op.operator_name().name != "aten::_softmax") return false;
    const auto rank = static_cast<int64_t>(sizes(node.results[0]).size());
    const int64_t dim = std::get<c10::IValue>(node.args[1]).toInt();
    return rank > 0 && (dim == -1 || dim == rank - 1);
  }

  /// The number that an argument is, or that a tensor without dimensions holds.
  std::optional<double> number(const AtenNode& node, size_t i) const {
    const auto scalar = [](const graph::AtenArg& arg) -> std::optional<double> {
      const auto* constant = std::get_if<c10::IValue>(&arg);
      if (!constant || !constant->isScalar() || constant->isComplexDouble()) return std::nullopt;
      return constant->toScalar().toDouble();
    };
    const ValueId id = operand(node, i);
    if (id == kNoValue) return scalar(node.args[i]);
    const graph::Value& value = graph_.values[id];
    if (!value.meta.sizes.empty() || !value.meta.device.is_cpu() || c10::isComplexType(value.meta.dtype)) return {};
    if (value.kind == ValueKind::Constant) return value.constant.item().toDouble();
    const AtenNode* made = producer(id);
    if (!made) return std::nullopt;
    const std::string& name = made->op.operator_name().name;
    // A number too large for float is infinity there.
    const auto given = name == "aten::scalar_tensor" ? scalar(made->args[0])
                       : name == "aten::full"        ? scalar(made->args[1])
                                                     : std::nullopt;
    return given && value.meta.dtype == c10::kFloat ? static_cast<double>(static_cast<float>(*given)) : given;
  }

  /// Walks from scores to the product that they come from, and notes in `form` what was done to them.
  const AtenNode* find_product(ValueId scores, Form& form) const {
    const AtenNode* node = maker(scores);
    if (!node) return nullptr;
    const std::string& name = node->op.operator_name().name;
    if (name == "aten::bmm") return node;
    if (name == "aten::baddbmm") return add_product(*node, form) ? node : nullptr;
    for (const Row& row : rows()) {
      if (row.name != name) continue;
      for (const int at : row.scores) {
        if (at < 0 || operand(*node, at) == kNoValue || sizes(operand(*node, at)) != sizes(node->results[0])) continue;
        Form further = form;
        if (!(this->*row.step)(*node, at, further)) continue;
        if (const AtenNode* product = find_product(operand(*node, at), further)) {
          form = further;
          return product;
        }
      }
    }
    return nullptr;
  }

  /// Masks come behind the scale, that is, are found before it.
  bool set_mask(ValueId mask, const AtenNode& node, Form& form) const {
    if (mask == kNoValue || form.masked() || form.scaled) return false;
    form.mask = mask;
    form.masked_sizes = sizes(node.results[0]);
    return true;
  }
  static bool set_scale(std::optional<double> scale, Form& form) {
    if (!scale || form.scaled) return false;
    form.scale = *scale;
    return form.scaled = true;
  }

  template <bool divides>
  bool scale(const AtenNode& node, int scores, Form& form) const {
    if (divides && node.args.size() > 2) return false;  // rounding
    const auto by = number(node, 1 - scores);
    return set_scale(by && divides ? 1 / *by : by, form);
  }

  bool add_mask(const AtenNode& node, int scores, Form& form) const {
    return number(node, 2) == 1 && plain(operand(node, 1 - scores)) && set_mask(operand(node, 1 - scores), node, form);
  }

  /// Of a score of `fill` softmax leaves nothing, unless the whole row has it.
  bool set_fill(ValueId mask, bool where, std::optional<double> fill, const AtenNode& node, Form& form) const {
    if (!fill || !(*fill <= -1e4) || mask == kNoValue || graph_.values[mask].meta.dtype != c10::kBool) return false;
    if (graph_.values[mask].meta.symbolic) return false;
    form.fill = fill;
    form.fill_where = where;
    return set_mask(mask, node, form);
  }
  bool masked_fill(const AtenNode& node, int, Form& form) const {
    return set_fill(operand(node, 1), true, number(node, 2), node, form);
  }
  bool where(const AtenNode& node, int scores, Form& form) const {
    return set_fill(operand(node, 0), scores == 2, number(node, 3 - scores), node, form);
  }

  /// beta * mask + alpha * product.
  bool add_product(const AtenNode& node, Form& form) const {
    const auto beta = number(node, 3), alpha = number(node, 4);
    if (!beta || (*beta != 0 && *beta != 1)) return false;
    if (*beta == 1 && !(plain(operand(node, 0)) && set_mask(operand(node, 0), node, form))) return false;
    return *beta == 0 && alpha == 1 ? true : set_scale(alpha, form);
  }

  // -- operands

  /// The tensors that hold what the product reads as `id`, from itself on.
  std::vector<Holder> holders_of(ValueId id) const {
    std::vector<Holder> holders = {{id}};
    while (true) {
      const Earlier earlier = look_through(holders.back().value, false);
      if (earlier.order == Order::Other) return holders;
      Holder next = holders.back();
      next.value = earlier.value;
      next.swapped ^= earlier.order == Order::LastTwoSwapped;
      if (earlier.copied && is_in_memory(next.value)) {
        next.copied += count(sizes(next.value)) * static_cast<int64_t>(sizeof(float));
      }
      holders.push_back(next);
    }
  }

  /// It is there without a kernel that computes it, which could write it in any layout.
  bool is_in_memory(ValueId id) const {
    const AtenNode* node = producer(id);
    while (node && traits_of(node->op).view) node = producer(operand(*node, 0));
    if (!node) return true;
    const std::string& name = node->op.operator_name().name;
    return name == "aten::addmm" || name == "aten::mm" || name == "aten::bmm" || name == "aten::baddbmm";
  }

  /// The last of `holders` that the kernel can read as heads of `rows` by `columns`, its columns side by side.
  const Holder* choose(const std::vector<Holder>& holders, std::optional<Sizes> heads, int64_t rows,
                       int64_t columns) const {
    for (size_t i = holders.size(); i-- > 0;) {
      const TensorMeta& meta = graph_.values[holders[i].value].meta;
      const size_t rank = meta.sizes.size(), outer = heads ? heads->size() : 2;
      if (rank != outer + 2) continue;
      if (heads && !std::equal(heads->begin(), heads->end(), meta.sizes.begin())) continue;
      const size_t column = rank - 1 - holders[i].swapped, row = rank - 2 + holders[i].swapped;
      if (meta.sizes[column] != columns || meta.sizes[row] != rows) continue;
      if (meta.strides[column] == 1 || columns == 1) return &holders[i];
    }
    return nullptr;
  }

  /// Where query, key and value are to be read: with batch and heads apart if all three have them.
  bool hold(ValueId query, ValueId key, ValueId value, Form& form) const {
    if (!plain(query) || !plain(key)) return false;
    const int64_t heads = sizes(query)[0], queries = sizes(query)[1], head_size = sizes(query)[2];
    const int64_t keys = sizes(value)[1];
    if (sizes(value)[2] != head_size || sizes(key)[2] != keys) return false;
    const std::vector<Holder> of_query = holders_of(query), of_value = holders_of(value);
    // The product reads the key with its columns as rows.
    std::vector<Holder> of_key = holders_of(key);
    for (Holder& holder : of_key) holder.swapped = !holder.swapped;
    const auto with = [&](const std::optional<Sizes>& apart) {
      const Holder* q = choose(of_query, apart, queries, head_size);
      const Holder* k = choose(of_key, apart, keys, head_size);
      const Holder* v = choose(of_value, apart, keys, head_size);
      if (!q || !k || !v) return false;
      form.query = *q, form.key = *k, form.value = *v;
      const Sizes& outer = sizes(q->value);
      form.sizes = outer.size() == 4 ? Sizes{outer[0], outer[1]} : Sizes{1, heads};
      form.sizes.insert(form.sizes.end(), {queries, head_size});
      return true;
    };
    if (const Holder* apart = choose(of_query, std::nullopt, queries, head_size)) {
      if (with(Sizes{sizes(apart->value)[0], sizes(apart->value)[1]})) return true;
    }
    return with(Sizes{heads});
  }

  /// The mask spreads over [batch, heads, queries, keys], or over heads of batches side by side.
  bool fits(ValueId mask, const Form& form) const {
    const Sizes& given = sizes(mask);
    const Sizes& key = sizes(form.key.value);
    const Sizes scores = {form.sizes[0], form.sizes[1], form.sizes[2], key[key.size() - (form.key.swapped ? 1 : 2)]};
    // Scores under other sizes, as in blocks, spread a mask in another way.
    if (form.masked_sizes != scores && form.masked_sizes != Sizes{scores[0] * scores[1], scores[2], scores[3]}) {
      return false;
    }
    const size_t skipped = 4 - given.size();
    for (size_t i = 0; i < given.size(); ++i) {
      const int64_t most = given.size() == 3 && i == 0 ? form.sizes[0] * form.sizes[1] : scores[skipped + i];
      if (given[i] != 1 && given[i] != most) return false;
    }
    return true;
  }

  const graph::Graph& graph_;
  std::vector<int32_t> readers_;
};

// -- writing the operator --------------------------------------------------------------------------------------------

class Writer {
 public:
  explicit Writer(Rewriter& out) : out_(out) {}

  void write(const AtenNode& node, const Form& form) {
    torch_node_ = node.torch_node;
    const Sizes& sizes = form.sizes;
    const ValueId query = heads(form.query), key = heads(form.key), value = heads(form.value);
    graph::AtenArg mask = c10::IValue();
    if (form.masked()) mask = this->mask(form);
    TensorMeta meta;
    meta.sizes = {sizes[0], sizes[2], sizes[1], sizes[3]};
    meta.strides = graph::contiguous_strides(meta.sizes);
    const ValueId made = add(
        "magneto::attention", "",
        {query, key, value, mask, c10::IValue(form.scale), form.fill ? c10::IValue(*form.fill) : c10::IValue()}, meta);
    const ValueId turned = transpose(made, 1, 2);
    // What the product gave: of the copy nothing is left where it is turned back.
    TensorMeta copy;
    copy.sizes = sizes;
    copy.strides = graph::contiguous_strides(sizes);
    const ValueId copied =
        add("aten::clone", "", {turned, c10::IValue(static_cast<int64_t>(c10::MemoryFormat::Contiguous))}, copy);
    const TensorMeta& result = out_.old().values[node.results[0]].meta;
    out_.set(node.results[0], add("aten::view", "", {copied, c10::IValue(result.sizes)}, result));
  }

 private:
  const TensorMeta& meta(ValueId id) const { return out_.graph().values[id].meta; }

  ValueId add(const char* name, const char* overload, std::vector<graph::AtenArg> args, const TensorMeta& result) {
    // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): it may lie in the graph that grows
    const TensorMeta made = result;
    return out_.add(find_op(name, overload), std::move(args), {&made}, torch_node_)[0];
  }

  ValueId transpose(ValueId id, int64_t a, int64_t b) {
    TensorMeta turned = meta(id);
    std::swap(turned.sizes[a], turned.sizes[b]);
    std::swap(turned.strides[a], turned.strides[b]);
    return add("aten::transpose", "int", {id, c10::IValue(a), c10::IValue(b)}, turned);
  }

  ValueId unsqueeze(ValueId id) {
    TensorMeta longer = meta(id);
    longer.strides.insert(longer.strides.begin(), longer.sizes.empty() ? 1 : longer.sizes[0] * longer.strides[0]);
    longer.sizes.insert(longer.sizes.begin(), 1);
    return add("aten::unsqueeze", "", {id, c10::IValue(0)}, longer);
  }

  /// As [batch, heads, rows, columns].
  ValueId heads(const Holder& holder) {
    ValueId id = out_.map(holder.value);
    if (meta(id).sizes.size() == 3) id = unsqueeze(id);
    return holder.swapped ? transpose(id, 2, 3) : id;
  }

  /// As a tensor of float32 to add to [batch, heads, queries, keys], its rows without gaps.
  ValueId mask(const Form& form) {
    ValueId id = out_.map(form.mask);
    if (form.fill) {
      if (gone_ == kNoValue) {
        gone_ = out_.graph().add_constant(at::scalar_tensor(-INFINITY));
        kept_ = out_.graph().add_constant(at::scalar_tensor(0.F));
      }
      TensorMeta numbers;
      numbers.sizes = meta(id).sizes;
      numbers.strides = graph::contiguous_strides(numbers.sizes);
      id = add("aten::where", "self", {id, form.fill_where ? gone_ : kept_, form.fill_where ? kept_ : gone_}, numbers);
    }
    if (meta(id).sizes.size() == 3 && meta(id).sizes[0] != 1) {
      const TensorMeta& whole = meta(id);
      TensorMeta apart = whole;
      apart.sizes = {form.sizes[0], form.sizes[1], whole.sizes[1], whole.sizes[2]};
      apart.strides.insert(apart.strides.begin(), form.sizes[1] * whole.strides[0]);
      id = add("aten::view", "", {id, c10::IValue(apart.sizes)}, apart);
    }
    while (meta(id).sizes.size() < 4) id = unsqueeze(id);
    if (meta(id).strides[3] == 1 || meta(id).sizes[3] == 1) return id;
    TensorMeta dense = meta(id);
    dense.strides = graph::contiguous_strides(dense.sizes);
    dense.storage_offset = 0;
    return add("aten::clone", "", {id, c10::IValue(static_cast<int64_t>(c10::MemoryFormat::Contiguous))}, dense);
  }

  Rewriter& out_;
  int32_t torch_node_ = -1;
  ValueId gone_ = kNoValue, kept_ = kNoValue;
};

}  // namespace

void fuse_attention(Functional& functional) {
  std::vector<std::optional<Form>> forms;
  const Finder finder(functional);
  for (const AtenNode& node : functional.graph.aten_nodes) forms.push_back(finder.find(node));
  if (std::none_of(forms.begin(), forms.end(), [](const auto& form) { return form.has_value(); })) return;
  rewrite(functional, [&](Rewriter& out) {
    Writer writer(out);
    for (size_t i = 0; i < forms.size(); ++i) {
      const AtenNode& node = out.old().aten_nodes[i];
      if (forms[i]) {
        writer.write(node, *forms[i]);
      } else {
        out.copy(node);
      }
    }
  });
}

}  // namespace magneto::passes
