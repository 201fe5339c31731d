"""What type checkers say of the public functions: `make lint` runs mypy over this file, the tests run it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, assert_type

import torch

import magneto
from magneto._api import Disabler
from magneto._explain import ExplainOutput
from magneto._history import Recompiles, Summary, Why


def scale(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    return x * factor


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def backend(gm: Any, example_inputs: Any) -> Callable[..., Any]:
    return gm.forward  # type: ignore[no-any-return]


def test_what_is_compiled_keeps_its_type() -> None:
    assert_type(magneto.compile(scale)(torch.ones(2), 3.0), torch.Tensor)
    assert_type(magneto.compile(Model()), Model)
    assert_type(magneto.compile(fullgraph=True, name="scale")(scale)(torch.ones(2)), torch.Tensor)
    assert_type(magneto.disable(scale, reason="x")(torch.ones(2)), torch.Tensor)
    assert_type(magneto.disable(reason="x")(scale)(torch.ones(2)), torch.Tensor)
    assert_type(magneto.disable(), Disabler)
    assert_type(magneto.allow_in_graph(scale)(torch.ones(2)), torch.Tensor)
    assert_type(magneto.set_stance("default")(scale)(torch.ones(2)), torch.Tensor)


def test_reports_have_types() -> None:
    assert_type(magneto.explain(scale, torch.ones(2)), ExplainOutput)
    assert_type(magneto.explain(scale)(torch.ones(2)), ExplainOutput)
    assert_type(magneto.explain(scale, torch.ones(2)).graph_count, int)
    assert_type(magneto.why(scale), Why)
    assert_type(magneto.summary(), Summary)
    assert_type(magneto.recompiles(), Recompiles)
    assert_type(magneto.debug_dump(scale, torch.ones(2)), list[dict[str, str]])


def test_others() -> None:
    assert_type(magneto.list_backends(), list[str])
    assert_type(magneto.is_compiling(), bool)
    assert_type(magneto.config.cache_size_limit, int)
    assert_type(magneto.graph_break("here"), None)
    magneto.register_backend(backend, name="of_the_types")


def test_no_public_function_gives_any() -> None:
    """Overloads tell where the implementation can't."""
    overloaded = {"compile", "disable", "explain", "debug_dump", "allow_in_graph", "register_backend"}
    for name in magneto.__all__:
        function = getattr(magneto, name)
        if inspect.isfunction(function) and name not in overloaded:
            assert inspect.signature(function).return_annotation not in ("Any", Any, inspect.Signature.empty), name
