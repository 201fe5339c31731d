"""Networks of convolutions in training: images lie channels-last in between (src/passes/layout.cpp), also where a
backward is given them (src/autograd/saved_layouts.h); values, gradients and strides are eager's."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import magneto


class Residual(nn.Module):
    """Inverted bottleneck, with a depthwise convolution."""

    def __init__(self, channels: int, stride: int = 1) -> None:
        super().__init__()
        inner = 3 * channels
        self.stride = stride
        self.expand = nn.Sequential(nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU6())
        self.depthwise = nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False)
        self.norm = nn.BatchNorm2d(inner)
        self.project = nn.Sequential(nn.Conv2d(inner, channels, 1), nn.BatchNorm2d(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.project(F.relu6(self.norm(self.depthwise(self.expand(x)))))
        return x + made if self.stride == 1 else made


class Dense(nn.Module):
    """Concatenates what it is given and what it makes of that."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 16, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, F.gelu(self.conv(x))], 1)


class Squeezed(nn.Module):
    """Channels are weighed by what the whole image says of them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gate = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.conv(x)
        return made * torch.sigmoid(self.gate(F.relu(F.adaptive_avg_pool2d(made, 1))))


class LastNorm(nn.Module):
    """As ConvNeXt: a norm and products over channels that are last, and back."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm, self.wide, self.narrow = (
            nn.LayerNorm(channels),
            nn.Linear(channels, 2 * channels),
            nn.Linear(2 * channels, channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.narrow(F.gelu(self.wide(self.norm(self.conv(x).permute(0, 2, 3, 1)))))
        return x + made.permute(0, 3, 1, 2)


class Gated(nn.Module):
    """Hands out an image that is saved, too, and a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        kept = torch.sigmoid(self.conv(x))
        return self.conv(kept) * kept, kept, kept[:, :4]


def head(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(5))


Network = Callable[[], nn.Module]
NETWORKS: dict[str, tuple[Network, tuple[int, ...]]] = {
    "residual": (lambda: head(nn.Conv2d(3, 16, 3, 2, 1), Residual(16), Residual(16, 2)), (2, 3, 40, 40)),
    "one image": (lambda: head(nn.Conv2d(3, 16, 3, 2, 1), Residual(16), Residual(16, 2), Residual(16)), (1, 3, 96, 96)),
    "pools": (
        lambda: head(
            nn.Conv2d(3, 16, 3), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1), nn.Conv2d(16, 24, 3), nn.AvgPool2d(2)
        ),
        (4, 3, 32, 32),
    ),
    "one channel": (
        lambda: head(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.MaxPool2d(2)),
        (8, 1, 28, 28),
    ),
    "many channels": (lambda: head(nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU()), (2, 64, 6, 6)),
    "dense": (lambda: head(nn.Conv2d(3, 16, 3), Dense(16), Dense(32), nn.BatchNorm2d(48)), (2, 3, 24, 24)),
    "last norm": (lambda: head(nn.Conv2d(3, 24, 4, 4), LastNorm(24), LastNorm(24)), (2, 3, 64, 64)),
    "transposed": (
        lambda: head(nn.Conv2d(3, 16, 3, 2), nn.ConvTranspose2d(16, 8, 4, 2), nn.ELU(), nn.Conv2d(8, 8, 3)),
        (2, 3, 32, 32),
    ),
    "padded and dilated": (
        lambda: head(nn.ZeroPad2d((1, 2, 1, 2)), nn.Conv2d(3, 16, 3, dilation=2), nn.SiLU(), nn.Conv2d(16, 16, 3)),
        (2, 3, 32, 32),
    ),
    "one pixel": (lambda: head(nn.Conv2d(16, 32, 4), nn.ReLU(), nn.Conv2d(32, 16, 1)), (4, 16, 4, 4)),
    "handed out": (Gated, (2, 16, 20, 20)),
    "large depthwise": (lambda: head(nn.Conv2d(256, 256, 3, 2, 1, groups=256), nn.GELU()), (2, 256, 32, 32)),
    "large kernels": (lambda: head(nn.Conv2d(16, 64, 5, padding=2), nn.GELU(), nn.Conv2d(64, 8, 1)), (2, 16, 64, 64)),
    "wide of one image": (lambda: head(nn.Conv2d(600, 600, 1), nn.GELU(), nn.Conv2d(600, 8, 1)), (1, 600, 2, 2)),
    "squeezed": (Squeezed, (2, 16, 12, 12)),
    "groups": (lambda: head(nn.Conv2d(32, 32, 3, groups=4), nn.GroupNorm(4, 32), nn.Mish()), (2, 32, 16, 16)),
}


def gradients(forward: Callable[..., object], network: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    network.zero_grad()
    x = x.clone().requires_grad_()
    results = forward(x)
    outputs = list(results) if isinstance(results, tuple) else [results]
    weights = [torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view(y.shape) for y in outputs]
    torch.stack([(y * weight).sum() for y, weight in zip(outputs, weights, strict=True)]).sum().backward()
    found = [x.grad, *(weight.grad for weight in network.parameters())]
    return [*(y.detach() for y in outputs), *(gradient for gradient in found if gradient is not None)]


def check(name: str, training: bool, dynamic: bool | None, last: bool) -> None:
    make, size = NETWORKS[name]
    torch.manual_seed(0)
    network = make()
    network(torch.randn(size))
    network.train(training)
    compiled_network = copy.deepcopy(network)
    compiled = magneto.compile(compiled_network, dynamic=dynamic)
    wide = copy.deepcopy(network).double()
    for batch in (size[0], size[0], size[0] + 1) if dynamic else (size[0], size[0]):
        x = torch.randn(batch, *size[1:])
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        found = gradients(compiled, compiled_network, x)
        wanted = gradients(network, network, x)
        exact = gradients(wide, wide, x.double())
        assert len(found) == len(wanted)
        for position, (ours, eager, right) in enumerate(zip(found, wanted, exact, strict=True)):
            assert ours.stride() == eager.stride(), position
            scale = right.abs().max().item() + 1e-6
            error, eagers = ((y.double() - right).abs().max().item() / scale for y in (ours, eager))
            assert error <= max(4 * eagers, 1e-5), (position, error, eagers)
        for (key, ours), eager in zip(
            compiled_network.state_dict().items(), network.state_dict().values(), strict=True
        ):
            torch.testing.assert_close(ours, eager, msg=key)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str, training: bool) -> None:
    check(name, training, None, last=False)


@pytest.mark.parametrize("name", ["residual", "pools", "dense", "last norm"])
def test_sizes_that_vary(name: str) -> None:
    check(name, True, True, last=False)


LAST = ["residual", "pools", "last norm", "handed out", "squeezed", "large depthwise", "large kernels"]


@pytest.mark.parametrize("name", [*LAST, "wide of one image"])
def test_inputs_that_are_channels_last(name: str) -> None:
    check(name, True, None, last=True)
    assert not magneto.stats()["no_joint"]


def test_what_is_saved_is_channels_last() -> None:
    """The backward is given images as the forward's convolutions leave them."""
    program = """
        import torch, magneto
        from torch import nn
        network = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3))
        magneto.compile(network)(torch.randn(2, 3, 32, 32))
    """
    environment = {**os.environ, "TORCH_LOGS": "aot_joint_graph"}
    ran = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(program)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    images = re.findall(r"f32\[2, 16, 30, 30\](.*) = input", ran.stderr)
    assert images
    assert set(images) == {"{14400, 1, 480, 16}"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("index", [torch.int64, torch.int32])
def test_gradients_of_embeddings(dtype: torch.dtype, index: torch.dtype) -> None:
    """The sums have eager's bits."""
    torch.manual_seed(0)

    def f(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return F.embedding(rows, table, padding_idx=3) * 2

    compiled = magneto.compile(f)
    rows = torch.randint(0, 50, (40, 7)).to(index)
    for shape in (rows, rows[:, ::2], rows[:0]):
        grads = []
        for function in (compiled, f):
            table = torch.linspace(-1, 1, 50 * 33).view(50, 33).to(dtype).requires_grad_()
            y = function(table, shape)
            y.backward(torch.linspace(0.3, 1.7, y.numel()).view(y.shape).to(dtype))
            grads.append(table.grad)
        assert torch.equal(*grads)
