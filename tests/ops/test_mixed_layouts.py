"""Operands of other dtypes, expanded, transposed and strided, beside each other: eager's values, dtypes and strides."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import magneto

COUNT = int(os.environ.get("MAGNETO_RANDOM_PROGRAMS", "60"))
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.int64, torch.uint8, torch.bool]
OPERATORS: dict[str, Callable[..., torch.Tensor]] = {
    "add": lambda a, b, c: a + b,
    "sub": lambda a, b, c: a.float() - b,
    "mul": lambda a, b, c: a * b,
    "div": lambda a, b, c: a / b,
    "eq": lambda a, b, c: a == b,
    "lt": lambda a, b, c: a < b,
    "maximum": lambda a, b, c: torch.maximum(a, b),
    "pow": lambda a, b, c: a.float() ** b,
    "atan2": lambda a, b, c: torch.atan2(a, b),
    "logical_and": lambda a, b, c: torch.logical_and(a, b),
    "where": lambda a, b, c: torch.where(c > 0, a, b),
    "clamp": lambda a, b, c: torch.clamp(a.double(), b, c),
    "addcmul": lambda a, b, c: torch.addcmul(a.float(), b.float(), c.float()),
    "exp": lambda a, b, c: torch.exp(a),
    "sigmoid": lambda a, b, c: torch.sigmoid(b),
    "relu": lambda a, b, c: torch.relu(a.to(torch.int32)),
    "neg": lambda a, b, c: -a.to(torch.float16),
    "clone": lambda a, b, c: a.clone(),
    "to": lambda a, b, c: b.to(torch.float64),
    "copysign": lambda a, b, c: torch.copysign(a, b),
    "xlogy": lambda a, b, c: torch.xlogy(a, b),
    "mse_loss": lambda a, b, c: torch.nn.functional.mse_loss(a.float(), b.double(), reduction="none"),
    "three": lambda a, b, c: a * b + c,
    "number": lambda a, b, c: a * 2.5,
    "clamp_number": lambda a, b, c: (a * 1).clamp(0, 2.5) if a.dtype != torch.bool else a,
    "cumsum": lambda a, b, c: a.cumsum(0),
    "sum": lambda a, b, c: (a * b).sum(0),
    "masked_fill": lambda a, b, c: a.masked_fill(c > 0, 1),
    "stack": lambda a, b, c: torch.stack([a, b]),
    "cat": lambda a, b, c: torch.cat([a, b]),
    "out_of_place": lambda a, b, c: (a + 0).add_(1) * b,
}


def operand(rng: random.Random, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor of the shape, in any layout and dtype."""
    dtype = rng.choice(DTYPES)
    generator = torch.Generator().manual_seed(rng.randint(0, 1 << 30))

    def values(*size: int) -> torch.Tensor:
        return torch.randint(0, 4, size, generator=generator).to(dtype)

    layout = rng.choice(["contiguous", "transposed", "permuted", "expanded", "strided", "broadcast", "offset"])
    rank = len(shape)
    if layout == "transposed":
        return values(*reversed(shape)).permute(*reversed(range(rank)))
    if layout == "permuted":
        order = rng.sample(range(rank), rank)
        return values(*(shape[i] for i in order)).permute(*(order.index(i) for i in range(rank)))
    if layout in ("expanded", "broadcast"):
        kept = [size if rng.random() < 0.5 else 1 for size in shape]
        x = values(*kept)
        if rng.random() < 0.3:
            order = rng.sample(range(rank), rank)
            x = values(*(kept[i] for i in order)).permute(*(order.index(i) for i in range(rank)))
        return x.expand(*shape) if layout == "expanded" else x
    if layout == "strided":
        return values(*(2 * size for size in shape))[tuple(slice(None, None, 2) for _ in shape)]
    if layout == "offset":
        return values(shape[0] + 1, *shape[1:])[1:]
    return values(*shape)


def outcome(function: Callable[..., Any], *args: torch.Tensor) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error)


def difference(seed: int, backend: str, dynamic: bool) -> str:
    rng = random.Random(seed)
    name = rng.choice(list(OPERATORS))
    shape = rng.choice([(4, 3), (2, 3, 4), (3, 1, 2), (5,), (2, 3, 4, 5), (1, 4), (0, 3), (2, 2)])
    args = [operand(rng, shape) for _ in range(3)]
    want = outcome(OPERATORS[name], *args)
    magneto.reset()
    got = outcome(magneto.compile(OPERATORS[name], backend=backend, dynamic=dynamic), *args)
    told = f"{name} {backend} {[(a.dtype, tuple(a.shape), a.stride()) for a in args]}: "
    if not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor):
        return "" if got is want else f"{told}{got} for {want}"
    if got.dtype != want.dtype or got.shape != want.shape or got.stride() != want.stride():
        return f"{told}{got.dtype, got.shape, got.stride()} for {want.dtype, want.shape, want.stride()}"
    if not torch.allclose(got.double(), want.double(), rtol=1e-2 if want.itemsize == 2 else 1e-5, equal_nan=True):
        return f"{told}{got} for {want}"
    return ""


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["magneto", "aot_eager", "eager"])
def test_random_operands(backend: str, dynamic: bool) -> None:
    first = (["magneto", "aot_eager", "eager"].index(backend) + 3 * dynamic) * 100_000
    for seed in range(first, first + COUNT):
        found = difference(seed, backend, dynamic)
        assert not found, f"seed {seed}: {found}"


@pytest.mark.parametrize("backend", ["magneto", "aot_eager", "eager"])
def test_an_expanded_operand_of_another_dtype_beside_a_transposed_one(backend: str) -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a * b).view(-1)

    a, b = torch.arange(3, dtype=torch.int8).reshape(1, 3).expand(4, 3), torch.rand(3, 4).t()
    assert torch.equal(magneto.compile(program, backend=backend)(a, b), program(a, b))


if __name__ == "__main__":
    import sys

    for one in range(int(sys.argv[1]), int(sys.argv[2])):
        text = difference(one, ["magneto", "aot_eager", "eager"][one % 3], one % 2 == 1)
        if text:
            print(f"seed {one}: {text}", flush=True)
