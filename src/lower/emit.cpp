// Groups to kernels of the loop IR.
//
// Where each op of a kernel is computed: placement.h. Its buffers and its loops' variables: kernel_frame.h.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <unordered_set>

#include "graph/text.h"
#include "lower/input_writes.h"
#include "lower/late.h"
#include "lower/placement.h"

namespace magneto::lower {
namespace {

using loops::ValueId;

/// Nodes that a new buffer's layout is looked up in.
constexpr size_t kMostLookedAt = 32;

/// What has been computed in the block at hand, and the guards around what is computed next.
class ComputedValues {
 public:
  /// Another block begins.
  void clear() { values_.clear(); }

  /// What `compute` gives for an element of a node, once: what was computed under a guard around this one, or under
  /// none, is there under this one too.
  template <typename Compute>
  ValueId get(NodeId id, const std::vector<Expr>& index, const Compute& compute) {
    std::vector<const void*> key;
    for (const Expr expr : index) key.push_back(expr.identity());
    const auto known = values_.try_emplace({id, std::move(key)}).first;
    for (const Computed& computed : known->second) {
      if (computed.mask == loops::kNoValue || std::ranges::find(masks_, computed.mask) != masks_.end())
        return computed.value;
    }
    const ValueId value = compute();
    known->second.push_back({mask(), value});
    return value;
  }

  ValueId mask() const { return masks_.empty() ? loops::kNoValue : masks_.back(); }
  /// `mask` implies those before it.
  template <typename Compute>
  ValueId under(ValueId mask, const Compute& compute) {
    masks_.push_back(mask);
    const ValueId value = compute();
    masks_.pop_back();
    return value;
  }

 private:
  struct Computed {
    ValueId mask, value;
  };
  std::map<std::pair<NodeId, std::vector<const void*>>, std::vector<Computed>> values_;
  std::vector<ValueId> masks_;  // the outermost first
};

class KernelEmitter {
 public:
  KernelEmitter(const Lowering& lowering, const Groups& groups, int32_t number, const Stores& stores)
      : lowering_(lowering),
        dag_(lowering.dag),
        groups_(groups),
        stores_(stores),
        group_(groups.groups[number]),
        number_(number),
        builder_(name_of(group_)),
        variables_(dag_, group_, builder_),
        buffers_(lowering, builder_),
        placement_(lowering, groups, number, stores, buffers_) {}

  KernelStep run() {
    add_origins();
    const int32_t last = placement_.last_block();
    for (int32_t block = 0; block <= last + 1; ++block) emit_block(block);
    step_.kernel = builder_.take();
    step_.buffers = buffers_.take();
    find_symbols(step_.kernel);
    return std::move(step_);
  }

 private:
  /// The symbols in its expressions become arguments.
  void find_symbols(loops::Kernel& kernel) const {
    std::set<int32_t> symbols;
    const auto add = [&](Expr expr) {
      shapes::any_leaf(expr, [&](Expr leaf) {
        if (leaf.kind() == shapes::ExprKind::Symbol) symbols.insert(leaf.id());
        return false;
      });
    };
    for (const loops::Buffer& buffer : kernel.buffers) add(buffer.size);
    for (const loops::Loop& loop : kernel.parallel) add(loop.extent);
    for (const loops::Block& block : kernel.blocks) {
      for (const loops::Loop& loop : block.loops) add(loop.extent);
      for (const loops::Instruction& instruction : block.code) add(instruction.index);
    }
    for (const int32_t symbol : symbols) {
      // Of a size it is enough to know that it is one: kernels for sizes in other bounds are the same code.
      const shapes::Range range = dag_.symbols.range(Expr::symbol(symbol));
      kernel.symbols.push_back({symbol, range.low < 0 ? range : loops::Symbol::kSizes});
    }
  }

  std::string name_of(const Group& group) const {
    std::string name;
    for (const NodeId op : group.ops) {
      const int32_t origin = lowering_.origin_of(op);
      if (origin < 0) continue;
      std::string text = lowering_.graph().aten_nodes[origin].op.operator_name().name.substr(6);
      if (name.size() >= text.size() && name.compare(name.size() - text.size(), text.size(), text) == 0) continue;
      if (name.size() + text.size() > 40) break;
      name += (name.empty() ? "" : "+") + text;
    }
    return name.empty() ? "kernel" : name;
  }

  void add_origins() {
    std::vector<int32_t> operators;
    std::vector<NodeId> stack(group_.ops.begin(), group_.ops.end());
    std::unordered_set<NodeId> seen;
    while (!stack.empty()) {
      const NodeId id = stack.back();
      stack.pop_back();
      if (!seen.insert(id).second) continue;
      const bool elsewhere = groups_.is_op[id] && groups_.group_of[id] != number_;
      if (elsewhere || dag_[id].kind == NodeKind::Leaf) continue;
      if (const int32_t origin = lowering_.origin_of(id); origin >= 0) operators.push_back(origin);
      for (const NodeId operand : dag_[id].operands) stack.push_back(operand);
    }
    std::sort(operators.begin(), operators.end());
    operators.erase(std::unique(operators.begin(), operators.end()), operators.end());
    step_.operators = operators;
    for (const int32_t index : operators) {
      builder_.origin(graph::origin_text(lowering_.graph(), lowering_.graph().aten_nodes[index]));
    }
  }

  void emit_block(int32_t block) {
    std::vector<size_t> ops, finished;
    for (size_t i = 0; i < group_.ops.size(); ++i) {
      if (placement_.block(i) == block) ops.push_back(i);
      // A reduction is stored behind its stage.
      if (placement_.block(i) == block - 1 && dag_[group_.ops[i]].kind == NodeKind::Reduce &&
          stores_.count(group_.ops[i]))
        finished.push_back(i);
    }
    if (ops.empty() && finished.empty()) return;
    if (block % 2 == 1) {
      variables_.begin_stage();
    } else {
      variables_.begin_row();
    }
    current_block_ = block;
    values_.clear();
    operator_ = -1;
    for (const size_t i : finished) store(i, reduced_.at(group_.ops[i]));
    for (const size_t i : ops) {
      const NodeId op = group_.ops[i];
      const Node& node = dag_[op];
      const std::vector<Expr> index = variables_.bound(group_.index[i]);
      if (node.kind == NodeKind::Reduce) {
        operator_ = lowering_.origin_of(op);
        const ValueId value = eval(node.operands[0], index);
        const ValueId extra = node.operands.size() > 1 ? eval(node.operands[1], index) : loops::kNoValue;
        note_operator(reduced_[op] = builder_.op(node.op, value, extra));
        continue;
      }
      if (node.kind == NodeKind::Scatter) {
        scatter(op, node, index);
        continue;
      }
      const ValueId value = eval(op, index);
      if (!placement_.is_full(i) && group_.has_inner()) row_values_[op] = value;
      store(i, value);
      if (const auto scratch = placement_.scratch(op)) {
        builder_.store(*scratch, variables_.simplify(variables_.place_in_row()), value);
      }
      if (const auto lender = placement_.lender(op)) {
        const Store& target = stores_.at(group_.ops[*lender]).front();
        builder_.store(buffers_.of(target.buffer, loops::Role::Out), place_of(target, *lender), value);
      }
    }
  }

  void store(size_t i, ValueId value) {
    const auto found = stores_.find(group_.ops[i]);
    if (found == stores_.end()) return;
    for (const Store& target : found->second) {
      builder_.store(buffers_.of(target.buffer, loops::Role::Out), place_of(target, i), value);
    }
  }

  /// Where op `i` of the group stands in a buffer that it goes to.
  Expr place_of(const Store& target, size_t i) const {
    const std::vector<Expr> index = variables_.bound(group_.index[i]);
    const Node& node = dag_[group_.ops[i]];
    Expr at = target.offset.expr();
    for (size_t d = 0; d < node.sizes.size(); ++d) {
      if (node.sizes[d] != 1) at += index[d] * target.strides[d].expr();
    }
    return variables_.simplify(at);
  }

  ValueId load(BufferId buffer, Expr index) {
    const loops::BufferId argument = buffers_.of(buffer, loops::Role::In);
    return load_argument(argument, index);
  }
  ValueId load_argument(loops::BufferId argument, Expr index) {
    index = variables_.simplify(index);
    if (mask() == loops::kNoValue) return builder_.load(argument, index);
    const Dtype dtype = loops::value_dtype(buffers_.dtype(argument));
    const ValueId other = loops::is_float(dtype) ? builder_.constant(dtype, 0) : builder_.constant_int(dtype, 0);
    return builder_.load(argument, index, mask(), other);
  }

  ValueId eval(NodeId id, const std::vector<Expr>& index) {
    return values_.get(id, index, [&] {
      // What is only read is there for the operator that reads it.
      const int32_t outer = operator_;
      const int32_t origin = dag_[id].kind == NodeKind::Leaf ? -1 : lowering_.origin_of(id);
      if (origin >= 0) operator_ = origin;
      const ValueId value = compute(id, index);
      note_operator(value);
      operator_ = outer;
      return value;
    });
  }

  /// The values up to this one, as far as they are new, are computed for the operator at hand.
  void note_operator(ValueId value) {
    std::vector<int32_t>& operators = step_.value_operators;
    if (static_cast<size_t>(value) >= operators.size()) operators.resize(value + 1, operator_);
  }

  ValueId compute(NodeId id, const std::vector<Expr>& index) {
    const Node& node = dag_[id];
    if (groups_.is_op[id]) {
      const int i = placement_.position(id);
      if (i < 0) return load_stored(id, index);
      if (const auto found = reduced_.find(id); found != reduced_.end()) return found->second;
      if (const auto found = row_values_.find(id); found != row_values_.end()) return found->second;
      if (placement_.block(i) < current_block_) {
        if (stores_.count(id)) return load_stored(id, index);
        if (const auto scratch = placement_.scratch(id)) return load_argument(*scratch, variables_.place_in_row());
        if (const auto lender = placement_.lender(id)) {
          const Store& target = stores_.at(group_.ops[*lender]).front();
          return load_argument(buffers_.of(target.buffer, loops::Role::Out), place_of(target, *lender));
        }
      }
    }
    switch (node.kind) {
      case NodeKind::Leaf: {
        Expr at = node.data[1].expr();
        for (size_t d = 0; d < index.size(); ++d) at += index[d] * node.data[2 + d].expr();
        return load(node.buffer(), at);
      }
      case NodeKind::Number:
        return loops::is_float(node.dtype) ? builder_.constant(node.dtype, node.number)
                                           : builder_.constant_int(node.dtype, node.data[0].number());
      case NodeKind::Index:
        return builder_.index(mapped(node.map, index)[0]);
      case NodeKind::View:
        return eval(node.operands[0], mapped(node.map, index));
      case NodeKind::Gather:
        return gather(node, index);
      case NodeKind::Guard:
        return guard(node, index);
      case NodeKind::Math: {
        std::array<ValueId, 3> operands = {loops::kNoValue, loops::kNoValue, loops::kNoValue};
        for (size_t k = 0; k < node.operands.size(); ++k) operands[k] = eval(node.operands[k], index);
        if (node.op == Op::Cast) return builder_.cast(node.dtype, operands[0]);
        if (node.op == Op::Select) return builder_.select(operands[0], operands[1], operands[2]);
        return builder_.op(node.op, operands[0], operands[1], operands[2]);
      }
      case NodeKind::Scan: {
        const ValueId value = eval(node.operands[0], index);
        return builder_.op(node.op, value, node.operands.size() > 1 ? eval(node.operands[1], index) : loops::kNoValue);
      }
      case NodeKind::Extra:
        return builder_.op(node.op, eval(node.operands[0], index));
      case NodeKind::Reduce:
      case NodeKind::Scatter:
        break;
    }
    throw std::logic_error("a reduction is read in its own stage, or a scatter is read");
  }

  std::vector<Expr> mapped(const std::vector<Expr>& map, const std::vector<Expr>& index) const {
    std::vector<Expr> result;
    for (const Expr expr : map) {
      result.push_back(variables_.simplify(shapes::substitute(expr, [&](Expr leaf) -> std::optional<Expr> {
        if (leaf.kind() != shapes::ExprKind::Variable) return std::nullopt;
        return index[leaf.id()];
      })));
    }
    return result;
  }

  ValueId load_stored(NodeId id, const std::vector<Expr>& index) {
    const Store& store = stores_.at(id).front();
    Expr at = store.offset.expr();
    for (size_t d = 0; d < index.size(); ++d) {
      if (dag_[id].sizes[d] != 1) at += index[d] * store.strides[d].expr();
    }
    return load(store.buffer, at);
  }

  static std::string message_text(int64_t message, int64_t dim) {
    if (message == kInSelf) return "index out of range in self";
    if (message == kTarget) return "Target {index} is out of bounds.";
    return "index {index} is out of bounds for dimension " + std::to_string(dim) + " with size {size}";
  }

  /// The map of a Gather or a Scatter at `index`, its own indices computed and checked.
  std::vector<Expr> computed_place(const Node& node, const std::vector<Expr>& index) {
    std::vector<Expr> checked;
    for (size_t k = 1; k < node.operands.size(); ++k) {
      const Size* check = &node.data[3 * (k - 1)];
      const ValueId at = eval(node.operands[k], index);
      checked.push_back(Expr::value(
          builder_.bounds(at, check[0].expr(), message_text(check[1].number(), check[2].number()), mask())));
    }
    std::vector<Expr> at;
    for (const Expr expr : node.map) {
      at.push_back(variables_.simplify(shapes::substitute(expr, [&](Expr leaf) -> std::optional<Expr> {
        if (leaf.kind() == shapes::ExprKind::Variable) return index[leaf.id()];
        if (leaf.kind() == shapes::ExprKind::Value) return checked[leaf.id()];
        return std::nullopt;
      })));
    }
    return at;
  }

  ValueId gather(const Node& node, const std::vector<Expr>& index) {
    const std::vector<Expr> at = computed_place(node, index);
    return eval(node.operands[0], at);
  }

  void scatter(NodeId op, const Node& node, const std::vector<Expr>& index) {
    operator_ = lowering_.origin_of(op);
    const ValueId value = eval(node.operands[0], index);
    const std::vector<Expr> place = computed_place(node, index);
    for (const Store& target : stores_.at(op)) {
      Expr at = target.offset.expr();
      for (size_t d = 0; d < place.size(); ++d) at += place[d] * target.strides[d].expr();
      builder_.store_add(buffers_.of(target.buffer, loops::Role::InOut), variables_.simplify(at), value);
    }
  }

  ValueId bound(const Size& size) {
    return size.is_static() ? builder_.constant_int(Dtype::I64, size.number()) : builder_.index(size.expr());
  }

  ValueId guard(const Node& node, const std::vector<Expr>& index) {
    const std::vector<Expr> exprs = mapped(node.map, index);
    for (size_t k = 0; k < exprs.size(); ++k) {
      const Condition condition{exprs[k], node.data[2 * k], node.data[2 * k + 1]};
      if (decided(condition, variables_.knowledge()) == false) return eval(node.operands[1], index);
    }
    ValueId inside = loops::kNoValue;
    const auto also = [&](ValueId condition) {
      inside = inside == loops::kNoValue ? condition : builder_.op(Op::And, inside, condition);
    };
    for (size_t k = 0; k < exprs.size(); ++k) {
      const Size &low = node.data[2 * k], &high = node.data[2 * k + 1];
      shapes::IndexKnowledge known = variables_.knowledge();
      if (!known.is_natural(exprs[k] - low.expr())) also(builder_.op(Op::Ge, builder_.index(exprs[k]), bound(low)));
      if (!known.is_natural(high.expr() - 1 - exprs[k]))
        also(builder_.op(Op::Lt, builder_.index(exprs[k]), bound(high)));
    }
    if (inside == loops::kNoValue) return eval(node.operands[0], index);
    const auto under = [&](ValueId condition, NodeId operand) {
      const ValueId both = mask() == loops::kNoValue ? condition : builder_.op(Op::And, mask(), condition);
      return values_.under(both, [&] { return eval(operand, index); });
    };
    const ValueId a = under(inside, node.operands[0]);
    const ValueId b = under(builder_.op(Op::Not, inside), node.operands[1]);
    return builder_.select(inside, a, b);
  }

  ValueId mask() const { return values_.mask(); }

  const Lowering& lowering_;
  const Dag& dag_;
  const Groups& groups_;
  const Stores& stores_;
  const Group& group_;
  const int32_t number_;
  loops::Builder builder_;
  KernelVariables variables_;
  KernelBuffers buffers_;
  const Placement placement_;
  KernelStep step_;
  std::map<NodeId, ValueId> reduced_, row_values_;
  ComputedValues values_;
  int32_t operator_ = -1;
  int32_t current_block_ = 0;
};

class Emitter {
 public:
  Emitter(Lowering& lowering, const Groups& groups) : lowering_(lowering), dag_(lowering.dag), groups_(groups) {}

  void run() {
    for (const Root& root : lowering_.roots) stores_[root.node].push_back({root.buffer, root.strides, root.offset});
    find_handed_over();
    for (size_t g = 0; g < groups_.groups.size(); ++g) {
      Step step;
      if (groups_.groups[g].call >= 0) {
        step.call = {lowering_.externs[groups_.groups[g].call].node};
      } else {
        step.kernel =
            std::make_unique<KernelStep>(KernelEmitter(lowering_, groups_, static_cast<int32_t>(g), stores_).run());
      }
      lowering_.program.steps.push_back(std::move(step));
    }
    write_inputs(lowering_.program);
    run_late(lowering_.program);
  }

 private:
  /// Ops that another group reads get a buffer.
  void find_handed_over() {
    for (const Group& group : groups_.groups) {
      for (const NodeId op : group.ops) {
        for (const Read& read : groups_.reads[op]) {
          if (groups_.group_of[read.op] == groups_.group_of[op] || stores_.count(read.op)) continue;
          const Node& node = dag_[read.op];
          Buffer buffer;
          buffer.kind = BufferKind::Kernel;
          buffer.dtype = stored_dtype(read.op);
          buffer.sizes = node.sizes;
          buffer.strides = strides_of(read.op);
          lowering_.program.buffers.push_back(buffer);
          stores_[read.op].push_back({static_cast<BufferId>(lowering_.program.buffers.size() - 1), buffer.strides});
        }
      }
    }
  }

  /// It lies in memory as what it is computed of, as far as that is as large and lies in one way: a kernel walks
  /// through all of it in one order.
  Sizes strides_of(NodeId op) const {
    const Sizes& sizes = dag_[op].sizes;
    const Sizes plain = row_major(sizes);
    std::optional<Sizes> common;
    std::vector<NodeId> open = {op};
    std::set<NodeId> seen;
    while (!open.empty() && seen.size() < kMostLookedAt && !lowering_.program.choices.exact) {
      const NodeId id = open.back();
      open.pop_back();
      if (dag_[id].sizes != sizes || !seen.insert(id).second) continue;
      if (dag_[id].kind == NodeKind::Math && !stores_.contains(id)) {
        open.insert(open.end(), dag_[id].operands.begin(), dag_[id].operands.end());
        continue;
      }
      const std::optional<Sizes> strides = place_in_memory(id);
      if (!strides || !is_dense(sizes, *strides)) continue;  // a part of something, or a number that is spread
      if (common && *common != *strides) return plain;
      common = strides;
    }
    return common.value_or(plain);
  }

  /// The strides of what a node is loaded from, or stored to. None: neither. Those of dimensions of size one count
  /// nothing: they are zero.
  std::optional<Sizes> place_in_memory(NodeId id) const {
    const Node& node = dag_[id];
    if (node.kind == NodeKind::Leaf) return Sizes(node.data.begin() + 2, node.data.end());
    const auto stored = stores_.find(id);
    if (stored == stores_.end()) return std::nullopt;
    Sizes strides = stored->second.front().strides;
    for (size_t d = 0; d < strides.size(); ++d) {
      if (node.sizes[d] == 1) strides[d] = 0;
    }
    return strides;
  }

  c10::ScalarType stored_dtype(NodeId id) const {
    switch (dag_[id].dtype) {
      case Dtype::F32:
        if (lowering_.is_rounded(id, Dtype::BF16)) return c10::kBFloat16;
        if (lowering_.is_rounded(id, Dtype::F16)) return c10::kHalf;
        return c10::kFloat;
      case Dtype::F64:
        return c10::kDouble;
      case Dtype::I8:
        return c10::kChar;
      case Dtype::I16:
        return c10::kShort;
      case Dtype::I32:
        return c10::kInt;
      case Dtype::I64:
        return c10::kLong;
      case Dtype::U8:
        return c10::kByte;
      default:
        return c10::kBool;
    }
  }

  Lowering& lowering_;
  const Dag& dag_;
  const Groups& groups_;
  Stores stores_;
};

}  // namespace

void emit(Lowering& lowering, const Groups& groups) { Emitter(lowering, groups).run(); }

}  // namespace magneto::lower
