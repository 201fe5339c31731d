"""Exported programs at sizes of 1: code of PyTorch's that has a general case takes it, and asks for no size."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compare import assert_same
from torch import nn
from torch.export import Dim, export, load, save

pytestmark = pytest.mark.usefixtures("installed")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        steps = x.shape[1]
        mask = torch.tril(torch.ones(steps, steps, dtype=torch.bool))
        weights = (q @ k.transpose(1, 2)).masked_fill(~mask, -torch.inf).softmax(-1)
        return weights @ v + F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)[:, 0]


class Squeeze(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm2d(4, affine=True)
        self.gate = nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x) * torch.sigmoid(self.gate(F.adaptive_avg_pool2d(x, 1)))


def channels_shuffled(x: torch.Tensor) -> Any:
    b, c, h, w = x.shape
    y = x.view(b, 2, c // 2, h, w).transpose(1, 2).contiguous().view(b, -1, h, w)
    return F.pixel_shuffle(y, 2), F.pixel_unshuffle(y, 2)


def merged(x: torch.Tensor) -> torch.Tensor:
    """As Swin does with images of odd sizes."""
    x = x.permute(0, 2, 3, 1).contiguous()
    x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
    return torch.cat([x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)], -1)


def images_next(x: torch.Tensor) -> torch.Tensor:
    return nn.LayerNorm(4)(x.flatten(2).transpose(1, 2)).mean(1)


def reshaped(x: torch.Tensor) -> Any:
    return (
        x.transpose(0, 1).reshape(-1, x.shape[2]),
        x.flatten(1),
        x.permute(2, 0, 1, 3).contiguous().view(x.shape[2], -1),
    )


class Cross(nn.Module):
    """Its attention writes what it made before it copies it."""

    def __init__(self, training: bool) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(3, 8))
        self.cross = nn.MultiheadAttention(8, 2, kdim=4, vdim=4, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.train(training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        latents = self.latents.expand(x.shape[0], -1, -1)
        return self.layer(latents + self.cross(latents, x, x)[0])


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.first = nn.Conv2d(4, 8, 2, 2), nn.Parameter(torch.randn(1, 1, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.patch(x).flatten(2).transpose(1, 2)
        return self.layer(torch.cat([self.first.expand(x.shape[0], -1, -1), y], 1))[:, 0]


class Convolved(nn.Module):
    """A part of a conformer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.norm = nn.Linear(4, 12), nn.BatchNorm1d(4)
        self.wide, self.deep = nn.Conv1d(4, 8, 1), nn.Conv1d(4, 4, 3, padding=1, groups=4)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 2, 2).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, 4)
        return x + F.silu(self.norm(self.deep(F.glu(self.wide(x.transpose(1, 2)), 1)))).transpose(1, 2)


IMAGES = ((2, 4, 8, 6), (3, 4, 6, 10), (1, 4, 8, 6), (1, 4, 2, 2), (5, 4, 8, 2))
ODD = ((2, 4, 8, 6), (1, 4, 7, 6), (3, 4, 5, 9), (1, 4, 3, 3))
PROGRAMS: dict[str, Any] = {
    "features": (
        lambda: nn.Sequential(
            *(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d((3, 2)), nn.Flatten()),
            nn.Linear(48, 5),
        ),
        IMAGES,
    ),
    "squeeze": (Squeeze, IMAGES),
    "shuffle": (lambda: channels_shuffled, IMAGES),
    "merged": (lambda: merged, ODD),
    "reshaped": (lambda: reshaped, ODD),
    "latents": (lambda: Cross(False), ((2, 5, 4), (3, 9, 4), (1, 5, 4), (2, 1, 4))),
    "latents in training": (lambda: Cross(True), ((2, 5, 4), (3, 9, 4), (1, 5, 4), (2, 1, 4))),
    "patches": (Patches, IMAGES),
    "convolved": (Convolved, ((2, 5, 4), (3, 9, 4), (1, 5, 4), (2, 1, 4))),
    "attention": (Attention, ((2, 5, 4), (3, 9, 4), (1, 5, 4), (1, 1, 4))),
    "gru": (lambda: nn.GRU(4, 6, batch_first=True), ((2, 5, 4), (3, 9, 4), (1, 5, 4))),
    "rnn": (lambda: nn.RNN(4, 6), ((5, 2, 4), (9, 3, 4), (5, 1, 4))),
}


def copied(program: Any) -> Any:
    file = io.BytesIO()
    save(program, file)
    file.seek(0)
    return load(file)


@pytest.mark.parametrize("kind", [Dim.AUTO, Dim.DYNAMIC])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, kind: Any) -> None:
    make, shapes = PROGRAMS[name]
    torch.manual_seed(0)
    model = make()
    dims = (0, 2, 3) if len(shapes[0]) == 4 else (0, 1)
    program = export(model, (torch.randn(shapes[0]),), dynamic_shapes=({dim: kind for dim in dims},))
    for module in (program.module(), copied(program).module()):
        for shape in shapes:
            x = torch.randn(shape)
            with torch.no_grad():
                torch.testing.assert_close(module(x), model(x), rtol=1e-5, atol=1e-5)


def written_copy(x: torch.Tensor) -> Any:
    y = x.t().contiguous()
    y.add_(1)
    return y, x * 2


def written_source(x: torch.Tensor) -> Any:
    z = x * 1
    y = z.t().contiguous()
    z.mul_(3)
    return y, z


def written_reshape(x: torch.Tensor) -> Any:
    z = x * 1
    y = z.t().reshape(-1)
    y.add_(1)
    return y, z


def written_view_of_copy(x: torch.Tensor) -> Any:
    z = x * 1
    y = z.t().contiguous()
    y[0] = 7
    return y, z


def asks(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.t().is_contiguous() else x - 1


def written_before(x: torch.Tensor) -> Any:
    z = x * 1
    z.mul_(3)
    return z.t().contiguous() + 0, z * 2


def written_in_a_branch(x: torch.Tensor) -> Any:
    def this(x: torch.Tensor) -> Any:
        z = x * 1
        y = z.t().contiguous()
        y.add_(1)
        return y, z + 0

    return torch.cond(x.sum() > -1e9, this, lambda x: ((x.t() * 2).contiguous(), x * 3), (x,))


def written_in_turns(x: torch.Tensor) -> torch.Tensor:
    z = x * 1
    for _ in range(2):
        y = z.t().contiguous()
        z.add_(y.sum())
        z.add_(y.view(z.shape))
    return z


WRITES = (written_copy, written_source, written_reshape, written_view_of_copy, written_in_a_branch, written_in_turns)


@pytest.mark.parametrize("program", [*WRITES, written_before, asks])
def test_what_a_size_of_one_decides(program: Callable[..., Any]) -> None:
    """There a copy is the tensor itself: the program gives eager's result, or refuses."""
    module = export(program, (torch.randn(3, 4),), dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO},)).module()
    answers = 0
    for shape in ((3, 4), (5, 2), (1, 4), (4, 1), (1, 1)):
        x = torch.randn(shape)
        given, want = x.clone(), x.clone()
        try:
            result = module(given)
        except RuntimeError as error:
            assert "Expected input at" in str(error) or "Guard failed" in str(error)
            assert 1 in shape and program is not written_before
            continue
        answers += 1
        assert_same(result, program(want))
        assert_same(given, want)
    assert answers >= 2
