#include "lower/groups.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "lower/weights.h"

namespace magneto::lower {
namespace {

/// Above this an expression that has several readers is computed once.
constexpr float kShared = 1.9f;
/// Read more often than that, an element has several readers; slices that overlap a little read it once.
constexpr float kOnce = 1.5f;
/// So many elements share what is then computed once; fewer do where computing it takes a function like exp.
constexpr float kWide = 64, kSome = 4;
constexpr size_t kMostOps = 48;
/// So many elements of a row, a line of memory, are worth a thread.
constexpr int64_t kRowPart = 16;
/// Instructions, roughly: of an expression; of all expressions of a group; of the copies of one expression, for readers
/// that each compute their own part of it.
constexpr int32_t kMostCode = 256, kMostGroupCode = 1024, kMostCopied = 64;
constexpr size_t kLookBack = 6;
/// A reduction takes a pointwise group's loops over only if enough rows stay to run in parallel, or all is small.
constexpr int64_t kFewRows = 8, kSmall = 1 << 16;

class Grouper {
 public:
  explicit Grouper(const Lowering& lowering) : lowering_(lowering), dag_(lowering.dag) {}

  Groups run() {
    const auto count = static_cast<size_t>(dag_.size());
    out_.is_op.assign(count, false);
    out_.group_of.assign(count, -1);
    out_.weight.assign(count, 0);
    code_.assign(count, 0);
    after_.assign(count, -1);
    out_.reads.resize(count);
    choose_ops();
    size_t next_call = 0;
    const auto& externs = lowering_.externs;
    for (NodeId id = 0; id <= dag_.size(); ++id) {
      while (next_call < externs.size() && externs[next_call].position <= id)
        add_call(static_cast<int32_t>(next_call++));
      if (id < dag_.size() && out_.is_op[id]) add_op(id);
    }
    drop_empty_groups();
    return std::move(out_);
  }

 private:
  void choose_ops() {
    // How often an element is read: once by each reader, of a slice as often as its part is.
    std::vector<float> readers(dag_.size(), 0);
    // In how many places of the code it is read.
    std::vector<int32_t> places(dag_.size(), 0);
    std::vector<bool> root(dag_.size(), false);
    std::vector<bool> needed(dag_.size(), false);
    // Views of which a guard reads a part only: the pieces of a cat, the inside of a pad.
    std::vector<bool> guarded(dag_.size(), false);
    for (const Root& entry : lowering_.roots) {
      needed[entry.node] = root[entry.node] = true;
      buffers_of_root_.emplace(entry.node, entry.buffer);
    }
    for (NodeId id = dag_.size(); id-- > 0;) {
      if (!needed[id]) continue;
      const Node& node = dag_[id];
      for (const NodeId operand : node.operands) {
        needed[operand] = true;
        ++places[operand];
        const bool slice = node.kind == NodeKind::View && share(id, operand) < 1;
        readers[operand] += slice ? std::max(readers[id], 1.0f) * share(id, operand) : 1;
        guarded[operand] = guarded[operand] || node.kind == NodeKind::Guard;
      }
    }
    // Over how many elements of a view one of the node's spreads; and nodes that a reduction's result goes into.
    std::vector<float> spread(dag_.size(), 1);
    std::vector<bool> of_reduction(dag_.size(), false);
    for (NodeId id = 0; id < dag_.size(); ++id) {
      if (!needed[id] || guarded[id] || dag_[id].kind != NodeKind::View) continue;
      const NodeId operand = dag_[id].operands[0];
      spread[operand] = std::max(spread[operand], share(id, operand));
    }
    for (NodeId id = 0; id < dag_.size(); ++id) {
      if (!needed[id]) continue;
      const Node& node = dag_[id];
      const bool reduces = node.kind == NodeKind::Reduce || node.kind == NodeKind::Scan;
      const bool computes =
          node.kind == NodeKind::Math || node.kind == NodeKind::Gather || node.kind == NodeKind::Guard;
      float weight = own_weight(node);
      int32_t code = own_code(node);
      for (const NodeId operand : node.operands) {
        code += out_.is_op[operand] ? 1 : code_[operand];
        const bool reduction = out_.is_op[operand] && dag_[operand].kind == NodeKind::Reduce;
        const float below = reduction ? 0 : out_.is_op[operand] ? 1 : out_.weight[operand];
        // What is spread costs its share of each element.
        weight += node.kind == NodeKind::View ? below / std::max(1.0f, share(id, operand)) : below;
        of_reduction[id] = of_reduction[id] || reduction || (of_reduction[operand] && !out_.is_op[operand]);
      }
      out_.weight[id] = weight;
      // A row's mean, scale and the like are computed once a row, not for each element.
      const bool once_a_row = node.kind == NodeKind::Math && spread[id] > 1 && of_reduction[id];
      // What a channel's elements share and takes more than loading it (a batch norm's scale), or what takes a
      // function.
      const bool once_a_channel = node.kind == NodeKind::Math && ((spread[id] >= kWide && weight > kShared) ||
                                                                  (spread[id] >= kSome && weight > kFunction));
      out_.is_op[id] =
          reduces || root[id] || once_a_row || once_a_channel || (computes && readers[id] > kOnce && weight > kShared);
      // A view of a copy is another copy: the readers of a chain of slices and of parts put together are exponentially
      // many.
      code_[id] = code;
      if (!out_.is_op[id] && computes && (code > kMostCode || (places[id] - 1) * code > kMostCopied)) {
        out_.is_op[id] = true;
        out_.cut.insert(id);
      }
    }
  }

  /// Elements of `reader` for each of `operand`.
  float share(NodeId reader, NodeId operand) const {
    const auto from = static_cast<float>(count(dag_[operand].sizes).hint()),
               to = static_cast<float>(count(dag_[reader].sizes).hint());
    return from == 0 ? 1 : to / from;
  }

  void add_call(int32_t call) {
    Group group;
    group.call = call;
    call_group_[lowering_.externs[call].node] = static_cast<int32_t>(out_.groups.size());
    out_.groups.push_back(std::move(group));
  }

  /// What is read below `op`: other ops with their index, and the groups that made what is loaded.
  struct Found {
    std::vector<Read> reads;
    /// Groups that must have run before.
    int32_t after = -1;
    std::set<int32_t> buffers;
  };

  void walk(NodeId id, const std::vector<Expr>& index, const Sizes& domain, Found& found,
            std::set<std::pair<NodeId, std::vector<const void*>>>& seen) {
    std::vector<const void*> key;
    for (const Expr expr : index) key.push_back(expr.identity());
    if (!seen.emplace(id, std::move(key)).second) return;
    const Node& node = dag_[id];
    if (out_.is_op[id]) {
      found.reads.push_back({id, index});
      return;
    }
    const auto mapped = [&](const std::vector<Expr>& map) {
      std::vector<Expr> result;
      for (const Expr expr : map) {
        result.push_back(dag_.simplify(shapes::substitute(expr,
                                                          [&](Expr leaf) -> std::optional<Expr> {
                                                            if (leaf.kind() != shapes::ExprKind::Variable)
                                                              return std::nullopt;
                                                            return index[leaf.id()];
                                                          }),
                                       domain));
      }
      return result;
    };
    switch (node.kind) {
      case NodeKind::Leaf:
        load(node.buffer(), found);
        return;
      case NodeKind::View:
        return walk(node.operands[0], mapped(node.map), domain, found, seen);
      case NodeKind::Gather:
        // %k stays in the index: no op of a group is computed at such an element.
        walk(node.operands[0], mapped(node.map), domain, found, seen);
        for (size_t k = 1; k < node.operands.size(); ++k) walk(node.operands[k], index, domain, found, seen);
        return;
      default:
        for (const NodeId operand : node.operands) walk(operand, index, domain, found, seen);
    }
  }

  void load(int32_t buffer, Found& found) {
    found.buffers.insert(buffer);
    const Buffer& info = lowering_.program.buffers[buffer];
    if (info.kind == BufferKind::Extern) found.after = std::max(found.after, call_group_.at(info.node));
    if (info.kind != BufferKind::Kernel) return;
    if (const auto written = written_by_.find(buffer); written != written_by_.end())
      found.after = std::max(found.after, written->second);
  }

  void add_op(NodeId op) {
    const Node& node = dag_[op];
    const Sizes& domain = domain_of(dag_, op);
    Found found;
    std::set<std::pair<NodeId, std::vector<const void*>>> seen;
    std::vector<Expr> identity;
    for (size_t i = 0; i < domain.size(); ++i) {
      identity.push_back(domain[i] == 1 ? Expr(0) : Expr::variable(static_cast<int32_t>(i)));
    }
    out_.is_op[op] = false;  // look below it
    if (node.kind == NodeKind::Reduce || node.kind == NodeKind::Scan) {
      for (const NodeId operand : node.operands) walk(operand, identity, domain, found, seen);
    } else {
      walk(op, identity, domain, found, seen);
    }
    if (node.kind == NodeKind::Scatter) {
      const auto [begin, end] = buffers_of_root_.equal_range(op);
      for (auto entry = begin; entry != end; ++entry) load(entry->second, found);
    }
    out_.is_op[op] = true;
    after_[op] = found.after;
    int32_t first = found.after + 1;
    for (const Read& read : found.reads) first = std::max(first, out_.group_of[read.op]);
    out_.reads[op] = std::move(found.reads);
    const auto last = static_cast<int32_t>(out_.groups.size()) - 1;
    // The group of what it reads; then groups that read the same.
    for (int32_t g = std::max(found.after + 1, last - static_cast<int32_t>(kLookBack)); g <= last; ++g) {
      Group& group = out_.groups[g];
      if (group.ops.empty() || adds_up(group.ops[0]) || adds_up(op)) continue;
      const bool reads_it = std::any_of(out_.reads[op].begin(), out_.reads[op].end(),
                                        [&](const Read& read) { return out_.group_of[read.op] == g; });
      if (!reads_it && !shares(g, found.buffers)) continue;
      if (g < first) {
        if (join_with_rows(op, g)) return place(op, g, found.buffers);
        continue;
      }
      if (group.ops.size() >= kMostOps) {
        out_.refusals.push_back({op, g, "it has as many expressions as a kernel may"});
        continue;
      }
      if (group.code + code_[op] > kMostGroupCode) {
        out_.refusals.push_back({op, g, "it has as much code as a kernel may"});
        out_.cut.insert(op);
        continue;
      }
      if (join(op, g)) return place(op, g, found.buffers);
      out_.refusals.push_back({op, g, refusal_});
    }
    start_group(op);
    place(op, last + 1, found.buffers);
  }

  void place(NodeId op, int32_t g, const std::set<int32_t>& loaded) {
    out_.group_of[op] = g;
    buffers_[g].insert(loaded.begin(), loaded.end());
    const auto [first, last] = buffers_of_root_.equal_range(op);
    for (auto entry = first; entry != last; ++entry) {
      int32_t& written = written_by_.try_emplace(entry->second, g).first->second;
      written = std::max(written, g);
    }
  }

  /// Its loops have an order of their own, which nothing else goes by.
  bool adds_up(NodeId op) const { return dag_[op].kind == NodeKind::Scatter; }

  bool shares(int32_t g, const std::set<int32_t>& buffers) const {
    const auto& theirs = buffers_.at(g);
    return std::any_of(buffers.begin(), buffers.end(), [&](int32_t buffer) { return theirs.count(buffer) != 0; });
  }

  std::vector<bool> inner_dims(NodeId op) const {
    const Node& node = dag_[op];
    std::vector<bool> inner(domain_of(dag_, op).size(), false);
    if (node.kind == NodeKind::Reduce || node.kind == NodeKind::Scan) {
      for (const int64_t dim : node.dims()) inner[dim] = true;
    }
    if (node.kind == NodeKind::Scatter) inner = may_collide(node);
    return inner;
  }

  void start_group(NodeId op) {
    Group group;
    const Sizes& domain = domain_of(dag_, op);
    const std::vector<bool> inner = inner_dims(op);
    std::vector<Expr> index;
    for (size_t i = 0; i < domain.size(); ++i) {
      if (domain[i] == 1 && !(inner[i] && dag_[op].kind == NodeKind::Scan)) {
        index.push_back(Expr(0));
        continue;
      }
      if (adds_up(op) && !inner[i] && i + 1 == domain.size()) {
        index.push_back(add_row_in_parts(domain[i], group));
        continue;
      }
      index.push_back(Expr::variable(next_variable_));
      group.axes.push_back({next_variable_++, domain[i], inner[i]});
    }
    // A reduction over nothing but dimensions of size one still is one.
    if (dag_[op].kind == NodeKind::Reduce && !group.has_inner()) group.axes.push_back({next_variable_++, 1, true});
    group.locked = dag_[op].kind == NodeKind::Scan;
    group.ops.push_back(op);
    group.code = code_[op];
    group.index.push_back(std::move(index));
    out_.groups.push_back(std::move(group));
  }

  /// The elements of a row that is added to another, as they lie in memory: a part for each thread, no more, since rows
  /// are read fastest as a whole.
  Expr add_row_in_parts(const Size& row, Group& group) {
    const int64_t threads = lowering_.program.choices.threads;
    int64_t part =
        row.is_static() ? std::min(row.number(), std::max(kRowPart, (row.number() + threads - 1) / threads)) : 0;
    while (part > 0 && row.number() % part != 0) --part;
    if (part <= 1 || part == row.hint()) {
      group.axes.push_back({next_variable_, row, true});
      return Expr::variable(next_variable_++);
    }
    const int32_t outer = next_variable_++, inside = next_variable_++;
    group.axes.push_back({outer, row.number() / part, false});
    group.axes.push_back({inside, part, true});
    return Expr::variable(outer) * part + Expr::variable(inside);
  }

  // -- joining
  // -------------------------------------------------------------------------------------------------------------

  bool join(NodeId op, int32_t g) { return join(op, out_.groups[g]); }

  bool join(NodeId op, Group& group) {
    const Node& node = dag_[op];
    refusal_ = "its loops are others";
    if (node.kind == NodeKind::Scan) return false;
    const bool reduces = node.kind == NodeKind::Reduce;
    Group trial = group;
    std::vector<Expr> index;
    // Over all axes; or, for what is computed once a row, over the rows.
    if (match(op, trial, /*rows_only=*/false, index) && fits(op, trial, index, reduces))
      return accept(op, group, trial, index);
    if (reduces || !trial.has_inner()) return false;
    trial = group;
    if (match(op, trial, /*rows_only=*/true, index) && fits(op, trial, index, false))
      return accept(op, group, trial, index);
    return false;
  }

  /// In the order of nodes: what an op reads comes before it.
  bool accept(NodeId op, Group& group, Group& trial, std::vector<Expr>& index) {
    const auto place = std::ranges::upper_bound(trial.ops, op) - trial.ops.begin();
    trial.ops.insert(trial.ops.begin() + place, op);
    trial.index.insert(trial.index.begin() + place, std::move(index));
    trial.code += code_[op];
    group = std::move(trial);
    return true;
  }

  /// An op that reads the group's rows, and of a later group what is computed once a row without them (a batch norm's
  /// scale, for the gradient that its sums are of): the later group comes along if all of it may run where g does.
  bool join_with_rows(NodeId op, int32_t g) {
    int32_t later = -1;
    for (const Read& read : out_.reads[op]) {
      const int32_t owner = out_.group_of[read.op];
      if (owner <= g) continue;
      const bool before =
          std::ranges::all_of(out_.reads[read.op], [&](const Read& below) { return out_.group_of[below.op] < g; });
      if (!before || (later >= 0 && later != owner)) return false;
      later = owner;
    }
    if (later < 0 || out_.groups[later].call >= 0 || out_.groups[later].has_inner()) return false;
    Group trial = out_.groups[g];
    const std::vector<NodeId> along = out_.groups[later].ops;
    const bool small = trial.ops.size() + along.size() < kMostOps &&
                       trial.code + out_.groups[later].code + code_[op] <= kMostGroupCode;
    if (!small || !trial.has_inner()) return false;
    for (const NodeId moved : along) {
      const bool may = after_[moved] < g && std::ranges::all_of(
                                                out_.reads[moved],
                                                [&](const Read& read) {
                                                  return out_.group_of[read.op] <= g || out_.group_of[read.op] == later;
                                                });
      if (!may || !join(moved, trial)) return false;
    }
    if (!join(op, trial)) return false;
    out_.groups[g] = std::move(trial);
    for (const NodeId moved : along) place(moved, g, buffers_[later]);
    out_.groups[later] = {};
    return true;
  }

  void drop_empty_groups() {
    std::vector<int32_t> number;
    int32_t kept = 0;
    for (Group& group : out_.groups) {
      const bool empty = group.call < 0 && group.ops.empty();
      number.push_back(empty ? -1 : kept);
      if (empty) continue;
      if (&group != &out_.groups[kept]) out_.groups[kept] = std::move(group);
      ++kept;
    }
    out_.groups.resize(kept);
    for (int32_t& group : out_.group_of) group = group < 0 ? group : number[group];
    std::erase_if(out_.refusals, [&](Refusal& refusal) { return (refusal.group = number[refusal.group]) < 0; });
  }

  /// Names the op's dimensions by axes, splitting axes where the op's dimensions are finer. False: they are not the
  /// same space.
  bool match(NodeId op, Group& group, bool rows_only, std::vector<Expr>& index) {
    const Sizes& domain = domain_of(dag_, op);
    index.assign(domain.size(), Expr(0));
    size_t dim = 0, axis = 0;
    const auto skip_dims = [&] {
      while (dim < domain.size() && domain[dim] == 1) ++dim;
    };
    const auto skip_axes = [&] {
      while (axis < group.axes.size() && (group.axes[axis].extent == 1 || (rows_only && group.axes[axis].inner)))
        ++axis;
    };
    skip_dims();
    skip_axes();
    Size left = dim < domain.size() ? domain[dim] : 0;  // of the dimension, not yet named
    while (dim < domain.size() && axis < group.axes.size()) {
      if (left == 0) return false;
      const Size extent = group.axes[axis].extent;
      if (extent == 0) return false;
      if (const auto rest = exact_quotient(left, extent)) {
        left = *rest;
        index[dim] += Expr::variable(group.axes[axis].variable) * left.expr();
        ++axis;
        skip_axes();
        if (left == 1) {
          ++dim;
          skip_dims();
          left = dim < domain.size() ? domain[dim] : 0;
        }
      } else if (const auto inside = exact_quotient(extent, left); inside && !group.locked) {
        split(group, axis, left, *inside);
      } else {
        return false;
      }
    }
    return dim >= domain.size() && axis >= group.axes.size();
  }

  /// Axis i becomes two: of extent `outer`, and of extent `rest` inside it.
  void split(Group& group, size_t axis, const Size& outer, const Size& rest) {
    const Axis old = group.axes[axis];
    const Axis first{next_variable_++, outer, old.inner}, second{next_variable_++, rest, old.inner};
    const Expr combined = Expr::variable(first.variable) * second.extent.expr() + Expr::variable(second.variable);
    for (auto& index : group.index) {
      for (Expr& expr : index) {
        expr = shapes::substitute(expr, [&](Expr leaf) -> std::optional<Expr> {
          if (leaf == Expr::variable(old.variable)) return combined;
          return std::nullopt;
        });
      }
    }
    group.axes[axis] = first;
    group.axes.insert(group.axes.begin() + static_cast<int64_t>(axis) + 1, second);
  }

  Expr simplify(Expr expr, const Group& group) const {
    const shapes::IndexKnowledge::Extent extent = [&](int32_t variable) -> const Size* {
      const auto found = std::ranges::find(group.axes, variable, &Axis::variable);
      return found == group.axes.end() ? nullptr : &found->extent;
    };
    return shapes::IndexKnowledge(extent, dag_.symbols).simplified(expr);
  }

  bool fits(NodeId op, Group& group, const std::vector<Expr>& index, bool reduces) {
    if (reduces && !take_inner(op, group, index)) return false;
    for (const Read& read : out_.reads[op]) {
      const auto found = std::find(group.ops.begin(), group.ops.end(), read.op);
      if (found == group.ops.end()) continue;
      const std::vector<Expr>& theirs = group.index[found - group.ops.begin()];
      const Node& source = dag_[read.op];
      for (size_t d = 0; d < read.index.size(); ++d) {
        const bool reduced = source.kind == NodeKind::Reduce &&
                             std::ranges::find(source.data, Size(static_cast<int64_t>(d))) != source.data.end();
        if (reduced || source.sizes[d] == 1) continue;
        const Expr mine = simplify(shapes::substitute(read.index[d],
                                                      [&](Expr leaf) -> std::optional<Expr> {
                                                        if (leaf.kind() != shapes::ExprKind::Variable)
                                                          return std::nullopt;
                                                        return index[leaf.id()];
                                                      }),
                                   group);
        if (mine != simplify(theirs[d], group)) {
          refusal_ = "it reads a value at another element than the one at hand";
          return false;
        }
      }
    }
    return true;
  }

  /// The axes that a reduction runs over are the group's inner ones, or become them.
  bool take_inner(NodeId op, Group& group, const std::vector<Expr>& index) {
    const std::vector<bool> inner = inner_dims(op);
    std::vector<bool> mine(group.axes.size(), false);
    for (size_t a = 0; a < group.axes.size(); ++a) {
      const Expr variable = Expr::variable(group.axes[a].variable);
      for (size_t d = 0; d < index.size(); ++d)
        mine[a] = mine[a] || (inner[d] && shapes::depends_on(index[d], variable));
    }
    const bool any = std::find(mine.begin(), mine.end(), true) != mine.end();
    if (!any) return false;
    refusal_ = "it reduces over other loops";
    if (group.has_inner()) {
      for (size_t a = 0; a < group.axes.size(); ++a) {
        if (group.axes[a].extent != 1 && group.axes[a].inner != mine[a]) return false;
      }
      return true;
    }
    int64_t rows = 1, all = 1;
    for (size_t a = 0; a < group.axes.size(); ++a) {
      all *= group.axes[a].extent.hint();
      if (!mine[a]) rows *= group.axes[a].extent.hint();
    }
    if (rows < kFewRows && all > kSmall) {
      refusal_ = "too few rows would be left to run in parallel";
      return false;
    }
    for (size_t a = 0; a < group.axes.size(); ++a) group.axes[a].inner = mine[a];
    return true;
  }

  const Lowering& lowering_;
  const Dag& dag_;
  Groups out_;
  std::map<int32_t, int32_t> call_group_;  // operator of the graph -> group
  std::map<int32_t, std::set<int32_t>> buffers_;
  std::unordered_multimap<NodeId, BufferId> buffers_of_root_;
  /// The last group that writes a buffer.
  std::unordered_map<BufferId, int32_t> written_by_;
  /// By node: the last group that an op must come behind for what it loads; -1.
  std::vector<int32_t> after_;
  /// By node: instructions for an element, with those of what it is computed from, roughly.
  std::vector<int32_t> code_;
  int32_t next_variable_ = 0;
  const char* refusal_ = "";  // of the last join
};

}  // namespace

bool Group::has_inner() const {
  return std::any_of(axes.begin(), axes.end(), [](const Axis& axis) { return axis.inner; });
}

const Sizes& domain_of(const Dag& dag, NodeId op) {
  const Node& node = dag[op];
  return node.kind == NodeKind::Reduce ? dag[node.operands[0]].sizes : node.sizes;
}

Groups find_groups(const Lowering& lowering) { return Grouper(lowering).run(); }

}  // namespace magneto::lower
