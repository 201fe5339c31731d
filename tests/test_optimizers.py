"""Compiled steps of PyTorch's optimizers: eager's values to the last bit, two captures in all, no exits."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import magneto

STEPS = 6
RAISES_NOTHING = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)


def train(
    optimizer: type[torch.optim.Optimizer],
    options: dict[str, Any],
    compiled_with: str | None,
    schedule: bool,
    count: int = STEPS,
) -> Any:
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(4, 3, generator=generator)) for _ in range(5)]
    steps = optimizer(parameters, **options)  # type: ignore[call-arg]
    step: Any = steps.step
    if compiled_with:
        magneto.reset()
        step = magneto.compile(steps.step, backend=compiled_with)
    for index in range(count):
        for parameter in parameters:
            parameter.grad = torch.randn(4, 3, generator=generator)
        if schedule:
            steps.param_groups[0]["lr"] = 0.1 / (index + 1)
        step()
    return parameters, [steps.state[parameter] for parameter in parameters]


def assert_equal(got: Any, want: Any) -> None:
    if isinstance(want, torch.Tensor):
        assert got.dtype == want.dtype and torch.equal(got, want), (got - want).abs().max()
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            assert_equal(got[key], want[key])
    elif isinstance(want, (list, tuple)):
        for left, right in zip(got, want, strict=True):
            assert_equal(left, right)
    else:
        assert got == want


ADAM: list[dict[str, Any]] = [
    {},
    {"foreach": False},
    {"foreach": True},
    {"amsgrad": True},
    {"foreach": True, "amsgrad": True},
    {"weight_decay": 0.1, "maximize": True},
    {"foreach": True, "weight_decay": 0.1},
    {"fused": True},
]
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("Adagrad", {}),
    ("Adamax", {}),
    ("Adamax", {"foreach": True}),
    ("NAdam", {"foreach": True}),
    ("NAdam", {}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("Adafactor", {}),
    ("Adafactor", {"weight_decay": 0.1, "maximize": True}),
    # PyTorch 2.11's own raises under any compiler: it asks for a dtype that it does not hand on then.
    *([("Adafactor", {"foreach": True})] if RAISES_NOTHING else []),
    ("RMSprop", {}),
    ("Adadelta", {}),
    ("Rprop", {}),
]


def check(
    name: str, options: dict[str, Any], backend: str, schedule: bool = False, captures: int = 2, steps: int = STEPS
) -> None:
    with torch.profiler.record_function("the first one finds out which profilers there are"):
        pass
    optimizer = getattr(torch.optim, name)
    want = train(optimizer, options, None, schedule, steps)
    got = train(optimizer, options, backend, schedule, steps)
    stats = magneto.stats()
    if backend in ("eager", "aot_eager"):
        assert_equal(got, want)
    else:
        for left, right in zip(got[0], want[0], strict=True):
            torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)
    assert stats["breaks"] == 0, stats["break_reasons"]
    assert stats["frames"] <= captures


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("options", ADAM, ids=str)
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_adam(name: str, options: dict[str, Any], backend: str) -> None:
    check(name, options, backend)


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
def test_rate_that_changes(options: dict[str, Any], backend: str) -> None:
    check("Adam", options, backend, schedule=True, captures=3)


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adagrad"])
def test_rate_of_a_fused_step_that_changes(name: str) -> None:
    """The number is read in each run, through the overload that takes a tensor."""
    check(name, {"fused": True}, "aot_eager", schedule=True, captures=3)


@pytest.mark.parametrize(("name", "options"), OTHERS, ids=str)
def test_others(name: str, options: dict[str, Any]) -> None:
    check(name, options, "aot_eager", captures=3)


RATES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("SGD", {"foreach": True}),
    ("Adam", {}),
    ("Adam", {"amsgrad": True, "maximize": True}),
    ("Adam", {"fused": True}),
    ("AdamW", {"weight_decay": 0.1}),
    ("NAdam", {}),
    ("NAdam", {"foreach": True}),
    ("Adadelta", {"foreach": True}),
    ("Adagrad", {}),
    ("Adamax", {}),
    ("RMSprop", {}),
]


@pytest.mark.parametrize(("name", "options"), RATES, ids=str)
def test_a_rate_that_is_a_tensor(name: str, options: dict[str, Any]) -> None:
    """As is recommended for compiled steps whose rate a schedule changes."""
    check(name, {"lr": torch.tensor(0.05), **options}, "aot_eager", captures=3)


# With how many captures: the state is made, is there, and one for each branch that flips.
BRANCHING: list[tuple[str, dict[str, Any], int]] = [
    ("RAdam", {}, 3),
    ("RAdam", {"foreach": True, "weight_decay": 0.1}, 3),
    ("RAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}, 3),
    ("RAdam", {"foreach": False, "lr": torch.tensor(0.05)}, 3),
    ("RAdam", {"betas": (0.9, 0.5)}, 2),
    ("ASGD", {}, 2),
    ("ASGD", {"foreach": True}, 2),
    ("ASGD", {"weight_decay": 0.1, "maximize": True}, 2),
    ("ASGD", {"t0": 2, "lambd": 0.1}, 4),
    ("ASGD", {"t0": 2, "foreach": True}, 3),
]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize(("name", "options", "captures"), BRANCHING, ids=str)
def test_a_branch_on_the_state_is_a_guard(name: str, options: dict[str, Any], captures: int, backend: str) -> None:
    """RAdam and ASGD branch on numbers in their state, for each parameter: a capture for each way, no exit."""
    check(name, options, backend, captures=captures, steps=12)
    stats = magneto.stats()
    assert not stats["fallbacks"] and not stats["undone"]


def test_parameters_whose_steps_differ() -> None:
    """Each has its own counter: the one that was given its first gradient later branches later."""

    def run(compiles: bool) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(3, generator=generator)) for _ in range(3)]
        optimizer = torch.optim.RAdam(parameters, lr=0.1, foreach=False)
        step = magneto.compile(optimizer.step, backend="aot_eager") if compiles else optimizer.step
        for index in range(14):
            for parameter in parameters[: 2 if index < 4 else 3]:
                parameter.grad = torch.randn(3, generator=generator)
            step()
        return [parameter.detach() for parameter in parameters]

    assert_equal(run(compiles=True), run(compiles=False))
    assert magneto.stats()["breaks"] == 0 and magneto.stats()["frames"] <= 6


def test_a_state_that_is_loaded_takes_the_other_way() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    twin = torch.nn.Parameter(torch.ones(3))
    optimizers = [torch.optim.RAdam([tensor], lr=0.1) for tensor in (parameter, twin)]
    steps = [magneto.compile(optimizers[0].step, backend="aot_eager"), optimizers[1].step]
    early: list[Any] = []
    for index in range(20):
        for tensor, optimizer, step in zip((parameter, twin), optimizers, steps, strict=True):
            if index == 3:
                early.append(copy.deepcopy(optimizer.state_dict()))
            if index == 10:
                optimizer.load_state_dict(early.pop(0))
            tensor.grad = torch.full((3,), 0.1 * index)
            step()
        assert torch.equal(parameter, twin)


def test_a_profiler_sees_the_label_of_a_step() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    steps = torch.optim.Adam([parameter])
    step = magneto.compile(steps.step, backend="aot_eager")
    for _ in range(3):
        parameter.grad = torch.ones(3)
        step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step()
    step()
    assert any(event.key == "Optimizer.step#Adam.step" for event in profiler.key_averages())


class MakesItsOptimizer(torch.nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        self.kind = kind

    def step(self, x: torch.Tensor) -> torch.Tensor:
        optimizer = self.kind(self.net.parameters(), lr=0.1)
        optimizer.zero_grad()
        loss = self.net(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_one_made_in_each_step(kind: Any) -> None:
    results = []
    for compiles in (False, True):
        program = MakesItsOptimizer(kind)
        step = magneto.compile(program.step) if compiles else program.step
        torch.manual_seed(1)
        losses = [step(torch.randn(5, 3)) for _ in range(4)]
        results.append([*losses, *(p.detach() for p in program.parameters())])
    torch.testing.assert_close(*results)
    assert magneto.stats()["breaks"] == 0
