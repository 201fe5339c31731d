// A guard program as text: one guard per line, or as the tree of the sources that guards hang on.
#include <chrono>
#include <map>
#include <set>
#include <unordered_map>

#include "guards/data.h"
#include "guards/draw.h"
#include "guards/program.h"
#include "guards/text.h"
#include "support/json.h"

namespace magneto::guards {

template <typename Visit>
void GuardProgram::Impl::for_each_line(const Visit& visit) const {
  int32_t current = -1;
  const auto visit_check = [&](int32_t index) { visit({checks[index].source, &checks[index], false, current}); };
  const auto visit_presence = [&](int32_t slot, bool absent) {
    if (absent || slots.bare[slot]) visit({&slots.sources[slot], nullptr, absent, current});
  };
  const auto visit_op = [&](const Op& op) {
    if (op.check >= 0)
      visit_check(op.check);
    else if (op.kind <= OpKind::LoadGrad)
      visit_presence(op.slot, op.absent);
  };
  if (global_state) visit({nullptr, nullptr, false, current});
  for (const Op& op : ops) {
    ++current;
    if (op.kind == OpKind::CheckTypeAttributes) {
      for (const int32_t check : types[op.number].checks) visit_check(check);
    } else if (op.kind == OpKind::InstanceEntries || op.kind == OpKind::DictEntries) {
      const Group& group = groups.all[op.number];
      for (int32_t i = group.first_entry; i < group.last_entry; ++i)
        visit_presence(groups.entries[i].slot, groups.entries[i].absent);
      for (int32_t i = group.first_fixed; i < group.last_fixed; ++i) visit_op(groups.fixed[i]);
    } else {
      visit_op(op);
    }
  }
}

std::string GuardProgram::Impl::place_of(const Line& line) const {
  if (line.check || !line.source) return place_of(line.check);
  return place_below(slots.of(line.source));
}

std::string GuardProgram::Impl::text(const Line& line, const Names& names) const {
  if (line.check) return check_line(*line.check, names);
  return line.source ? presence_line(*line.source, !line.absent, names) : global_state_line(*global_state);
}

namespace {

/// "DictGetItemGuardAccessor(x)": how a source is read from what is above it in the tree.
std::string accessor(const Source& source) {
  switch (source.kind) {
    case SourceKind::Local:
      return "DictGetItemGuardAccessor(" + source.name().substr(3, source.name().size() - 5) + ")";
    case SourceKind::Stack:
      return "ListGetItemGuardAccessor(" + std::to_string(source.index) + ")";
    case SourceKind::Function:
      return "FrameFunctionGuardAccessor";
    case SourceKind::Const:
      return "ConstantGuardAccessor";
    case SourceKind::Closure:
    case SourceKind::ClosureCell:
      return "ClosureGuardAccessor(" + std::to_string(source.index) + ")";
    case SourceKind::Cell:
      return "CellContentsGuardAccessor";
    case SourceKind::Attr:
    case SourceKind::Slot:
      return "GetAttrGuardAccessor(" + source.name_on("").substr(1) + ")";
    case SourceKind::InstanceDict:
      return "GetGenericDictGuardAccessor";
    case SourceKind::DictItem:
      return "DictGetItemGuardAccessor(" + object_text(source.key.get()) + ")";
    case SourceKind::SeqItem:
      return "ListGetItemGuardAccessor(" + std::to_string(source.index) + ")";
    case SourceKind::BoundSelf:
      return "GetAttrGuardAccessor(__self__)";
    case SourceKind::BoundFunction:
      return "GetAttrGuardAccessor(__func__)";
    case SourceKind::Grad:
      return "GradGuardAccessor(grad)";
    case SourceKind::Size:
      return "TensorSizeGuardAccessor(" + std::to_string(source.index) + ")";
    case SourceKind::Draw:
      return "DrawGuardAccessor(" + draw_text(source.index) + ")";
    case SourceKind::DequeItem:
      return "DequeGetItemGuardAccessor(" + std::to_string(source.index) + ")";
    case SourceKind::ContextValue:
      return "ContextValueGuardAccessor";
    case SourceKind::ThreadDict:
      return "ThreadDictGuardAccessor";
    case SourceKind::Number:
      return "NumberGuardAccessor";
  }
  return "";
}

class Tree {
 public:
  void add(const Source* source, std::string line, const std::string& place) {
    if (!place.empty()) line += "  # " + place;
    enter(source);
    lines_[source].push_back(std::move(line));
  }

  std::string print() {
    text_ = "TREE_GUARD_MANAGER:\n+- RootGuardManager\n";
    print_below(nullptr, "| ");
    return std::move(text_);
  }

 private:
  void enter(const Source* source) {
    if (!source || !known_.insert(source).second) return;
    enter(source->base);
    children_[source->base].push_back(source);
  }

  void print_below(const Source* source, const std::string& indent) {
    for (const std::string& line : lines_[source]) text_.append(indent).append("+- ").append(line).append("\n");
    for (const Source* child : children_[source]) {
      text_ += indent + "+- GuardManager: source=" + child->name() + ", accessed_by=" + accessor(*child) + "\n";
      print_below(child, indent + "| ");
    }
  }

  std::set<const Source*> known_;
  std::map<const Source*, std::vector<std::string>> lines_;
  std::map<const Source*, std::vector<const Source*>> children_;
  std::string text_;
};

/// The same tree as JSON: parents before their children, the frame itself first. Names and lines are much alike; each
/// text is there once, with \x01 for the name of the node and \x02 for that of its parent.
class TreeData {
 public:
  explicit TreeData(const GuardProgram::Impl& program) : program_(program) {}

  void add(const GuardProgram::Impl::Line& line) {
    static const Names names("\x01", "\x02");
    const bool is_state = !line.source && !line.check;
    if (is_state) add_text(nullptr, default_device_line(*program_.global_state), "", line.op);
    add_text(line.source, program_.text(line, names), program_.place_of(line), line.op);
    if (is_state) add_text(nullptr, mode_stack_line(*program_.global_state), "", line.op);
  }
  void add_load(const Source* source, int32_t op) { nodes_[enter(source)].loads.push_back(op); }

  std::string print() {
    graph::Json json;
    json.open('{').key("nodes").open('[');
    for (const Node& node : nodes_) {
      json.open('[').add(node.parent).add(node.name).add(node.accessor);
      json.list(node.checks).list(node.loads).close(']');
    }
    json.close(']').key("texts").open('[');
    for (const std::string* text : texts_) json.add(*text);
    return json.close(']').close('}').take();
  }

 private:
  struct Node {
    int32_t parent = -1, name = 0, accessor = 0;
    std::vector<int32_t> checks, loads;
  };

  void add_text(const Source* source, std::string line, std::string place, int32_t op) {
    const int32_t text = number_of(std::move(line)), where = number_of(std::move(place));
    Node& node = nodes_[enter(source)];
    node.checks.insert(node.checks.end(), {text, where, op});
  }

  int32_t number_of(std::string text) {
    const auto [entry, added] = known_texts_.try_emplace(std::move(text), static_cast<int32_t>(texts_.size()));
    if (added) texts_.push_back(&entry->first);
    return entry->second;
  }

  size_t enter(const Source* source) {
    if (!source) return 0;
    if (const auto known = known_nodes_.find(source); known != known_nodes_.end()) return known->second;
    const auto parent = static_cast<int32_t>(enter(source->base));
    nodes_.push_back({parent, number_of(source->name_on(parent ? "\x02" : "")), number_of(accessor(*source)), {}, {}});
    return known_nodes_[source] = nodes_.size() - 1;
  }

  const GuardProgram::Impl& program_;
  std::vector<const std::string*> texts_;
  std::unordered_map<std::string, int32_t> known_texts_;
  std::vector<Node> nodes_ = std::vector<Node>(1, {-1, number_of(""), number_of(""), {}, {}});
  std::unordered_map<const Source*, size_t> known_nodes_;
};

/// One check of all, when nothing has changed since the last; the least of a few.
double hot_nanoseconds(GuardProgram::Impl& program, const Roots& roots) {
  constexpr int kRounds = 3, kChecks = 4;
  double least = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kChecks; ++i) program.check(roots);
    const double time = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
    if (round == 0 || time < least) least = time;
  }
  return least / kChecks;
}

}  // namespace

std::string GuardProgram::print() const {
  std::string text;
  impl_->for_each_line([&](const Impl::Line& line) { text += impl_->text(line, Names(line.source)) + "\n"; });
  return text;
}

std::string GuardProgram::print_tree() const {
  Tree tree;
  impl_->for_each_line([&](const Impl::Line& line) {
    const bool is_state = !line.source && !line.check;
    if (is_state) tree.add(nullptr, default_device_line(*impl_->global_state), "");
    tree.add(line.source, impl_->text(line, Names(line.source)), impl_->place_of(line));
    if (is_state) tree.add(nullptr, mode_stack_line(*impl_->global_state), "");
  });
  return tree.print();
}

std::string data(const GuardProgram& program) {
  const GuardProgram::Impl& impl = program.impl();
  TreeData tree(impl);
  std::vector<bool> described(impl.ops.size(), false);
  impl.for_each_line([&](const GuardProgram::Impl::Line& line) {
    tree.add(line);
    if (line.op >= 0) described[line.op] = true;
  });
  for (size_t i = 0; i < impl.ops.size(); ++i) {
    const int32_t slot = impl.ops[i].slot;
    if (!described[i]) tree.add_load(slot < 0 ? nullptr : &impl.slots.sources[slot], static_cast<int32_t>(i));
  }
  return tree.print();
}

size_t count(const GuardProgram& program) {
  size_t lines = 0;
  constexpr size_t of_state = 3;  // with those of the device and of the modes
  program.impl().for_each_line(
      [&](const GuardProgram::Impl::Line& line) { lines += line.source || line.check ? 1 : of_state; });
  return lines;
}

std::vector<const SizeAssumptions*> assumed_sizes(const GuardProgram& program) {
  std::vector<const SizeAssumptions*> found;
  for (const Check& check : program.impl().checks) {
    if (check.sizes) found.push_back(check.sizes.get());
  }
  return found;
}

std::string costs(GuardProgram& program, const Roots& roots) {
  GuardProgram::Impl& impl = program.impl();
  const std::vector<double> ops = impl.time_ops(roots);
  if (ops.empty()) return {};
  graph::Json json;
  return json.open('{').key("ops").list(ops).field("hot", hot_nanoseconds(impl, roots)).close('}').take();
}

}  // namespace magneto::guards
