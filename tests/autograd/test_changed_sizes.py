"""Operators that change the sizes of a tensor of their own in place (`unsqueeze_`), which a backward saves: one graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import magneto

Program = Callable[[Tensor], Tensor]


def spatial_transformer(x: Tensor) -> Tensor:
    grid = F.affine_grid(x[:12].view(2, 2, 3), (2, 3, 4, 4), align_corners=False)
    return F.grid_sample(x.sin()[:96].view(2, 3, 4, 4), grid, align_corners=False)


def spectrogram(x: Tensor) -> Tensor:
    return torch.stft(x, 16, window=torch.hann_window(16), return_complex=True).abs()


def spectrogram_itself(x: Tensor) -> Tensor:
    return torch.view_as_real(torch.stft(x, 16, window=torch.hann_window(16), return_complex=True))


def and_back(x: Tensor) -> Tensor:
    window = torch.hann_window(16)
    return torch.istft(torch.stft(x, 16, window=window, return_complex=True), 16, window=window)


def written_after(x: Tensor) -> Tensor:
    y = x.view(8, -1) * 3
    y.t_().mul_(2)
    y.unsqueeze_(0)
    return y * y.squeeze_(0)


def pooled_last(x: Tensor) -> Tensor:
    """Pooling of channels-last images tells dimensions of size one other strides."""
    images = x.view(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    pooled = F.adaptive_avg_pool2d(images.sin(), 1)
    return images * torch.sigmoid(pooled * pooled) + F.conv2d(pooled, x[:9].view(3, 3, 1, 1))


def pooled_last_itself(x: Tensor) -> Tensor:
    images = x.view(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    return F.adaptive_avg_pool2d(images, 1)


def pooled_by_batch_norm(x: Tensor) -> Tensor:
    images = x.view(4, 6, 2, 2).contiguous(memory_format=torch.channels_last)
    return F.batch_norm(F.adaptive_avg_pool2d(images, 1), None, None, training=True).relu()


PROGRAMS = [
    spatial_transformer,
    spectrogram,
    spectrogram_itself,
    and_back,
    written_after,
    pooled_last,
    pooled_last_itself,
    pooled_by_batch_norm,
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients(program: Program, backend: str, dynamic: bool) -> None:
    compiled = magneto.compile(program, backend=backend, dynamic=dynamic, fullgraph=True)
    for seed in (0, 1):
        torch.manual_seed(seed)
        x = torch.randn(96)
        found = []
        for call in (program, compiled):
            leaf = x.clone().requires_grad_()
            result = call(leaf)
            (result.sin() * torch.linspace(0, 1, result.numel()).view(result.shape)).sum().backward()
            found.append((result.detach(), result.stride(), leaf.grad))
        torch.testing.assert_close(found[1], found[0])
    assert program is written_after or not magneto.stats()["no_joint"]
