// Groups to kernels of the loop IR.
//
// Blocks of a kernel alternate: even ones are rows, odd ones stages. An op is computed in the first block of its kind
// behind everything that it reads; a stage that needs an expression of an earlier stage loads it from where it was
// stored, or from scratch memory if it is dear, or computes it again.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <unordered_set>

#include "graph/text.h"
#include "lower/groups.h"
#include "lower/input_writes.h"

namespace magneto::lower {
namespace {

using loops::ValueId;

/// An expression that costs more than this is kept in scratch memory for later stages.
constexpr float kExpensive = 2.5f;
/// Or, where a row is too long for that or its length not known, in the place of a result; of so many bytes at most,
/// which the nearest caches hold.
constexpr int64_t kReuseLimitBytes = 1 << 20;

/// Where a kernel's results go.
struct Store {
  BufferId buffer;
  Sizes strides;
  Size offset;
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
        step.kernel = std::make_unique<KernelStep>(kernel(groups_.groups[g], static_cast<int32_t>(g)));
      }
      lowering_.program.steps.push_back(std::move(step));
    }
    write_inputs(lowering_.program);
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
          buffer.strides = row_major(node.sizes);
          lowering_.program.buffers.push_back(buffer);
          stores_[read.op].push_back({static_cast<BufferId>(lowering_.program.buffers.size() - 1), buffer.strides});
        }
      }
    }
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

  // -- one kernel
  // ----------------------------------------------------------------------------------------------------------

  KernelStep kernel(const Group& group, int32_t number) {
    group_ = &group;
    number_ = number;
    builder_.emplace(name_of(group));
    step_ = {};
    buffers_.clear();
    scratch_.clear();
    lent_.clear();
    taken_.clear();
    argument_dtypes_.clear();
    reduced_.clear();
    row_values_.clear();
    row_variables_.clear();
    extents_.clear();
    for (const Axis& axis : group.axes) {
      if (!axis.inner) row_variables_.emplace(axis.variable, bind(axis, builder_->parallel(axis.extent.expr())));
    }
    place();
    add_origins();
    int32_t last = 0;
    for (const int32_t block : block_) last = std::max(last, block);
    for (int32_t block = 0; block <= last + 1; ++block) emit_block(block);
    step_.kernel = builder_->take();
    find_symbols(step_.kernel);
    return std::move(step_);
  }

  Expr bind(const Axis& axis, Expr variable) {
    extents_.resize(std::max<size_t>(extents_.size(), variable.id() + 1));
    extents_[variable.id()] = axis.extent;
    return variable;
  }

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
    std::vector<NodeId> stack(group_->ops.begin(), group_->ops.end());
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
      builder_->origin(graph::origin_text(lowering_.graph(), lowering_.graph().aten_nodes[index]));
    }
  }

  /// Which block each op is computed in, and which expressions go through scratch.
  void place() {
    const bool staged = group_->has_inner();
    block_.assign(group_->ops.size(), 0);
    full_.assign(group_->ops.size(), false);
    for (size_t i = 0; i < group_->ops.size(); ++i) {
      const NodeId op = group_->ops[i];
      full_[i] = staged && (is_reduction(op) || uses_inner(i));
      int32_t block = full_[i] ? 1 : 0;
      for (const Read& read : groups_.reads[op]) {
        const int j = position(read.op);
        if (j < 0) continue;
        // Behind a reduction; in the block of a row or of an expression, or later.
        block = std::max(block, block_[j] + (is_reduction(read.op) && dag_[read.op].kind == NodeKind::Reduce ? 1 : 0));
      }
      if ((block % 2 == 1) != full_[i]) ++block;
      block_[i] = block;
    }
    if (!staged) return;
    Size inner = 1;
    for (const Axis& axis : group_->axes) inner *= axis.inner ? axis.extent : 1;
    for (size_t i = 0; i < group_->ops.size(); ++i) {
      const NodeId op = group_->ops[i];
      for (const Read& read : groups_.reads[op]) {
        const int j = position(read.op);
        if (j < 0 || !full_[j] || block_[j] == block_[i] || dag_[read.op].kind == NodeKind::Reduce) continue;
        const bool must = dag_[read.op].kind == NodeKind::Scan;
        if (stores_.count(read.op) || scratch_.count(read.op)) continue;
        const bool dear = must || groups_.weight[read.op] > kExpensive;
        const int64_t bytes = inner.hint() * loops::dtype_bytes(dag_[read.op].dtype);
        if (dear && (!inner.is_static() || bytes > loops::kScratchBytes)) {
          if (bytes <= kReuseLimitBytes) lend(read.op);
        } else if (dear) {
          scratch_[read.op] = builder_->buffer(dag_[read.op].dtype, loops::Role::Scratch, inner.expr());
          note_dtype(scratch_[read.op], dag_[read.op].dtype);
        }
      }
    }
  }

  /// No scratch memory holds `op`: it stands until then where a result will that is made of it, if there is one that
  /// all who read `op` come before.
  void lend(NodeId op) {
    if (lent_.count(op)) return;
    int32_t last = 0;
    for (size_t i = 0; i < group_->ops.size(); ++i) {
      if (reads(i, op)) last = std::max(last, block_[i]);
    }
    for (size_t i = 0; i < group_->ops.size(); ++i) {
      const auto stored = stores_.find(group_->ops[i]);
      if (block_[i] != last || !full_[i] || !reads(i, op) || stored == stores_.end()) continue;
      if (dag_[group_->ops[i]].kind == NodeKind::Reduce || taken_.count(group_->ops[i])) continue;
      const BufferId buffer = stored->second.front().buffer;
      if (*loop_dtype(lowering_.program.buffers[buffer].dtype) != dag_[op].dtype) continue;
      if (dag_[group_->ops[i]].sizes != dag_[op].sizes) continue;
      lent_[op] = i;
      taken_.insert(group_->ops[i]);
      return;
    }
  }
  bool reads(size_t i, NodeId op) const {
    return std::ranges::any_of(groups_.reads[group_->ops[i]], [&](const Read& read) { return read.op == op; });
  }

  int position(NodeId op) const {
    if (groups_.group_of[op] != number_ || !groups_.is_op[op]) return -1;
    const auto found = std::find(group_->ops.begin(), group_->ops.end(), op);
    return found == group_->ops.end() ? -1 : static_cast<int>(found - group_->ops.begin());
  }
  bool is_reduction(NodeId op) const { return dag_[op].kind == NodeKind::Reduce || dag_[op].kind == NodeKind::Scan; }
  bool uses_inner(size_t i) const {
    for (const Axis& axis : group_->axes) {
      if (!axis.inner) continue;
      const Expr variable = Expr::variable(axis.variable);
      for (const Expr expr : group_->index[i]) {
        if (shapes::depends_on(expr, variable)) return true;
      }
    }
    // Only if the inner axes have one iteration each: then rows do as well.
    return false;
  }

  void emit_block(int32_t block) {
    std::vector<size_t> ops, finished;
    for (size_t i = 0; i < group_->ops.size(); ++i) {
      if (block_[i] == block) ops.push_back(i);
      // A reduction is stored behind its stage.
      if (block_[i] == block - 1 && dag_[group_->ops[i]].kind == NodeKind::Reduce && stores_.count(group_->ops[i]))
        finished.push_back(i);
    }
    if (ops.empty() && finished.empty()) return;
    variables_ = row_variables_;
    inner_position_ = Expr(0);
    if (block % 2 == 1) {
      std::vector<Expr> extents;
      for (const Axis& axis : group_->axes) {
        if (axis.inner) extents.push_back(axis.extent.expr());
      }
      const std::vector<Expr> variables = builder_->stage(extents);
      size_t next = 0;
      for (const Axis& axis : group_->axes) {
        if (!axis.inner) continue;
        variables_[axis.variable] = bind(axis, variables[next]);
        inner_position_ = inner_position_ * axis.extent.expr() + variables[next++];
      }
    } else {
      builder_->row();
    }
    current_block_ = block;
    values_.clear();
    operator_ = -1;
    for (const size_t i : finished) store(i, reduced_.at(group_->ops[i]));
    for (const size_t i : ops) {
      const NodeId op = group_->ops[i];
      const Node& node = dag_[op];
      const std::vector<Expr> index = bound(group_->index[i]);
      if (node.kind == NodeKind::Reduce) {
        operator_ = lowering_.origin_of(op);
        const ValueId value = eval(node.operands[0], index);
        const ValueId extra = node.operands.size() > 1 ? eval(node.operands[1], index) : loops::kNoValue;
        note_operator(reduced_[op] = builder_->op(node.op, value, extra));
        continue;
      }
      const ValueId value = eval(op, index);
      if (!full_[i] && group_->has_inner()) row_values_[op] = value;
      store(i, value);
      if (const auto scratch = scratch_.find(op); scratch != scratch_.end()) {
        builder_->store(scratch->second, simplify(inner_position_), value);
      }
      if (const auto lent = lent_.find(op); lent != lent_.end()) {
        const Store& target = stores_.at(group_->ops[lent->second]).front();
        builder_->store(kernel_buffer(target.buffer, loops::Role::Out), place_of(target, lent->second), value);
      }
    }
  }

  void store(size_t i, ValueId value) {
    const auto found = stores_.find(group_->ops[i]);
    if (found == stores_.end()) return;
    for (const Store& target : found->second) {
      builder_->store(kernel_buffer(target.buffer, loops::Role::Out), place_of(target, i), value);
    }
  }

  /// Where op `i` of the group stands in a buffer that it goes to.
  Expr place_of(const Store& target, size_t i) const {
    const std::vector<Expr> index = bound(group_->index[i]);
    const Node& node = dag_[group_->ops[i]];
    Expr at = target.offset.expr();
    for (size_t d = 0; d < node.sizes.size(); ++d) {
      if (node.sizes[d] != 1) at += index[d] * target.strides[d].expr();
    }
    return simplify(at);
  }

  /// Axis variables replaced by the kernel's.
  std::vector<Expr> bound(const std::vector<Expr>& index) const {
    std::vector<Expr> result;
    for (const Expr expr : index) {
      result.push_back(simplify(shapes::substitute(expr, [&](Expr leaf) -> std::optional<Expr> {
        if (leaf.kind() != shapes::ExprKind::Variable) return std::nullopt;
        const auto found = variables_.find(leaf.id());
        // A reduced dimension, asked for behind its stage: only one of size one can be.
        return found == variables_.end() ? Expr(0) : found->second;
      })));
    }
    return result;
  }

  Expr simplify(Expr expr) const {
    if (expr.is_constant()) return expr;
    return shapes::IndexKnowledge(extent_, dag_.symbols).simplified(expr);
  }

  loops::BufferId kernel_buffer(BufferId buffer, loops::Role role) {
    const auto [entry, added] = buffers_.try_emplace(buffer, -1);
    if (added) {
      const Buffer& info = lowering_.program.buffers[buffer];
      const std::string name = info.value == graph::kNoValue ? "" : "%" + std::to_string(info.value);
      entry->second = builder_->buffer(*loop_dtype(info.dtype), role, lowering_.program.span(buffer).expr(), name);
      note_dtype(entry->second, *loop_dtype(info.dtype));
      while (step_.buffers.size() <= static_cast<size_t>(entry->second)) step_.buffers.push_back(kNoBuffer);
      step_.buffers[entry->second] = buffer;
    }
    if (role == loops::Role::Out) builder_->written(entry->second);
    return entry->second;
  }

  // -- expressions
  // -----------------------------------------------------------------------------------------------------------

  void note_dtype(loops::BufferId argument, Dtype dtype) {
    argument_dtypes_.resize(std::max<size_t>(argument_dtypes_.size(), argument + 1));
    argument_dtypes_[argument] = dtype;
  }

  ValueId load(BufferId buffer, Expr index) {
    const loops::BufferId argument = kernel_buffer(buffer, loops::Role::In);
    return load_argument(argument, index);
  }
  ValueId load_argument(loops::BufferId argument, Expr index) {
    index = simplify(index);
    if (masks_.empty()) return builder_->load(argument, index);
    const Dtype dtype = loops::value_dtype(argument_dtypes_[argument]);
    const ValueId other = loops::is_float(dtype) ? builder_->constant(dtype, 0) : builder_->constant_int(dtype, 0);
    return builder_->load(argument, index, mask(), other);
  }

  ValueId eval(NodeId id, const std::vector<Expr>& index) {
    std::vector<const void*> key;
    for (const Expr expr : index) key.push_back(expr.identity());
    const auto known = values_.try_emplace({id, std::move(key)}).first;
    // What was computed under a mask around this one, or under none, is there under this one too.
    for (const Computed& computed : known->second) {
      if (computed.mask == loops::kNoValue || std::ranges::find(masks_, computed.mask) != masks_.end())
        return computed.value;
    }
    // What is only read is there for the operator that reads it.
    const int32_t outer = operator_;
    const int32_t origin = dag_[id].kind == NodeKind::Leaf ? -1 : lowering_.origin_of(id);
    if (origin >= 0) operator_ = origin;
    const ValueId value = compute(id, index);
    note_operator(value);
    operator_ = outer;
    known->second.push_back({mask(), value});
    return value;
  }

  /// The values up to this one, as far as they are new, are computed for the operator at hand.
  void note_operator(ValueId value) {
    std::vector<int32_t>& operators = step_.value_operators;
    if (static_cast<size_t>(value) >= operators.size()) operators.resize(value + 1, operator_);
  }

  ValueId compute(NodeId id, const std::vector<Expr>& index) {
    const Node& node = dag_[id];
    if (groups_.is_op[id]) {
      const int i = position(id);
      if (i < 0) return load_stored(id, index);
      if (const auto found = reduced_.find(id); found != reduced_.end()) return found->second;
      if (const auto found = row_values_.find(id); found != row_values_.end()) return found->second;
      if (block_[i] < current_block_) {
        if (stores_.count(id)) return load_stored(id, index);
        if (const auto scratch = scratch_.find(id); scratch != scratch_.end()) {
          return load_argument(scratch->second, inner_position_);
        }
        if (const auto lent = lent_.find(id); lent != lent_.end()) {
          const Store& target = stores_.at(group_->ops[lent->second]).front();
          return load_argument(kernel_buffer(target.buffer, loops::Role::Out), place_of(target, lent->second));
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
        return loops::is_float(node.dtype) ? builder_->constant(node.dtype, node.number)
                                           : builder_->constant_int(node.dtype, node.data[0].number());
      case NodeKind::Index:
        return builder_->index(mapped(node.map, index)[0]);
      case NodeKind::View:
        return eval(node.operands[0], mapped(node.map, index));
      case NodeKind::Gather:
        return gather(node, index);
      case NodeKind::Guard:
        return guard(node, index);
      case NodeKind::Math: {
        std::array<ValueId, 3> operands = {loops::kNoValue, loops::kNoValue, loops::kNoValue};
        for (size_t k = 0; k < node.operands.size(); ++k) operands[k] = eval(node.operands[k], index);
        if (node.op == Op::Cast) return builder_->cast(node.dtype, operands[0]);
        if (node.op == Op::Select) return builder_->select(operands[0], operands[1], operands[2]);
        return builder_->op(node.op, operands[0], operands[1], operands[2]);
      }
      case NodeKind::Scan: {
        const ValueId value = eval(node.operands[0], index);
        return builder_->op(node.op, value, node.operands.size() > 1 ? eval(node.operands[1], index) : loops::kNoValue);
      }
      case NodeKind::Extra:
        return builder_->op(node.op, eval(node.operands[0], index));
      case NodeKind::Reduce:
        break;
    }
    throw std::logic_error("a reduction is read in its own stage");
  }

  std::vector<Expr> mapped(const std::vector<Expr>& map, const std::vector<Expr>& index) const {
    std::vector<Expr> result;
    for (const Expr expr : map) {
      result.push_back(simplify(shapes::substitute(expr, [&](Expr leaf) -> std::optional<Expr> {
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

  ValueId gather(const Node& node, const std::vector<Expr>& index) {
    std::vector<Expr> checked;
    for (size_t k = 1; k < node.operands.size(); ++k) {
      const Size* check = &node.data[3 * (k - 1)];
      const ValueId at = eval(node.operands[k], index);
      checked.push_back(Expr::value(
          builder_->bounds(at, check[0].expr(), message_text(check[1].number(), check[2].number()), mask())));
    }
    std::vector<Expr> at;
    for (const Expr expr : node.map) {
      at.push_back(simplify(shapes::substitute(expr, [&](Expr leaf) -> std::optional<Expr> {
        if (leaf.kind() == shapes::ExprKind::Variable) return index[leaf.id()];
        if (leaf.kind() == shapes::ExprKind::Value) return checked[leaf.id()];
        return std::nullopt;
      })));
    }
    return eval(node.operands[0], at);
  }

  ValueId bound(const Size& size) {
    return size.is_static() ? builder_->constant_int(Dtype::I64, size.number()) : builder_->index(size.expr());
  }

  ValueId guard(const Node& node, const std::vector<Expr>& index) {
    const std::vector<Expr> exprs = mapped(node.map, index);
    for (size_t k = 0; k < exprs.size(); ++k) {
      const Condition condition{exprs[k], node.data[2 * k], node.data[2 * k + 1]};
      if (decided(condition, {extent_, dag_.symbols}) == false) return eval(node.operands[1], index);
    }
    ValueId inside = loops::kNoValue;
    const auto also = [&](ValueId condition) {
      inside = inside == loops::kNoValue ? condition : builder_->op(Op::And, inside, condition);
    };
    for (size_t k = 0; k < exprs.size(); ++k) {
      const Size &low = node.data[2 * k], &high = node.data[2 * k + 1];
      shapes::IndexKnowledge known(extent_, dag_.symbols);
      if (!known.is_natural(exprs[k] - low.expr())) also(builder_->op(Op::Ge, builder_->index(exprs[k]), bound(low)));
      if (!known.is_natural(high.expr() - 1 - exprs[k]))
        also(builder_->op(Op::Lt, builder_->index(exprs[k]), bound(high)));
    }
    if (inside == loops::kNoValue) return eval(node.operands[0], index);
    const auto under = [&](ValueId condition, NodeId operand) {
      masks_.push_back(masks_.empty() ? condition : builder_->op(Op::And, mask(), condition));
      const ValueId value = eval(operand, index);
      masks_.pop_back();
      return value;
    };
    const ValueId a = under(inside, node.operands[0]);
    const ValueId b = under(builder_->op(Op::Not, inside), node.operands[1]);
    return builder_->select(inside, a, b);
  }

  Lowering& lowering_;
  const Dag& dag_;
  const Groups& groups_;
  std::map<NodeId, std::vector<Store>> stores_;

  // Of the kernel at hand.
  const Group* group_ = nullptr;
  int32_t number_ = -1;
  std::optional<loops::Builder> builder_;
  KernelStep step_;
  std::vector<Dtype> argument_dtypes_;  // by buffer of the kernel
  std::map<BufferId, loops::BufferId> buffers_;
  std::map<NodeId, loops::BufferId> scratch_;
  /// Ops that stand for a while where a result will: which op of the group that is.
  std::map<NodeId, size_t> lent_;
  std::set<NodeId> taken_;
  std::vector<int32_t> block_;
  std::vector<bool> full_;
  std::map<int32_t, Expr> row_variables_, variables_;
  Sizes extents_;  // by variable
  const shapes::IndexKnowledge::Extent extent_ = [this](int32_t variable) {
    return static_cast<size_t>(variable) < extents_.size() ? &extents_[variable] : nullptr;
  };
  std::map<NodeId, ValueId> reduced_, row_values_;
  struct Computed {
    ValueId mask, value;
  };
  std::map<std::pair<NodeId, std::vector<const void*>>, std::vector<Computed>> values_;
  Expr inner_position_;
  /// Of the guards around what is computed, the outermost first; each implies those before it.
  std::vector<ValueId> masks_;
  ValueId mask() const { return masks_.empty() ? loops::kNoValue : masks_.back(); }
  int32_t operator_ = -1;
  int32_t current_block_ = 0;
};

}  // namespace

void emit(Lowering& lowering, const Groups& groups) { Emitter(lowering, groups).run(); }

}  // namespace magneto::lower
