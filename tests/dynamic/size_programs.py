"""Programs over tensors whose sizes vary: one operator or one way to use a size each.

A row is a function and the shapes of its arguments, in which "n" is the size that varies (a product such as "2n" too).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

import magneto


def matmul_takes_sizes() -> bool:
    """`matmul` of three dimensions and two asks for plain sizes in older versions of PyTorch: they are fixed there."""
    compiled = magneto.compile(torch.matmul, backend="aot_eager", dynamic=True)
    for n in (3, 5):
        compiled(torch.ones(2, n, 4), torch.ones(4, 6))
    captures = magneto.stats()["frames"]
    magneto.reset()
    return captures == 1


MATMUL_TAKES_SIZES = matmul_takes_sizes()


class Row(NamedTuple):
    function: Callable[..., Any]
    shapes: tuple[tuple[int | str, ...], ...]
    fixed: bool = False  # each size is a capture of its own
    branches: bool = False  # some sizes take another way


@torch.library.custom_op("size_programs::scaled_rows", mutates_args=())
def scaled_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x @ y) * x.shape[0]


@scaled_rows.register_fake
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], y.shape[1])


def set_middle(x: torch.Tensor) -> torch.Tensor:
    x[x.shape[0] // 2] = 1.0
    x[-1, x.shape[1] // 2 :] = 2.0
    return x


@torch.jit.script
def by_root_of_length(x: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt(torch.tensor(x.size(0), dtype=torch.float))


torch.manual_seed(0)
LSTM = torch.nn.LSTM(4, 3, batch_first=True, bidirectional=True).requires_grad_(False)
GRU = torch.nn.GRU(4, 3, num_layers=2).requires_grad_(False)
CELL = torch.nn.LSTMCell(4, 3).requires_grad_(False)
ATTENTION = torch.nn.MultiheadAttention(8, 2, batch_first=True).requires_grad_(False).eval()

ROWS = {
    "broadcast": Row(lambda x, y: x + y, (("n", 3), (3,))),
    "outer product": Row(lambda x: x[:, None] * x[None, :], (("n",),)),
    "cat": Row(lambda x, y: torch.cat([x, y], 0), (("n", 3), ("n", 3))),
    "cat with a constant": Row(lambda x: torch.cat([x, torch.ones(2, 3)], 0), (("n", 3),)),
    "stack": Row(lambda x, y: torch.stack([x, y], 1), (("n", 3), ("n", 3))),
    "view to one dimension": Row(lambda x: x.view(-1), (("n", 3),)),
    "view to a product": Row(lambda x: x.view(x.shape[0] * 3), (("n", 3),)),
    "reshape that copies": Row(lambda x: x.t().reshape(-1, 3), (("n", 3),)),
    "heads": Row(lambda x: x.view(*x.shape[:-1], 2, -1).transpose(1, 2), ((2, "n", 6),)),
    "a shape and a tuple": Row(lambda x: x.view(x.shape[:-1] + (2, 3)), (("n", 6),)),
    "a tuple and a shape": Row(lambda x: (x * 2).reshape((-1,) + x.shape[1:] + (1,)), (("n", "n"),)),
    "pairs turned": Row(lambda x: torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2), ((2, "n", 6),)),
    "rows under a new dimension": Row(lambda x, y: y.expand(x.shape[0], 1, -1) + x[:, None], (("n", 4), (4,))),
    "a custom operator": Row(lambda x, y: scaled_rows(x, y) + 1, (("n", 4), (4, 3))),
    "a product of a shape": Row(lambda x: x.view(math.prod(x.shape)), (("n", 4),)),
    "flatten, unflatten": Row(lambda x: x.flatten(1).unflatten(1, (2, 2)), (("n", 4),)),
    "chunk": Row(lambda x: x.chunk(2, -1), (("n", 6),)),
    "split": Row(lambda x: x.split(2, 1), (("n", 6),)),
    "unbind": Row(lambda x: x.unbind(1), (("n", 4),)),
    "slice": Row(lambda x: x[:-1] + x[1:], (("n", 6),)),
    "half": Row(lambda x: x[: x.shape[0] // 2], (("n", 6),)),
    "last": Row(lambda x: x[x.shape[0] - 1], (("n", 4),)),
    "last of several": Row(lambda x: x[1, x.shape[1] - 1, None, ..., :2], ((3, "n", 4),)),
    "narrow": Row(lambda x: x.narrow(0, 1, x.shape[0] - 1), (("n", 4),)),
    "index fill": Row(lambda x: x.clone().index_fill_(0, torch.tensor([0]), 3.0), (("n", 4),)),
    "diagonal": Row(lambda x: x.diagonal(1) + 1, (("n", "n"),)),
    "matrices of diagonals": Row(lambda x: torch.diag_embed(x, 1), (("n", 4),)),
    "scattered": Row(lambda x: torch.zeros(5, 4).scatter_add_(0, (x > 0).long(), x[:5]), (("n", 4),)),
    "unsafe chunks": Row(lambda x: x.unsafe_chunk(2, 1), (("n", 6),)),
    "searched": Row(lambda x: torch.searchsorted(torch.arange(4.0), x), (("n", 4),)),
    "classes": Row(lambda x: F.one_hot((x[:, 0] > 0).long(), 3), (("n", 4),)),
    "flip": Row(lambda x: x.flip(0), (("n", 6),)),
    "roll": Row(lambda x: x.roll(1, 0), (("n", 4),)),
    "permute": Row(lambda x: x.permute(1, 0, 2) + 1, (("n", 4, 3),)),
    "squeeze": Row(lambda x: x.unsqueeze(0).squeeze(0).squeeze(), (("n", 4),)),
    "expand": Row(lambda x: x[None].expand(4, -1, -1).contiguous(), (("n", 4),)),
    "repeat": Row(lambda x: x.repeat(2, 3), (("n", 4),)),
    "unfold": Row(lambda x: x.unfold(0, 2, 1), (("n", 4),)),
    "softmax": Row(lambda x: x.softmax(0), (("n", 6),)),
    "layer norm": Row(lambda x: F.layer_norm(x, (6,)), (("n", 6),)),
    "group norm": Row(lambda x: F.group_norm(x, 2), ((2, 4, "n"),)),
    "batch norm": Row(lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4)), (("n", 4, 3),)),
    "mean": Row(lambda x: x.mean(), (("n", 6),)),
    "variance": Row(lambda x: x.var(0), (("n", 6),)),
    "standardised": Row(lambda x: (x - x.mean(-1, True)) / x.std(-1, keepdim=True), (("n", 4),)),
    "norm": Row(lambda x: x.norm(dim=0), (("n", 4),)),
    "max": Row(lambda x: x.max(0), (("n", 4),)),
    "argmax": Row(lambda x: x.argmax(0, keepdim=True), (("n", 4),)),
    "cumsum": Row(lambda x: x.cumsum(0), (("n", 4),)),
    "sort": Row(lambda x: x.sort(0), (("n", 4),)),
    "top k": Row(lambda x: x.topk(2, 0), (("n", 4),)),
    "convolution, one dimension": Row(lambda x: F.conv1d(x, torch.ones(4, 3, 3), padding=1), ((2, 3, "n"),)),
    "convolution, strides": Row(lambda x: F.conv2d(x, torch.ones(4, 3, 2, 2), stride=2), ((2, 3, "n", "n"),)),
    "transposed convolution": Row(lambda x: F.conv_transpose2d(x, torch.ones(3, 4, 3, 3)), ((2, 3, "n", "n"),)),
    "max pool": Row(lambda x: F.max_pool2d(x, 2), ((2, 3, "2n", "2n"),)),
    "pools rounded up": Row(
        lambda x: (F.max_pool2d(x, 3, 2, 1, ceil_mode=True), F.avg_pool2d(x, 2, ceil_mode=True)), ((1, 2, "n", "n"),)
    ),
    "pool of channels-last images": Row(
        lambda x: F.adaptive_avg_pool2d(x.contiguous(memory_format=torch.channels_last), 1).flatten(1),
        (("n", 3, 4, 4),),
    ),
    "average pool": Row(lambda x: F.avg_pool2d(x, 2), ((2, 3, "2n", "2n"),)),
    "adaptive pool": Row(lambda x: F.adaptive_avg_pool2d(x, 1), ((2, 3, "2n", "2n"),)),
    "interpolate": Row(lambda x: F.interpolate(x, scale_factor=2), ((2, 3, "n", "n"),)),
    "interpolate to a size": Row(lambda x: F.interpolate(x, size=(9, 9), mode="bilinear"), ((2, 3, "n", "n"),)),
    "pixel shuffle": Row(lambda x: F.pixel_shuffle(x, 2), ((1, 4, "n", "n"),)),
    "pixel unshuffle": Row(lambda x: F.pixel_unshuffle(x, 2), ((2, 3, "2n", "2n"),)),
    "windows": Row(lambda x: F.fold(F.unfold(x, 2, stride=2), (4, 4), 2, stride=2), (("n", 3, 4, 4),)),
    "windows of images of all sizes": Row(lambda x: F.unfold(x, 3, padding=1), ((2, 3, "n", "n"),)),
    "reflected edges": Row(lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"), ((2, 3, "n", "n"),)),
    "repeated edges": Row(lambda x: F.pad(x, (1, 2), mode="replicate"), ((2, 3, "n"),)),
    "max pool, one dimension": Row(lambda x: F.max_pool1d(x, 2), ((2, 3, "2n"),)),
    "average pool, three dimensions": Row(lambda x: F.avg_pool3d(x, 2), ((1, 2, 4, 4, "2n"),)),
    "grid sample": Row(lambda x, grid: F.grid_sample(x, grid), ((2, 3, 5, 5), (2, "n", 4, 2))),
    "turned": Row(lambda x: x.rot90(1, (0, 1)), (("n", 4),)),
    "pad": Row(lambda x: F.pad(x, (1, 2)), ((3, "n"),)),
    "arange": Row(lambda x: torch.arange(x.shape[0]) + x[:, 0], (("n", 6),)),
    "arange backwards": Row(lambda x: torch.arange(x.shape[0], -x.shape[0], -1.0) * 2, (("n", 6),)),
    "zeros": Row(lambda x: torch.zeros(x.shape[0], 4) + x, (("n", 4),)),
    "full": Row(lambda x: torch.full((x.shape[0], 4), 2.0) + x, (("n", 4),)),
    "causal mask": Row(lambda x: torch.ones(x.shape[0], x.shape[0]).triu(1), (("n", 4),)),
    "lower triangle": Row(lambda x: x.tril(), (("n", "n"),)),
    "random": Row(lambda x: torch.randn_like(x) + torch.rand(x.shape[0], 4), (("n", 4),)),
    "dropout": Row(lambda x: F.dropout(x, 0.5), (("n", 4),)),
    "matmul": Row(lambda x, y: x @ y, ((2, "n", 4), (4, 5)), fixed=not MATMUL_TAKES_SIZES),
    "batched product": Row(torch.bmm, ((2, "n", 4), (2, 4, "n"))),
    "linear": Row(lambda x: F.linear(x, torch.ones(5, 4), torch.ones(5)), ((2, "n", 4),)),
    "einsum": Row(lambda x, y: torch.einsum("bij,bjk->bik", x, y), ((2, "n", 4), (2, 4, "n"))),
    "dot": Row(lambda x: torch.dot(x, x), (("n",),)),
    "attention": Row(F.scaled_dot_product_attention, ((2, 3, "n", 4), (2, 3, "n", 4), (2, 3, "n", 4))),
    "embedding": Row(lambda x: F.embedding(torch.arange(x.shape[0]) % 5, torch.eye(5)), (("n", 4),)),
    "gather": Row(lambda x: x.gather(1, torch.zeros(x.shape[0], 1, dtype=torch.long)), (("n", 4),)),
    "index": Row(lambda x: x[torch.tensor([1, 0])], (("n", 4),)),
    "where": Row(lambda x: torch.where(x > 0, x, 0.0), (("n", 4),)),
    "masked fill": Row(lambda x: x.masked_fill(x > 0, -1.0), (("n", 4),)),
    "gated": Row(F.glu, (("n", 4),)),
    "cross entropy": Row(lambda x: F.cross_entropy(x, torch.zeros(x.shape[0], dtype=torch.long)), (("n", 4),)),
    "squared error": Row(F.mse_loss, (("n", 4), ("n", 4))),
    "losses": Row(
        lambda x, y: (F.huber_loss(x, y), F.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction="none")),
        (("n", 4), ("n", 4)),
    ),
    "statistics": Row(lambda x: (x.median(0)[0], x.kthvalue(2, 1)[0], x.cummax(0)[0], x.nansum(1)), (("n", 4),)),
    "distances": Row(lambda x, y: torch.cdist(x, y), (("n", 4), (3, 4)), branches=True),
    "a size over a tensor": Row(lambda x: (x.shape[0] / (x.abs() + 1), x.shape[0] // (x.abs() + 1)), (("n", 4),)),
    "a size to the power of a tensor": Row(lambda x: (len(x) ** x.sigmoid(), len(x) ** 0.5 / x.exp()), (("n", 4),)),
    "the rest of a size": Row(lambda x: (x.shape[0] % (x.abs() + 1), x.shape[0] % torch.arange(1, 4)), (("n", 4),)),
    "global pooling": Row(
        lambda x: (F.avg_pool2d(x, x.shape[-2:]), F.max_pool2d(x, kernel_size=x.shape[-1], stride=None)),
        ((1, 2, "n", "n"),),
    ),
    "pooling by name": Row(lambda x: torch.ops.aten.avg_pool2d(x, x.shape[-2:], stride=[1, 1]), ((1, 2, "n", "n"),)),
    "as many classes as rows": Row(lambda x: F.one_hot(torch.arange(x.shape[0]), num_classes=x.shape[0]), (("n", 3),)),
    "places of a triangle": Row(lambda x: torch.triu_indices(len(x), len(x), 1, dtype=torch.int32), (("n", 3),)),
    "attention of one head": Row(
        lambda x: F.scaled_dot_product_attention(*[x.view(len(x), x.shape[1], -1, x.shape[2]).transpose(1, 2)] * 3),
        (("n", 3, 4),),
    ),
    "the stride of a dimension of one": Row(lambda x: torch.arange(99).view(1, 99)[:, : len(x)].clone(), (("n", 3),)),
    "inverse": Row(lambda x: torch.linalg.inv(x / 100 + torch.eye(3)), (("n", 3, 3),)),
    "solved": Row(lambda x: torch.linalg.solve(x / 100 + torch.eye(3), x), (("n", 3, 3),)),
    "recurrent": Row(lambda x: LSTM(x), (("n", 5, 4),)),
    "recurrent, all lengths": Row(lambda x: GRU(x), (("n", 3, 4),)),
    "recurrent, one step": Row(lambda x: CELL(x), (("n", 4),)),
    "attention of modules": Row(lambda x: ATTENTION(x, x, x), ((2, "n", 8),)),
    "in place": Row(lambda x: x.clone().add_(1).mul_(x), (("n", 4),)),
    "sizes returned": Row(lambda x: (x + 1, x.shape[0] * 2, x.shape, x.numel(), x.size(0) + 1, len(x)), (("n", 4),)),
    "sizes computed with": Row(
        lambda x: x.new_zeros(x.shape[0] + 1, max(x.shape[0], 3), x.shape[0] % 3 + 1), (("n", 4),), branches=True
    ),
    "a size beside a tensor": Row(lambda x: x * x.shape[0] + x.size(0) - x.shape[0] / 2, (("n", 4),)),
    "a size for a number": Row(lambda x: torch.add(x, x.shape[0]).mul(x.shape[0]).sub_(x.shape[0]), (("n", 4),)),
    "a size for a bound": Row(lambda x: (x * 9).clamp(0, x.shape[0]), (("n", 4),)),
    "a size to fill with": Row(lambda x: torch.full((2,), x.shape[0]) + x[0, :2], (("n", 4),)),
    "split by sizes": Row(lambda x: x.split([x.shape[0] - 2, 2]), (("n", 4),)),
    "a power of a size": Row(lambda x: (x / x.shape[0] ** 0.5, x * x.shape[0] ** 2, 2 ** -len(x)), (("n", 4),)),
    "functions of a size": Row(
        lambda x: x / math.sqrt(x.shape[0]) * math.log(x.size(0), 2) + math.exp(-x.size(0)) + abs(len(x) / 2 - 4),
        (("n", 4),),
        branches=True,
    ),
    "a float of a size": Row(lambda x: (x * float(x.size(0)), float(x.size(0)), -len(x) / 3), (("n", 4),)),
    "a float that is a size again": Row(
        lambda x: (
            x.new_zeros(math.floor(len(x) / 3), math.ceil(len(x) / 3), int(len(x) * 0.6), round(len(x) * 0.6)),
            round(len(x) / 7, 2),
        ),
        (("n", 4),),
    ),
    "a branch on a float": Row(lambda x: x + 1 if len(x) / 2 > 3.5 else x - 1, (("n", 4),), branches=True),
    "the smaller float": Row(lambda x: x * min(1.0, 5 / len(x)) * max(len(x) / 20, 0.5), (("n", 4),)),
    "bits of a size": Row(lambda x: x.new_zeros(len(x) >> 1, len(x) & 3, len(x) & -4, len(x) << 1), (("n", 4),)),
    "a float to fill with": Row(
        lambda x: (torch.full((2,), len(x) / 3), torch.full_like(x, 1 / len(x)), torch.empty(3).fill_(len(x) / 3)),
        (("n", 4),),
    ),
    "floats as arguments": Row(
        lambda x: (x.clamp(-1 / len(x), 0.5), torch.add(x, x, alpha=1 / len(x))),
        (("n", 4),),
    ),
    "a float for what is masked": Row(lambda x: x.masked_fill(x > 0, -1 / len(x)), (("n", 4),)),
    "a float in place": Row(lambda x: x.clone().mul_(1 / len(x)), (("n", 4),)),
    "evenly spaced": Row(
        lambda x: torch.linspace(0, 1, len(x)) + torch.linspace(1 / len(x), -1, steps=len(x)), (("n", 4),)
    ),
    "a step of a size": Row(lambda x: torch.arange(0, x.numel(), x.size(0)), (("n", "2n"),)),
    "a step of a float": Row(lambda x: torch.arange(0, 1, 1 / len(x)), (("n", 4),), fixed=True),
    "bags of embeddings": Row(lambda x: F.embedding_bag((x > 0).long(), torch.arange(8.0).view(2, 4)), (("n", 3),)),
    "a float in a list": Row(lambda x: torch.as_tensor([len(x) / 2, 1.0]) + x[0, :2], (("n", 4),)),
    "the text of a size": Row(lambda x: (x + 1, f"{x.shape} {x.shape[0]}"), (("n", 4),), fixed=True),
    "a loop over a size": Row(lambda x: sum(x[i] for i in range(x.shape[0])), (("n", 4),), fixed=True),
    "a branch on a size": Row(lambda x: x + 1 if x.shape[0] > 6 else x - 1, (("n", 4),), branches=True),
    "equal shapes": Row(lambda x, y: x + y if x.shape == y.shape else x - 1, (("n", 4), ("n", 4))),
    "shapes that don't fit": Row(lambda x: x + torch.ones(7, 4), (("n", 4),), fixed=True),
    "layer norm over the last size": Row(lambda x: F.layer_norm(x, (x.shape[1],)), (("n", 4),)),
    "layer norm over the last sizes": Row(lambda x: F.layer_norm(x, x.shape[-1:]), ((3, "n"),)),
    "RMS norm over the last size": Row(lambda x: F.rms_norm(x, x.shape[-1:]), ((3, "n"),)),
    "instance norm": Row(F.instance_norm, (("n", 3, 5),)),
    "interpolate to sizes of an image": Row(
        lambda x: F.interpolate(x, size=(x.shape[2] * 2, x.shape[3]), mode="bilinear"), ((1, 2, "n", 5),)
    ),
    "interpolate to the nearest exact pixel": Row(
        lambda x: F.interpolate(x, size=(x.shape[2] * 2, 4), mode="nearest-exact"), ((1, 2, "n", 5),)
    ),
    "one and a half times as large": Row(
        lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"), ((1, 2, "n", 6),)
    ),
    "a grid for a size": Row(
        lambda t, x: F.affine_grid(t, [1, 1, x.shape[0], 4], align_corners=False), ((1, 2, 3), ("n",))
    ),
    "real ones from a Fourier transform": Row(
        lambda x: torch.fft.irfft(torch.fft.rfft(x), n=x.shape[-1]), ((3, "2n"),)
    ),
    "an unflattened dimension": Row(lambda x: x.unflatten(0, (x.shape[0] // 2, 2)), (("2n", 3),)),
    "a tensor of a size": Row(lambda x: x + torch.tensor(x.shape[0]), (("n", 3),)),
    "a tensor of sizes": Row(
        lambda x: torch.tensor([[x.shape[0], 1], [2, x.shape[1]]], dtype=torch.int32), (("n", 3),)
    ),
    "a tensor of floats of sizes": Row(lambda x: x * x.new_tensor([1 / x.shape[0], 2, 3]), (("n", 3),)),
    "a root of a tensor of a size": Row(
        lambda x: x / torch.sqrt(torch.tensor(x.shape[0], dtype=torch.float)), (("n", 3),)
    ),
    "what a tensor of a size holds": Row(lambda x: x * int(torch.tensor(x.shape[0])), (("n", 3),), fixed=True),
    "a size or a float of it, where": Row(
        lambda x: (torch.where(x > 0, x.shape[0], x), torch.where(x > 0, x, x.shape[0] ** 0.5)), (("n", 3),)
    ),
    "one of two sizes, where": Row(lambda x: torch.where(x > 0, x.shape[0], 2 * x.shape[0]), (("n", 3),)),
    "compared with a float of a size": Row(
        lambda x: (torch.gt(x, 1 / x.shape[0]), x.lt(x.shape[0] ** -0.5)), (("n", 3),)
    ),
    "filled with a float of a size": Row(lambda x: x.masked_fill(x > 0, x.shape[0] * 1.0), (("n", 3),)),
    "places by row and column": Row(
        lambda x: (torch.arange(12) // x.shape[0], torch.arange(12) % x.shape[0]), (("n", 3),)
    ),
    "to the power of a float of a size": Row(lambda x: x.abs() ** (1 / x.shape[0]), (("n", 3),)),
    "the usual scale of attention": Row(
        lambda x: F.scaled_dot_product_attention(x, x, x, scale=1 / math.sqrt(x.shape[-1])), ((1, 2, 4, "n"),)
    ),
    "the last of each row": Row(lambda x: x[torch.arange(3), x.shape[1] - 1], ((3, "n"),)),
    "written in the middle": Row(lambda x: set_middle(x.clone()), (("n", 3),)),
    "an operator of a size": Row(
        lambda x: torch.ops.aten.view.default(x, [x.shape[0] * 3]) + torch.ops.aten.arange(x.shape[0] * 3), (("n", 3),)
    ),
    "an operator of a number of a size": Row(lambda x: torch.ops.aten.add.Tensor(x, x.shape[0]), (("n", 3),)),
    "an operator that is padded with": Row(lambda x: torch.ops.aten.constant_pad_nd(x, [0, x.shape[0]]), (("n", 3),)),
    "restrided": Row(lambda x: x.as_strided([x.shape[0] - 1, 3], [3, 1], 3), (("n", 3),)),
    "read as another dtype": Row(lambda x: x.view(torch.int64), (("n", 4),)),
    "a script function": Row(lambda x: by_root_of_length(x), (("n", 3),)),
}


def arguments(row: Row, n: int) -> list[torch.Tensor]:
    """Random tensors of the row's shapes."""
    generator = torch.Generator().manual_seed(n)

    def size(part: int | str) -> int:
        return part if isinstance(part, int) else n * int(part[:-1] or 1)

    return [torch.randn([size(part) for part in shape], generator=generator) for shape in row.shapes]
