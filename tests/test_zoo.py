"""The modules of tests/zoo against eager: results, buffers, random numbers, side effects, gradients."""

from __future__ import annotations

import copy
import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from compare import assert_same
from tiers import ways_of

import magneto

for file in sorted((Path(__file__).parent / "zoo").glob("*.py")):
    if file.stem not in ("__init__", "registry"):
        importlib.import_module(f"zoo.{file.stem}")

from zoo.registry import ZOO


def state_of(module: torch.nn.Module) -> dict[str, Any]:
    """What a call may change: buffers, and what the module keeps in attributes."""
    kept = {k: v for k, v in vars(module).items() if not k.startswith("_") and not isinstance(v, torch.nn.Module)}
    return {**module.state_dict(), **{f"attribute {k}": v for k, v in kept.items() if not callable(v)}}


def make(name: str) -> tuple[torch.nn.Module, torch.nn.Module, tuple[Any, ...]]:
    modules = []
    for _ in range(2):
        torch.manual_seed(5)
        modules.append(ZOO[name].make())
    return modules[0], modules[1], ZOO[name].inputs()


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", ZOO)
def test_zoo(name: str, training: bool) -> None:
    for backend in ("eager", "aot_eager"):
        magneto.reset()
        theirs, ours, inputs = make(name)
        theirs.train(training), ours.train(training)
        compiled = magneto.compile(ours, backend=backend)
        with torch.no_grad(), magneto.config.patch(cache_size_limit=64, accumulated_cache_size_limit=1000):
            for turn in range(3):
                torch.manual_seed(turn)
                want = theirs(*copy.deepcopy(inputs))
                drawn = torch.rand(2)
                torch.manual_seed(turn)
                got = compiled(*copy.deepcopy(inputs))
                assert_same(got, want, exact=True, path=f"turn {turn}")
                assert_same(torch.rand(2), drawn, exact=True, path="the random numbers that follow")
                assert_same(state_of(ours), state_of(theirs), exact=True, path=f"state after turn {turn}")
                if turn == 0:
                    assert magneto.stats()["breaks"] <= ZOO[name].breaks


def leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value.abs() if value.is_complex() else value] if value.requires_grad else []
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, (list, tuple)) else []


@pytest.mark.parametrize("name", ZOO)
def test_zoo_gradients(name: str) -> None:
    theirs, ours, inputs = make(name)
    compiled = magneto.compile(ours, backend="aot_eager")
    with magneto.config.patch(cache_size_limit=64, accumulated_cache_size_limit=1000):
        for turn in range(2):
            train(theirs, theirs, inputs, turn)
            train(ours, compiled, inputs, turn)
            for (key, want), (_, got) in zip(theirs.named_parameters(), ours.named_parameters(), strict=True):
                assert_same(got.grad, want.grad, path=f"gradient of {key} in turn {turn}")


def train(module: torch.nn.Module, function: Any, inputs: tuple[Any, ...], turn: int) -> list[torch.Tensor]:
    module.zero_grad()
    torch.manual_seed(turn)
    out = leaves(function(*copy.deepcopy(inputs)))
    if out:  # the elements of a leaf have weights of their own: results may be normalised
        sum((leaf.double() * torch.arange(leaf.numel()).cos().view_as(leaf)).sum() for leaf in out).backward()
    return out


GENERATED = [
    pytest.param(name, way, marks=marks, id=f"{name}-{way}")
    for name in ZOO
    for way, marks in ways_of(name, (), ("static", "dynamic"), 1)
]


@pytest.mark.parametrize(("name", "way"), GENERATED)
def test_zoo_gradients_of_generated_code(name: str, way: str) -> None:
    theirs, ours, inputs = make(name)
    compiled = magneto.compile(ours, dynamic=way == "dynamic")
    with magneto.config.patch(cache_size_limit=64, accumulated_cache_size_limit=1000):
        for turn in range(2):
            want, got = train(theirs, theirs, inputs, turn), train(ours, compiled, inputs, turn)
            gradients = [[weight.grad for weight in module.parameters()] for module in (ours, theirs)]
            near(got, want)
            near(*gradients)


def near(got: list[torch.Tensor | None], want: list[torch.Tensor | None]) -> None:
    """Within a ten thousandth of the largest number among them."""
    assert [tensor is None for tensor in got] == [tensor is None for tensor in want]
    largest = max((tensor.abs().max().item() for tensor in want if tensor is not None and tensor.numel()), default=0.0)
    for left, right in zip(got, want, strict=True):
        if right is not None:
            torch.testing.assert_close(left, right, rtol=0, atol=1e-4 * largest, check_stride=True)
