// Operators on lists of tensors (`torch._foreach_add`), as optimizers call them, as operators on each tensor: so that
// kernels compute them. PyTorch's own kernels for the CPU do no more.
//
// What is called one list after the other is put down one tensor after the other,
//
//     lerp(m0, g0), lerp(m1, g1), mul(v0), mul(v1)    becomes    lerp(m0, g0), mul(v0), lerp(m1, g1), mul(v1)
//
// because kernels are made of neighbours: all that is done to one parameter is one kernel.
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "graph/aliases.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace magneto::passes {
namespace {

using graph::AtenNode;
using graph::kNoValue;
using graph::ValueId;

constexpr std::string_view kPrefix = "aten::_foreach_";

/// `_foreach_f.List` is `f.Tensor`, `_foreach_f.Scalar` and `_foreach_f.ScalarList` are `f.Scalar`, or `f` without an
/// overload, but for
struct Exception {
  std::string_view list, overload, name, single;
};
constexpr Exception kExceptions[] = {
    {"pow", "List", "pow", "Tensor_Tensor"},       {"pow", "Scalar", "pow", "Tensor_Scalar"},
    {"pow", "ScalarList", "pow", "Tensor_Scalar"}, {"pow", "ScalarAndTensor", "pow", "Scalar"},
    {"norm", "Scalar", "linalg_vector_norm", ""},  {"maximum", "Scalar", "clamp_min", ""},
    {"maximum", "ScalarList", "clamp_min", ""},    {"minimum", "Scalar", "clamp_max", ""},
    {"minimum", "ScalarList", "clamp_max", ""},
};

/// The operator for one tensor of the list; nothing for operators of other kinds.
std::optional<c10::OperatorHandle> single_of(const c10::OperatorHandle& op) {
  const auto& [full, overload] = op.operator_name();
  if (!full.starts_with(kPrefix)) return std::nullopt;
  const std::string name = full.substr(kPrefix.size());
  const auto find = [](std::string_view of, std::string_view which) {
    return c10::Dispatcher::singleton().findSchema({"aten::" + std::string(of), std::string(which)});
  };
  for (const Exception& row : kExceptions) {
    if (row.list == name && row.overload == overload) return find(row.name, row.single);
  }
  const char* single = overload == "Scalar" || overload == "ScalarList" ? "Scalar" : overload.empty() ? "" : "Tensor";
  const auto found = find(name, single);
  return found ? found : find(name, "");
}

/// The arguments of `single` for each tensor of the list; nothing if it takes others.
std::optional<std::vector<std::vector<graph::AtenArg>>> arguments_of(const AtenNode& node,
                                                                     const c10::OperatorHandle& single) {
  const auto &given = node.op.schema().arguments(), &wanted = single.schema().arguments();
  std::vector<std::vector<graph::AtenArg>> parts(node.results.size());
  if (single.schema().returns().size() != 1) return std::nullopt;
  for (size_t w = 0; w < wanted.size(); ++w) {
    // By its name, or by its place.
    const auto same = std::find_if(given.begin(), given.end(),
                                   [&](const c10::Argument& argument) { return argument.name() == wanted[w].name(); });
    size_t g = same == given.end() ? w : static_cast<size_t>(same - given.begin());
    const auto named = [&](const c10::Argument& argument) { return argument.name() == given[g].name(); };
    // Its place is another argument's.
    if (g < given.size() && same == given.end() && std::any_of(wanted.begin(), wanted.end(), named)) g = given.size();
    for (size_t i = 0; i < parts.size(); ++i) {
      graph::AtenArg arg;
      if (g >= given.size()) {
        if (!wanted[w].default_value()) return std::nullopt;
        arg = *wanted[w].default_value();
      } else if (const auto* ids = std::get_if<std::vector<ValueId>>(&node.args[g])) {
        if (ids->size() != parts.size()) return std::nullopt;
        arg = (*ids)[i];
      } else if (const auto* list = std::get_if<c10::IValue>(&node.args[g]); list && list->isList()) {
        if (list->toListRef().size() != parts.size()) return std::nullopt;
        arg = list->toListRef()[i];
      } else if (const auto* sizes = std::get_if<graph::SizeArg>(&node.args[g]); sizes && sizes->is_list) {
        if (sizes->sizes.size() != parts.size()) return std::nullopt;
        arg = graph::SizeArg{{sizes->sizes[i]}, /*is_list=*/false};
      } else {
        arg = node.args[g];
      }
      const bool takes_tensor = wanted[w].real_type()->kind() == c10::TypeKind::TensorType;
      if (takes_tensor != std::holds_alternative<ValueId>(arg)) return std::nullopt;
      parts[i].push_back(std::move(arg));
    }
  }
  return parts;
}

/// One operator on lists, taken apart.
struct Split {
  const AtenNode* node;
  c10::OperatorHandle single;
  std::vector<std::vector<graph::AtenArg>> parts;
};

std::optional<Split> split(const AtenNode& node) {
  if (node.results.empty()) return std::nullopt;
  const auto single = single_of(node.op);
  if (!single) return std::nullopt;
  auto parts = arguments_of(node, *single);
  if (!parts) return std::nullopt;
  return Split{&node, *single, std::move(*parts)};
}

class Splitter {
 public:
  explicit Splitter(Rewriter& out) : out_(out), position_(out.old().values.size(), -1) {}

  void run() {
    for (const AtenNode& node : out_.old().aten_nodes) {
      std::optional<Split> next = split(node);
      if (!next || !follows(*next)) flush();
      if (!next) {
        out_.copy(node);
        continue;
      }
      for (size_t i = 0; i < node.results.size(); ++i) {
        if (node.results[i] != kNoValue) position_[node.results[i]] = static_cast<int32_t>(i);
      }
      row_.push_back(std::move(*next));
    }
    flush();
  }

 private:
  /// No tensor needs what is made of a later one.
  bool follows(const Split& next) const {
    if (row_.empty() || row_[0].parts.size() != next.parts.size()) return row_.empty();
    for (size_t i = 0; i < next.parts.size(); ++i) {
      for (const graph::AtenArg& arg : next.parts[i]) {
        const auto* id = std::get_if<ValueId>(&arg);
        if (id && *id != kNoValue && position_[*id] > static_cast<int32_t>(i)) return false;
      }
    }
    return true;
  }

  void flush() {
    for (size_t i = 0; !row_.empty() && i < row_[0].parts.size(); ++i) {
      for (const Split& split : row_) {
        AtenNode part{split.single, split.parts[i], {split.node->results[i]}, split.node->torch_node};
        out_.copy(part);
      }
    }
    for (const Split& split : row_) {
      for (const ValueId id : split.node->results) {
        if (id != kNoValue) position_[id] = -1;
      }
    }
    row_.clear();
  }

  Rewriter& out_;
  /// Operators on lists of one length, not put down yet.
  std::vector<Split> row_;
  /// By value of the old graph: which tensor of a list of `row_` it is.
  std::vector<int32_t> position_;
};

}  // namespace

void split_lists(Functional& functional) {
  const auto& nodes = functional.graph.aten_nodes;
  if (std::none_of(nodes.begin(), nodes.end(), [](const AtenNode& node) { return split(node).has_value(); })) return;
  rewrite(functional, [](Rewriter& out) { Splitter(out).run(); });
}

}  // namespace magneto::passes
