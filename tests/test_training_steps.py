"""A whole training step in one compiled function: forward, backward and optimizer, over several calls."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from compare import assert_same

import magneto

Optimizer = torch.optim.Optimizer
Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "sgd_momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd_foreach": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, foreach=True),
    "sgd_fused": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, fused=True),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01),
    "adam_amsgrad": lambda params: torch.optim.Adam(params, lr=0.01, amsgrad=True, maximize=True),
    "adam_fused": lambda params: torch.optim.Adam(params, lr=0.01, fused=True),
    "adam_capturable": lambda params: torch.optim.Adam(params, lr=torch.tensor(0.01), foreach=False),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
    "adamw_foreach": lambda params: torch.optim.AdamW(params, lr=0.01, foreach=True),
    "adamax": lambda params: torch.optim.Adamax(params),
    "nadam": lambda params: torch.optim.NAdam(params),
    "radam": lambda params: torch.optim.RAdam(params),
    "adagrad": lambda params: torch.optim.Adagrad(params),
    "adadelta": lambda params: torch.optim.Adadelta(params),
    "asgd": lambda params: torch.optim.ASGD(params),
    "rmsprop": lambda params: torch.optim.RMSprop(params, momentum=0.5, centered=True),
    "rprop": lambda params: torch.optim.Rprop(params),
    "groups": lambda params: torch.optim.AdamW([{"params": [p], "lr": 0.01 * i} for i, p in enumerate(params)]),
}


def plain(model: torch.nn.Module, optimizer: Optimizer) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def zeros_kept(model: torch.nn.Module, optimizer: Optimizer) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def clipped(model: torch.nn.Module, optimizer: Optimizer) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) - y).abs().sum()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
        return norm

    return step


def scaled(model: torch.nn.Module, optimizer: Optimizer, enabled: bool = False) -> Step:
    scaler = torch.amp.GradScaler("cpu", enabled=enabled)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
            loss = torch.nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


def scheduled(model: torch.nn.Module, optimizer: Optimizer) -> Step:
    schedulers = [
        torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        torch.optim.lr_scheduler.StepLR(optimizer, 2),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
    ]

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
        return loss.detach()

    return step


def closure(model: torch.nn.Module, optimizer: Optimizer) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        def evaluate() -> torch.Tensor:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(evaluate).detach()

    return step


def accumulated(model: torch.nn.Module, optimizer: Optimizer) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for part, target in zip(x.chunk(2), y.chunk(2), strict=True):
            loss = torch.nn.functional.mse_loss(model(part), target) / 2
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return total

    return step


STEPS = {s.__name__: s for s in (plain, zeros_kept, clipped, scaled, scheduled, closure, accumulated)}


def make_model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8, bias=False),
        torch.nn.BatchNorm1d(8),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.25),
        torch.nn.Linear(8, 2),
    )


def train(
    make_step: Callable[[torch.nn.Module, Optimizer], Step],
    make_optimizer: Callable[[Any], Optimizer],
    compile: Callable[[Step], Step],
) -> Any:
    torch.manual_seed(0)
    model = make_model()
    optimizer = make_optimizer(list(model.parameters()))
    step = compile(make_step(model, optimizer))
    losses = [step(torch.randn(6, 4), torch.randn(6, 2)) for _ in range(5)]
    gradients = [p.grad for p in model.parameters()]
    return losses, gradients, copy.deepcopy(model.state_dict()), optimizer.state_dict(), torch.rand(3)


@pytest.fixture(autouse=True)
def many_captures() -> Iterator[None]:
    """A learning rate that is a Python number makes a capture of its own for each of its values."""
    with magneto.config.patch(cache_size_limit=64):
        yield


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_step_with_each_optimizer(optimizer: str) -> None:
    expected = train(plain, OPTIMIZERS[optimizer], lambda step: step)
    assert_same(train(plain, OPTIMIZERS[optimizer], magneto.compile), expected)


@pytest.mark.parametrize("optimizer", ["sgd_momentum", "adam", "adamw_foreach"])
@pytest.mark.parametrize("step", STEPS)
def test_training_step_of_each_kind(step: str, optimizer: str) -> None:
    expected = train(STEPS[step], OPTIMIZERS[optimizer], lambda step: step)
    assert_same(train(STEPS[step], OPTIMIZERS[optimizer], magneto.compile), expected)


@pytest.mark.parametrize("step", [plain, zeros_kept, clipped, scheduled, closure, accumulated])
@pytest.mark.parametrize("optimizer", ["sgd_momentum", "adam", "adamw_foreach", "adam_fused"])
def test_a_step_is_one_graph(optimizer: str, step: Any) -> None:
    """zero_grad, backward, clipping and the optimizer are no breaks, and a few captures serve all steps."""
    train(step, OPTIMIZERS[optimizer], magneto.compile)
    stats = magneto.stats()
    assert not stats["breaks"] and not stats["no_joint"], (stats["break_reasons"], stats["no_joint"])
    assert stats["graphs"] <= 4, stats["graphs"]


def test_a_gradient_that_is_set_to_none() -> None:
    def program(w: torch.Tensor, v: torch.Tensor, x: torch.Tensor) -> Any:
        before = w.grad
        w.grad = None
        again = w.grad is None, v.grad
        v.grad = None
        v.grad = None
        return (x * w).sum(), before, again, w.grad, v.grad

    def run(function: Any) -> Any:
        w, v = (torch.ones(3, requires_grad=True) for _ in range(2))
        results = []
        for i in range(4):
            if i % 2:
                w.grad, v.grad = torch.full((3,), float(i)), torch.ones(3) if i == 3 else None
            loss, *others = function(w, v, torch.arange(3.0))
            results += [loss.detach(), others, w.grad, v.grad]
            loss.backward()
            results.append(w.grad.clone())
        return repr(results)

    compiled = magneto.compile(program, fullgraph=True, backend="aot_eager")
    assert run(compiled) == run(program)
    same = magneto.compile(lambda w: program(w, w, w.detach()), fullgraph=True, backend="aot_eager")
    w = torch.ones(3, requires_grad=True)
    w.grad = torch.ones(3)
    assert same(w)[1:] == program(w, w, w.detach())[1:] or w.grad is None


def test_a_run_that_raises_leaves_gradients_alone() -> None:
    def program(w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        w.grad = None
        return w[i] * 2

    def gradient_after(function: Any, i: int) -> Any:
        w = torch.ones(3, requires_grad=True)
        w.grad = torch.ones(3)
        with contextlib.suppress(IndexError):
            function(w, torch.tensor([i]))
        return w.grad

    compiled = magneto.compile(program)
    for i in (0, 1, 7, 2):
        assert gradient_after(compiled, i) is gradient_after(program, i) is None


def test_line_search_is_as_eager() -> None:
    make = lambda params: torch.optim.LBFGS(params, max_iter=4, line_search_fn="strong_wolfe")  # noqa: E731
    expected = train(closure, make, lambda step: step)
    # Bit for bit with eager's own kernels: each line search multiplies what rounds otherwise.
    compiled = functools.partial(magneto.compile, backend="aot_eager")
    assert_same(train(closure, make, compiled), expected, exact=True)


def test_dict_keyed_by_tensors_is_rebuilt_with_its_own_values() -> None:
    """The stand-ins' hash is the originals': entries were lost when a dict was built anew, and a crash followed."""
    keys = [torch.nn.Parameter(torch.ones(2)) for _ in range(9)]

    def f(state: dict[torch.Tensor, Any]) -> list[torch.Tensor]:
        for i, key in enumerate(keys):
            state[key] = {"step": i, "value": key.detach() * i}
        return [state[key]["value"] for key in reversed(keys) if key in state]

    states: list[dict[torch.Tensor, Any]] = [{}, {}]
    expected, actual = f(states[0]), magneto.compile(f)(states[1])
    assert_same(actual, expected)
    assert [id(key) for key in states[1]] == [id(key) for key in keys]
    assert_same(list(states[1].values()), list(states[0].values()))


def test_name_of_a_source_runs_no_python_code() -> None:
    """A dict's tensor keys were printed while capturing: the segment ended there, and list.append ran twice."""
    keys = [torch.ones(3, 3), torch.ones(3)]
    state = {key: {"value": key + 1} for key in keys}

    def f() -> list[torch.Tensor]:
        out = []
        for key in keys:
            values = state[key]
            out.append(values["value"])
        return out

    assert_same(magneto.compile(f, fullgraph=True)(), f())


def test_autocast_keeps_no_casts_of_fakes() -> None:
    """Autocast's cache held what parameters were cast to while capturing: each such program was left to CPython."""

    def train(wrap: Callable[[Any], Any]) -> list[Any]:
        torch.manual_seed(0)
        embedding, head = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 5, bias=False)
        head.weight = embedding.weight
        program = wrap(lambda x: head(embedding(x).relu()).sum())
        found = []
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                loss = program(torch.tensor([1, 2]))
            loss.backward()
            found.append((loss.detach(), embedding.weight.grad))
        return found

    assert_same(train(functools.partial(magneto.compile, backend="aot_eager")), train(lambda f: f))


def test_autocast_keeps_no_casts_of_leaves_made_inside() -> None:
    def f(x: torch.Tensor) -> Any:
        weight = torch.eye(4).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = (x @ weight).sum() + (weight @ x.t()).sum()
        return torch.autograd.grad(y, weight)

    x = torch.arange(8.0).reshape(2, 4)
    assert_same(magneto.compile(f)(x), f(x))


def test_operators_whose_kernels_refuse_the_meta_device_are_exits() -> None:
    """What they said of the stand-in's device was taken for an error of the program."""

    def f(x: torch.Tensor, lengths: torch.Tensor) -> Any:
        packed = torch.nn.utils.rnn.pack_padded_sequence(x * 2, lengths, batch_first=True)
        nested = torch.nested.nested_tensor([x[0], x[1, :2]])
        return packed.data + 1, nested.to_padded_tensor(0.0)

    x, lengths = torch.arange(12.0).reshape(2, 3, 2), torch.tensor([3, 1])
    assert_same(magneto.compile(f)(x, lengths), f(x, lengths))


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("make_step", [plain, functools.partial(scaled, enabled=True)], ids=["plain", "scaled"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_versions_move_as_in_eager(optimizer: str, make_step: Any, backend: str) -> None:
    """Fused optimizers, and unscaling, move no counter of what they write: backward may still read that."""

    def versions(compile: Callable[[Step], Step]) -> list[list[int]]:
        torch.manual_seed(0)
        model = make_model()
        made = OPTIMIZERS[optimizer](list(model.parameters()))
        step, seen = compile(make_step(model, made)), []
        for _ in range(3):
            step(torch.randn(6, 4), torch.randn(6, 2))
            gradients = [p.grad._version for p in model.parameters() if p.grad is not None]
            seen.append([*(p._version for p in model.parameters()), *gradients])
        return seen

    assert versions(lambda step: magneto.compile(step, backend=backend)) == versions(lambda step: step)
