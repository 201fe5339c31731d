"""What the policy of a selective checkpoint saves is saved, and all else in it is computed again."""

from __future__ import annotations

import functools
import warnings
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import magneto

ROWS, WIDTH = 64, 32
ONE = 8 * ROWS * WIDTH  # bytes of one activation

aten = torch.ops.aten
NEVER = CheckpointPolicy.PREFER_RECOMPUTE


def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = torch.sin(torch.mm(torch.tanh(x), w))
    return x


def by_list() -> Any:
    return create_selective_checkpoint_contexts([aten.mm.default])


def by_function(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    return CheckpointPolicy.MUST_SAVE if op == aten.mm.default else NEVER


def by_bool(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
    return op is aten.mm.default


def preferring(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    return CheckpointPolicy.PREFER_SAVE if "mm" in str(op) else CheckpointPolicy.MUST_RECOMPUTE


def every_second() -> Any:
    counts: dict[bool, int] = defaultdict(int)  # PyTorch before 2.12 asks again when it computes again

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        if op != aten.mm.default:
            return NEVER
        counts[ctx.is_recompute] += 1
        return CheckpointPolicy.MUST_SAVE if counts[ctx.is_recompute] % 2 == 0 else NEVER

    return create_selective_checkpoint_contexts(policy)


def nothing(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    return NEVER


def of(policy: Any) -> Callable[[], Any]:
    return functools.partial(create_selective_checkpoint_contexts, policy)


# Policy, and how many activations are saved besides the inputs.
POLICIES: dict[str, tuple[Callable[[], Any], int]] = {
    "list": (by_list, 3),
    "partial of a list": (of([aten.mm.default]), 3),
    "function": (of(by_function), 3),
    "bool": (of(by_bool), 3),
    "preferring": (of(preferring), 3),
    "every second": (every_second, 1),
    "nothing": (of(nothing), 0),
    "lambda": (lambda: create_selective_checkpoint_contexts(lambda ctx, op, *args: op == aten.mm.default), 3),
    "what no backward reads": (of([aten.sin.default, aten.tanh.default]), 3),
}


def run(call: Callable[..., Any], *shapes: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(ROWS, WIDTH, requires_grad=True, dtype=torch.float64)
    w = torch.randn(WIDTH, WIDTH, requires_grad=True, dtype=torch.float64)
    y = call(x, w)
    y.square().sum().backward()
    return [y.detach(), x.grad, w.grad]


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("name", POLICIES)
def test_saves_what_the_policy_says(name: str, backend: str) -> None:
    contexts, activations = POLICIES[name]

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, w, use_reentrant=False, context_fn=contexts) * 1

    magneto.reset()
    compiled = magneto.compile(f, backend=backend, fullgraph=True)
    for _ in range(2):
        for got, want in zip(run(compiled), run(f), strict=True):
            torch.testing.assert_close(got, want)
    stats = magneto.stats()
    assert stats["joint_graphs"] == 1 and not stats["partitions"]
    assert stats["saved_bytes"] == activations * ONE
    assert stats["saved_bytes"] <= stats["eager_saved_bytes"]


def test_a_policy_that_looks_at_arguments_is_counted_and_said_once() -> None:
    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        return op == aten.mm.default and args[0].shape[0] > 8

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, w, use_reentrant=False, context_fn=of(policy))

    magneto.reset()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            got = run(magneto.compile(f, backend="aot_eager"))
    for one, other in zip(got, run(f), strict=True):
        torch.testing.assert_close(one, other)
    (cause,) = magneto.stats()["partitions"]
    assert "policy of a selective checkpoint can't be asked" in cause
    assert len([w for w in said if "policy of a selective checkpoint" in str(w.message)]) <= 1


def test_a_policy_that_counts_in_the_open_runs_as_in_eager() -> None:
    asked: list[str] = []

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(str(op))
        return NEVER

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, w, use_reentrant=False, context_fn=of(policy))

    run(f)
    want = len(asked)
    asked.clear()
    compiled = magneto.compile(f)
    for _ in range(2):
        asked.clear()
        run(compiled)
        assert len(asked) == want


def test_a_policy_that_changes_is_asked_again() -> None:
    kept = [aten.mm.default]

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
        return op in kept

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, w, use_reentrant=False, context_fn=of(policy))

    magneto.reset()
    compiled = magneto.compile(f, backend="aot_eager")
    run(compiled)
    assert magneto.stats()["saved_bytes"] == 3 * ONE
    kept.append(aten.sin.default)
    run(compiled)
    assert magneto.stats()["recompiles"] == 1
    assert magneto.stats()["saved_bytes"] == 3 * ONE + 5 * ONE


def test_with_random_numbers_and_several_blocks() -> None:
    def part(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.dropout(torch.relu(x @ w), 0.5) + F.gelu(x)

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = checkpoint(part, x, w, use_reentrant=False, context_fn=by_list)
        return x

    for got, want in zip(run(magneto.compile(f, backend="aot_eager")), run(f), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_a_budget_that_can_not_be_kept_to_is_counted() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.dropout(torch.mm(x, w), 0.5).sin()

    previous = magneto.config.activation_memory_budget
    magneto.reset()
    try:
        magneto.config.activation_memory_budget = 1.5  # bytes
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(magneto.compile(f))
    finally:
        magneto.config.activation_memory_budget = previous
    assert magneto.stats()["partitions"] == {"the memory budget can't be kept to": 1}
