// What an operator is, where code has a case for that very thing: at most one of these stands among the facts of a row.
#pragma once

#include "ops/operator.h"

namespace magneto::ops {

/// The eight upper bits of the facts, as a number.
inline constexpr uint64_t kKinds = 255ULL << 56;
constexpr Fact kind(uint64_t number) { return static_cast<Fact>(number << 56); }

// Arithmetic on the first two arguments. A sum and a difference have a factor of the second one in the third.
inline constexpr Fact is_sum = kind(1), is_difference = kind(2), is_quotient = kind(3);
/// Zero wherever one of the two is.
inline constexpr Fact is_product = kind(4);
/// Makes a tensor of zeros without memory (fake/zero_tensors.h).
inline constexpr Fact makes_zeros = kind(5);
/// Takes a list of indices in argument 1, in which a mask stands for the places where it is true.
inline constexpr Fact takes_masks = kind(6);
/// Raises unless argument 2 is an index into the dimension that argument 1 names.
inline constexpr Fact needs_index = kind(7);
/// Raises unless argument 1 lists lengths that together are as long as the dimension that argument 2 names.
inline constexpr Fact needs_lengths = kind(8);
/// Gives a sparse tensor, for which a dense one stands in captures (fake/sparse_gradients.h).
inline constexpr Fact gives_sparse = kind(9);
/// Reads its first argument's storage, from the start: that must hold nothing else.
inline constexpr Fact reads_storage = kind(10);
/// Gives what its gradient needs where gradients are recorded, and nothing where they are not, as in a backward.
inline constexpr Fact asks_grad_mode = kind(11);
// Images: convolutions (input, weight, ..., transposed as argument 6) and their backwards (gradient, input, weight,
// ..., transposed as argument 7); pooling, by kernels that work in the layout of their operand.
inline constexpr Fact is_convolution = kind(12), is_convolution_backward = kind(13);
inline constexpr Fact is_pooling = kind(14), is_pooling_backward = kind(15);
/// Gives the cast that autocast keeps of argument 1 (graph/kept_casts.h): of the tensor itself, not of what it holds.
inline constexpr Fact keeps_cast = kind(16);

/// A collective of torch.distributed, which other threads or streams go on with; and what waits for one, giving its
/// argument back: the same tensor, though its schema does not say so.
inline constexpr Fact starts_collective = kind(17), awaits_collective = kind(18);

/// Copies its first argument, or makes the memory for that: PyTorch's code calls it where the tensor itself won't do.
inline constexpr Fact starts_copy = kind(19);

inline bool is_kind(const Operator& op, Fact fact) { return (op.facts & kKinds) == static_cast<uint64_t>(fact); }

}  // namespace magneto::ops
