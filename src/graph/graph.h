// The two-level graph: what one captured segment computes.
//
// The upper level holds the calls that the user's code made to torch (what FX backends and the `graph_code` log show);
// the lower level holds the ATen operators that those calls dispatched to. Each ATen node is the child of one torch
// node. Both levels name tensors by the same `ValueId`s: a tensor is made by exactly one ATen node (or is an input or
// a constant), and a torch node says where in its Python result each tensor stands.
//
// The graph is not functional at this level: in-place operators mutate the value they are given and return the same
// value, views alias. Running the ATen nodes in order on real tensors is what eager does.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "python/ref.h"
#include "shapes/expr.h"

namespace magneto::graph {

/// Index into Graph::values; `kNoValue` stands for None or an undefined tensor.
using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;

/// The geometry of a tensor whose sizes are dynamic, in terms of the graph's symbols.
struct SymbolicGeometry {
  std::vector<shapes::Expr> sizes;
  std::vector<shapes::Expr> strides;
  shapes::Expr storage_offset;

  bool operator==(const SymbolicGeometry&) const = default;
};

/// What is known of a tensor without its data. Sizes and strides count elements.
struct TensorMeta {
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t storage_offset = 0;
  bool requires_grad = false;
  /// A tensor of one number that is beside tensors what a Python number is: it promotes like one.
  bool wrapped = false;
  /// Set where the numbers above are those of the capture alone.
  std::optional<SymbolicGeometry> symbolic = {};

  bool operator==(const TensorMeta&) const = default;
};

enum class ValueKind : uint8_t { Input, Constant, Result };

struct Value {
  ValueKind kind = ValueKind::Result;
  TensorMeta meta;
  /// Inputs: the source's name as users see it (`L['x']`). Others: empty.
  std::string name;
  /// Constants: the real tensor, shared by all runs. Others: undefined.
  at::Tensor constant;
  /// Results: the ATen node that made it. Others: -1.
  int32_t producer = -1;
};

/// Numbers that follow from sizes: one, or a list.
struct SizeArg {
  std::vector<shapes::Expr> sizes;
  bool is_list = true;
};

struct Region;

/// An operand of an ATen node: one tensor (for an argument that is a number: the one in it), a list of tensors
/// (`kNoValue` for absent ones), a constant, sizes, or a graph that the operator runs.
using AtenArg = std::variant<c10::IValue, ValueId, std::vector<ValueId>, SizeArg, std::shared_ptr<const Region>>;

struct AtenNode {
  c10::OperatorHandle op;
  /// One per schema argument, in schema order.
  std::vector<AtenArg> args;
  /// Tensors among the results, lists flattened, in schema order; kNoValue for undefined tensors. Results that are not
  /// tensors are constants of the capture and are left out.
  std::vector<ValueId> results;
  /// The torch node that this operator belongs to.
  int32_t torch_node = -1;
};

/// A Python argument of a torch node, with tensors replaced by values. Number: the one in the tensor `value`. Region: a
/// function of tensors, as a module of torch.fx.
struct PyArg {
  enum class Kind : uint8_t { Value, Number, Const, Size, Tuple, List, Dict, Slice, Region };
  Kind kind = Kind::Const;
  ValueId value = kNoValue;
  shapes::Expr size;
  /// Const: the object. Dict: a tuple of the keys. Tuple: the exact type when it is a named tuple or another subclass.
  Ref object;
  /// Tuple, List: the items. Dict: the values. Slice: start, stop, step.
  std::vector<PyArg> items;
  std::shared_ptr<const Region> region = {};
};

/// Where a tensor stands in the Python result of a torch node: the path of indices (empty: the result itself).
struct TorchResult {
  std::vector<int32_t> path;
  ValueId value = kNoValue;
  /// The first local variable that it was given to; for people.
  std::string variable = {};
};

/// A call of one function by another of the program; for people.
struct CallSite {
  /// The caller's line, as TorchNode has it.
  std::string file;
  int32_t line = 0;
  std::string function;
  /// The module that is called: to be compared alone, it may be gone. Null: the call is none of a module.
  const void* module = nullptr;
  /// Of the caller.
  std::shared_ptr<const CallSite> outer = {};
};

struct TorchNode {
  enum class Kind : uint8_t { CallFunction, CallMethod };
  Kind kind = Kind::CallFunction;
  /// CallFunction: the callable. CallMethod: the method's name (str); the receiver is args[0].
  Ref target;
  std::vector<PyArg> args;
  std::vector<std::pair<std::string, PyArg>> kwargs;
  std::vector<TorchResult> results;
  /// The user's line, for messages: file, line number, function name; empty when unknown.
  std::string file;
  int32_t line = 0;
  std::string function;
  /// How the program came there.
  std::shared_ptr<const CallSite> called_from = {};
  /// Of an operator that is shown as a call of its own: what the program called, and which of its calls that was.
  Ref origin = {};
  int32_t origin_index = -1;
};

/// Where a run finds a symbol's number: in an input, or, of a data-dependent one, in a result, once it is made.
struct SymbolBinding {
  int32_t symbol;
  ValueId value;
  int32_t dim;  // of the value's sizes; -1: its one element
  /// What is known of it in all runs, and what it was in the captured one.
  shapes::Range range = {};
  int64_t hint = 0;
};

struct Graph {
  std::vector<Value> values;
  std::vector<ValueId> inputs;
  std::vector<TorchNode> torch_nodes;
  /// In execution order; the children of one torch node are contiguous.
  std::vector<AtenNode> aten_nodes;
  /// What the segment hands on: results, exit state, journal values. No duplicates.
  std::vector<ValueId> outputs;
  /// One for each symbol in the graph; none: all sizes are plain numbers.
  std::vector<SymbolBinding> symbols;
  /// What classes and modes make of torch calls (__torch_function__) is in the nodes: it is not to be asked again.
  bool without_torch_function = false;
  /// Of them, those that are found in results, or in inputs.
  std::vector<SymbolBinding> symbols_of(ValueKind kind) const;

  ValueId add_input(std::string name, TensorMeta meta);
  ValueId add_constant(at::Tensor tensor);
  ValueId add_result(TensorMeta meta, int32_t producer);
};

/// A graph inside another one: what a higher-order operator runs, or not, as a branch of `cond`. It is closed: what it
/// reads of the graph around it is among its inputs, which the operator gives it, and its symbols are its own, bound to
/// these inputs. So passes over the graph around it need not look inside; it is compiled by itself, once for each
/// program that has it.
struct Region {
  /// For people, and as an attribute of the torch.fx module around it: "cond_true_0".
  std::string name;
  Graph graph;
  /// As a torch.fx.GraphModule, once somebody has asked.
  mutable Ref module = {};
};

/// Reads a tensor's metadata (real or fake).
TensorMeta meta_of(const at::Tensor& tensor);

/// Short dtype name in printed graphs: f32, bf16, i64, b8, c64...
std::string_view dtype_name(c10::ScalarType dtype);

// -- text ------------------------------------------------------------------------------------------------------------

/// Prints both levels; `parse_aten` reads the ATen level back.
///
///     graph {
///       %0: f32[2, 3] = input "L['x']"
///       # user.py:4 in forward
///       torch.add(%0, 1) {
///         %1: f32[2, 3] = aten.add.Scalar(%0, 1, 1)
///       }
///       return (%1)
///     }
///
/// A value prints its strides (`f32[2, 3]{1, 2}`) only when it is not contiguous, its storage offset (`+4`) when it has
/// one, its device (`@cuda:0`) when it is not the CPU, `grad` when it requires grad, and `wrapped` when it promotes
/// like a Python number. A constant prints its values when they are few. Absent tensors are `None`. Regions stand in
/// front of what uses them, at the beginning, with the word `region` and their name in place of `graph`, and are called
/// by their name:
///
///       region @cond_true_0 {
///         ...
///       }
///       %2: f32[3] = magneto.cond.default(%1, @cond_true_0, @cond_false_0, [%0])
std::string print(const Graph& graph);

/// Parses what `print` writes. Torch nodes keep their printed name as a `str` target and no Python arguments (they are
/// not needed to run the ATen level). Throws std::invalid_argument with line and cause.
Graph parse(std::string_view text);

/// Checks the invariants stated above: defined before use, one producer each, schema arity and kinds, contiguous
/// children, outputs unique. Returns one line per violation; empty when sound.
std::vector<std::string> verify(const Graph& graph);

}  // namespace magneto::graph
