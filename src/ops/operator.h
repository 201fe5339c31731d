// What is known of an operator: its schema and tags, and the facts column of its row (rows.def).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <string_view>

namespace magneto::ops {

/// What a row says besides the schema, as bits.
enum Fact : uint64_t {
  unknown = 0,

  // Errors, once capture has checked shapes and dtypes. Without any of these: it may raise.
  never_raises = 1U << 0,
  /// A number may not fit a narrow integer.
  raises_if_narrow = 1U << 1,
  /// Integers may be divided by zero.
  raises_on_integers = 1U << 2,

  // Memory.
  /// Geometry over the first argument, of the same dtype. as_strided is none: it counts from the start of the storage,
  /// and where in it an input begins is known at run time only.
  view = 1U << 3,
  /// A view whose geometry depends on nothing but the source's and constants.
  fixed_view = 1U << 4,
  /// The result shares its argument's memory without the schema saying so.
  shares_memory = 1U << 5,
  /// The result has the elements of the first argument in the same order, if it has as many.
  keeps_order = 1U << 6,
  /// Gives the tensor other storage.
  replaces_storage = 1U << 7,
  /// What is written does not depend on what was there.
  overwrites = 1U << 8,
  /// Batch norm: writes arguments called running_..., in training.
  moves_statistics = 1U << 9,

  // Effects. Operators of libraries have one unless they are pure; ATen's have none unless their row says so.
  has_effect = 1U << 10,
  pure = 1U << 11,
  /// Stands for an error of the program's own.
  check = 1U << 12,

  // Values and shapes.
  /// The result depends on data, and no tag says so.
  reads_data = 1U << 13,
  /// Takes shape, dtype and device of its first tensor, and no data.
  looks_only = 1U << 14,
  /// Hands a tensor just made by Python over to the graph.
  lifts = 1U << 15,
  /// Results carry a dispatch key of their own.
  marks_tensors = 1U << 16,
  /// Floats among the arguments decide the result's shape.
  float_sizes = 1U << 17,

  // Numbers for tensors.
  /// The overload that takes a number for the second tensor is by definition the same call on
  /// `wrapped_scalar_tensor(number)`. (pow and where compute or promote differently.)
  scalar_overload = 1U << 18,
  /// The overloads that take a number wrap it as a tensor at every call, and programs call the one for tensors.
  wraps_number = 1U << 19,

  // PyTorch's kernels.
  /// The meta kernel gets layouts wrong, because it assumes a GPU, or a size, because only oneDNN knows how large its
  /// workspace is. The CPU's own kernel on zeros gets them right: none of it depends on data.
  needs_zeros = 1U << 20,
  /// The kernel goes where numbers among its arguments say, unchecked: zeros (rows are counted from one, and lengths
  /// must fill the data) are no arguments for it.
  trusts_numbers = 1U << 21,
  /// The CPU's kernel lays its results out in its own way, unlike the one made of other operators.
  own_layout = 1U << 22,

  /// Becomes part of a generated kernel, whatever it reads.
  fuses = 1U << 23,

  // The dtype of a functional operator's result, where it is not simply that of its first argument.
  gives_bool = 1U << 24,
  /// That to which the operands promote...
  promotes = 1U << 25,
  /// ...or a float for integers.
  floats_for_integers = 1U << 26,
  /// That of the first argument, whatever the others are.
  keeps_dtype = 1U << 27,

  /// as_strided_: it makes of the tensor itself what _reshape_alias gives as a view, where it covers the same memory.
  restrides = 1U << 28,
};
constexpr Fact operator|(Fact a, Fact b) { return static_cast<Fact>(static_cast<uint64_t>(a) | b); }

/// What is said of one overload alone; the rest holds for overloads without a row of their own too.
inline constexpr Fact kOfOneOverload =
    fixed_view | shares_memory | replaces_storage | reads_data | looks_only | lifts | scalar_overload;

struct Operator {
  uint64_t facts = unknown;
  /// Draws random numbers: neither taken out, nor merged, nor moved across another one.
  bool random = false;
  /// Is called for something besides its results (assertions, hidden state, custom operators).
  bool effect = false;
  /// Writes some argument, by its schema.
  bool writes = false;
  /// Some result shares memory with an argument.
  bool aliases = false;
  /// See Fact::view.
  bool view = false;

  bool is(Fact fact) const { return (facts & fact) != 0; }
};

/// Looked up once per operator and thread.
const Operator& operator_of(const c10::OperatorHandle& op);

/// The facts column alone, by name ("aten::add", "Tensor"). Without a row: those of the first row of another overload
/// that hold for all of them; in place, on lists (`_foreach_`) and for ours with sizes (`magneto::`): whether the
/// functional operator raises.
uint64_t facts_of(const c10::OperatorName& name);

/// "aten::add.Tensor" as ("aten::add", "Tensor").
c10::OperatorName parsed(std::string_view name);

}  // namespace magneto::ops
