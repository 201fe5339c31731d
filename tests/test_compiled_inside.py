"""`magneto.compile` called inside a compiled function: what it gives is inlined, and each run makes its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same
from torch import nn

import magneto

LAYER = nn.Linear(3, 2)
KEPT: dict[str, Any] = {}


def scaled(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    return x * factor


class Model:
    def __init__(self) -> None:
        self.factor = 3.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


MODEL = Model()


def of_a_global(x: torch.Tensor) -> Any:
    return magneto.compile(scaled)(x, factor=4.0), magneto.compile(scaled, dynamic=False)(x)


def of_a_lambda(x: torch.Tensor) -> Any:
    y = x + 1
    inner = magneto.compile(lambda v: v * y)
    return inner(x) + inner(y)


def decorated(x: torch.Tensor) -> Any:
    @magneto.compile
    def first(v: torch.Tensor) -> torch.Tensor:
        return v.sin()

    @magneto.compile(backend="eager", dynamic=True)
    def second(v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return first(v) + w

    return second(x, x * 2), first.__name__, second.__wrapped__(x, x)


def of_a_method(x: torch.Tensor) -> Any:
    return magneto.compile(MODEL.forward)(x)


def compiled_twice(x: torch.Tensor) -> Any:
    return magneto.compile(magneto.compile(scaled))(x)


def recursive(x: torch.Tensor) -> Any:
    def power(v: torch.Tensor, n: int) -> torch.Tensor:
        return v if n == 1 else v * compiled(v, n - 1)

    compiled = magneto.compile(power)
    return compiled(x, 3)


def disabled(x: torch.Tensor) -> Any:
    return magneto.compile(scaled, disable=True)(x), magneto.compile(scaled, disable=True) is scaled


ONE_GRAPH = (of_a_global, of_a_lambda, decorated, of_a_method, compiled_twice, recursive, disabled)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("program", ONE_GRAPH, ids=lambda program: program.__name__)
def test_part_of_the_graph(program: Callable[..., Any], backend: str) -> None:
    compiled = magneto.compile(program, fullgraph=True, backend=backend)
    for size in (3, 3, 4, 5):
        x = torch.arange(1.0, size + 1)
        assert_same(compiled(x), program(x))
    assert not magneto.stats()["break_reasons"] and not magneto.stats()["fallbacks"]


def handed_out(x: torch.Tensor) -> Any:
    y = x * 2
    KEPT["inner"] = magneto.compile(lambda v: v + y, fullgraph=True)
    return KEPT["inner"](x), magneto.compile(scaled, dynamic=False)


def test_what_is_handed_out_is_compiled() -> None:
    compiled = magneto.compile(handed_out, fullgraph=True)
    made = []
    for start in (1.0, 2.0, 3.0):
        x = torch.arange(start, start + 3)
        result, function = compiled(x)
        made.append((KEPT["inner"], function))
        assert_same(result, x * 3)
        assert_same(KEPT["inner"](x + 1), x * 3 + 1)
        assert type(function) is type(magneto.compile(scaled)) and function.__wrapped__ is scaled
        assert_same(function(x), x * 2)
    assert len({id(each) for pair in made for each in pair}) == 6
    KEPT.clear()


def wrong(x: torch.Tensor) -> Any:
    try:
        magneto.compile(3)  # type: ignore[call-overload]
    except magneto.exc.InvalidValue as error:
        return x + 1, str(error)


def of_a_layer(x: torch.Tensor) -> Any:
    return magneto.compile(LAYER)(x).detach()


@pytest.mark.parametrize("program", [wrong, of_a_layer], ids=lambda program: program.__name__)
def test_other_arguments(program: Callable[..., Any]) -> None:
    compiled = magneto.compile(program)
    for _ in range(3):
        assert_same(compiled(torch.ones(3)), program(torch.ones(3)))


@pytest.mark.parametrize("program", ONE_GRAPH, ids=lambda program: program.__name__)
def test_under_forced_exits(program: Callable[..., Any]) -> None:
    from magneto import _test_settings

    with _test_settings.patch(exit_every=2):
        compiled = magneto.compile(program, backend="aot_eager")
        for size in (3, 3, 4):
            x = torch.arange(1.0, size + 1)
            assert_same(compiled(x), program(x))
