"""A program for each row of the symbolic table (`_testing.fake_symbolic_rules()`): what reaches its rule.

A row: the sizes of the arguments, and the program. "a 2b, i:b" are a matrix and a vector of whole numbers; the same
letter is the same size, which a call may choose. Types: i whole numbers (0, 1, 0...), m masks, c complex, else floats.
"!": never another size than its fellows, where eager itself does not look and reads past the end.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import gradient_sizes
import torch
import torch.nn.functional as F

aten = torch.ops.aten

# Sizes that the letters stand for: the first call is captured, the others have to fit the capture.
FITTING = ((5, 7, 11, 13), (11, 13, 5, 7), (17, 5, 19, 11))
LETTERS = "abcd"


DIMENSION = re.compile(r"(\d*)([a-d]?)(!?)")


def dimensions(shapes: str) -> Iterator[tuple[str, list[tuple[int, str, str]]]]:
    """Of each tensor the type, and of each dimension the factor, the letter, and whether it keeps its size."""
    for text in shapes.split(","):
        kind, _, dims = text.strip().rpartition(":")
        found = [DIMENSION.fullmatch(dim) for dim in dims.split()]
        yield kind, [(int(dim[1] or 1), dim[2], dim[3]) for dim in found if dim]


def arguments(shapes: str, sizes: tuple[int, ...], odd: tuple[int, int] | None = None) -> list[torch.Tensor]:
    """`odd`: that dimension of that tensor is one larger than the letters say."""
    torch.manual_seed(3)
    return [
        argument(
            kind,
            [
                factor * (sizes[LETTERS.index(letter)] if letter else 1) + ((i, dim) == odd)
                for dim, (factor, letter, _) in enumerate(dims)
            ],
        )
        for i, (kind, dims) in enumerate(dimensions(shapes))
    ]


def argument(kind: str, shape: list[int]) -> torch.Tensor:
    if kind == "i":
        return (torch.arange(torch.Size(shape).numel()) % 2).reshape(shape)
    if kind == "m":
        return torch.rand(shape) > 0.5
    return torch.randn(shape, dtype=torch.complex64 if kind == "c" else torch.float32)


def other_arguments(shapes: str) -> Iterator[list[torch.Tensor]]:
    """Sizes of 0, 1 and 2, random ones, and each dimension of each tensor differing from what fits."""
    tensors = list(dimensions(shapes))
    letters = sorted({letter for _, dims in tensors for _, letter, _ in dims if letter})
    for letter, size in itertools.product(letters, (0, 1, 2)):
        yield arguments(shapes, tuple(size if LETTERS[k] == letter else old for k, old in enumerate(FITTING[0])))
    numbers = random.Random(shapes)
    for _ in range(4):
        yield arguments(shapes, tuple(numbers.choice((0, 1, 2, 3, 4, 7, 9, 13, 19)) for _ in LETTERS))
    for i, (_, dims) in enumerate(tensors):
        for dim, (_, _, keeps) in enumerate(dims):
            if not keeps:
                yield arguments(shapes, FITTING[0], (i, dim))


def positive(x: torch.Tensor) -> torch.Tensor:
    return x.sigmoid()


def definite(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + 30 * torch.eye(x.shape[-1])


def lstm_layer(x: torch.Tensor, w: torch.Tensor, wh: torch.Tensor, h: torch.Tensor) -> Any:
    """Without the bytes that it keeps."""
    return aten.mkldnn_rnn_layer(x, w, wh, w[:, 0], w[:, 0], h, h, False, [], 2, 3, 1, True, False, False, True)[:3]


def recurrent(function: Any, gates: int, states: int) -> Callable[..., Any]:
    def call(x: torch.Tensor, h: torch.Tensor) -> Any:
        torch.manual_seed(5)
        weights = [torch.ones(3 * gates, size) / 8 for size in (2, 3)]
        return function(x, (h,) * states if states > 1 else h, weights, False, 1, 0.0, False, False, False)

    return call


def attention(x: torch.Tensor) -> Any:
    weight, bias = torch.ones(12, 4) / 8, torch.zeros(12)
    return aten._native_multi_head_attention(x, x, x, 4, 2, weight, bias, weight[:4], bias[:4], None, True, True, None)


def encoder_layer(x: torch.Tensor) -> torch.Tensor:
    weight, bias = torch.ones(12, 4) / 8, torch.zeros(12)
    square, four = weight[:4], bias[:4]
    return aten._transformer_encoder_layer_fwd(
        x, 4, 2, weight, bias, square, four, False, False, 1e-5, four, four, four, four, square, four, square, four
    )


CASES: dict[str, tuple[str, Callable[..., Any]]] = {
    # Reductions and scans.
    "aten::scalar_tensor": ("a", lambda x: torch.scalar_tensor(x.shape[0]) + x),
    "aten::sum": ("a b", lambda x: x.sum()),
    "aten::sum.dim_IntList": ("a b", lambda x: x.sum(0)),
    "aten::mean": ("a b", lambda x: x.mean()),
    "aten::mean.dim": ("a b", lambda x: x.mean(1, keepdim=True)),
    "aten::prod": ("a b", lambda x: x.prod()),
    "aten::prod.dim_int": ("a b", lambda x: x.prod(1)),
    "aten::amax": ("a b", lambda x: x.amax(0)),
    "aten::amin": ("a b", lambda x: x.amin((0, 1))),
    "aten::argmax": ("a b", lambda x: x.argmax(1)),
    "aten::argmin": ("a b", lambda x: x.argmin(0, keepdim=True)),
    "aten::max": ("a b", lambda x: x.max()),
    "aten::min": ("a b", lambda x: x.min()),
    "aten::max.dim": ("a b", lambda x: tuple(x.max(0))),
    "aten::min.dim": ("a b", lambda x: tuple(x.min(1))),
    "aten::any": ("m:a b", lambda x: x.any()),
    "aten::any.dim": ("m:a b", lambda x: x.any(0)),
    "aten::any.dims": ("m:a b c", lambda x: x.any((0, 2))),
    "aten::all": ("m:a b", lambda x: x.all()),
    "aten::all.dim": ("m:a b", lambda x: x.all(1)),
    "aten::all.dims": ("m:a b c", lambda x: x.all((0, 1))),
    "aten::var.correction": ("a b", lambda x: x.var(0)),
    "aten::std.correction": ("a b", lambda x: x.std(1)),
    "aten::var_mean.correction": ("a b", lambda x: torch.var_mean(x, 1)),
    "aten::std_mean.correction": ("a b", lambda x: torch.std_mean(x, 0)),
    "aten::logsumexp": ("a b", lambda x: x.logsumexp(1)),
    "aten::linalg_vector_norm": ("a b", lambda x: torch.linalg.vector_norm(x, dim=1)),
    "aten::norm.ScalarOpt_dim": ("a b", lambda x: aten.norm.ScalarOpt_dim(x, 2, [1])),
    "aten::norm.ScalarOpt_dim_dtype": (
        "a b", lambda x: aten.norm.ScalarOpt_dim_dtype(x, 2, [0], True, dtype=torch.float64)
    ),
    "aten::norm.Scalar": ("a b", lambda x: aten.norm.Scalar(x, 2)),
    "aten::nansum": ("a b", lambda x: x.nansum(0)),
    "aten::median": ("a b", lambda x: x.median()),
    "aten::median.dim": ("a b", lambda x: tuple(x.median(0))),
    "aten::nanmedian": ("a b", lambda x: x.nanmedian()),
    "aten::nanmedian.dim": ("a b", lambda x: tuple(x.nanmedian(1))),
    "aten::mode": ("a b", lambda x: tuple(x.mode(1))),
    "aten::kthvalue": ("a b", lambda x: tuple(x.kthvalue(2, 1))),
    "aten::aminmax": ("a b", lambda x: tuple(torch.aminmax(x, dim=0))),
    "aten::count_nonzero": ("a b", lambda x: aten.count_nonzero.default(x, 1)),
    "aten::count_nonzero.dim_IntList": ("a b", lambda x: x.count_nonzero((0,))),
    "aten::trace": ("a b", lambda x: x.trace()),
    "aten::cumsum": ("a b", lambda x: x.cumsum(0)),
    "aten::cummax": ("a b", lambda x: tuple(x.cummax(1))),
    "aten::cummin": ("a b", lambda x: tuple(x.cummin(0))),
    "aten::logcumsumexp": ("a b", lambda x: x.logcumsumexp(1)),
    "aten::renorm": ("a b", lambda x: x.renorm(2, 0, 1.0)),
    "aten::cumprod": ("a b", lambda x: x.cumprod(1)),
    "aten::sort": ("a b", lambda x: tuple(x.sort(1))),
    "aten::sort.stable": ("a b", lambda x: tuple(x.sort(stable=True, dim=0))),
    "aten::topk": ("a b", lambda x: tuple(x.topk(3, 1))),
    "aten::dot": ("a, a", torch.dot),
    # Losses.
    "aten::mse_loss": ("a b, a b", F.mse_loss),
    "aten::smooth_l1_loss": ("a b, a b", F.smooth_l1_loss),
    "aten::huber_loss": ("a b, a b", lambda x, y: F.huber_loss(x, y, reduction="none")),
    "aten::binary_cross_entropy": ("a b, a b", lambda x, y: F.binary_cross_entropy(positive(x), positive(y))),
    "aten::binary_cross_entropy_with_logits": ("a b, a b", F.binary_cross_entropy_with_logits),
    "aten::multi_margin_loss": ("a b, i:a", lambda x, y: F.multi_margin_loss(x, y, reduction="none")),
    "aten::nll_loss2d_forward": ("a b c d, i:a c d", F.nll_loss),
    "aten::nll_loss_forward": ("a b, i:a", lambda x, y: F.nll_loss(x, y, reduction="none")),
    "aten::glu": ("a 2b", lambda x: F.glu(x, 1)),
    # Products.
    "aten::mm": ("a b, b c", torch.mm),
    "aten::bmm": ("a b c, a c d", torch.bmm),
    "aten::_int_mm": ("a b, b c", lambda x, y: torch._int_mm(x.to(torch.int8), y.to(torch.int8))),
    "aten::mv": ("a b, b", torch.mv),
    "aten::addmm": ("c, a b, b c", torch.addmm),
    "aten::baddbmm": ("b d, a b c, a c d", torch.baddbmm),
    "aten::_trilinear": ("a b, c b d, a d", lambda x, w, y: aten._trilinear(x, w, y, [1, 3], [0], [1, 2], [2, 3])),
    # Norms, attention, recurrent layers.
    "aten::native_layer_norm": ("a b, b, b", lambda x, w, b: torch.layer_norm(x, (x.shape[1],), w, b)),
    "aten::native_group_norm": ("a 6 c", lambda x: F.group_norm(x, 3)),
    "aten::native_batch_norm": (
        "a 6 c", lambda x: F.batch_norm(x, torch.zeros(6), torch.ones(6), training=True)
    ),
    "aten::_native_batch_norm_legit": (
        "a 6! c",
        lambda x: aten._native_batch_norm_legit(x, None, None, torch.zeros(6), torch.ones(6), True, 0.1, 1e-5)[0],
    ),
    "aten::_native_batch_norm_legit.no_stats": (
        "a 6! c",
        lambda x: aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5)[0],
    ),
    "aten::_native_batch_norm_legit_functional": (
        "a 6! c",
        lambda x: aten._native_batch_norm_legit_functional(
            x, None, None, torch.zeros(6), torch.ones(6), True, 0.1, 1e-5
        )[0],
    ),
    "aten::_batch_norm_with_update": (
        "a 6! c",
        lambda x: aten._batch_norm_with_update(x, None, None, torch.zeros(6), torch.ones(6), 0.1, 1e-5)[0],
    ),
    "aten::_batch_norm_with_update_functional": (
        "a 6! c",
        lambda x: aten._batch_norm_with_update_functional(x, None, None, torch.zeros(6), torch.ones(6), 0.1, 1e-5)[0],
    ),
    "aten::_batch_norm_no_update": (
        "a 6! c",
        lambda x: aten._batch_norm_no_update(x, None, None, torch.zeros(6), torch.ones(6), 0.1, 1e-5)[0],
    ),
    "aten::_native_batch_norm_legit_no_training": (
        "a 6! c",
        lambda x: aten._native_batch_norm_legit_no_training(x, None, None, torch.zeros(6), torch.ones(6), 0.1, 1e-5)[0],
    ),
    "aten::_softmax": ("a b", lambda x: x.softmax(1)),
    "aten::_log_softmax": ("a b", lambda x: x.log_softmax(0)),
    "aten::_safe_softmax": ("a b", lambda x: aten._safe_softmax(x, 1)),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (
        "a 2 b 8, a 2 c 8, a 2 c! 8", F.scaled_dot_product_attention
    ),
    "aten::_native_multi_head_attention": ("a b 4", attention),
    "aten::_transformer_encoder_layer_fwd": ("a b 4", encoder_layer),
    "aten::mkldnn_rnn_layer": ("a b! 2!, 12! 2!, 12! 3!, b! 3!", gradient_sizes.not_empty(lstm_layer)),
    "aten::lstm.input": ("a b! 2!, 1 b! 3!", recurrent(torch.lstm, 4, 2)),
    "aten::gru.input": ("a b! 2!, 1 b! 3!", recurrent(torch.gru, 3, 1)),
    "aten::rnn_tanh.input": ("a b! 2!, 1 b! 3!", recurrent(torch.rnn_tanh, 1, 1)),
    "aten::rnn_relu.input": ("a b! 2!, 1 b! 3!", recurrent(torch.rnn_relu, 1, 1)),
    # Indexing, parts, joins.
    "aten::index.Tensor": ("a b, i:c", lambda x, i: x[:, i]),
    "aten::_unsafe_index.Tensor": ("a b, i:c", lambda x, i: aten._unsafe_index(x, [i])),
    "aten::index_put": ("a b, i:c, c b", lambda x, i, y: x.index_put((i,), y)),
    "aten::_index_put_impl_": (
        "a b, i:c, c b",
        lambda x, i, y: torch.ops.aten._index_put_impl_(x, [i], y, accumulate=True),
    ),
    "aten::index_put_": ("a b, i:c, c b", lambda x, i, y: x.index_put_((i,), y, accumulate=True)),
    "aten::index_select": ("a b, i:c", lambda x, i: x.index_select(1, i)),
    "aten::embedding": ("a b, i:c d", lambda x, i: F.embedding(i, x)),
    "aten::_embedding_bag": (
        "a b, i:c",
        lambda x, i: aten._embedding_bag(x, i, torch.arange(i.shape[0]), False, 1)[0],
    ),
    "aten::_embedding_bag_forward_only": (
        "a b, i:c",
        lambda x, i: aten._embedding_bag_forward_only(x, i, torch.arange(i.shape[0]), False, 0)[0],
    ),
    "aten::gather": ("a b, i:c b", lambda x, i: x.gather(0, i)),
    "aten::_jagged_to_padded_dense_forward": (
        "a b, i:c",
        lambda x, ends: aten._jagged_to_padded_dense_forward(x, [ends * 0], [x.shape[1]], 2.0),
    ),
    "aten::_padded_dense_to_jagged_forward": (
        "a b c",
        lambda x: aten._padded_dense_to_jagged_forward(
            x, [torch.arange(x.shape[0] + 1) * x.shape[1]], x.shape[0] * x.shape[1]
        ),
    ),
    "aten::take": ("2 3, i:c b", torch.take),
    "aten::scatter.src": ("a b, i:c b, c b", lambda x, i, y: x.scatter(0, i, y)),
    "aten::scatter.value": ("a b, i:c b", lambda x, i: x.scatter(0, i, 2.0)),
    "aten::scatter_.src": ("a b, i:c b, c b", lambda x, i, y: x.scatter_(0, i, y)),
    "aten::scatter_.value": ("a b, i:c b", lambda x, i: x.scatter_(0, i, 2.0)),
    "aten::scatter_add": ("a b, i:c b, c b", lambda x, i, y: x.scatter_add(0, i, y)),
    "aten::scatter_add_": ("a b, i:c b, c b", lambda x, i, y: x.scatter_add_(0, i, y)),
    "aten::scatter_reduce.two": ("a b, i:c b, c b", lambda x, i, y: x.scatter_reduce(0, i, y, "amax")),
    "aten::scatter_reduce_.two": ("a b, i:c b, c b", lambda x, i, y: x.scatter_reduce_(0, i, y, "sum")),
    "aten::masked_scatter": ("a b, a b", lambda x, y: x.masked_scatter(x > 0, y)),
    "aten::masked_scatter_": ("a b, b, a b", lambda x, m, y: x.masked_scatter_(m > 0, y)),
    "aten::index_add": ("a b, i:c, c b", lambda x, i, y: x.index_add(0, i, y)),
    "aten::index_add_": ("a b, i:c, c b", lambda x, i, y: x.index_add_(0, i, y)),
    "aten::index_copy": ("a b, i:c, c b", lambda x, i, y: x.index_copy(0, i, y)),
    "aten::index_copy_": ("a b, i:c, c b", lambda x, i, y: x.index_copy_(0, i, y)),
    "aten::index_fill.int_Scalar": ("a b, i:c", lambda x, i: x.index_fill(0, i, 2.0)),
    "aten::index_fill_.int_Scalar": ("a b, i:c", lambda x, i: x.index_fill_(0, i, 2.0)),
    "aten::searchsorted.Tensor": ("a b, a c", lambda x, y: torch.searchsorted(x.sort(1)[0], y)),
    "aten::bucketize.Tensor": ("a b, c", lambda x, y: torch.bucketize(x, y.sort()[0])),
    "aten::isin.Tensor_Tensor": ("i:a b, i:c", torch.isin),
    "aten::isin.Tensor_Scalar": ("i:a b", lambda x: torch.isin(x, 1)),
    "aten::one_hot": ("i:a b", lambda x: F.one_hot(x, 3)),
    "aten::multinomial": ("a b", lambda x: positive(x).multinomial(2)),
    "aten::_is_all_true": ("a b", lambda x: aten._is_all_true(x > -100)),
    "aten::_is_any_true": ("a b", lambda x: aten._is_any_true(x > 0)),
    "aten::histc": ("a b", lambda x: x.histc(5, -1, 1)),
    "aten::cat": ("a b, c b", lambda x, y: torch.cat((x, y))),
    "aten::stack": ("a b, a b", lambda x, y: torch.stack((x, y), 1)),
    "aten::unsafe_split.Tensor": ("a 2b", lambda x: x.unsafe_split(x.shape[1] // 2, 1)),
    "aten::unsafe_split_with_sizes": ("a b", lambda x: x.unsafe_split_with_sizes([2, x.shape[1] - 2], 1)),
    "aten::repeat": ("a b", lambda x: x.repeat(x.shape[1], 2, 1)),
    "aten::flip": ("a b", lambda x: x.flip(1)),
    "aten::roll": ("a b", lambda x: x.roll(2, 0)),
    # New tensors.
    "aten::empty.memory_format": ("a b", lambda x: torch.empty(x.shape[1], x.shape[0]).fill_(2)),
    "aten::zeros": ("a b", lambda x: torch.zeros(x.shape[1], x.shape[0] + 1)),
    "aten::_efficientzerotensor": ("a b", lambda x: torch._efficientzerotensor((x.shape[0] * 2,)) + 1),
    "aten::ones": ("a b", lambda x: torch.ones(x.shape[0] * 2)),
    "aten::rand": ("a b", lambda x: torch.rand(x.shape[0])),
    "aten::randn": ("a b", lambda x: torch.randn(x.shape[1], 2)),
    "aten::full": ("a b", lambda x: torch.full((x.shape[0],), 3.0)),
    "aten::randint": ("a b", lambda x: torch.randint(9, (x.shape[0],))),
    "aten::randint.low": ("a b", lambda x: torch.randint(2, 9, (x.shape[0], x.shape[1]))),
    "aten::new_empty": ("a b", lambda x: x.new_empty(x.shape[1]).fill_(2)),
    "aten::empty_strided": ("a b", lambda x: torch.empty_strided([x.shape[1], x.shape[0]], [x.shape[0], 1]).fill_(2)),
    "aten::new_empty_strided": ("a b", lambda x: x.new_empty_strided([x.shape[1], 2], [2, 1]).fill_(2)),
    "aten::fill.Scalar": ("a b", lambda x: aten.fill.Scalar(x, 2)),
    "aten::fill.Tensor": ("a b", lambda x: aten.fill.Tensor(x, torch.tensor(2.0))),
    "aten::zero": ("a b", lambda x: aten.zero(x)),
    "aten::copy": ("a b, a b", lambda x, y: aten.copy(x, y)),
    "aten::new_zeros": ("a b", lambda x: x.new_zeros(x.shape[1], 2)),
    "aten::new_ones": ("a b", lambda x: x.new_ones(x.shape[1] - 1)),
    "aten::new_full": ("a b", lambda x: x.new_full((x.shape[0],), 2.0)),
    "aten::empty_like": ("a b", lambda x: torch.empty_like(x).fill_(2)),
    "aten::zeros_like": ("a b", torch.zeros_like),
    "aten::ones_like": ("a b", torch.ones_like),
    "aten::full_like": ("a b", lambda x: torch.full_like(x, 2.0)),
    "aten::rand_like": ("a b", torch.rand_like),
    "aten::randn_like": ("a b", torch.randn_like),
    "aten::randint_like": ("a b", lambda x: torch.randint_like(x, 9)),
    "aten::randint_like.low_dtype": ("a b", lambda x: torch.randint_like(x, 2, 9)),
    "aten::normal.float_float": ("a b", lambda x: torch.normal(0.0, 1.0, (x.shape[0], 2))),
    "aten::_to_copy": ("a b", lambda x: x.double()),
    "magneto::truncated_normal": ("a b", lambda x: torch.ops.magneto.truncated_normal(x, 0.0, 1.0, -2.0, 2.0)),
    "magneto::cached_cast": ("a b", lambda x: torch.ops.magneto.cached_cast(x, x, torch.bfloat16)),
    "aten::clone": ("a b", lambda x: x.t().clone()),
    "aten::tril": ("a b", lambda x: x.tril(1)),
    "aten::triu": ("a b", lambda x: x.triu(-1)),
    "aten::eye": ("a b", lambda x: torch.eye(x.shape[0])),
    "aten::eye.m": ("a b", lambda x: torch.eye(x.shape[0], x.shape[1])),
    "aten::randperm": ("a b", lambda x: torch.randperm(x.shape[0])),
    "magneto::linspace": ("a b", lambda x: torch.linspace(0, 1, x.shape[0])),
    "magneto::tril_indices": ("a b", lambda x: torch.tril_indices(x.shape[0], x.shape[0] + x.shape[1], -1)),
    "magneto::triu_indices": ("a b", lambda x: torch.triu_indices(x.shape[0], x.shape[0], 1)),
    "magneto::hann_window": ("a b", lambda x: torch.hann_window(x.shape[0])),
    "magneto::hann_window.periodic": ("a b", lambda x: torch.hann_window(x.shape[0], False)),
    "magneto::hamming_window": ("a b", lambda x: torch.hamming_window(x.shape[0])),
    "magneto::hamming_window.periodic": ("a b", lambda x: torch.hamming_window(x.shape[0], periodic=False)),
    "magneto::hamming_window.periodic_alpha": ("a b", lambda x: torch.hamming_window(x.shape[0], True, 0.5)),
    "magneto::hamming_window.periodic_alpha_beta": ("a b", lambda x: torch.hamming_window(x.shape[0], True, 0.5, 0.4)),
    "magneto::blackman_window": ("a b", lambda x: torch.blackman_window(x.shape[0])),
    "magneto::blackman_window.periodic": ("a b", lambda x: torch.blackman_window(x.shape[0], False)),
    "magneto::bartlett_window": ("a b", lambda x: torch.bartlett_window(x.shape[0])),
    "magneto::bartlett_window.periodic": ("a b", lambda x: torch.bartlett_window(x.shape[0], False)),
    # Operators of ATen that take plain numbers.
    "magneto::one_hot": ("i:a b", lambda x: F.one_hot(x, x.shape[1])),
    "magneto::histc": ("a b", lambda x: x.histc(x.shape[0], -1, 1)),
    "magneto::group_norm": ("a b c", lambda x: F.group_norm(x, x.shape[1])),
    "magneto::avg_pool1d": ("a b c", lambda x: F.avg_pool1d(x, x.shape[2])),
    "magneto::avg_pool2d": ("a b c d", lambda x: F.avg_pool2d(x, x.shape[-2:])),
    "magneto::avg_pool3d": ("a b c d", lambda x: F.avg_pool3d(x, x.shape[-3:])),
    "magneto::max_pool1d": ("a b c", lambda x: F.max_pool1d(x, x.shape[2], 1)),
    "magneto::max_pool2d": ("a b c d", lambda x: F.max_pool2d(x, (x.shape[2], 2))),
    "magneto::max_pool3d": ("a b c d", lambda x: F.max_pool3d(x, kernel_size=x.shape[-3:])),
    "magneto::max_pool1d_with_indices": ("a b c", lambda x: F.max_pool1d(x, x.shape[2], return_indices=True)),
    "magneto::max_pool2d_with_indices": ("a b c d", lambda x: F.max_pool2d(x, x.shape[-2:], return_indices=True)),
    "magneto::max_pool3d_with_indices": ("a b c d", lambda x: F.max_pool3d(x, x.shape[-3:], return_indices=True)),
    "magneto::adaptive_avg_pool1d": ("a b c", lambda x: F.adaptive_avg_pool1d(x, x.shape[2] // 2)),
    "magneto::adaptive_max_pool1d": ("a b c", lambda x: F.adaptive_max_pool1d(x, x.shape[2] // 2)),
    "magneto::adaptive_max_pool2d": ("a b c d", lambda x: F.adaptive_max_pool2d(x, (x.shape[2] // 2, 2))),
    "magneto::adaptive_max_pool3d": ("a b c d", lambda x: F.adaptive_max_pool3d(x, (2, x.shape[2] // 2, None))),
    "magneto::im2col": ("a b c d", lambda x: F.unfold(x, (x.shape[2], 2))),
    "magneto::col2im": ("a 2b c", lambda x: F.fold(x, (x.shape[1] // 2, x.shape[2]), (x.shape[1] // 2, 1))),
    "aten::block_diag": ("a b, c", torch.block_diag),
    "aten::select_scatter": ("a b c, a c", lambda x, y: torch.select_scatter(x, y, 1, 0)),
    "aten::slice_scatter": ("a 2b, a b", lambda x, y: torch.slice_scatter(x, y, 1, y.shape[1])),
    "aten::diagonal_scatter": ("a a, a", torch.diagonal_scatter),
    "aten::_linalg_svd": ("a b c", lambda x: torch.linalg.svd(x, full_matrices=False)),
    "aten::linalg_qr": ("a b c", torch.linalg.qr),
    "aten::_linalg_eigh": ("a b b", lambda x: torch.linalg.eigh(definite(x))),
    "aten::linalg_pinv.atol_rtol_tensor": ("a b c", torch.linalg.pinv),
    "aten::linalg_cross": ("a 3 b, a 3 b", lambda x, y: torch.linalg.cross(x, y, dim=1)),
    "aten::arange": ("a b", lambda x: torch.arange(x.shape[0])),
    "aten::arange.start": ("a b", lambda x: torch.arange(1, x.shape[0] + 2)),
    "aten::arange.start_step": ("a b", lambda x: torch.arange(0, x.shape[0], 3)),
    # Views.
    "aten::alias": ("a b", lambda x: aten.alias(x)),
    "aten::detach": ("a b", lambda x: x.detach()),
    "magneto::data": ("a b", lambda x: torch.ops.magneto.data(x)),
    "aten::view": ("a b", lambda x: x.view(x.shape[1], -1)),
    "aten::_unsafe_view": ("a b", lambda x: aten._unsafe_view(x, [-1])),
    "aten::_reshape_alias": ("a b c", lambda x: x[:, :, 1:].flatten(0, 1)),
    "aten::as_strided_": ("a b", lambda x: x.as_strided_([x.shape[1], x.shape[0]], [1, x.shape[1]])),
    "aten::as_strided": ("a b", lambda x: x.as_strided([x.shape[1], x.shape[0] - 1], [1, x.shape[1]], 0)),
    "aten::as_strided_scatter": ("a b", lambda x: torch.as_strided_scatter(x, x[:, 0] * 2, [x.shape[0]], [1])),
    "aten::view_as_real": ("c:a b", torch.view_as_real),
    "aten::view_as_complex": ("a b 2", torch.view_as_complex),
    "aten::view.dtype": ("a 4b", lambda x: x.view(torch.float64)),
    "aten::expand": ("a 1 b", lambda x: x.expand(-1, x.shape[2], -1)),
    "aten::permute": ("a b c", lambda x: x.permute(2, 0, 1)),
    "aten::transpose.int": ("a b", lambda x: x.transpose(0, 1)),
    "aten::t": ("a b", lambda x: x.t()),
    "aten::squeeze": ("a 1 b", lambda x: x.squeeze()),
    "aten::squeeze.dim": ("a 1 b", lambda x: x.squeeze(1)),
    "aten::squeeze.dims": ("a 1 b 1", lambda x: x.squeeze((1, 3))),
    "aten::unsqueeze": ("a b", lambda x: x.unsqueeze(1)),
    "aten::select.int": ("a b", lambda x: x.select(0, 2)),
    "aten::slice.Tensor": ("a b", lambda x: x[1:, :-2]),
    "aten::unfold": ("a b", lambda x: x.unfold(1, 3, 2)),
    "aten::diagonal": ("a b", lambda x: x.diagonal(1)),
    "aten::split.Tensor": ("a 2b", lambda x: x.split(x.shape[1] // 2, 1)),
    "aten::split_with_sizes": ("a b", lambda x: x.split([2, x.shape[1] - 2], 1)),
    "aten::unbind.int": ("a 3 b", lambda x: x.unbind(1)),
    # Images.
    "aten::upsample_nearest1d.vec": ("a b c", lambda x: F.interpolate(x, scale_factor=2)),
    "aten::upsample_nearest2d.vec": ("a b c d", lambda x: F.interpolate(x, scale_factor=2)),
    "aten::upsample_linear1d.vec": ("a b c", lambda x: F.interpolate(x, scale_factor=2, mode="linear")),
    "aten::upsample_bilinear2d.vec": ("a b c d", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")),
    "aten::upsample_bicubic2d.vec": ("a b c d", lambda x: F.interpolate(x, scale_factor=2, mode="bicubic")),
    "aten::upsample_nearest3d.vec": ("a b c d 2", lambda x: F.interpolate(x, scale_factor=2)),
    "aten::upsample_trilinear3d.vec": ("a b c d 2", lambda x: F.interpolate(x, scale_factor=1.5, mode="trilinear")),
    "aten::_upsample_nearest_exact1d.vec": ("a b c", lambda x: F.interpolate(x, scale_factor=1.5, mode="nearest-exact")),
    "aten::_upsample_nearest_exact2d.vec": (
        "a b c d", lambda x: F.interpolate(x, size=(x.shape[3], x.shape[2]), mode="nearest-exact")
    ),
    "aten::_upsample_bilinear2d_aa.vec": (
        "a b c d", lambda x: F.interpolate(x, size=(x.shape[3], x.shape[2]), mode="bilinear", antialias=True)
    ),
    "aten::_upsample_bicubic2d_aa.vec": (
        "a b c d", lambda x: F.interpolate(x, size=(x.shape[3], 5), mode="bicubic", antialias=True)
    ),
    "aten::convolution": ("a 3 c d, 4 3 3 3", lambda x, w: F.conv2d(x, w, padding=1, stride=2)),
    "aten::max_pool1d": ("a b c", lambda x: F.max_pool1d(x, 2)),
    "aten::max_pool2d_with_indices": ("a b c d", lambda x: F.max_pool2d(x, 3, 2, 1)),
    "aten::max_pool3d_with_indices": ("a b c d 4", lambda x: F.max_pool3d(x, 2)),
    "aten::avg_pool2d": ("a b c d", lambda x: F.avg_pool2d(x, 2, ceil_mode=True)),
    "aten::avg_pool3d": ("a b c d 4", lambda x: F.avg_pool3d(x, 2)),
    "aten::_adaptive_avg_pool2d": ("a b c d", lambda x: F.adaptive_avg_pool2d(x, (2, 3))),
    "aten::_adaptive_avg_pool3d": ("a b c d 4", lambda x: F.adaptive_avg_pool3d(x, 2)),
    "aten::adaptive_max_pool2d": ("a b c d", lambda x: F.adaptive_max_pool2d(x, 2)),
    "aten::adaptive_max_pool3d": ("a b c d 4", lambda x: F.adaptive_max_pool3d(x, 2)),
    "aten::upsample_nearest1d": ("a b c", lambda x: torch._C._nn.upsample_nearest1d(x, [x.shape[2] * 2])),
    "aten::upsample_nearest2d": ("a b c d", lambda x: torch._C._nn.upsample_nearest2d(x, [x.shape[2] * 2, 5])),
    "aten::upsample_nearest3d": ("a b c d 2", lambda x: torch._C._nn.upsample_nearest3d(x, [x.shape[2] * 2, 5, 3])),
    "aten::_upsample_nearest_exact1d": ("a b c", lambda x: torch._C._nn._upsample_nearest_exact1d(x, [x.shape[2] + 1])),
    "aten::_upsample_nearest_exact2d": ("a b c d", lambda x: torch._C._nn._upsample_nearest_exact2d(x, [x.shape[3], 5])),
    "aten::upsample_linear1d": ("a b c", lambda x: torch._C._nn.upsample_linear1d(x, [x.shape[2] * 3], False)),
    "aten::upsample_bilinear2d": ("a b c d", lambda x: torch._C._nn.upsample_bilinear2d(x, [x.shape[3], 4], True)),
    "aten::upsample_trilinear3d": (
        "a b c d 2", lambda x: torch._C._nn.upsample_trilinear3d(x, [x.shape[3], 4, 2], False)
    ),
    "aten::upsample_bicubic2d": ("a b c d", lambda x: torch._C._nn.upsample_bicubic2d(x, [x.shape[3], 4], False)),
    "aten::_upsample_bilinear2d_aa": ("a b c d", lambda x: torch._C._nn._upsample_bilinear2d_aa(x, [x.shape[3], 4], False)),
    "aten::_upsample_bicubic2d_aa": ("a b c d", lambda x: torch._C._nn._upsample_bicubic2d_aa(x, [x.shape[3], 4], False)),
    "aten::constant_pad_nd": ("a b", lambda x: F.pad(x, (1, 2, -1, 0))),
    "aten::reflection_pad1d": ("a b c", lambda x: F.pad(x, (1, 2), "reflect")),
    "aten::reflection_pad2d": ("a b c d", lambda x: F.pad(x, (1, 2, 0, 1), "reflect")),
    "aten::reflection_pad3d": ("a b c d 3", lambda x: F.pad(x, (1, 2, 0, 1, 1, 1), "reflect")),
    "aten::replication_pad1d": ("a b c", lambda x: F.pad(x, (1, 2), "replicate")),
    "aten::replication_pad2d": ("a b c d", lambda x: F.pad(x, (1, 2, 0, 1), "replicate")),
    "aten::replication_pad3d": ("a b c d 3", lambda x: F.pad(x, (1, 2, 0, 1, 1, 1), "replicate")),
    "aten::pixel_shuffle": ("a 4b c d", lambda x: F.pixel_shuffle(x, 2)),
    "aten::pixel_unshuffle": ("a b 2c 2d", lambda x: F.pixel_unshuffle(x, 2)),
    "aten::channel_shuffle": ("a 6 c d", lambda x: F.channel_shuffle(x, 3)),
    "aten::im2col": ("a b c d", lambda x: F.unfold(x, 2)),
    "aten::col2im": ("a 4b 6", lambda x: F.fold(x, (3, 4), 2)),
    "aten::grid_sampler_2d": ("a b c d, a 3 c 2", lambda x, g: F.grid_sample(x, g, align_corners=False)),
    "aten::grid_sampler_3d": ("a b c d 2, a 3 c 2 3", lambda x, g: F.grid_sample(x, g, align_corners=False)),
    "aten::affine_grid_generator": (
        "a 2 3, b c", lambda t, x: F.affine_grid(t, [t.shape[0], 1, x.shape[0], x.shape[1]], align_corners=False)
    ),
    "aten::rot90": ("a b", lambda x: x.rot90()),
    # Linear algebra.
    "aten::linalg_inv_ex": ("a b b", lambda x: torch.linalg.inv_ex(definite(x))[0]),
    "aten::linalg_cholesky_ex": ("a b b", lambda x: torch.linalg.cholesky_ex(definite(x))[0]),
    "aten::_linalg_check_errors": ("a b b", lambda x: torch.linalg.cholesky(definite(x))),
    "aten::_linalg_det": ("a b b", lambda x: aten._linalg_det(x)[0]),
    "aten::_linalg_solve_ex": ("a b b, a b c", lambda x, y: torch.linalg.solve(definite(x), y)),
    "aten::linalg_solve_triangular": (
        "a b b, a b c", lambda x, y: torch.linalg.solve_triangular(definite(x), y, upper=True)
    ),
    "aten::linalg_matrix_exp": ("a b b", lambda x: torch.linalg.matrix_exp(x / 10)),
    "aten::linalg_householder_product": ("a 2b b, a b", lambda x, t: torch.linalg.householder_product(x, t / 50)),
    "aten::cholesky_inverse": ("a b b", lambda x: torch.cholesky_inverse(definite(x))),
    "aten::linalg_lu_factor_ex": ("a b c", lambda x: torch.linalg.lu_factor_ex(x)[:2]),
    "aten::_linalg_slogdet": ("a b b", lambda x: torch.linalg.slogdet(x)),
    "aten::index_reduce": ("a b, i:c, c b", lambda x, i, y: x.index_reduce(0, i, y, "amax")),
    "aten::fake_quantize_per_tensor_affine_cachemask": (
        "a b", lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 255)
    ),
    "aten::_cdist_forward": ("a b, c b", lambda x, y: torch.cdist(x, y, p=1.0)),
    "aten::_euclidean_dist": ("a b, c b", lambda x, y: aten._euclidean_dist(x, y)),
    "aten::_fft_r2c": ("a b", lambda x: torch.fft.rfft(x)),
    "aten::_fft_c2r": ("c:a b", lambda x: torch.fft.irfft(x, n=2 * x.shape[1] - 1)),
    "aten::_fft_c2c": ("c:a b", lambda x: torch.fft.fft(x)),
    "aten::diag_embed": ("a b", lambda x: aten.diag_embed(x, 1)),
    **gradient_sizes.CASES,
}  # fmt: skip
