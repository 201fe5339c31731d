"""Written memory with gaps: operators of the program see its strides as in eager, and so does who gets it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same

import magneto

SEEN: list[tuple[tuple[int, ...], ...]] = []


@torch.library.custom_op("strides_of_operands::look", mutates_args=())
def look(listed: list[torch.Tensor], alone: torch.Tensor) -> torch.Tensor:
    SEEN.append(tuple(tensor.stride() for tensor in (*listed, alone)))
    return sum(tensor.sum() for tensor in listed) + alone.clone(memory_format=torch.contiguous_format)


@look.register_fake
def _(listed: list[torch.Tensor], alone: torch.Tensor) -> torch.Tensor:
    return alone.new_empty(alone.shape)


def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.shapes = [tensor.shape for tensor in inputs[0]]


look.register_autograd(
    lambda ctx, grad: ([grad.sum() * torch.ones(shape) for shape in ctx.shapes], grad.clone()), setup_context=setup
)


@torch.library.custom_op("strides_of_operands::add_to", mutates_args=("y",))
def add_to(x: torch.Tensor, y: torch.Tensor) -> None:
    SEEN.append((x.stride(), y.stride()))
    y.add_(x)


def part_of_an_input(x: torch.Tensor) -> Any:
    y = x[:, :3]
    y.add_(1)
    return look([], y)


def own_memory_with_gaps(x: torch.Tensor) -> Any:
    z = torch.empty_strided((4, 3), (8, 1)).fill_(2.0)
    z.add_(x[:4, :3])
    return look([z], z)


def in_a_list(x: torch.Tensor) -> Any:
    y, z = (x * 2)[:, ::2], x.t() * 1
    y.mul_(3)
    z += 1
    return look([y, z, x], y)


def middle_of_a_border(x: torch.Tensor) -> Any:
    padded = torch.zeros(x.shape[0], x.shape[1] + 2)
    inner = padded[:, 1:-1]
    inner.copy_(x)
    inner.add_(x.sin())
    return look([inner], inner), padded


def written_by_the_operator(x: torch.Tensor) -> Any:
    y, z = (x * 2)[:, ::2], (x * 3)[:, ::2]
    y.mul_(3)
    add_to(y, z)
    add_to(y.clone(), y)
    return y + z.sum()


PROGRAMS = [part_of_an_input, own_memory_with_gaps, in_a_list, middle_of_a_border, written_by_the_operator]
# An operator that writes what needs gradients is an error in eager.
TRAINED = PROGRAMS[:-1]


@pytest.mark.parametrize(
    "options",
    [{"backend": "eager"}, {"backend": "aot_eager"}, {}, {"dynamic": True}],
    ids=["eager", "aot", "own", "dyn"],
)
@pytest.mark.parametrize(
    ("program", "gradients"), [*((program, False) for program in PROGRAMS), *((program, True) for program in TRAINED)]
)
def test_strides(program: Callable[[torch.Tensor], Any], gradients: bool, options: dict[str, Any]) -> None:
    def run(function: Callable[[torch.Tensor], Any]) -> Any:
        SEEN.clear()
        found = []
        for rows in (4, 4, 5):
            leaf = torch.arange(rows * 8.0).view(rows, 8).requires_grad_(gradients)
            results = function(leaf * 1 if gradients else leaf)
            if gradients:
                sum(part.sum() for part in torch.utils._pytree.tree_leaves(results)).backward()
            found.append((results, leaf.grad))
        return found, list(SEEN)

    assert_same(run(magneto.compile(program, **options)), run(program))


def with_gaps(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided((4, 3), (8, 1)).fill_(2.0).add_(x[:4, :3])


GIVEN: list[Callable[[torch.Tensor], Any]] = [
    with_gaps,
    lambda x: with_gaps(x)[1:],
    lambda x: with_gaps(x).t(),
    lambda x: (with_gaps(x)[1:], with_gaps(x).sum()),
    lambda x: [(z, z[1:], z.t()) for z in [with_gaps(x)]],
    lambda x: with_gaps(x).view(2, 2, 3)[:, 1],
]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("program", GIVEN)
def test_what_leaves(program: Callable[[torch.Tensor], Any], backend: str) -> None:
    def lies(result: Any) -> Any:
        parts = torch.utils._pytree.tree_leaves(result)
        return [
            (part, part.stride(), part.storage_offset(), part.untyped_storage().nbytes(), part._version)
            for part in parts
        ]

    x = torch.arange(32.0).view(4, 8)
    assert_same(lies(magneto.compile(program, backend=backend, fullgraph=True)(x)), lies(program(x)))
