#include "capture/torch/mask_loops.h"

#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_set>

#include "capture/calls/calls.h"
#include "capture/capture.h"
#include "capture/interpreter/frames.h"
#include "capture/marks.h"
#include "capture/numbers/numbers.h"
#include "capture/numbers/symbols.h"
#include "capture/torch/mask_turn.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "capture/world/overlays.h"
#include "fake/data_sizes.h"
#include "graph/aliases.h"
#include "graph/text.h"
#include "python/abi/private.h"
#include "python/bytecode/liveness.h"
#include "python/imported.h"
#include "support/tensor_object.h"

namespace magneto::capture {

namespace {

constexpr char kIterator[] = "magneto.mask_loop";
constexpr char kRaises[] = "it raises an exception";
/// All turns run, also those that were not hit: a token that chooses two of sixty experts would wait for the others.
/// With more entries the loop goes by the data, with a side exit, where the program allows one.
constexpr int64_t kMostEntries = 8, kMostWithoutExits = 64;
/// The entries of the mask, of one dimension, whose places the value lists in their order. Nothing: it is something
/// else.
std::optional<int64_t> entries_of_mask(const graph::Graph& graph, graph::ValueId rows) {
  const auto& geometry = graph.values[rows].meta.symbolic;
  if (!geometry || !(geometry->strides[0] == 1) || !(geometry->storage_offset == 0)) return std::nullopt;
  const shapes::Expr count = geometry->sizes[0];
  graph::ValueId id = rows;
  while (graph.values[id].kind == graph::ValueKind::Result) {
    const graph::AtenNode& node = graph.aten_nodes[graph.values[id].producer];
    const graph::ValueId mask = fake::mask_of_places(node);
    if (mask != graph::kNoValue) {  // what has as many elements of its memory, one behind the other, has them all
      const graph::TensorMeta &meta = graph.values[mask].meta, &places = graph.values[id].meta;
      const auto is_fixed = [](const auto& size) { return size.is_constant(); };
      const bool fits = meta.sizes.size() == 1 &&
                        (!meta.symbolic || std::ranges::all_of(meta.symbolic->sizes, is_fixed)) && places.symbolic &&
                        places.symbolic->sizes[0] == count;
      if (!fits || graph::Aliases(graph).written(id)) return std::nullopt;
      return meta.sizes[0];
    }
    const graph::Effects effects = graph::effects_of(node.op);
    const auto* operand = node.args.empty() ? nullptr : std::get_if<graph::ValueId>(&node.args[0]);
    if (!operand || *operand == graph::kNoValue || !effects.aliases || effects.writes) return std::nullopt;
    id = *operand;
  }
  return std::nullopt;
}

bool needs_gradients(const at::Tensor& tensor) { return tensor.requires_grad() && at::GradMode::is_enabled(); }

/// The memory is the value's alone: it was made by an operator, and all that shares it is that value, written in place.
bool is_own(const graph::Graph& graph, const graph::Aliases& aliases, graph::ValueId id) {
  for (size_t other = 0; other < graph.values.size(); ++other) {
    const auto value = static_cast<graph::ValueId>(other);
    if (aliases.group(value) != aliases.group(id)) continue;
    if (graph.values[value].kind != graph::ValueKind::Result) return false;
    const graph::AtenNode& node = graph.aten_nodes[graph.values[value].producer];
    if (graph::effects_of(node.op).aliases && !graph::writes_argument(node.op.schema(), 0)) return false;
  }
  return true;
}

/// It has all of the memory that was made for it.
bool has_all_memory(const graph::Graph& graph, const graph::Aliases& aliases, graph::ValueId id) {
  const graph::Value* made = nullptr;
  for (size_t other = 0; other < graph.values.size(); ++other) {
    const graph::Value& value = graph.values[other];
    if (aliases.group(static_cast<graph::ValueId>(other)) != aliases.group(id)) continue;
    if (value.kind != graph::ValueKind::Result) return false;
    if (graph::effects_of(graph.aten_nodes[value.producer].op).aliases) continue;
    if (std::exchange(made, &value)) return false;
  }
  const graph::TensorMeta& meta = graph.values[id].meta;
  return made && made->meta.sizes == meta.sizes && made->meta.strides == meta.strides &&
         made->meta.storage_offset == meta.storage_offset && made->meta.dtype == meta.dtype;
}

bool has_fixed_sizes(const at::Tensor& tensor) {
  const auto is_fixed = [](const c10::SymInt& size) { return !size.is_heap_allocated(); };
  return std::ranges::all_of(tensor.sym_sizes(), is_fixed) && std::ranges::all_of(tensor.sym_strides(), is_fixed);
}

/// `torch.where(hit, a, b)` is then like both.
bool are_alike(const at::Tensor& a, const at::Tensor& b) {
  return has_fixed_sizes(a) && has_fixed_sizes(b) && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.scalar_type() == b.scalar_type() && a.device() == b.device() && a.is_non_overlapping_and_dense() &&
         a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

/// Its function may see it at any time, or closes over it.
bool is_always_live(const CodeInfo& info, int32_t slot) {
  for (size_t i = 0; i < info.instrs.size(); ++i) {
    if (!is_live(info, static_cast<int32_t>(i), slot)) return false;
  }
  return true;
}

/// Where a turn that does not run would be noticed, whatever comes of its results. Empty: nowhere.
std::string lasting_effect(const graph::Graph& graph, size_t from) {
  static const std::unordered_set<std::string_view> lasting = {"magneto::manual_seed", "magneto::seed_generator",
                                                               "magneto::set_generator_state", "magneto::numpy"};
  for (size_t i = from; i < graph.aten_nodes.size(); ++i) {
    const graph::AtenNode& node = graph.aten_nodes[i];
    const std::string& name = node.op.operator_name().name;
    const std::string_view space = std::string_view(name).substr(0, name.find(':'));
    const bool is_known = space == "aten" || (space == "magneto" && !lasting.contains(name));
    if (!is_known || graph::has_regions(node) || node.op.hasTag(at::Tag::nondeterministic_seeded)) {
      return "it calls " + graph::operator_text(node.op);
    }
  }
  return {};
}

}  // namespace

MaskLoops::MaskLoops(Capture& capture) : c(capture) {}
MaskLoops::~MaskLoops() = default;

bool MaskLoops::is_iterator(PyObject* object) { return PyCapsule_IsValid(object, kIterator); }

void MaskLoops::refuse(const Loop& loop, std::string why) {
  PyErr_Clear();
  c.feedback.plain_loops.emplace(loop.site, std::move(why));
  throw Retry{};
}

std::string MaskLoops::why_refused(const InterpFrame& f) const {
  const auto found = c.feedback.plain_loops.find({f.info->code, f.instr().next});
  return found == c.feedback.plain_loops.end() ? "" : found->second;
}

void MaskLoops::require_none(const std::string& why) {
  if (!loops_.empty()) refuse(*loops_.back(), why.empty() ? "it is left in the middle" : "in it, " + why);
}

Ref MaskLoops::call_method(const char* name, std::vector<PyObject*> values) {
  const Ref method = checked(PyObject_GetAttrString(tensor_class(), name));
  CallArgs args;
  args.values = std::move(values);
  return c.torch.call_torch(method.get(), args);
}

Ref MaskLoops::begin(InterpFrame& f) {
  constexpr int kSuspends = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;
  PyObject* const rows = f.top();
  const int32_t at = f.instr().next;
  if (!is_plain_tensor(rows) || f.info->instrs[at].op != Op::FOR_ITER || (f.info->code->co_flags & kSuspends))
    return {};
  const at::Tensor& tensor = unpack_tensor(rows);
  const BreakSite site = {f.info->code, at};
  if (!c.session->takes.sizes || c.feedback.plain_loops.contains(site) || transform_depth() > 0 || tensor.dim() == 0 ||
      !tensor.sym_size(0).is_heap_allocated() || tensor.scalar_type() != c10::kLong || !tensor.device().is_cpu() ||
      c.torch.is_overridden({&rows, 1})) {
    return {};
  }
  const c10::SymIntArrayRef sizes = tensor.sym_sizes();
  if (std::ranges::any_of(sizes.slice(1), [](const c10::SymInt& size) { return size.maybe_as_int() != 1; })) return {};
  const graph::ValueId value = c.session->value_of(tensor);
  const std::optional<int64_t> entries = entries_of_mask(c.graph, value);
  const bool needs_one_graph = c.options.fullgraph || BreakRegions::is_error();
  if (!entries || *entries > (needs_one_graph ? kMostWithoutExits : kMostEntries)) return {};

  auto loop = std::make_unique<Loop>(
      Loop{.frame = &f, .site = site, .depth = f.depth, .entries = *entries, .dims = tensor.dim() - 1, .rows = value});
  static constinit Imported zeros("torch", "zeros"), kind("torch", "bool");
  const Ref count = checked(PyLong_FromLongLong(*entries)), names = checked(Py_BuildValue("(s)", "dtype"));
  CallArgs args;
  args.values = {count.get(), kind.get()};
  args.kwnames = names.get();
  const Ref none = c.torch.call_torch(zeros.get(), args), zero = checked(PyLong_FromLong(0));
  const Ref last = checked(PyLong_FromLong(-1));
  Ref places = Ref::borrow(rows);
  while (unpack_tensor(places.get()).dim() > 1) places = call_method("select", {places.get(), last.get(), zero.get()});
  loop->hits = call_method("index_fill", {none.get(), zero.get(), places.get(), Py_True});
  loop->iterator = checked(PyCapsule_New(loop.get(), kIterator, nullptr));
  Ref iterator = loop->iterator;
  loops_.push_back(std::move(loop));
  return iterator;
}

Ref MaskLoops::next(InterpFrame& f) {
  Loop& loop = *loops_.back();
  if (f.top() != loop.iterator.get() || loop.frame != &f || loop.depth != f.depth) require_none();
  if (loop.turn) close(f, loop);
  if (loop.turns == loop.entries) {
    loops_.pop_back();
    return {};
  }
  const Ref place = checked(PyLong_FromLongLong(loop.turns)), zero = checked(PyLong_FromLong(0));
  Ref hit = call_method("select", {loop.hits.get(), zero.get(), place.get()});
  if (c.feedback.raising_turns[loop.site].contains(loop.turns)) {
    const std::optional<shapes::Expr> number = number_of_hit(hit.get());
    if (!number || !c.symbols.check_questions({shapes::equal(*number, shapes::Expr(0))})) refuse(loop, kRaises);
    ++loop.turns;
    return next(f);
  }
  open(f, loop, std::move(hit));
  return row(loop, loop.turns++);
}

/// A turn that raises is none: one entry too many, say, for which there is no expert.
void MaskLoops::leave(const InterpFrame& f, const Handler* handler) {
  if (loops_.empty() || loops_.back()->frame != &f) return;
  const Loop& loop = *loops_.back();
  const bool is_branch = loop.end >= 0;
  const bool stays = handler && (is_branch ? handler->target >= loop.first && handler->target < loop.end
                                           : handler->depth >= loop.depth);
  if (stays) return;
  if (is_branch || !loop.turn || !c.feedback.raising_turns[loop.site].insert(loop.turns - 1).second)
    refuse(loop, kRaises);
  PyErr_Clear();
  throw Retry{};
}

/// A tensor that holds the place: it follows from the code.
Ref MaskLoops::row(const Loop& loop, int64_t place) {
  static constinit Imported tensor("torch", "tensor");
  Ref number = checked(PyLong_FromLongLong(place));
  for (int64_t i = 0; i < loop.dims; ++i) number = checked(Py_BuildValue("[O]", number.get()));
  return c.calls.call(tensor.get(), {number.get()});
}

void MaskLoops::open(InterpFrame& f, Loop& loop, Ref hit) {
  std::vector<PyObject*> roots = {f.function.get()};
  for (int32_t slot = 0; slot < f.info->nlocals; ++slot) {
    if (&f == &c.frames.root && f.raw[slot] && f.slots[slot] && is_live(*f.info, f.pc, slot)) c.frames.read_raw(slot);
    if (f.slots[slot]) roots.push_back(f.slots[slot]);
  }
  for (const auto& overlay : c.overlays.all) {
    for (const auto& [name, value] : overlay->entries) {
      if (value) roots.push_back(value.get());
    }
  }
  std::map<int32_t, Ref> copies;
  for (const int32_t slot : c.feedback.loop_writes[loop.site]) {
    if (f.slots[slot] && is_plain_tensor(f.slots[slot])) copies[slot] = call_method("clone", {f.slots[slot]});
  }
  loop.turn = std::make_unique<Turn>(c, std::move(roots));
  loop.turn->hit = std::move(hit);
  loop.turn->copies = std::move(copies);
  for (int32_t slot = 0; slot < f.info->nlocals; ++slot) loop.turn->slots.push_back(Ref::borrow(f.slots[slot]));
  loop.turn->raw = f.raw;
  // Sizes of turns that do not run are often zero, or one: results are chosen, so that nobody sees how such ones lie.
  loop.turn->general = c.session->set_in_general(true);
}

void MaskLoops::close(InterpFrame& f, Loop& loop) {
  finish_turn(f, loop);
  choose_locals(f, loop);
  loop.turn.reset();
}

void MaskLoops::finish_turn(InterpFrame& f, Loop& loop) {
  c.session->set_in_general(loop.turn->general);
  check_effects(loop);
  choose_writes(f, loop);
}

void MaskLoops::check_effects(const Loop& loop) {
  const Turn& turn = *loop.turn;
  for (const std::string& effect :
       {turn.from.change(c, turn.objects), turn.from.hidden_effect(c.graph),
        lasting_effect(c.graph, turn.from.session.aten_nodes), turn.state.difference(guards::GlobalState::read())}) {
    if (!effect.empty()) refuse(loop, effect);
  }
}

Ref MaskLoops::chosen(const Loop& loop, PyObject* behind, PyObject* before) {
  static constinit Imported where("torch", "where");
  CallArgs args;
  args.values = {loop.turn->hit.get(), behind, before};
  return c.torch.call_torch(where.get(), args);
}

/// An operator in front of the turn may have saved the tensor for its backward, which raises where it was written
/// since.
bool MaskLoops::may_be_saved(const Turn& turn, const at::Tensor& tensor) const {
  const auto requires_grad = [](const graph::Value& value) { return value.meta.requires_grad; };
  const bool records = c.start_state.grad_mode || turn.state.grad_mode;
  if (!records || std::ranges::none_of(c.graph.values, requires_grad)) return false;
  const graph::Aliases aliases(c.graph);
  const int32_t group = aliases.group(c.session->value_of(tensor));
  bool read = tensor.requires_grad();
  for (size_t i = 0; i < turn.from.session.aten_nodes; ++i) {
    const graph::AtenNode& node = c.graph.aten_nodes[i];
    if (graph::effects_of(node.op).aliases) continue;
    for (const graph::AtenArg& arg : node.args) {
      graph::for_each_tensor(arg, [&](graph::ValueId id) { read |= aliases.group(id) == group; });
    }
  }
  return read;
}

void MaskLoops::choose_writes(InterpFrame& f, Loop& loop) {
  const graph::Aliases aliases(c.graph);
  const Footprint& from = loop.turn->from;
  std::set<int32_t> around, written, covered;
  for (size_t id = 0; id < c.graph.values.size(); ++id) {
    const auto value = static_cast<graph::ValueId>(id);
    if (from.was_before(c.graph, value)) around.insert(aliases.group(value));
  }
  for (size_t i = from.session.aten_nodes; i < c.graph.aten_nodes.size(); ++i) {
    const graph::AtenNode& node = c.graph.aten_nodes[i];
    for (size_t a = 0; a < node.args.size(); ++a) {
      if (!graph::writes_argument(node.op.schema(), a)) continue;
      graph::for_each_tensor(node.args[a], [&](graph::ValueId id) {
        if (around.contains(aliases.group(id))) written.insert(aliases.group(id));
      });
    }
  }
  if (loop.rows != graph::kNoValue && written.contains(aliases.group(loop.rows)))
    refuse(loop, "it writes to what it goes over");
  std::vector<int32_t> slots;
  for (int32_t slot = 0; slot < f.info->nlocals && covered.size() < written.size(); ++slot) {
    PyObject* object = loop.turn->slots[slot].get();
    if (!object || !is_plain_tensor(object)) continue;
    const graph::ValueId value = c.session->value_of(unpack_tensor(object));
    const int32_t group = aliases.group(value);
    if (!written.contains(group) || covered.contains(group) || !has_all_memory(c.graph, aliases, value)) continue;
    covered.insert(group);
    slots.push_back(slot);
  }
  if (covered.size() < written.size())
    refuse(loop, "it writes to a tensor that no local variable of its function holds");
  bool again = false;
  for (const int32_t slot : slots) again |= c.feedback.loop_writes[loop.site].insert(slot).second;
  if (again) throw Retry{};
  for (const int32_t slot : slots) {
    PyObject *tensor = loop.turn->slots[slot].get(), *copy = loop.turn->copies.at(slot).get();
    const bool needs = needs_gradients(unpack_tensor(tensor)) || needs_gradients(unpack_tensor(copy));
    if (needs) refuse(loop, "what it writes to needs gradients");
    if (may_be_saved(*loop.turn, unpack_tensor(tensor))) refuse(loop, "a backward may need what it writes to");
    call_method("copy_", {tensor, chosen(loop, tensor, copy).get()});
  }
}

void MaskLoops::choose_locals(InterpFrame& f, Loop& loop) {
  for (int32_t slot = 0; slot < f.info->nlocals; ++slot) {
    const Ref& before = loop.turn->slots[slot];
    if (f.slots[slot] == (loop.is_other ? loop.behind_first[slot] : before).get()) continue;
    if (is_live(*f.info, f.pc, slot)) {
      Ref value = chosen_local(f, loop, slot);
      if (!value) {
        if (is_always_live(*f.info, slot)) refuse(loop, "its function may look at its own variables");
        unknown_.push_back({{&f, slot}, loop.site});
        value = Ref::borrow(unknown());
      }
      f.set_local(slot, std::move(value));
      continue;
    }
    f.set_local(slot, before);  // nobody asks
    if (!f.raw.empty()) f.raw[slot] = loop.turn->raw[slot];
  }
}

Ref MaskLoops::chosen_local(const InterpFrame& f, const Loop& loop, int32_t slot) {
  const Ref& before = loop.turn->slots[slot];
  PyObject* behind = f.slots[slot];
  if (!loop.is_other) {
    if (Ref number = chosen_number(c, loop.turn->hit.get(), behind, before.get())) return number;
    return can_be_chosen({behind}, {before.get()}) ? chosen(loop, behind, before.get()) : Ref();
  }
  const Ref& first = loop.behind_first[slot];
  const auto left = [&](PyObject* object) {
    return Left{object, (object == before.get()) + (object == first.get()) + (object == behind)};
  };
  return chosen_of_both(loop, left(first.get()), left(behind));
}

bool MaskLoops::can_be_chosen(const Left& one, const Left& other) const {
  if (!one.object || !is_plain_tensor(one.object) || !other.object || !is_plain_tensor(other.object)) return false;
  const at::Tensor &a = unpack_tensor(one.object), &b = unpack_tensor(other.object);
  const graph::Aliases aliases(c.graph);
  const auto is_alone = [&](const Left& left, const at::Tensor& tensor) {
    const graph::ValueId value = c.session->value_of(tensor);
    return Py_REFCNT(left.object) == left.references && is_own(c.graph, aliases, value) &&
           !c.graph.values[value].meta.wrapped;
  };
  return are_alike(a, b) && is_alone(one, a) && is_alone(other, b) && !a.requires_grad() && !b.requires_grad();
}

// -- what a turn leaves open -----------------------------------------------------------------------------------------

PyObject* MaskLoops::unknown() {
  static PyObject* const object = PyCapsule_New(const_cast<char*>(kIterator), "magneto.unknown_local", nullptr);
  return object;
}

void MaskLoops::read_unknown(const InterpFrame& f, int32_t slot) {
  const auto of_slot = [&](const auto& entry) { return entry.first == std::pair(&f, slot); };
  const auto found = std::find_if(unknown_.rbegin(), unknown_.rend(), of_slot);
  PyErr_Clear();
  const char* name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(f.info->localsplus_names.get(), slot));
  c.feedback.plain_loops.emplace(found->second, "it sets the variable " + std::string(name) + ", which is read later");
  throw Retry{};
}

void MaskLoops::require_known(InterpFrame* innermost) {
  if (unknown_.empty()) return;
  for (InterpFrame* f = innermost; f; f = f->caller) {
    for (int32_t slot = 0; slot < f->info->nlocals; ++slot) {
      if (f->slots[slot] != unknown()) continue;
      if (is_live(*f->info, f->pc, slot)) read_unknown(*f, slot);
      f->set_local(slot, Ref());
    }
  }
}

std::optional<shapes::Expr> MaskLoops::number_of_hit(PyObject* hit) {
  static PyObject* const item = PyObject_GetAttrString(tensor_class(), "item");
  const bool takes_numbers = std::exchange(c.session->takes.numbers, true);
  const Ref number = c.calls.call(item, {call_method("long", {hit}).get()});
  c.session->takes.numbers = takes_numbers;
  const shapes::Expr* const size = size_of_number(number.get());
  return size ? std::optional(*size) : std::nullopt;
}

std::optional<bool> MaskLoops::answer(const shapes::Relation& question) {
  if (loops_.empty() || !loops_.back()->turn || loops_.back()->end >= 0) return std::nullopt;
  const shapes::Relation asked = shapes::with_difference(question, c.session->sizes().original(question.difference));
  std::optional<shapes::Expr> size;
  shapes::any_leaf(asked.difference, [&](shapes::Expr leaf) {
    size = leaf;
    return true;
  });
  if (!size || size->id() >= 0) return std::nullopt;
  const shapes::Expr none(0);
  std::optional<bool> some;
  if (asked == shapes::equal(*size, none) || asked == shapes::at_most(*size, none)) some = false;
  if (asked == shapes::not_equal(*size, none) || asked == shapes::less(none, *size)) some = true;
  if (!some) return std::nullopt;
  const std::optional<shapes::Expr> hit = number_of_hit(loops_.back()->turn->hit.get());
  if (!hit || !c.symbols.check_questions({shapes::at_most(*hit, *size)})) return std::nullopt;
  return some;
}

}  // namespace magneto::capture
