// A guard program as text: one guard per line, or as the tree of the sources that guards hang on.
#include <map>
#include <set>

#include "guards/program.h"
#include "guards/text.h"

namespace magneto::guards {

template <typename Visit>
void GuardProgram::Impl::for_each_line(const Visit& visit) const {
  const auto visit_check = [&](int32_t index) {
    visit(checks[index].source, &checks[index], check_line(checks[index]));
  };
  const auto visit_presence = [&](int32_t slot, bool absent) {
    if (absent || bare[slot]) visit(&sources[slot], nullptr, presence_line(sources[slot], !absent));
  };
  const auto visit_op = [&](const Op& op) {
    if (op.check >= 0)
      visit_check(op.check);
    else if (op.kind <= OpKind::LoadGrad)
      visit_presence(op.slot, op.absent);
  };
  if (global_state) visit(nullptr, nullptr, global_state_line(*global_state));
  for (const Op& op : ops) {
    if (op.kind == OpKind::CheckTypeAttributes) {
      for (const int32_t check : types[op.number].checks) visit_check(check);
    } else if (op.kind == OpKind::InstanceEntries || op.kind == OpKind::DictEntries) {
      const Group& group = groups[op.number];
      for (int32_t i = group.first_entry; i < group.last_entry; ++i) visit_presence(entries[i].slot, entries[i].absent);
      for (int32_t i = group.first_fixed; i < group.last_fixed; ++i) visit_op(fixed[i]);
    } else {
      visit_op(op);
    }
  }
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
      return "GetAttrGuardAccessor(" + source.name().substr(source.base->name().size() + 1) + ")";
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
    case SourceKind::Number:
      return "NumberGuardAccessor";
  }
  return "";
}

class Tree {
 public:
  explicit Tree(const std::vector<std::string>& places, const std::vector<Check>& checks)
      : places_(places), checks_(checks) {}

  void add(const Source* source, const Check* check, std::string line) {
    if (check && !places_.empty()) {
      const std::string& place = places_[static_cast<size_t>(check - checks_.data())];
      if (!place.empty()) line += "  # " + place;
    }
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
    for (const std::string& line : lines_[source]) text_ += indent + "+- " + line + "\n";
    for (const Source* child : children_[source]) {
      text_ += indent + "+- GuardManager: source=" + child->name() + ", accessed_by=" + accessor(*child) + "\n";
      print_below(child, indent + "| ");
    }
  }

  const std::vector<std::string>& places_;
  const std::vector<Check>& checks_;
  std::set<const Source*> known_;
  std::map<const Source*, std::vector<std::string>> lines_;
  std::map<const Source*, std::vector<const Source*>> children_;
  std::string text_;
};

}  // namespace

std::string GuardProgram::print() const {
  std::string text;
  impl_->for_each_line([&](const Source*, const Check*, const std::string& line) { text += line + "\n"; });
  return text;
}

std::string GuardProgram::print_tree() const {
  Tree tree(impl_->places, impl_->checks);
  impl_->for_each_line(
      [&](const Source* source, const Check* check, std::string line) { tree.add(source, check, std::move(line)); });
  return tree.print();
}

}  // namespace magneto::guards
