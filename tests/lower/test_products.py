"""Matrix products against eager: small ones are generated, with what is around them in the same kernel."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from eager_support import check, hostile

import magneto

pytestmark = pytest.mark.usefixtures("kernels")

SHAPES = [(1, 8, 8), (3, 5, 7), (17, 1, 33), (1, 31, 1), (2, 2, 1), (9, 16, 65)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_small_products(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, n, k = shape
    a, b, bias = torch.randn(m, k, dtype=dtype), torch.randn(k, n, dtype=dtype), torch.randn(n, dtype=dtype)
    check(lambda a, b, bias: (a @ b, torch.addmm(bias, a, b), torch.addmm(bias, a, b, beta=0.5, alpha=2)), a, b, bias)
    check(lambda a, w, bias: F.relu(F.linear(a, w, bias)) + a.sum(), a, b.t().contiguous(), bias)
    assert not [name for name in magneto.stats()["externs"] if "mm" in name]


def test_layouts_of_operands() -> None:
    a, b = torch.randn(6, 8).t(), torch.randn(12, 10)[::2, 1::2]
    check(lambda a, b: (a @ b, (a * 2) @ b.exp(), a.flip(0) @ b), a, b)
    check(lambda a, b: a @ b, torch.randn(1, 6).expand(8, 6), torch.randn(6, 1).expand(6, 5))


def test_batches() -> None:
    q, k, v = (torch.randn(2, 3, 4, 8) for _ in range(3))
    check(lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1) @ v, q, k, v)
    x, y = torch.randn(5, 3, 4), torch.randn(5, 4, 2)
    check(lambda x, y: (torch.bmm(x, y), torch.baddbmm(torch.ones(3, 1), x, y, beta=2, alpha=-1)), x, y)


def test_empty_products() -> None:
    for m, n, k in [(0, 3, 4), (3, 0, 4), (3, 4, 0)]:
        check(lambda a, b: (a @ b) + 1, torch.randn(m, k), torch.randn(k, n))


def test_hostile_values() -> None:
    a = hostile(4, 4).clamp(-1e30, 1e30)
    check(lambda a: (a @ torch.eye(4), (a + 1).nan_to_num() @ torch.ones(4, 3)), a)
    check(lambda a: a @ a.t(), torch.tensor([[math.inf, 0.0], [1.0, -0.0], [math.nan, 1.0]]))
    # Where beta is zero the addend counts for nothing.
    nothing = torch.full((3,), math.nan)
    check(lambda c, a, b: torch.addmm(c, a, b, beta=0), nothing, torch.randn(2, 4), torch.randn(4, 3))


def test_a_chain_of_layers_is_one_kernel_each() -> None:
    layers: list[torch.nn.Module] = []
    for _ in range(5):
        layers += [torch.nn.Linear(8, 8), torch.nn.GELU()]
    model = torch.nn.Sequential(*layers).eval()
    x = torch.randn(2, 8)
    check(lambda x: model(x) + x, x)
    assert not magneto.stats()["externs"]


def test_what_is_read_often_is_computed_once() -> None:
    x, w = torch.randn(16, 16), torch.randn(16, 16)
    check(lambda x, w: (x.exp() @ w, torch.softmax(x, -1) @ w.tanh(), F.layer_norm(x, (16,)) @ w), x, w)


def test_large_products_with_bias_and_activation() -> None:
    x, w, b, r = torch.randn(64, 96), torch.randn(128, 96), torch.randn(128), torch.randn(64, 128)

    def f(x: Any, w: Any, b: Any, r: Any) -> Any:
        y = F.linear(x, w, b)
        return F.gelu(y) + r, y, F.linear(x, w, b * 2), F.layer_norm(F.linear(x, w, b) + r, (128,))

    check(f, x, w, b, r)


def test_bias_that_kernels_add() -> None:
    """What a product is read by decides who adds its bias; the results are the same."""
    torch.manual_seed(0)
    x, w, b, r = torch.randn(96, 128), torch.randn(192, 128), torch.randn(192), torch.randn(96, 192)
    hidden = b.clone()
    hidden[:3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    for bias in (b, hidden):
        check(lambda x, w, b, r: F.gelu(F.linear(x, w, b)) + r, x, w, bias, r)
        check(
            lambda x, w, b, r: F.layer_norm(F.linear(x, w, b).view(2, 48, 192) + r.view(2, 48, 192), (192,)),
            x,
            w,
            bias,
            r,
        )
        check(
            lambda x, w, b, r: (F.linear(x, w, b), F.linear(x, w, b).relu(), F.linear(x, w, b).t() * 2), x, w, bias, r
        )
        check(lambda x, w, b, r: F.linear(x, w, b).relu().sort(-1)[0], x, w, bias, r)
        check(lambda x, w, b, r: torch.addmm(r, x, w.t()).tanh(), x, w, bias, r)
        check(lambda x, w, b, r: torch.addmm(b, x, w.t(), beta=0.5, alpha=2).tanh(), x, w, bias, r)
        check(lambda x, w, b, r: torch.addmm(b[:1], x, w.t()).sigmoid(), x, w, bias, r)
    check(lambda x, w, b: F.linear(x, w, b).relu() * 2, x.double(), w.double(), b.double())
    check(lambda x, w, b: F.linear(x, w, b).relu() * 2, x.bfloat16(), w.bfloat16(), b.bfloat16())
    check(lambda x, w, b: F.linear(x[:0], w, b).relu() * 2, x, w, b)
    check(lambda x, w, b: F.linear(x[:, :0], w[:, :0], b).relu() * 2, x, w, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "settings",
    [{"padding": 3}, {}, {"stride": 2, "padding": 1}, {"dilation": 3, "padding": 5}],
    ids=str,
)
def test_convolutions_of_each_channel(settings: dict[str, int], dtype: torch.dtype) -> None:
    x, weight, bias = (torch.randn(*size, dtype=dtype) for size in [(2, 6, 17), (6, 1, 4), (6,)])
    check(lambda x, w, b: F.silu(F.conv1d(x, w, b, groups=6, **settings)), x, weight, bias)
    check(lambda x, w: F.conv1d(x.tanh(), w, groups=6, **settings)[..., :3], x.transpose(1, 2).contiguous().mT, weight)
    check(lambda x, w: F.conv1d(x, w, groups=6, **settings), x, torch.randn(12, 1, 3, dtype=dtype))
    assert "aten::convolution" not in magneto.stats()["externs"]


def test_convolutions_of_hostile_values() -> None:
    weight = torch.tensor([[[math.inf, 1.0, -0.0]], [[math.nan, 0.0, 2.0]]])
    check(lambda x, w: F.conv1d(x, w, padding=2, groups=2), hostile(2, 40).clamp(-1e30, 1e30), weight)


def test_a_recurrence_computes_its_decay_once() -> None:
    """softplus, read for each of 16 states, was computed for each: three quarters of Mamba's time."""

    def scan(dt: torch.Tensor, a: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        decay = torch.exp(-a.exp() * F.softplus(dt)[..., None])
        state, states = torch.zeros_like(u[:, 0]), []
        for step in range(dt.shape[1]):
            state = state * decay[:, step] + u[:, step]
            states.append(state)
        return torch.stack(states, 1)

    arguments = torch.randn(2, 6, 8), torch.randn(8, 16), torch.randn(2, 6, 8, 16)
    check(scan, *arguments)
    loops = magneto.debug_dump(scan)(*arguments)[0]["loops"]
    spread = [kernel for kernel in loops.split("kernel ") if "log1p" in kernel]
    assert len(spread) == 1 and "parallel i0 < 2, i1 < 6, i2 < 8\n" in spread[0], loops
