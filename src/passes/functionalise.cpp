// Functionalisation.
//
// The captured graph writes into memory that several values may share. Here each piece of memory (an input's, a
// constant's, a new result's) has one current value, its base's; a view is a path of view operators from that base. A
// write to a view makes a new value of the view, and from it, operator by operator backwards along the path, a new
// value of each tensor that it is a view of, up to the base (select's inverse is select_scatter). A view that is read
// after such a write is made again from the base. So each write costs as many operators as its path is long, and values
// that nobody reads again are left to dead code elimination.
#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "graph/aliases.h"
#include "graph/kept_casts.h"
#include "graph/overlap.h"
#include "graph/symbols.h"
#include "graph/text.h"
#include "graph/versions.h"
#include "ops/kinds.h"
#include "ops/library.h"
#include "passes/effects.h"
#include "passes/functional_forms.h"
#include "passes/passes.h"
#include "passes/rewriter.h"
#include "passes/view_meta.h"

namespace magneto::passes {
namespace {

using graph::AtenArg;
using graph::AtenNode;
using graph::Graph;
using graph::kNoValue;
using graph::TensorMeta;
using graph::ValueId;
using graph::ValueKind;

/// A tensor object of the captured program.
struct Tensor {
  /// What it is a view of, by which operator and which of its results; kNoValue for a base. Of an operator that may
  /// hand its argument on in another form (`opaque_`): -1.
  ValueId parent = kNoValue;
  int32_t node = -1;
  int32_t result = 0;
  int32_t memory = -1;
  /// Its value in the new graph, true while `version` is the memory's.
  ValueId now = kNoValue;
  int32_t version = 0;
};

struct Memory {
  ValueId base = kNoValue;
  int32_t version = 0;
  int32_t writes = 0;
  /// Of these, those that move the version counter.
  int32_t bumps = 0;
};

struct Opaque {
  int32_t memory, node;
};

class Functionaliser {
 public:
  explicit Functionaliser(Graph graph, bool exact = false)
      : out_(std::move(graph)),
        tensors_(out_.old().values.size()),
        symbols_(graph::facts_of(out_.old())),
        exact_(exact) {}

  /// The nodes that are refused.
  std::vector<int32_t> refused() {
    const Graph& old = out_.old();
    for (ValueId id = 0; id < static_cast<ValueId>(old.values.size()); ++id) {
      if (old.values[id].kind != ValueKind::Result) make_base(id, out_.map(id));
    }
    std::vector<int32_t> found;
    for (int32_t i = 0; i < static_cast<int32_t>(old.aten_nodes.size()); ++i) {
      node_ = i;
      try {
        add(old.aten_nodes[i]);
      } catch (const Unsupported&) {
        found.push_back(i);
        make_unknown(old.aten_nodes[i]);
      }
    }
    for (const Opaque& view : opaque_) {
      if (memories_[view.memory].writes) found.push_back(view.node);
    }
    return found;
  }

  Functional run() {
    const Graph& old = out_.old();
    for (ValueId id = 0; id < static_cast<ValueId>(old.values.size()); ++id) {
      if (old.values[id].kind != ValueKind::Result) make_base(id, out_.map(id));
    }
    for (int32_t i = 0; i < static_cast<int32_t>(old.aten_nodes.size()); ++i) {
      node_ = i;
      add(old.aten_nodes[i]);
    }
    return finish();
  }

 private:
  const TensorMeta& meta(ValueId old) const { return out_.old().values[old].meta; }
  const TensorMeta& new_meta(ValueId now) { return out_.graph().values[now].meta; }
  int32_t torch_node() const { return torch_node_; }
  ValueId base_of(ValueId id) const { return memories_[tensors_[id].memory].base; }
  /// The operator that gave the view `id`.
  const AtenNode& view_node(ValueId id) const { return out_.old().aten_nodes[tensors_[id].node]; }

  /// The new graph's input for an old one: the memory itself, whatever was written to it.
  ValueId input_value(ValueId old) const {
    const auto& inputs = out_.old().inputs;
    return out_.graph().inputs[std::find(inputs.begin(), inputs.end(), old) - inputs.begin()];
  }

  void make_base(ValueId id, ValueId now) {
    tensors_[id].memory = static_cast<int32_t>(memories_.size());
    tensors_[id].now = now;
    memories_.push_back({id, 0, 0});
  }

  void set_now(ValueId id, ValueId now) {
    tensors_[id].now = now;
    tensors_[id].version = memories_[tensors_[id].memory].version;
    out_.set(id, now);
  }

  ValueId add_one(const c10::OperatorHandle& op, std::vector<AtenArg> args, const TensorMeta& result) {
    return out_.add(op, std::move(args), {&result}, torch_node())[0];
  }

  /// The value of `id` as of now.
  ValueId read(ValueId id) {
    if (id == kNoValue) return id;
    Tensor& tensor = tensors_[id];
    const Memory& memory = memories_[tensor.memory];
    // What shares memory in another form is never made again: where that memory is written, the end refuses.
    if (tensor.version == memory.version || tensor.result < 0) return tensor.now;
    // Bases are always up to date, so this has a parent.
    const ValueId parent = read(tensor.parent);
    set_now(id, make_view(tensor, parent));
    return tensor.now;
  }

  /// `tensor`'s view operator applied to `source` (a new value).
  ValueId make_view(const Tensor& tensor, ValueId source) {
    return add_view_of(out_.old().aten_nodes[tensor.node], tensor.parent, source)[tensor.result];
  }

  /// The view operator `node` of `parent`, applied to `source`, a value of what that holds.
  std::vector<ValueId> add_view_of(const AtenNode& node, ValueId parent, ValueId source) {
    std::vector<AtenArg> args = node.args;
    args[0] = source;
    std::vector<TensorMeta> metas;
    // While nothing was written, the recorded geometry is right; after that the value may be laid out otherwise.
    if (lies_alike(new_meta(source), meta(parent))) {
      for (const ValueId id : node.results) metas.push_back(meta(id));
    } else if (is_reshape(node.op)) {
      // Strides among its arguments are of the old memory, and the new one may have no such view: a value needs none.
      static const auto reshape = find_op("aten::reshape");
      return {add_one(reshape, {source, args[1]}, row_major(meta(node.results[0])))};
    } else {
      metas = view_metas(node, new_meta(source));
    }
    std::vector<const TensorMeta*> results;
    for (const TensorMeta& result : metas) results.push_back(&result);
    return out_.add(node.op, std::move(args), results, torch_node());
  }

  void add(const AtenNode& node) {
    torch_node_ = node.torch_node;
    const OperatorTraits& traits = traits_of(node.op);
    if (traits.writes) return write(node);
    if (move_statistics(node)) return;
    refuse_hidden(node);
    if (traits.view) return add_view(node);
    if (traits.aliases) return add_alias(node);
    if (ops::is_kind(traits, ops::awaits_collective)) return wait(node);
    std::vector<AtenArg> args = read_args(node);
    std::vector<const TensorMeta*> metas;
    for (const ValueId id : node.results) metas.push_back(id == kNoValue ? nullptr : &meta(id));
    const std::vector<ValueId> results = out_.add(node.op, std::move(args), metas, node.torch_node);
    for (size_t i = 0; i < results.size(); ++i) {
      if (node.results[i] == kNoValue) continue;
      make_base(node.results[i], results[i]);
      set_now(node.results[i], results[i]);
    }
  }

  /// Of the graph's own collectives the run has waited before (Step::waits); others are new values of that memory.
  void wait(const AtenNode& node) {
    const auto id = std::get<ValueId>(node.args[0]);
    if (out_.old().values[base_of(id)].kind == ValueKind::Result) return;
    set_now(id, add_one(node.op, {read(id)}, meta(id)));
  }

  /// The results of a refused node are tensors of their own, for what comes behind it.
  void make_unknown(const AtenNode& node) {
    std::vector<AtenArg> args = node.args;
    for (AtenArg& arg : args) {
      if (auto* id = std::get_if<ValueId>(&arg)) {
        if (*id != kNoValue) *id = tensors_[*id].now;
      } else if (auto* ids = std::get_if<std::vector<ValueId>>(&arg)) {
        for (ValueId& item : *ids) item = item == kNoValue ? item : tensors_[item].now;
      }
    }
    std::vector<const TensorMeta*> metas;
    for (const ValueId id : node.results) metas.push_back(id == kNoValue ? nullptr : &meta(id));
    const std::vector<ValueId> results = out_.add(node.op, std::move(args), metas, -1);
    for (size_t i = 0; i < results.size(); ++i) {
      const ValueId id = node.results[i];
      if (id == kNoValue || tensors_[id].memory >= 0) continue;
      make_base(id, results[i]);
      set_now(id, results[i]);
    }
  }

  /// Batch norm with the statistics of the batch moves the running ones.
  bool move_statistics(const AtenNode& node) {
    if (node.op.operator_name().name != "aten::native_batch_norm" || !is_pinned(node)) return false;
    static const auto functional = find_op("aten::_native_batch_norm_legit_functional");
    const auto* mean = std::get_if<ValueId>(&node.args[3]);
    const auto* variance = std::get_if<ValueId>(&node.args[4]);
    if (!mean || !variance || *mean == kNoValue || *variance == kNoValue) return false;
    if (tensors_[*mean].memory == tensors_[*variance].memory) refuse(node.op, "writes one memory twice");
    std::vector<TensorMeta> metas;
    for (const ValueId id : node.results) {
      if (id == kNoValue) return false;
      metas.push_back(meta(id));
    }
    for (const ValueId id : {*mean, *variance}) metas.push_back(dense(meta(id)));
    std::vector<const TensorMeta*> pointers;
    for (const TensorMeta& result : metas) pointers.push_back(&result);
    const std::vector<ValueId> results = out_.add(functional, read_args(node), pointers, node.torch_node);
    for (size_t i = 0; i < node.results.size(); ++i) {
      make_base(node.results[i], results[i]);
      set_now(node.results[i], results[i]);
    }
    // Eager's kernel writes them without a word: no version counter moves.
    assign(*mean, results[3], /*counted=*/false);
    assign(*variance, results[4], /*counted=*/false);
    return true;
  }

  void refuse_hidden(const AtenNode& node) {
    if (!traits_of(node.op).effect || !is_pinned(node)) return;
    // A custom operator keeps to its schema; it stays where it is.
    if (!node.op.operator_name().name.starts_with("aten::")) return;
    if (!node.op.schema().returns().empty()) refuse(node.op, "writes what its schema does not show");
  }

  std::vector<AtenArg> read_args(const AtenNode& node) {
    std::vector<AtenArg> args = node.args;
    const bool sees_strides = ops::is_of_library(node.op) && !graph::has_regions(node);
    const auto operand = [&](ValueId id) { return sees_strides ? as_in_eager(id) : read(id); };
    for (AtenArg& arg : args) {
      if (auto* id = std::get_if<ValueId>(&arg)) {
        *id = operand(*id);
      } else if (auto* ids = std::get_if<std::vector<ValueId>>(&arg)) {
        for (ValueId& item : *ids) item = operand(item);
      }
    }
    if (graph::is_kept_cast(node)) args[1] = input_value(std::get<ValueId>(node.args[1]));
    return args;
  }

  /// The value of `id` as of now, with the strides that it has in eager (what was written has those of a new value):
  /// for code that may look at them.
  ValueId as_in_eager(ValueId id) {
    const ValueId now = read(id);
    if (now == kNoValue) return now;
    TensorMeta eager = meta(id), here = new_meta(now);
    for (TensorMeta* geometry : {&eager, &here}) {
      geometry->storage_offset = 0;
      if (geometry->symbolic) geometry->symbolic->storage_offset = shapes::Expr(0);
    }
    if (lies_alike(here, eager)) return now;
    static const auto restrided = find_op("magneto::restrided");
    const AtenArg strides = eager.symbolic ? AtenArg(graph::SizeArg{eager.symbolic->strides}) : AtenArg(eager.strides);
    return add_one(restrided, {now, strides}, eager);
  }

  void add_view(const AtenNode& node) {
    const ValueId source = std::get<ValueId>(node.args[0]);
    const std::vector<ValueId> results = add_view_of(node, source, read(source));
    for (size_t i = 0; i < results.size(); ++i) {
      const ValueId id = node.results[i];
      if (id == kNoValue || id == source) continue;
      tensors_[id] = {source, node_, static_cast<int32_t>(i), tensors_[source].memory, results[i], 0};
      set_now(id, results[i]);
    }
  }

  /// An operator that may hand its argument on, as itself or as a view that is no plain geometry. Fine as long as the
  /// memory is never written, before or after.
  void add_alias(const AtenNode& node) {
    ValueId source = kNoValue;
    for (size_t i = 0; i < node.args.size(); ++i) {
      if (!node.op.schema().arguments()[i].alias_info()) continue;
      graph::for_each_tensor(node.args[i], [&](ValueId id) {
        if (source != kNoValue) refuse(node.op, "gives a view of one of several tensors");
        source = id;
      });
    }
    if (source == kNoValue) refuse(node.op, "gives a view of something unknown");
    std::vector<AtenArg> args = read_args(node);
    std::vector<const TensorMeta*> metas;
    for (const ValueId id : node.results) metas.push_back(id == kNoValue ? nullptr : &meta(id));
    const std::vector<ValueId> results = out_.add(node.op, std::move(args), metas, node.torch_node);
    for (size_t i = 0; i < results.size(); ++i) {
      const ValueId id = node.results[i];
      if (id == kNoValue || id == source) continue;
      tensors_[id] = {source, node_, -1, tensors_[source].memory, results[i], 0};
      set_now(id, results[i]);
    }
    opaque_.push_back({tensors_[source].memory, node_});
  }

  // -- writes
  // ----------------------------------------------------------------------------------------------------------

  /// as_strided_ that tells dimensions of size one other strides.
  void restride(const AtenNode& node) {
    const ValueId id = std::get<ValueId>(node.args[0]);
    const TensorMeta old = new_meta(read(id));
    const auto& outputs = out_.old().outputs;
    const bool own = tensors_[id].parent == kNoValue && out_.old().values[id].kind == ValueKind::Result &&
                     std::find(outputs.begin(), outputs.end(), id) == outputs.end();
    const std::vector<shapes::Expr> strides = graph::exprs_of(node.args[2]);
    const bool begins_there = node.args.size() < 4 || constant_of(node.args[3]).isNone();
    if (!own || !begins_there || !graph::lies_so(old, graph::exprs_of(node.args[1]), strides))
      refuse(node.op, "changes the geometry of a tensor");
    const shapes::Sizes old_sizes = graph::sizes_of(old);
    TensorMeta now = old;
    for (size_t i = 0; i < strides.size(); ++i) {
      // Of others than those of size one they are what they were.
      if (!(old_sizes[i] == 1)) continue;
      if (strides[i].is_constant()) now.strides[i] = strides[i].number();
      if (now.symbolic) now.symbolic->strides[i] = strides[i];
    }
    static const auto view = find_op("aten::_reshape_alias");
    assign(id, add_one(view, {read(id), node.args[1], node.args[2]}, now));
  }

  void write(const AtenNode& node) {
    if (ops::operator_of(node.op).is(ops::restrides)) return restride(node);
    const auto functional = functional_of(node.op);
    if (!functional) refuse(node.op, "writes its arguments and has no functional form");
    refuse_hidden(node);
    // What the functional operator gives: for each of its results the tensor (or the list) that receives it.
    std::vector<ValueId> targets;
    const auto& arguments = node.op.schema().arguments();
    std::vector<AtenArg> args;
    for (size_t i = 0; i < node.args.size(); ++i) {
      if (graph::writes_argument(node.op.schema(), i))
        graph::for_each_tensor(node.args[i], [&](ValueId id) { targets.push_back(id); });
      if (!arguments[i].is_out()) args.push_back(node.args[i]);
    }
    for (size_t i = 0; i < targets.size(); ++i) {
      // What is written to one element would have to show in others.
      for (ValueId at = targets[i]; at != kNoValue; at = tensors_[at].parent) {
        if (graph::may_overlap_itself(meta(at), symbols_)) refuse(node.op, "writes memory whose elements overlap");
        if (exact_ && at == base_of(targets[i]) && dense(meta(at)).strides != meta(at).strides)
          refuse(node.op, "writes memory with gaps, which a new value does not have");
      }
      for (size_t j = 0; j < i; ++j) {
        if (tensors_[targets[i]].memory == tensors_[targets[j]].memory) refuse(node.op, "writes one memory twice");
      }
    }
    for (AtenArg& arg : args) {
      if (auto* id = std::get_if<ValueId>(&arg)) {
        *id = read(*id);
      } else if (auto* ids = std::get_if<std::vector<ValueId>>(&arg)) {
        for (ValueId& item : *ids) item = read(item);
      }
    }
    std::vector<TensorMeta> metas;
    for (size_t k = 0; k < targets.size(); ++k) {
      const TensorMeta drawn = dense(meta(targets[k]));
      // Numbers are drawn in the order of memory, and some kernels draw otherwise for memory with gaps.
      if (functional->hasTag(at::Tag::nondeterministic_seeded) &&
          (drawn.strides != meta(targets[k]).strides || new_meta(tensors_[targets[k]].now).strides != drawn.strides))
        refuse(node.op, "draws random numbers into memory that lies otherwise");
      metas.push_back(drawn);
      metas.back().storage_offset = 0;
      metas.back().dtype = written_dtype(out_.graph(), node, *functional, args, k, meta(targets[k]));
    }
    std::vector<const TensorMeta*> pointers;
    for (const TensorMeta& result : metas) pointers.push_back(&result);
    const bool in_rows = functional->operator_name().name == "aten::bernoulli" &&
                         metas[0].strides != graph::contiguous_strides(metas[0].sizes);
    const std::vector<ValueId> results =
        in_rows ? std::vector<ValueId>{draw_in_rows(out_, *functional, std::move(args), metas[0], node.torch_node)}
                : out_.add(*functional, std::move(args), pointers, node.torch_node);
    for (size_t i = 0; i < targets.size(); ++i) {
      const TensorMeta& target = meta(targets[i]);
      ValueId now = results[i];
      if (metas[i].dtype != target.dtype) now = cast(now, target.dtype);
      assign(targets[i], now, graph::moves_versions(node.op));
    }
    // Results that are no written arguments (none of PyTorch's operators has both) keep no value: refused above.
  }

  ValueId cast(ValueId value, c10::ScalarType dtype) {
    static const auto to_copy = find_op("aten::_to_copy");
    TensorMeta result = new_meta(value);
    result.dtype = dtype;
    result.storage_offset = 0;
    return add_one(to_copy,
                   {value, c10::IValue(static_cast<int64_t>(dtype)), c10::IValue(), c10::IValue(), c10::IValue(),
                    c10::IValue(false), c10::IValue()},
                   result);
  }

  /// `now` becomes the contents of the tensor `id`. Writes through `x.data` move no counter that others have.
  void assign(ValueId id, ValueId now, bool counted = true) {
    const int32_t memory = tensors_[id].memory;
    // The values of the tensors on the path, as they were before this write.
    std::vector<ValueId> path;
    for (ValueId at = id; at != kNoValue; at = tensors_[at].parent) path.push_back(at);
    std::vector<ValueId> before;
    for (const ValueId at : path) before.push_back(read(at));
    std::vector<ValueId> after{now};
    for (size_t i = 0; i + 1 < path.size(); ++i) {
      after.push_back(
          put_back({out_, view_node(path[i]), tensors_[path[i]].result, before[i + 1], after[i], torch_node()}));
    }
    ++memories_[memory].version;
    ++memories_[memory].writes;
    const ValueId apart = apart_from(id);
    if (counted) ++(apart == kNoValue ? memories_[memory].bumps : data_bumps_[apart]);
    // What reads the view next reads it where it lies, if the order in which that adds is to be eager's.
    for (size_t i = exact_ ? path.size() - 1 : 0; i < path.size(); ++i) set_now(path[i], after[i]);
  }

  /// The nearest x.data that `id` is a view of, or is: a version counter of its own. kNoValue: it has the memory's.
  ValueId apart_from(ValueId id) const {
    static const auto data = find_op("magneto::data");
    for (ValueId at = id; tensors_[at].parent != kNoValue; at = tensors_[at].parent) {
      if (view_node(at).op == data) return at;
    }
    return kNoValue;
  }

  // -- the end
  // -----------------------------------------------------------------------------------------------------------

  Functional finish() {
    const Graph& old = out_.old();
    torch_node_ = -1;
    Functional result;
    for (const Opaque& view : opaque_) {
      if (memories_[view.memory].writes)
        throw Unsupported("memory is written that a view of another dtype or form shares");
    }
    // A view that leaves must be of a tensor that knows what it is a view of, which tensors between kernels do not.
    for (const ValueId id : old.outputs) {
      for (ValueId at = id; tensors_[at].parent != kNoValue; at = tensors_[at].parent) {
        if (tensors_[at].result >= 0 || tensors_[tensors_[at].parent].parent == kNoValue) continue;
        throw Unsupported("a view of another dtype or form of a view is an output");
      }
    }
    for (const ValueId id : old.outputs) own_base(memories_[tensors_[id].memory]);
    // Outputs that share written memory are views of what the base is now.
    std::vector<ValueId> outputs;
    for (const ValueId id : old.outputs) outputs.push_back(leave(id));
    for (size_t m = 0; m < memories_.size(); ++m) {
      const Memory& memory = memories_[m];
      if (!memory.writes) continue;
      if (old.values[memory.base].kind == ValueKind::Input) {
        const ValueId input = input_value(memory.base);
        result.writes.push_back({input, tensors_[memory.base].now});
        result.bumps.push_back({input, memory.bumps});
      }
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Memory& memory = memories_[tensors_[old.outputs[i]].memory];
      if (const ValueId apart = apart_from(old.outputs[i]); apart != kNoValue) {
        if (const int32_t bumps = data_bumps_[apart]; bumps && memory.writes)
          result.bumps.push_back({outputs[i], bumps});
        continue;
      }
      if (memory.writes && old.values[memory.base].kind != ValueKind::Input) add_bump(result, memory, outputs[i]);
    }
    // Two outputs of one value: one of them is a view of the other in eager only if it was one.
    std::vector<ValueId> seen;
    for (ValueId& id : outputs) {
      if (std::find(seen.begin(), seen.end(), id) != seen.end()) throw Unsupported("two outputs are one value");
      seen.push_back(id);
    }
    result.graph = out_.finish(std::move(outputs));
    return result;
  }

  /// The version counter is shared by all views of one memory: it is moved once.
  void add_bump(Functional& result, const Memory& memory, ValueId output) {
    for (const int32_t seen : bumped_) {
      if (&memories_[seen] == &memory) return;
    }
    bumped_.push_back(static_cast<int32_t>(&memory - memories_.data()));
    if (memory.bumps) result.bumps.push_back({output, memory.bumps});
  }

  /// A tensor that is no view leaves as none, though its last value may be one (a write to its transpose is put back
  /// so), and lies as it does in eager, and with it all views of it.
  void own_base(const Memory& memory) {
    if (!memory.writes || out_.old().values[memory.base].kind == ValueKind::Input) return;
    const ValueId lies = as_in_eager(memory.base);
    if (lies != tensors_[memory.base].now) return set_now(memory.base, lies);
    const ValueId now = tensors_[memory.base].now;
    const int32_t producer = out_.graph().values[now].producer;
    if (producer < 0 || !traits_of(out_.graph().aten_nodes[producer].op).view) return;
    static const auto clone = find_op("aten::clone");
    set_now(memory.base, add_one(clone, {now, c10::IValue()}, dense(new_meta(now))));
  }

  /// The value to hand out for output `id`. For memory of an input it is the input, or a view of it.
  ValueId leave(ValueId id) {
    const Tensor& tensor = tensors_[id];
    const Memory& memory = memories_[tensor.memory];
    const bool of_input = out_.old().values[memory.base].kind == ValueKind::Input;
    if (!memory.writes) return tensor.now;
    if (id == memory.base) {
      if (of_input) return input_value(id);
      return tensor.now;
    }
    // Its path again, from the base as it is: of an input the memory itself.
    std::vector<const Tensor*> path;
    for (ValueId at = id; tensors_[at].parent != kNoValue; at = tensors_[at].parent) path.push_back(&tensors_[at]);
    ValueId value = of_input ? input_value(memory.base) : tensors_[memory.base].now;
    for (size_t i = path.size(); i-- > 0;) value = make_view(*path[i], value);
    return value;
  }

  Rewriter out_;
  std::vector<Tensor> tensors_;
  shapes::SymbolFacts symbols_;
  std::vector<Memory> memories_;
  /// Views that are no plain geometry.
  std::vector<Opaque> opaque_;
  std::vector<int32_t> bumped_;
  std::unordered_map<ValueId, int32_t> data_bumps_;  // by what x.data gave
  int32_t node_ = 0;
  int32_t torch_node_ = -1;
  bool exact_;
};

}  // namespace

std::vector<int32_t> refused_nodes(Graph graph) { return Functionaliser(std::move(graph)).refused(); }

Functional functionalise(Graph graph, bool exact) {
  simplify_views(graph);
  const bool writes = std::any_of(graph.aten_nodes.begin(), graph.aten_nodes.end(),
                                  [](const AtenNode& node) { return traits_of(node.op).writes || is_pinned(node); });
  // Views alone are no trouble, and most graphs write nothing.
  if (!writes) return {std::move(graph), {}, {}};
  return Functionaliser(std::move(graph), exact).run();
}

}  // namespace magneto::passes
