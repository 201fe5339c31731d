"""Exports with dynamic sizes of what models are made of: eager's results for other sizes, also of one, of the program,
saved and loaded, and with PyTorch's decompositions."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compare import assert_same
from torch import nn
from torch.export import Dim, ExportedProgram, export
from torch.utils import _pytree as pytree

pytestmark = pytest.mark.usefixtures("installed")

r = torch.randn
BATCH, LENGTH, WIDTH = Dim("batch", min=1, max=64), Dim("length", min=4, max=256), Dim("width", min=4, max=256)
IMAGES = ({0: BATCH, 2: LENGTH, 3: WIDTH},)
ROWS = ({0: BATCH},)


class UNet(nn.Module):
    """Its skips say to which size an image is scaled, whose gradient is wanted."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.down, self.up = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(7, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.interpolate(self.down(F.max_pool2d(x, 2)), size=x.shape[2:], mode=self.mode)
        return self.up(torch.cat([x, y], 1))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(4, 6), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> Any:
        found = []
        for _ in range(3):
            h = self.cell(x, h)
            x = self.out(h)
            found.append(x)
        return torch.stack(found, 1), h


class Classifier(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3)),
            *(nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(8, 3)),
        )


class History(nn.Module):
    """Writes parts of a buffer, and of what it made."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(3, 4))

    def forward(self, x: torch.Tensor) -> Any:
        self.kept.copy_(self.kept.roll(1, 0))
        self.kept[0] = x.mean(0)
        x = x.clone()
        x[x < 0] = 0
        x[:, 1:3] *= 2
        x[:, 0].fill_(3)
        return x - self.kept.sum(0)


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.register_buffer("keys", torch.zeros(2, 2, 16, 4))
        self.register_buffer("values", torch.zeros(2, 2, 16, 4))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        mask = torch.arange(16)[None] <= at[:, None]
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        return y.transpose(1, 2).reshape(b, t, 8)


class Query(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.attention = nn.Parameter(r(1, 4)), nn.MultiheadAttention(4, 1, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.attention(self.query.expand(x.shape[0], -1, -1), x, x)


def written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    y.t()[0] = x[:, 1]
    return x * y


def branch_of_a_sum(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))


def chosen(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.mean() > 0, lambda x: F.gelu(x), lambda x: F.silu(x) * 2, (x,)) + F.gelu(x)


def first(x: torch.Tensor, n: torch.Tensor) -> Any:
    k = n.item()
    torch._check(k >= 1)
    torch._check(k <= x.shape[1])
    return F.gelu(x[:, :k]).sum(-1), x.new_zeros(k) + F.silu(x).sum()


def images(*sizes: tuple[int, int, int]) -> list[Any]:
    return [(r(batch, 3, height, width),) for batch, height, width in sizes]


def resized(**options: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: F.interpolate(x, **options)


# Name -> program, arguments (the first ones are exported with), dynamic_shapes.
PROGRAMS: dict[str, tuple[Callable[[], Any], list[Any], Any]] = {
    "classifier": (lambda: Classifier().eval(), images((2, 16, 20), (5, 21, 18)), IMAGES),
    "classifier in training": (Classifier, images((2, 16, 20), (5, 21, 18)), IMAGES),
    "unet": (lambda: UNet("bilinear"), images((2, 16, 20), (3, 21, 18)), IMAGES),
    "unet nearest": (lambda: UNet("nearest"), images((2, 16, 20), (3, 21, 18)), IMAGES),
    "unet bicubic": (lambda: UNet("bicubic"), images((2, 16, 20), (3, 21, 18)), IMAGES),
    **{
        f"scaled {mode}": (
            lambda mode=mode: resized(scale_factor=(0.5, 1.5), mode=mode, recompute_scale_factor=True),  # type: ignore[misc]
            images((2, 8, 8), (4, 11, 14)),
            IMAGES,
        )
        for mode in ("nearest", "bilinear", "bicubic", "area", "nearest-exact")
    },
    "scaled by factors": (lambda: resized(scale_factor=1.5, mode="bilinear"), images((2, 8, 8), (4, 11, 14)), IMAGES),
    "gru cell": (
        lambda: nn.GRUCell(4, 6),
        [(r(3, 4), r(3, 6)), (r(7, 4), r(7, 6))],
        ({0: BATCH}, {0: BATCH}),
    ),
    "lstm cell": (
        lambda: nn.LSTMCell(4, 6),
        [(r(3, 4), (r(3, 6), r(3, 6))), (r(7, 4), (r(7, 6), r(7, 6)))],
        ({0: BATCH}, ({0: BATCH}, {0: BATCH})),
    ),
    "decoder": (Decoder, [(r(3, 4), r(3, 6)), (r(7, 4), r(7, 6))], ({0: BATCH}, {0: BATCH})),
    "lstm": (
        lambda: nn.LSTM(4, 6, 2, bidirectional=True, batch_first=True),
        [(r(3, 5, 4),), (r(7, 9, 4),)],
        ({0: BATCH, 1: LENGTH},),
    ),
    **{
        name: (make, [(r(5, 3, 4),), (r(9, 7, 4),), (r(4, 1, 4),)], ({0: LENGTH, 1: BATCH},))
        for name, make in {
            "gru": lambda: nn.GRU(4, 6, 2),
            "rnn": lambda: nn.RNN(4, 6, bidirectional=True),
            "relu rnn": lambda: nn.RNN(4, 6, nonlinearity="relu"),
        }.items()
    },
    "history": (History, [(r(3, 4),), (r(6, 4),), (r(1, 4),)], ROWS),
    "cached": (Cached, [(r(2, 5, 8), torch.arange(5)), (r(2, 7, 8), torch.arange(7) + 4)], ({1: LENGTH}, {0: LENGTH})),
    "written": (
        lambda: written,
        [(r(3, 4), r(3, 4)), (r(6, 4), r(6, 4)), (r(1, 4), r(1, 4))],
        ({0: BATCH}, {0: BATCH}),
    ),
    "padded in a circle": (
        lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"),
        images((2, 16, 20), (3, 21, 18)),
        IMAGES,
    ),
    "branch of a sum": (lambda: branch_of_a_sum, [(torch.ones(3, 4),), (-torch.ones(6, 4),)], ROWS),
    "one query": (Query, [(r(3, 5, 4),), (r(4, 9, 4),), (r(1, 5, 4),)], ({0: BATCH, 1: LENGTH},)),
    "bags": (
        lambda: nn.EmbeddingBag(10, 4, mode="mean"),
        [(torch.arange(15).view(3, 5) % 10,), (torch.arange(24).view(6, 4) % 10,)],
        ({0: BATCH, 1: LENGTH},),
    ),
    **{
        f"bags with offsets, {mode}": (
            lambda mode=mode: nn.EmbeddingBag(10, 4, mode=mode),  # type: ignore[misc]
            [
                (torch.arange(8), torch.tensor([0, 3, 5])),
                (torch.arange(12) % 10, torch.tensor([0, 2, 5, 6])),
            ],
            ({0: LENGTH}, {0: BATCH}),
        )
        for mode in ("sum", "max")
    },
    "weighted bags": (
        lambda: (
            lambda x, offsets, w, table: F.embedding_bag(
                x, table, offsets, mode="sum", per_sample_weights=w, include_last_offset=True
            )
        ),
        [
            (torch.arange(8), torch.tensor([0, 3, 8]), r(8), r(10, 4)),
            (torch.arange(12) % 10, torch.tensor([0, 2, 5, 12]), r(12), r(10, 4)),
        ],
        ({0: LENGTH}, {0: BATCH}, {0: LENGTH}, None),
    ),
    "batch norm in training": (lambda: nn.BatchNorm1d(4), [(r(3, 4),), (r(7, 4),)], ({0: Dim("rows", min=2)},)),
    "dropout of a permuted tensor": (
        lambda: lambda x: F.dropout(x.transpose(1, 2), 0.5),
        [(r(2, 3, 4),), (r(5, 3, 4),)],
        ROWS,
    ),
    "branch": (lambda: chosen, [(torch.ones(3, 4),), (-torch.ones(6, 4),)], ROWS),
    "sizes of data": (lambda: lambda x: F.gelu(x[x > 0]), [(r(3, 4),), (r(5, 4),)], ROWS),
    "repeats of data": (
        lambda: lambda x, n: F.gelu(x.repeat_interleave(n, 0)),
        [(r(3, 4), torch.tensor([1, 2, 3])), (r(5, 4), torch.tensor([1, 2, 3, 0, 1]))],
        ({0: BATCH}, {0: BATCH}),
    ),
    "numbers of data": (lambda: first, [(r(3, 4), torch.tensor(2)), (r(5, 4), torch.tensor(3))], ({0: BATCH}, None)),
    "whole numbers of sizes": (
        lambda: lambda x: (torch.ones(int(x.shape[0] * 1.5)), x.new_zeros(-(-x.shape[0] // 3), 2) + x.sum()),
        [(r(4, 3),), (r(7, 3),), (r(1, 3),)],
        ROWS,
    ),
    **{
        f"one row, {name}": (lambda function=function: function, [(r(3, 5),), (r(1, 5),)], ROWS)  # type: ignore[misc]
        for name, function in {
            "sum": lambda x: x.sum(0),
            "softmax": lambda x: x.softmax(0),
            "product": lambda x: x.unsqueeze(1) * 2,
            "cumsum": lambda x: x.cumsum(0),
            "mask": lambda x: torch.where(x > 0, x, 0.5),
        }.items()
    },
}


def copied(value: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, value)


def compare(program: ExportedProgram, model: Any, examples: list[Any], exactly: bool) -> None:
    for given in examples:
        theirs, ours = copy.deepcopy(model), copy.deepcopy(program).module()
        torch.manual_seed(3)
        want = theirs(*copied(given))
        torch.manual_seed(3)
        got = ours(*copied(given))
        if exactly:
            assert_same(got, want)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        if isinstance(theirs, nn.Module):
            buffers = dict(ours.named_buffers())
            for name, buffer in theirs.named_buffers():
                torch.testing.assert_close(buffers[name], buffer)


def loaded(program: ExportedProgram) -> ExportedProgram:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


@pytest.mark.parametrize("name", PROGRAMS)
def test_other_sizes(name: str) -> None:
    torch.manual_seed(0)
    make, examples, shapes = PROGRAMS[name]
    model = make()
    program = export(model, copied(examples[0]), dynamic_shapes=shapes)
    compare(program, model, examples, exactly=True)
    compare(loaded(program), model, examples, exactly=True)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if not name.startswith("one row")])
def test_decomposed(name: str) -> None:
    torch.manual_seed(0)
    make, examples, shapes = PROGRAMS[name]
    model = make()
    program = export(model, copied(examples[0]), dynamic_shapes=shapes).run_decompositions()
    compare(program, model, examples, exactly=False)
    compare(loaded(program), model, examples, exactly=False)


def test_what_is_asked_of_a_float_of_sizes_is_checked() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return torch.full((2,), x.shape[0] ** 0.5) + x.sum()

    program = export(scaled, (torch.ones(4, 3),), dynamic_shapes=({0: Dim.DYNAMIC},))
    for module in (program.module(), loaded(program).module()):
        for rows in (4, 9):
            try:
                got = module(torch.ones(rows, 3))
            except RuntimeError as error:
                assert rows != 4 and "Guard failed" in str(error)
            else:
                assert_same(got, scaled(torch.ones(rows, 3)))


def test_gradients_of_resized_images() -> None:
    def loss(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(x, weight, padding=1)
        small = F.interpolate(F.max_pool2d(y, 2), size=y.shape[2:], mode="bilinear")
        return (small * F.interpolate(y, scale_factor=1.0) + F.interpolate(y, scale_factor=2)[:, :, ::2, ::2]).sum()

    import magneto

    compiled = magneto.compile(loss, backend="aot_eager", dynamic=True, fullgraph=True)
    for batch, height, width in ((2, 8, 12), (3, 10, 9), (4, 16, 7)):
        x = r(batch, 3, height, width)
        ours, theirs = (torch.ones(4, 3, 3, 3, requires_grad=True) for _ in range(2))
        got, want = compiled(x, ours), loss(x, theirs)
        got.backward()
        want.backward()
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert magneto.stats()["graphs"] > 0
