"""Gradients become `.grad`, which programs write: clipping, unscaling, adding up over batches. Those that share memory
in eager do so here, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same

import magneto
from magneto import _aot
from magneto._install import compiled_autograd

#: name -> shapes of the parameters, the program.
PROGRAMS: dict[str, tuple[list[tuple[int, ...]], Callable[..., torch.Tensor]]] = {
    "a vision transformer's embeddings": (
        [(1, 5, 4), (1, 1, 4), (1, 4, 4)],
        lambda positions, token, patches: torch.cat([token.expand(1, -1, -1), patches], 1) + positions,
    ),
    "unsqueezed first": ([(2, 3), (1, 2, 3)], lambda a, b: a.unsqueeze(0) + b),
    "unsqueezed last": ([(2, 3), (1, 2, 3)], lambda a, b: b + a.unsqueeze(0)),
    "a view of a view": ([(6,), (2, 3), (3, 2)], lambda a, b, c: (a.view(2, 3) + b).t() + c),
    "two views": ([(2, 2), (2, 2)], lambda a, b: a.view(4) + b.view(4)),
    "transposed": ([(2, 3), (3, 2), (2, 3)], lambda a, b, c: a + b.t() + c),
    "the same": ([(2, 3), (2, 3)], lambda a, b: a + b),
    "halves": ([(4, 3), (2, 3)], lambda a, b: a[:2] + a[2:] + b),
    "parts": ([(4, 3), (2, 3), (2, 3)], lambda a, b, c: a + torch.cat([b, c])),
    "a part of a part": ([(4, 3), (2, 3), (1, 3)], lambda a, b, c: a + torch.cat([b + torch.cat([c, c * 2]), b.sin()])),
    "stacked": ([(2, 2, 3), (2, 3), (2, 3)], lambda a, b, c: a + torch.stack([b, c], 1)),
    "expanded": ([(2, 3), (1, 3), (3,)], lambda a, b, c: a + b + c),
    "read again behind": ([(2, 3), (6,)], lambda a, b: (a + b.view(2, 3)) * a),
    "sums": ([(2, 3), (2, 1), ()], lambda a, b, c: a.sum(1, keepdim=True) + b + c),
    "squeezed": ([(1, 2, 3), (2, 3), (2, 1, 3)], lambda a, b, c: a.squeeze(0) + b + c.squeeze(1)),
    "a bias and its product": ([(3, 4), (1, 4)], lambda a, b: torch.addmm(b, torch.ones(1, 3), a) + b),
}


def trained(make: Callable[[Any], Any], shapes: list[tuple[int, ...]], program: Callable[..., Any], steps: int) -> Any:
    """The gradients of `steps` backwards added up, each then multiplied in place by a number of its own, and those that
    share memory."""
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    run = make(program)
    for _ in range(steps):
        run(*weights).sin().sum().backward()
    gradients = [x.grad for x in weights]
    assert all(isinstance(x, torch.Tensor) for x in gradients)
    places = [x.untyped_storage().data_ptr() for x in gradients]
    for number, x in enumerate(gradients):
        x.mul_(number + 2)
    return gradients, [(i, j) for i, a in enumerate(places) for j, b in enumerate(places) if a == b and i < j]


def partition(*arguments: Any, **named: Any) -> Any:
    return _aot.default_partition(*arguments, **named)


WAYS: dict[str, dict[str, Any]] = {
    "magneto": {},
    "aot_eager": {"backend": "aot_eager"},
    "eager": {"backend": "eager"},
    "dynamic": {"dynamic": True},
    "users": {"backend": _aot.aot_autograd(fw_compiler=_aot.nop)},
    "users' partition": {"backend": _aot.aot_autograd(fw_compiler=_aot.nop, partition_fn=partition)},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_written(name: str, way: str) -> None:
    shapes, program = PROGRAMS[name]
    for steps in (1, 2):
        magneto.reset()
        wanted, shared = trained(lambda function: function, shapes, program, steps)
        for _ in range(2):
            found, found_shared = trained(lambda f: magneto.compile(f, **WAYS[way]), shapes, program, steps)
            assert_same(found, wanted)
            assert found_shared == shared


@pytest.mark.parametrize("name", PROGRAMS)
def test_of_whole_backwards(name: str) -> None:
    """Compiled autograd."""
    shapes, program = PROGRAMS[name]
    wanted = trained(lambda function: function, shapes, program, 2)
    try:
        for make in (lambda function: function, magneto.compile):
            with compiled_autograd._block(None):
                assert_same(trained(make, shapes, program, 2), wanted)
    finally:
        compiled_autograd.give_back()
