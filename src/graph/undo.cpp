#include "graph/undo.h"

#include <ATen/Context.h>
#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "graph/aliases.h"

namespace magneto::graph {

namespace {

enum class When : uint8_t { Always, Integers };

/// ATen operators that look at values and may raise because of them, by the beginning of their names.
constexpr struct {
  std::string_view prefix;
  When when;
} kMayRaise[] = {
    {"index", When::Always},
    {"_index_put", When::Always},
    {"gather", When::Always},
    {"scatter", When::Always},
    {"take", When::Always},
    {"put_", When::Always},
    {"embedding", When::Always},
    {"_embedding", When::Always},
    {"nll_loss", When::Always},
    {"one_hot", When::Always},
    {"multinomial", When::Always},
    {"bernoulli", When::Always},
    {"normal", When::Always},
    {"poisson", When::Always},
    {"bincount", When::Always},
    {"linalg_", When::Always},
    {"_linalg", When::Always},
    {"cholesky", When::Always},
    {"lu_", When::Always},
    {"triangular_solve", When::Always},
    {"geqrf", When::Always},
    {"ormqr", When::Always},
    {"_assert", When::Always},
    {"repeat_interleave", When::Always},
    {"masked_scatter", When::Always},
    {"binary_cross_entropy", When::Always},
    {"_ctc_loss", When::Always},
    {"ctc_loss", When::Always},
    {"max_unpool", When::Always},
    {"histc", When::Always},
    {"searchsorted", When::Always},
    {"_unsafe_index", When::Always},
    {"segment_reduce", When::Always},
    {"floor_divide", When::Integers},
    {"remainder", When::Integers},
    {"fmod", When::Integers},
    {"div", When::Integers},
    {"pow", When::Integers},
};

bool may_raise(const Graph& graph, const AtenNode& node) {
  std::string_view name = node.op.operator_name().name;
  if (!name.starts_with("aten::")) return true;  // of a library: nobody knows
  name.remove_prefix(6);
  for (const auto& row : kMayRaise) {
    if (!name.starts_with(row.prefix)) continue;
    if (row.when == When::Always) return true;
    bool integers = true;
    for_each_operand(
        node, [&](ValueId id) { integers &= c10::isIntegralType(graph.values[id].meta.dtype, /*includeBool=*/true); });
    if (integers) return true;
  }
  return false;
}

/// How many elements a mask selects, and whether the values fit, is no part of the key.
bool has_mask(const Graph& graph, const AtenNode& node) {
  bool found = false;
  for_each_operand(node, [&](ValueId id) {
    const c10::ScalarType dtype = graph.values[id].meta.dtype;
    found |= dtype == c10::kBool || dtype == c10::kByte;
  });
  return found;
}

/// Two calls with one key raise for the same reason: if the first did not, neither does the second.
std::string reason_key(const Graph& graph, const AtenNode& node) {
  std::string key = node.op.operator_name().name;
  bool first = true;
  for (const AtenArg& arg : node.args) {
    for_each_tensor(arg, [&](ValueId id) {
      if (std::exchange(first, false)) {  // the tensor that is indexed counts by its sizes
        for (const int64_t size : graph.values[id].meta.sizes) key += "," + std::to_string(size);
      } else if (c10::isIntegralType(graph.values[id].meta.dtype, true)) {
        key += "%" + std::to_string(id);
      }
    });
    if (const auto* constant = std::get_if<c10::IValue>(&arg); constant && constant->isInt()) {
      key += ";" + std::to_string(constant->toInt());
    }
  }
  return key;
}

/// What an operator with random results draws from.
at::Generator generator_of(const AtenNode& node) {
  for (const AtenArg& arg : node.args) {
    const auto* constant = std::get_if<c10::IValue>(&arg);
    if (constant && constant->isGenerator()) return constant->toGenerator();
  }
  return at::globalContext().defaultGenerator(at::kCPU);
}

}  // namespace

Undo undo_of(const Graph& graph) {
  Undo undo;
  std::vector<std::set<size_t>> roots(graph.values.size());  // inputs whose memory a value may be
  for (size_t i = 0; i < graph.inputs.size(); ++i) roots[graph.inputs[i]].insert(i);
  std::set<size_t> written;
  std::set<std::string> known;
  std::vector<at::Generator> drawn;
  for (const AtenNode& node : graph.aten_nodes) {
    const c10::FunctionSchema& schema = node.op.schema();
    if (!written.empty() || !drawn.empty()) {
      const bool indexed = node.op.operator_name().name.starts_with("aten::index") ||
                           node.op.operator_name().name.starts_with("aten::embedding");
      if (may_raise(graph, node) && !(indexed && !has_mask(graph, node) && known.count(reason_key(graph, node)))) {
        undo.written_inputs.assign(written.begin(), written.end());
        undo.generators = drawn;
      }
    }
    if (may_raise(graph, node)) {
      undo.may_raise = true;
      known.insert(reason_key(graph, node));
    }
    const Effects effects = effects_of(node.op);
    std::set<size_t> operands;
    for (size_t i = 0; i < node.args.size(); ++i) {
      for_each_tensor(node.args[i], [&](ValueId id) {
        if (effects.aliases) operands.insert(roots[id].begin(), roots[id].end());
        if (writes_argument(schema, i)) written.insert(roots[id].begin(), roots[id].end());
      });
    }
    for (const ValueId id : node.results) {
      if (id != kNoValue) roots[id].insert(operands.begin(), operands.end());
    }
    if (!node.op.hasTag(at::Tag::nondeterministic_seeded)) continue;
    const at::Generator generator = generator_of(node);
    if (std::find(drawn.begin(), drawn.end(), generator) == drawn.end()) drawn.push_back(generator);
  }
  return undo;
}

}  // namespace magneto::graph
