"""What training costs, in the workers: steps of models, of patterns and of optimizers, the joint graph's share of a
compile, what a call adds, and memory. bench/run.py and bench/training_rows.py show it."""

from __future__ import annotations

import copy
import functools
import gc
from collections.abc import Callable
from typing import Any

import steady_models
import torch
import training_patterns
import training_steps
from measuring import Function, check, compare, interleaved, peak_during, resident, tensors_of, timed

Step = Callable[..., list[torch.Tensor]]


def model_step(row: str, batch: int) -> tuple[torch.nn.Module, dict[str, Any], Step]:
    """A model, its inputs, and a step of it: forward and backward, which gives the loss and all gradients."""
    model, named = steady_models.build(row), steady_models.inputs(row, batch)

    # Of a model that ends in a norm the sum of squares has no gradient but rounding: so results have aims.
    with torch.random.fork_rng(), torch.no_grad():
        aims = [torch.randn_like(x) for x in tensors_of(dict(model(**named))) if x.is_floating_point()]

    def step(forward: Function, of: torch.nn.Module = model, given: dict[str, Any] = named) -> list[torch.Tensor]:
        of.zero_grad()
        results = [x for x in tensors_of(dict(forward(**given))) if x.is_floating_point()]
        parts = [(x - aim).pow(2).mean() for x, aim in zip(results, aims, strict=True) if x.requires_grad]
        loss = torch.stack(parts).sum()
        loss.backward()
        return [loss.detach(), *(weight.grad for weight in of.parameters() if weight.grad is not None)]

    return model, named, step


def wide_step(model: torch.nn.Module, named: dict[str, Any], step: Step) -> list[torch.Tensor]:
    """The same on float64."""
    double = copy.deepcopy(model).double()
    wide = {key: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for key, x in named.items()}
    return step(double, double, wide)


def measured(
    framework: Any, backend: str, function: Function, step: Step, check_step: Callable[[Function], None], budget: float
) -> dict[str, Any]:
    """The first step of a compiled function, a later one, and eager's; `check_step` checks a step's gradients."""
    step(function)
    before = resident()
    eager_peak = peak_during(lambda: step(function)) - before
    compiled = framework.compile(function, backend=backend)
    first = timed(lambda: step(compiled))
    grown, held = resident() - before, framework.held()
    step(compiled)
    peak = peak_during(lambda: step(compiled)) - before
    check_step(compiled)
    call, call_eager = interleaved(lambda: step(compiled), lambda: step(function), budget)
    seconds = {"compile": first - call, "call": call, "eager": call_eager}
    return {**seconds, "memory": grown, "held": held, "peak": peak, "eager peak": eager_peak}


def training(framework: Any, backend: str, row: str, batch: int, budget: float) -> dict[str, Any]:
    """Of a model: forward and backward. Dropout is off: the peer draws other random numbers than eager."""
    model, named, step = model_step(row, batch)

    def check_step(compiled: Function) -> None:
        exact = wide_step(model, named, step)
        check(row, lambda: step(compiled), lambda: step(model), (), {}, exact, share=1e-3)

    return {f"{row}, batch {batch}": measured(framework, backend, model, step, check_step, budget)}


def patterns(framework: Any, backend: str, row: str, batch: int, budget: float) -> dict[str, Any]:
    """Forward and backward of small programs."""
    result: dict[str, Any] = {}
    for name, pattern in training_patterns.patterns().items():
        if row and name not in row.split(","):
            continue
        framework.reset()
        check_step = functools.partial(pattern.check, name)
        result[name] = measured(framework, backend, pattern.function, pattern.step, check_step, budget)
    return result


def compare_trained(row: str, found: Any) -> None:
    """Losses, averages of gradients and weights after some steps. AdamW divides each element's gradient by its size:
    where that is zero but for rounding, the element moves by the learning rate either way, in eager too, and where a
    ReLU is at zero but for rounding, a unit has a gradient or none. So these are compared as a whole."""
    wanted, exact = (training_steps.trained(row, dtype) for dtype in (torch.float32, torch.float64))
    compare(row, wanted.losses(), found.losses(), exact.losses())
    start = training_steps.ROWS[row](torch.float64, lambda function: function).weights()
    for name, ours, eager, right, before in (
        ("averages of gradients", *(of.averages() for of in (found, wanted, exact)), 0),
        ("weights", *(of.weights() for of in (found, wanted, exact)), start),
    ):
        error, eagers, moved = ((x - right).norm().item() for x in (ours, eager, before))
        assert error <= max(2 * eagers, 1e-3 * moved), (
            f"{row}: the {name} are off by {error:.3g}, eager's by {eagers:.3g}; they have moved by {moved:.3g}"
        )


def steps(framework: Any, backend: str, row: str, batch: int, budget: float) -> dict[str, Any]:
    """Whole training steps: the first ones, a later one, and eager's. `compile`: what the steps that are compared take
    longer than as many later ones."""

    def compile(function: Any) -> Any:
        return framework.compile(function, backend=backend)

    eager = training_steps.trained(row, torch.float32)
    before = resident()
    eager_peak = peak_during(eager.step) - before
    ours = training_steps.ROWS[row](torch.float32, compile)
    first = timed(lambda: [ours.step() for _ in range(training_steps.STEPS)])
    grown, held = resident() - before, framework.held()
    compare_trained(row, ours)
    peak = peak_during(ours.step) - before
    call, call_eager = interleaved(ours.step, eager.step, budget)
    seconds = {"compile": first - training_steps.STEPS * call, "call": call, "eager": call_eager}
    return {row: {**seconds, "memory": grown, "held": held, "peak": peak, "eager peak": eager_peak}}


def joint_stages(framework: Any, lengths: list[int]) -> dict[str, Any]:
    """Seconds of BERT's capture with and without its joint graph, and of the partition of graphs of so many operators.

    The first is a later capture in the same process (`magneto.reset` in between): what a process does once is no part.
    """
    from magneto import _C

    def stages() -> dict[str, float]:
        return {stage: sum(seconds) for stage, (seconds, _) in _C.compile_times().items()}

    def taken(call: Function) -> dict[str, float]:
        framework.reset()
        before = stages()
        call()
        return {stage: seconds - before.get(stage, 0) for stage, seconds in stages().items()}

    model, named, step = model_step("BERT", 1)
    compiled = framework.compile(model, backend="magneto")
    step(compiled)
    captures = [taken(lambda: step(compiled)) for _ in range(5)]
    with torch.no_grad():
        compiled(**named)
        plain = [taken(lambda: compiled(**named)) for _ in range(5)]

    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(n // 10):
            y = (x * 1.5).sin()
            z = y.exp() * x
            x = (z + y).sum(0, keepdim=True) * x
            x = x.tanh() - y.mean()
        return x

    x, partitions = torch.ones(4, requires_grad=True), {}
    for length in lengths:
        compiled = framework.compile(program, backend="magneto", dynamic=False)
        partitions[length] = min(taken(lambda: compiled(x, length))["compile.capture.partition"] for _ in range(2))  # noqa: B023
    own = ("compile.capture.joint_graph", "compile.capture.partition")
    return {
        "joint": min(sum(run[stage] for stage in own) for run in captures),
        "capture": min(run["compile.capture"] for run in captures),
        "capture without": min(run["compile.capture"] for run in plain),
        "partition": partitions,
    }


def overhead(framework: Any, backend: str) -> dict[str, Any]:
    """Seconds that `x * 2` of a tensor that requires a gradient takes: forward, and forward with backward."""
    x, tangent = torch.ones(4, requires_grad=True), torch.ones(4)

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    compiled = framework.compile(double, backend=backend)

    def both(function: Function) -> None:
        x.grad = None
        function(x).backward(tangent)

    for _ in range(100):
        both(compiled)
    assert x.grad is not None and torch.equal(x.grad, torch.full((4,), 2.0))
    result = {}
    for name, of in (("forward", lambda f: f(x)), ("forward + backward", both)):
        call, eager = interleaved(lambda: of(compiled), lambda: of(double), 2.0)  # noqa: B023
        result[name] = {"call": call, "eager": eager}
    return result


def memory(framework: Any, backend: str, row: str, batch: int, share: float) -> dict[str, Any]:
    """Bytes that a step of a model takes at most, compiled and in eager, besides weights and what it takes to compile;
    what is kept between forward and backward, as the process grows, and (ours) as planned. `share`: of what the
    fastest choice would keep, activation_memory_budget."""
    model, named, step = model_step(row, batch)
    step(model)

    def in_use() -> int:
        """Of the process's memory; what programs hold free for the next call is in use by none."""
        return resident() - framework.held()

    def settled() -> int:
        model.zero_grad()
        gc.collect()
        return in_use()

    def kept(forward: Function) -> int:
        """By the process's size; the results are part of it."""
        before = settled()
        results = forward(**named)
        grown = in_use() - before
        del results
        return grown

    before = settled()
    eager = {"eager peak": peak_during(lambda: step(model)) - before, "eager kept": kept(model)}
    with framework.memory_budget(share):
        compiled = framework.compile(model, backend=backend)
        step(compiled)
        step(compiled)
        before = settled()
        peak = peak_during(lambda: step(compiled)) - before
        own = {"peak": peak, "kept": kept(compiled)}
    results = sum(x.nbytes for x in tensors_of(dict(model(**named))))
    return {**eager, **own, "planned": framework.planned() + results}
