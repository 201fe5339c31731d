// `if` on a tensor as one graph: its body is a turn of a loop with one entry, and what it leaves behind is chosen.
// Where there is an `else`, too, that is a second turn, and what the two leave behind is chosen between them.
#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include "capture/calls/calls.h"
#include "capture/capture.h"
#include "capture/interpreter/operations.h"
#include "capture/numbers/numbers.h"
#include "capture/torch/mask_turn.h"
#include "capture/torch/torch_calls.h"
#include "capture/torch/transforms.h"
#include "capture/world/world.h"
#include "graph/aliases.h"
#include "graph/text.h"
#include "guards/constants.h"
#include "python/bytecode/liveness.h"
#include "python/imported.h"

namespace magneto::capture {

namespace {

/// More operators than these, and more multiplications, go by the data: a side exit costs about as much as a million
/// multiplications.
constexpr size_t kMostOperators = 16;
constexpr double kMostWork = 1 << 20;

/// Multiplications, roughly: of a product of matrices the root of the three sizes' product.
double work_of(const graph::Graph& graph, const graph::AtenNode& node) {
  double product = 1, largest = 1;
  const auto count = [&](graph::ValueId id) {
    double elements = 1;
    for (const int64_t size : graph.values[id].meta.sizes) elements *= static_cast<double>(std::max<int64_t>(size, 1));
    product *= elements;
    largest = std::max(largest, elements);
  };
  graph::for_each_operand(node, count);
  for (const graph::ValueId id : node.results) {
    if (id != graph::kNoValue) count(id);
  }
  if (graph::effects_of(node.op).aliases && !graph::effects_of(node.op).writes) return 0;  // a view
  return node.op.hasTag(at::Tag::pointwise) ? largest : std::sqrt(product);
}

/// The instructions are entered at the first one, and left at `end` alone (and for what is behind it, at `join`), but
/// for exceptions.
bool is_block(const CodeInfo& info, int32_t from, int32_t end, int32_t join = -1) {
  for (int32_t i = from; i < end; ++i) {
    const Instr& instr = info.instrs[i];
    const bool jumps_out = instr.target >= 0 && (instr.target < from || instr.target > end) && instr.target != join;
    if (jumps_out || flow_of(instr.op) == Flow::End || instr.op == Op::YIELD_VALUE) return false;
  }
  return from < end;
}

/// Of instructions that are entered at the first one and give a value on each way, but for exceptions: the last one,
/// which none of their jumps leads past. -1: they may do something else.
int32_t last_that_returns(const CodeInfo& info, int32_t from, int32_t limit) {
  int32_t furthest = from;
  for (int32_t i = from; i < limit; ++i) {
    const Instr& instr = info.instrs[i];
    const bool returns = instr.op == Op::RETURN_VALUE;
    if (instr.op == Op::YIELD_VALUE || (instr.target >= 0 && instr.target < from)) return -1;
    if (flow_of(instr.op) == Flow::End && !returns) return -1;
    furthest = std::max(furthest, instr.target);
    if (i < furthest) continue;
    if (returns) return i;
    if (instr.op == Op::JUMP) return -1;
  }
  return -1;
}

/// The body of an `if`, and that of its `else`.
struct Body {
  int32_t first, end;
  bool where_true;  // it runs where the condition holds
  int32_t other_first = -1, other_end = -1;
  bool returns = false;  // both give a value
};

/// Both sides end where the code goes on for both, at the same jump back, or give their value.
std::optional<Body> both_sides(const CodeInfo& info, int32_t at, bool on_true) {
  const Instr& jump = info.instrs[at];
  const int32_t end = jump.target - 1;
  if (end <= jump.next) return std::nullopt;
  const Instr& last = info.instrs[end];
  const auto count = static_cast<int32_t>(info.instrs.size());
  if (last_that_returns(info, jump.next, jump.target) == end) {
    const int32_t other_end = last_that_returns(info, jump.target, count);
    if (other_end < 0) return std::nullopt;
    return Body{jump.next, end, !on_true, jump.target, other_end, /*returns=*/true};
  }
  if (last.op != Op::JUMP) return std::nullopt;
  const bool goes_on = last.target > jump.target;
  const int32_t join = goes_on ? last.target : -1;
  int32_t other_end = jump.target;
  for (; other_end < (goes_on ? join : count); ++other_end) {  // where the other one leaves in the same way
    const Instr& instr = info.instrs[other_end];
    if (instr.op == last.op && instr.target == last.target && is_block(info, jump.target, other_end, join)) break;
  }
  if (other_end == count || !is_block(info, jump.next, end, join)) return std::nullopt;
  if (!is_block(info, jump.target, other_end, join)) return std::nullopt;
  return Body{jump.next, end, !on_true, jump.target, other_end};
}

/// At the end of a loop's body the jump goes back to the loop (3.11), or past one that does (from 3.12 on): such a body
/// ends at the jump back of its own.
std::optional<Body> body_behind(const CodeInfo& info, int32_t at, bool on_true) {
  const Instr& jump = info.instrs[at];
  if (jump.target > at) {
    if (const std::optional<Body> both = both_sides(info, at, on_true)) return both;
  }
  const Instr& next = info.instrs[jump.next];
  Body body = {jump.next, jump.target, !on_true};
  int32_t back = jump.target;
  if (jump.target > at && next.op == Op::JUMP && next.target <= at) {
    body = {jump.target, -1, on_true};
    back = next.target;
  }
  if (back <= at) {
    for (body.end = body.first; info.instrs[body.end].op != Op::JUMP || info.instrs[body.end].target != back;) {
      if (++body.end == static_cast<int32_t>(info.instrs.size())) return std::nullopt;
    }
  }
  if (!is_block(info, body.first, body.end)) return std::nullopt;
  return body;
}

/// A number as a tensor to choose by. Null: it is none that a tensor can hold.
Ref tensor_of_number(Capture& c, PyObject* number) {
  if (!number) return {};
  if (PyObject* holder = holder_of_float(number)) {
    const at::Tensor& tensor = unpack_tensor(holder);
    return tensor.scalar_type() == c10::kDouble && tensor.dim() == 0 ? Ref::borrow(holder) : Ref();
  }
  int overflow = 0;
  const bool is_float = PyFloat_CheckExact(number);
  if (!is_float && (!PyLong_CheckExact(number) || (PyLong_AsLongLongAndOverflow(number, &overflow), overflow)))
    return {};
  static constinit Imported full("torch", "full"), floats("torch", "float64"), ints("torch", "int64");
  const Ref sizes = checked(PyTuple_New(0)), names = checked(Py_BuildValue("(s)", "dtype"));
  CallArgs args;
  args.values = {sizes.get(), number, is_float ? floats.get() : ints.get()};
  args.kwnames = names.get();
  return c.torch.call_torch(full.get(), args);
}

}  // namespace

Ref chosen_number(Capture& c, PyObject* hit, PyObject* behind, PyObject* before) {
  if (!behind || !before || !unpack_tensor(hit).device().is_cpu()) return {};
  const Ref one = tensor_of_number(c, behind), other = one ? tensor_of_number(c, before) : Ref();
  if (!other || unpack_tensor(one.get()).scalar_type() != unpack_tensor(other.get()).scalar_type()) return {};
  const bool is_float = unpack_tensor(one.get()).scalar_type() == c10::kDouble;
  const bool tries = c.options.tries_data_sizes && !c.feedback.ends_at_data_numbers;
  if (!is_float && !c.session->takes.numbers && !tries) return {};
  static constinit Imported where("torch", "where"), item("torch._C", "TensorBase.item");
  const Ref chosen = c.torch.call_torch(where.get(), {{hit, one.get(), other.get()}});
  c.session->use_symbols();
  if (is_float) return float_of_tensor(c, chosen.get());
  const bool takes_numbers = std::exchange(c.session->takes.numbers, true);
  Ref number = c.calls.call(item.get(), {chosen.get()});
  c.session->takes.numbers = takes_numbers;
  return number;
}

std::optional<int32_t> MaskLoops::begin_branch(InterpFrame& f, bool on_true) {
  constexpr int kSuspends = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;
  const BreakSite site = {f.info->code, f.pc};
  if ((f.info->code->co_flags & kSuspends) || c.feedback.plain_loops.contains(site) || transform_depth() > 0 ||
      !is_plain_tensor(f.top())) {
    return std::nullopt;
  }
  const std::optional<Body> body = body_behind(*f.info, f.pc, on_true);
  if (!body) return std::nullopt;
  auto branch = std::make_unique<Loop>(Loop{.frame = &f,
                                            .site = site,
                                            .depth = f.depth - 1,
                                            .entries = 1,
                                            .dims = 0,
                                            .rows = graph::kNoValue,
                                            .first = body->first,
                                            .end = body->end,
                                            .stack = {f.stack(), f.stack() + f.depth - 1},
                                            .other_first = body->other_first,
                                            .other_end = body->other_end,
                                            .returns = body->returns});
  if (body->returns) {
    for (PyObject* entry : branch->stack) branch->held_stack.push_back(Ref::borrow(entry));
  }
  const Ref zero = checked(PyLong_FromLong(0)), no_sizes = checked(PyTuple_New(0));
  const Ref hit = call_method(body->where_true ? "ne" : "eq", {f.top(), zero.get()});  // a tensor of its own
  loops_.push_back(std::move(branch));
  open(f, *loops_.back(), call_method("reshape", {hit.get(), no_sizes.get()}));
  return body->first;
}

bool MaskLoops::ends_at(const InterpFrame& f) const {
  if (loops_.empty() || loops_.back()->frame != &f) return false;
  const Loop& branch = *loops_.back();
  if (branch.returns) return f.info->instrs[f.pc].op == Op::RETURN_VALUE;
  return branch.end == f.pc || (branch.other_end == f.pc && !branch.is_other && branch.end >= 0);
}

void MaskLoops::end_branch(InterpFrame& f) {
  Loop& branch = *loops_.back();
  const size_t depth = branch.stack.size();
  const bool has_value = branch.returns || (branch.other_first >= 0 && static_cast<size_t>(f.depth) == depth + 1);
  const std::span stack(f.stack(), f.depth - (has_value ? 1 : 0));
  if (!branch.returns && !std::ranges::equal(branch.stack, stack)) refuse(branch, "it leaves a value on the stack");
  if (!c.options.fullgraph) {
    const std::span body = std::span(c.graph.aten_nodes).subspan(branch.turn->from.session.aten_nodes);
    if (body.size() > kMostOperators) refuse(branch, "it has many operators");
    double work = 0;
    for (const graph::AtenNode& node : body) work += work_of(c.graph, node);
    if (work > kMostWork) refuse(branch, "it computes much, which would be done in each run");
  }
  Ref value = has_value ? Ref::borrow(f.top()) : Ref();
  if (has_value) f.drop(1);
  if (branch.other_first >= 0 && !branch.is_other) return begin_other(f, branch, std::move(value));
  finish_turn(f, branch);
  choose_locals(f, branch);
  branch.behind_first.clear();
  if (static_cast<bool>(branch.value_of_first) != has_value) refuse(branch, "one side leaves a value on the stack");
  if (has_value) {
    value = chosen_value(f, branch, branch.value_of_first.get(), value.get());
    if (!value) refuse(branch, "its values are not to be chosen between");
    f.push(std::move(value));
  }
  loops_.pop_back();
}

/// Tuples item by item: `return y, 2`.
Ref MaskLoops::chosen_value(const InterpFrame& f, const Loop& branch, PyObject* first, PyObject* other) {
  const bool tuples = PyTuple_CheckExact(first) && PyTuple_CheckExact(other) && first != other;
  if (!tuples) return chosen_of_both(branch, left_as_value(f, branch, first), left_as_value(f, branch, other));
  const Py_ssize_t size = PyTuple_GET_SIZE(first);
  if (c.world.is_outside(first) || c.world.is_outside(other) || size != PyTuple_GET_SIZE(other)) return {};
  Ref items = checked(PyTuple_New(size));
  for (Py_ssize_t i = 0; i < size; ++i) {
    Ref item = chosen_value(f, branch, PyTuple_GET_ITEM(first, i), PyTuple_GET_ITEM(other, i));
    if (!item) return {};
    PyTuple_SET_ITEM(items.get(), i, item.release());
  }
  return items;
}

/// Variables that nobody asks for any more may hold it, too.
MaskLoops::Left MaskLoops::left_as_value(const InterpFrame& f, const Loop& branch, PyObject* value) const {
  Left left = {value};
  for (int32_t slot = 0; slot < f.info->nlocals; ++slot) {
    if (is_live(*f.info, f.pc, slot)) continue;
    left.references += (branch.turn->slots[slot].get() == left.object) + (f.slots[slot] == left.object);
  }
  return left;
}

void MaskLoops::begin_other(InterpFrame& f, Loop& branch, Ref value) {
  finish_turn(f, branch);
  if (branch.returns) {  // which has used up the stack
    f.drop(f.depth);
    for (const Ref& entry : branch.held_stack) f.push(Ref(entry));
  }
  const std::unique_ptr<Turn> first = std::move(branch.turn);
  branch.value_of_first = std::move(value);
  for (int32_t slot = 0; slot < f.info->nlocals; ++slot) {
    branch.behind_first.push_back(Ref::borrow(f.slots[slot]));
    if (f.slots[slot] != first->slots[slot].get()) f.set_local(slot, first->slots[slot]);
  }
  f.raw = first->raw;
  branch.is_other = true;
  branch.first = branch.other_first;
  branch.end = branch.other_end;
  f.pc = branch.first;
  open(f, branch, call_method("logical_not", {first->hit.get()}));
}

Ref MaskLoops::chosen_of_both(const Loop& branch, const Left& one, const Left& two) {
  PyObject *first = one.object, *other = two.object;
  if (first && first == other) return Ref::borrow(first);
  if (first && other && is_scalar(first) && Py_TYPE(first) == Py_TYPE(other) && guards::constants_equal(first, other)) {
    return Ref::borrow(first);
  }
  if (Ref number = chosen_number(c, branch.turn->hit.get(), other, first)) return number;
  return can_be_chosen(one, two) ? chosen(branch, other, first) : Ref();
}

}  // namespace magneto::capture
