"""Random numbers that the runtime makes itself are PyTorch's: elements, and the generator's state behind them.

`src/runtime/program/random_draws.cpp`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import magneto

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout of all or nothing": lambda x: F.dropout(x, 0.0) + F.dropout(x, 1.0),
    "dropout of a transposed one": lambda x: F.dropout(x.transpose(0, -1), 0.1),
    "dropout of planes": lambda x: F.dropout2d(x[None, None] if x.dim() < 3 else x, 0.5),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.1, training=True),
    "bernoulli": lambda x: x * sum(torch.bernoulli(x.detach(), p) for p in (0.2, 1.0, 0.0)),
    "a mask": lambda x: x * torch.empty_like(x, dtype=torch.bool).bernoulli_(0.4),
    "integers": lambda x: x * torch.empty(x.shape, dtype=torch.int64).bernoulli_(0.4),
    "rand_like": lambda x: torch.rand_like(x) + x,
    "rand": lambda x: x[..., :1] * torch.rand(5, *[1] * (x.dim() - 1), dtype=x.dtype) if x.shape[0] == 5 else x + 1,
    "one behind another": lambda x: F.dropout(torch.rand_like(x), 0.5) + torch.rand(x.shape[-1], dtype=x.dtype),
}
INPUTS = {
    "few": lambda: torch.randn(5, 3),
    "odd": lambda: torch.randn(7, 91),
    "many": lambda: torch.randn(1024, 33),
    "channels last": lambda: torch.randn(2, 3, 9, 8).contiguous(memory_format=torch.channels_last),
    "empty": lambda: torch.randn(0, 4),
}


def drawn(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, before: int) -> list[torch.Tensor]:
    """The result, the gradient, and the generator's state behind, with so many numbers drawn before."""
    torch.manual_seed(before)
    torch.rand(before)
    leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    result = function(leaf)
    if result.requires_grad:
        result.backward(torch.ones_like(result))
    return [result.detach(), leaf.grad if leaf.grad is not None else leaf.detach(), torch.get_rng_state()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_and_state(name: str, dtype: torch.dtype) -> None:
    function = PROGRAMS[name]
    for kind, make in INPUTS.items():
        x = make().to(dtype)
        compiled = magneto.compile(function)
        # Behind 1 and 3 numbers the pairs of which elements are made straddle two states.
        for before in (0, 1, 3, 623):
            for ours, eager in zip(drawn(compiled, x, before), drawn(function, x, before), strict=True):
                torch.testing.assert_close(ours, eager, rtol=0, atol=0, msg=lambda m: f"{kind}, {before}: {m}")  # noqa: B023
                assert ours.stride() == eager.stride()


def test_a_generator_of_ones_own() -> None:
    def program(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return torch.empty_like(x).bernoulli_(0.3, generator=generator) + F.dropout(x, 0.5)

    x = torch.ones(100)
    results = []
    for function in (program, magneto.compile(program)):
        torch.manual_seed(1)
        generator = torch.Generator().manual_seed(2)
        results.append([function(x, generator), generator.get_state(), torch.get_rng_state()])
    for eager, ours in zip(*results, strict=True):
        assert torch.equal(eager, ours)


def test_probabilities_out_of_bounds_raise_as_eager() -> None:
    compiled = magneto.compile(lambda x: torch.bernoulli(x, 1.5))
    with pytest.raises(RuntimeError, match="expects p to be in"):
        compiled(torch.ones(3))
