#include "graph/undo.h"

#include <ATen/Context.h>
#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <set>

#include "graph/aliases.h"
#include "graph/overwrites.h"
#include "ops/kinds.h"

namespace magneto::graph {

namespace {

/// What an operator with random results draws from.
at::Generator generator_of(const AtenNode& node) {
  for (const AtenArg& arg : node.args) {
    const auto* constant = std::get_if<c10::IValue>(&arg);
    if (constant && constant->isGenerator()) return constant->toGenerator();
  }
  return at::globalContext().defaultGenerator(at::kCPU);
}

}  // namespace

bool may_raise(const Graph& graph, const AtenNode& node) {
  const ops::Operator& op = ops::operator_of(node.op);
  if (op.is(ops::never_raises)) return false;
  if (!op.is(ops::raises_if_narrow | ops::raises_on_integers)) return true;
  bool raises = false;
  for_each_operand(node, [&](ValueId id) {
    const c10::ScalarType dtype = graph.values[id].meta.dtype;
    if (!c10::isIntegralType(dtype, /*includeBool=*/true)) return;
    raises |= op.is(ops::raises_on_integers) || dtype != c10::kLong;
  });
  return raises;
}

namespace {

/// The program's own check, or one of what its capture went on with: it stands for an error that only CPython knows.
bool is_check(const AtenNode& node) { return ops::operator_of(node.op).is(ops::check); }

/// What happens to the memory of one input.
struct History {
  bool written = false, read = false;
  /// The contents that a second run finds would make a difference.
  bool differs = false;
};

}  // namespace

Undo undo_of(const Graph& graph, int32_t last_guarded) {
  Undo undo;
  std::vector<std::set<size_t>> roots(graph.values.size());  // inputs whose memory a value may be
  for (size_t i = 0; i < graph.inputs.size(); ++i) roots[graph.inputs[i]].insert(i);
  std::vector<History> history(graph.inputs.size());
  bool issued = false;
  size_t written = 0, drawn = 0;  // by the operators in front of the last one that may fail
  const auto fails = [&] {
    written = undo.written.size();
    drawn = undo.generators.size();
  };
  for (size_t index = 0; index < graph.aten_nodes.size(); ++index) {
    const AtenNode& node = graph.aten_nodes[index];
    const Effects effects = effects_of(node.op);
    const bool raises = may_raise(graph, node), is_view = effects.aliases && !effects.writes;
    undo.may_raise |= raises;
    const ops::Operator& known = ops::operator_of(node.op);
    const bool collective = ops::is_kind(known, ops::starts_collective);
    undo.reissues |=
        issued && !collective && !ops::is_kind(known, ops::awaits_collective) && (raises || is_check(node));
    issued |= collective;
    // It allocates memory, or raises before it has written anything.
    if (!is_view) fails();
    std::set<size_t> operands;
    const auto for_each_root = [&](bool of_written, const auto& visit) {
      for (size_t i = 0; i < node.args.size(); ++i) {
        if (writes_argument(node, i) != of_written) continue;
        for_each_tensor(node.args[i], [&](ValueId id) {
          if (effects.aliases) operands.insert(roots[id].begin(), roots[id].end());
          for (const size_t root : roots[id]) visit(root);
        });
      }
    };
    for_each_root(false, [&](size_t root) { history[root].read |= !is_view; });
    size_t writes = 0;
    for_each_root(true, [&](size_t root) {
      ++writes;
      history[root].differs |= history[root].read || !overwrites(node);
      if (!std::exchange(history[root].written, true)) undo.written.push_back({root, true});
    });
    for (const ValueId id : node.results) {
      if (id != kNoValue) roots[id].insert(operands.begin(), operands.end());
    }
    if (node.op.hasTag(at::Tag::nondeterministic_seeded)) {
      const at::Generator generator = generator_of(node);
      auto& known = undo.generators;
      if (std::find(known.begin(), known.end(), generator) == known.end()) known.push_back(generator);
    }
    if (raises || writes > 1) fails();  // in the middle of its own writes
    undo.needs_rerun |= !undo.empty() && static_cast<int32_t>(index) <= last_guarded;
  }
  undo.written.resize(written);
  undo.generators.resize(drawn);
  undo.needs_rerun |= std::any_of(graph.aten_nodes.begin(), graph.aten_nodes.end(), is_check);
  for (Undo::Written& each : undo.written) each.contents = history[each.input].differs;
  return undo;
}

}  // namespace magneto::graph
