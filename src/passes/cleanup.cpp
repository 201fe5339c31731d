// Dead code, common subexpressions, constants.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>

#include <algorithm>
#include <unordered_map>

#include "graph/aliases.h"
#include "graph/operator_key.h"
#include "graph/text.h"
#include "graph/undo.h"
#include "graph/verifier.h"
#include "passes/effects.h"
#include "passes/passes.h"
#include "passes/rewriter.h"
#include "passes/view_meta.h"

namespace magneto::passes {
namespace {

using graph::AtenNode;
using graph::kNoValue;
using graph::ValueId;
using graph::ValueKind;

}  // namespace

void forget_overwritten(Functional& functional) {
  static const auto copy = find_op("aten::copy");
  for (AtenNode& node : functional.graph.aten_nodes) {
    if (node.op != copy) continue;
    const ValueId given = std::get<ValueId>(node.args[1]);
    const std::vector<graph::Value>& values = functional.graph.values;
    if (lies_alike(values[given].meta, values[node.results[0]].meta)) node.args[0] = given;
  }
}

void eliminate_dead(Functional& functional) {
  const graph::Graph& graph = functional.graph;
  std::vector<bool> needed(graph.values.size(), false);
  for (const ValueId id : graph.outputs) needed[id] = true;
  for (const auto& write : functional.writes) needed[write.value] = true;
  for (const auto& symbol : graph.symbols_of(graph::ValueKind::Result)) needed[symbol.value] = true;
  std::vector<bool> keep(graph.aten_nodes.size(), false);
  for (size_t i = graph.aten_nodes.size(); i-- > 0;) {
    const AtenNode& node = graph.aten_nodes[i];
    // What may raise does so in eager, whether anybody needs the result or not.
    keep[i] =
        is_pinned(node) || graph::may_raise(graph, node) ||
        std::any_of(node.results.begin(), node.results.end(), [&](ValueId id) { return id != kNoValue && needed[id]; });
    if (keep[i]) graph::for_each_operand(node, [&](ValueId id) { needed[id] = true; });
  }
  if (std::find(keep.begin(), keep.end(), false) == keep.end()) return;
  rewrite(functional, [&](Rewriter& out) {
    for (size_t i = 0; i < keep.size(); ++i) {
      if (keep[i]) out.copy(out.old().aten_nodes[i]);
    }
  });
}

void merge_common(Functional& functional) {
  // Two outputs stay two tensors: what an output is computed by, or is a view of, is left alone.
  std::vector<bool> handed_out(functional.graph.values.size(), false);
  for (const ValueId id : functional.graph.outputs) handed_out[id] = true;
  for (size_t i = functional.graph.aten_nodes.size(); i-- > 0;) {
    const AtenNode& node = functional.graph.aten_nodes[i];
    if (!traits_of(node.op).aliases) continue;
    const bool leaves = std::any_of(node.results.begin(), node.results.end(),
                                    [&](ValueId id) { return id != kNoValue && handed_out[id]; });
    if (leaves) graph::for_each_operand(node, [&](ValueId id) { handed_out[id] = true; });
  }
  std::unordered_map<std::string, std::vector<ValueId>> seen;
  rewrite(functional, [&](Rewriter& out) {
    for (const AtenNode& node : out.old().aten_nodes) {
      const bool leaves = std::any_of(node.results.begin(), node.results.end(),
                                      [&](ValueId id) { return id != kNoValue && handed_out[id]; });
      const auto name = [&](ValueId id) { return out.map(id); };
      const std::string key = leaves || is_pinned(node) ? std::string() : graph::operator_key(node, name);
      if (key.empty()) {
        out.copy(node);
        continue;
      }
      auto [entry, added] = seen.try_emplace(key);
      if (added) {
        out.copy(node);
        for (const ValueId id : node.results) entry->second.push_back(out.map(id));
      } else {
        for (size_t i = 0; i < node.results.size(); ++i) {
          if (node.results[i] != kNoValue) out.set(node.results[i], entry->second[i]);
        }
      }
    }
  });
}

void fold_constants(Functional& functional) {
  const auto& nodes = functional.graph.aten_nodes;
  const auto& values = functional.graph.values;
  std::vector<bool> known(values.size(), false);
  for (size_t id = 0; id < values.size(); ++id) known[id] = values[id].kind == ValueKind::Constant;
  std::vector<bool> leaves(values.size(), false);
  for (const ValueId id : functional.graph.outputs) leaves[id] = true;
  const auto bytes = [&](ValueId id) {
    int64_t count = static_cast<int64_t>(c10::elementSize(values[id].meta.dtype));
    for (const int64_t size : values[id].meta.sizes) count *= size;
    return count;
  };
  // Operators on constants alone. A number spread over a tensor (full, zeros) is left: it costs nothing in a kernel.
  std::vector<bool> fold(nodes.size(), false);
  bool any = false;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const AtenNode& node = nodes[i];
    if (is_pinned(node) || traits_of(node.op).aliases) continue;
    bool constant = true, operands = false;
    graph::for_each_operand(node, [&](ValueId id) {
      constant &= known[id];
      operands = true;
    });
    for (const graph::AtenArg& arg : node.args) constant &= !std::holds_alternative<graph::SizeArg>(arg);
    for (const ValueId id : node.results) {
      constant &= id == kNoValue || (!leaves[id] && bytes(id) <= kFoldedBytes && values[id].meta.device.is_cpu());
    }
    fold[i] = constant && operands && !node.results.empty();
    if (!fold[i]) continue;
    any = true;
    for (const ValueId id : node.results) {
      if (id != kNoValue) known[id] = true;
    }
  }
  if (!any) return;
  rewrite(functional, [&](Rewriter& out) {
    for (size_t i = 0; i < fold.size(); ++i) {
      const AtenNode& node = out.old().aten_nodes[i];
      bool ready = fold[i];
      graph::for_each_operand(
          node, [&](ValueId id) { ready = ready && out.graph().values[out.map(id)].kind == ValueKind::Constant; });
      if (!ready) {
        out.copy(node);
        continue;
      }
      torch::jit::Stack stack;
      const auto& arguments = node.op.schema().arguments();
      const auto tensor = [&](ValueId id) { return out.graph().values[out.map(id)].constant; };
      for (size_t a = 0; a < node.args.size(); ++a) {
        stack.push_back(boxed(node.args[a], *arguments[a].real_type(), tensor));
      }
      // The graph was recorded below autograd and autocast.
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      const c10::impl::ExcludeDispatchKeyGuard below_autocast(c10::autocast_dispatch_keyset);
      try {
        node.op.callBoxed(&stack);
      } catch (const c10::Error&) {
        out.copy(node);  // raises when it runs, as in eager
        continue;
      }
      size_t next = 0;
      const auto store = [&](const at::Tensor& result) {
        const ValueId id = node.results.at(next++);
        if (id != kNoValue) out.set(id, out.graph().add_constant(result.detach()));
      };
      for (const c10::IValue& value : stack) {
        if (value.isTensor()) store(value.toTensor());
        if (!value.isTensorList()) continue;
        for (const at::Tensor& item : value.toTensorVector()) store(item);
      }
    }
  });
}

std::string print(const Functional& functional) {
  std::string text = graph::print(functional.graph);
  for (const auto& write : functional.writes) {
    text += "write %" + std::to_string(write.value) + " to %" + std::to_string(write.input) + "\n";
  }
  for (const auto& bump : functional.bumps) {
    text += "version of %" + std::to_string(bump.value) + " += " + std::to_string(bump.count) + "\n";
  }
  return text;
}

std::vector<std::string> verify(const Functional& functional) {
  std::vector<std::string> violations = graph::verify_operators(functional.graph);
  for (const AtenNode& node : functional.graph.aten_nodes) {
    if (traits_of(node.op).writes) violations.push_back(graph::operator_text(node.op) + " writes its arguments");
  }
  const auto exists = [&](ValueId id) { return id >= 0 && id < static_cast<ValueId>(functional.graph.values.size()); };
  for (const auto& write : functional.writes) {
    if (!exists(write.input) || functional.graph.values[write.input].kind != ValueKind::Input) {
      violations.push_back("%" + std::to_string(write.input) + " is written at the end and is no input");
    }
    if (!exists(write.value)) violations.push_back("an input is written with a value that does not exist");
  }
  for (const auto& bump : functional.bumps) {
    if (!exists(bump.value)) violations.push_back("the version of a value that does not exist is moved");
  }
  return violations;
}

}  // namespace magneto::passes
