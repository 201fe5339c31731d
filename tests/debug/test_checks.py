"""Runs that are checked while the program runs: config.verify and config.nan_watch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import magneto
from magneto import _testing
from magneto._debug import checks


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(checks, "_said", set())
    with magneto.config.patch(disk_cache=False):
        yield
    _testing.clear_faults()


def found() -> dict[str, int]:
    return magneto.stats()["checked_runs"]  # type: ignore[no-any-return]


def mixed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = F.layer_norm(x @ w, (16,))
    return torch.softmax(torch.tanh(y @ w) * torch.sigmoid(y), -1) + y.exp().sum(-1, keepdim=True)


def writes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    w[0].add_(x[0])
    return torch.tanh(x) @ w


def draws(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.5) @ w + torch.rand(16)


def views(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x[1].zero_()
    return x[1], x.t(), (x > 0).sum(-1), w * 1j


def leaf(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        w.mul_(0.5)
    return x @ w


def noise(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Means that are nothing but rounding, of numbers that are drawn; and memory that nobody has written."""
    y = F.layer_norm(F.dropout(x @ w, 0.3), (16,))
    return y.mean(-1), y, torch.empty(3)[:0]


@pytest.mark.parametrize("program", [mixed, writes, draws, views, leaf, noise])
@pytest.mark.parametrize("gradients", [False, True])
def test_right_results_pass_and_stay(program: Callable[..., Any], gradients: bool) -> None:
    def one(fn: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(3)
        x, w = torch.randn(8, 16), torch.randn(16, 16)
        if gradients:
            x.requires_grad_(program not in (writes, views))
            w.requires_grad_(program not in (writes, views))
        out = fn(x, w)
        out = out if isinstance(out, tuple) else (out,)
        if out[0].requires_grad:
            out[0].square().sum().backward()
        shared = [o.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for o in out]
        return [*out, x, w, x.grad, w.grad, x._version, w._version, shared, torch.rand(1)]

    want = one(program)
    compiled = magneto.compile(program)
    with magneto.config.patch(verify="all"), warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            for a, b in zip(one(compiled), want, strict=True):
                torch.testing.assert_close(a, b) if isinstance(a, torch.Tensor) else None
                assert isinstance(a, torch.Tensor) or a == b
    assert found()["verified"] >= 3 and not found()["differences"]


@pytest.mark.parametrize("fault", ["kernel.lane", "kernel.wrong"])
def test_a_wrong_kernel_is_told_and_does_no_harm(fault: str) -> None:
    x, w = torch.randn(8, 16), torch.randn(16, 16)
    _testing.plant_fault(fault, "tanh")
    compiled = magneto.compile(mixed)
    assert not torch.allclose(compiled(x, w), mixed(x, w))
    with magneto.config.patch(verify="all", strict=False):
        with pytest.warns(RuntimeWarning, match=r"code of mixed \(.*test_checks.py.*result 0 \(aten.add.Tensor at .*"):
            torch.testing.assert_close(compiled(x, w), mixed(x, w))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.testing.assert_close(compiled(x, w), mixed(x, w))  # said once
    assert found()["differences"] == 2
    with magneto.config.patch(verify="all"), pytest.raises(magneto.exc.AccuracyError, match="does not give what eager"):
        compiled(x, w)
    with magneto.config.patch(verify="sample", verify_rate=0.0):
        compiled(x, w)
    assert found()["verified"] == found()["differences"] == 3


def test_a_lost_write_is_made() -> None:
    def lost(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x.sin()

    _testing.plant_fault("pass.functionalise", "write")
    x = torch.zeros(4)
    with magneto.config.patch(verify="all", strict=False), pytest.warns(RuntimeWarning, match="afterwards"):
        magneto.compile(lost)(x)
    assert x.eq(1).all() and found()["differences"] == 1


def test_a_wrong_kernel_of_a_backward() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin().sum()

    _testing.plant_fault("kernel.wrong", "cos")
    x = torch.randn(64, requires_grad=True)
    compiled = magneto.compile(program)
    with magneto.config.patch(verify="all"):
        loss = compiled(x)
        with pytest.raises(magneto.exc.AccuracyError, match="the backward of"):
            loss.backward()
    with magneto.config.patch(verify="all", strict=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled(x).backward()
    torch.testing.assert_close(x.grad, x.detach().cos())


def test_a_strict_error_is_not_taken_for_the_program_s() -> None:
    def program(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
        x.add_(1)
        seen.append(1)
        return x.tanh()

    _testing.plant_fault("kernel.wrong", "tanh")
    with magneto.config.patch(verify="all"), pytest.raises(magneto.exc.AccuracyError):
        magneto.compile(program)(torch.randn(8), [])
    assert not magneto.stats()["undone"]


def test_a_share_of_the_runs() -> None:
    compiled = magneto.compile(torch.sin)
    x = torch.randn(4)
    with magneto.config.patch(verify="sample", verify_rate=0.25, verify_budget=float("inf")):
        for _ in range(2000):
            compiled(x)
    assert 400 < found()["verified"] < 600
    compiled(x)
    with magneto.config.patch(verify="sample", verify_rate=7.0):
        compiled(x)
    assert found()["verified"] < 602


def test_comparing_keeps_within_its_budget() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = (x + 1).relu() * 0.5
        return x

    compiled, x = magneto.compile(chain), torch.randn(16)
    with magneto.config.patch(verify="sample", verify_rate=0.5, verify_budget=0.02):
        for _ in range(4000):  # half of them would take ten times as long
            compiled(x)
    assert 0 < found()["verified"] < 400 and found()["differences"] == 0


@pytest.mark.parametrize(
    "setting", [{"verify": "some"}, {"verify_rate": -1.0}, {"verify_budget": -1.0}, {"verify_rate": float("nan")}]
)
def test_values_that_make_no_sense(setting: dict[str, Any]) -> None:
    with pytest.raises(magneto.exc.InvalidValue), magneto.config.patch(setting):
        pass


def test_operators_of_libraries_run_once() -> None:
    calls = []

    @torch.library.custom_op("checks::counts", mutates_args=())
    def counts(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x + 1

    counts.register_fake(torch.empty_like)
    compiled = magneto.compile(lambda x: counts(x).sin())
    compiled(torch.zeros(3))
    before = len(calls)
    with magneto.config.patch(verify="all"), pytest.warns(RuntimeWarning, match=r"checks\.counts"):
        compiled(torch.zeros(3))
    assert len(calls) == before + 1 and found()["left_out"] == 1


def test_sizes_that_vary() -> None:
    compiled = magneto.compile(mixed, dynamic=True)
    with magneto.config.patch(verify="all"):
        for size in (2, 3, 5, 8):
            x, w = torch.randn(size, 16), torch.randn(16, 16)
            torch.testing.assert_close(compiled(x, w), mixed(x, w))
    assert found()["verified"] == 4 and not found()["differences"]


@pytest.mark.parametrize("gradients", [False, True])
def test_the_operator_that_gave_nan(gradients: bool) -> None:
    def program(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        state.add_(1)
        y = x.exp() - 2
        z = y.log()  # here
        return (z * 3 + state).relu()

    x, state = torch.tensor([0.1, 2.0], requires_grad=gradients), torch.zeros(2)
    compiled = magneto.compile(program)
    with magneto.config.patch(nan_watch=True), pytest.warns(RuntimeWarning, match="NaN: first at aten.log.default at "):
        compiled(x, state)
    assert state.tolist() == [1, 1] and found()["nonfinite"] == 1
    with magneto.config.patch(nan_watch=True), warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(x, state)  # said once
    assert found()["nonfinite"] == 2


def test_where_nan_comes_from() -> None:
    double = magneto.compile(lambda x: x * 2)
    with magneto.config.patch(nan_watch=True):
        with pytest.warns(RuntimeWarning, match=r"infinity: it came in with input L\['x'\]"):
            double(torch.tensor([float("inf")]))
        with pytest.warns(RuntimeWarning, match=r"NaN: it came in with input L\['x'\]"):
            double(torch.tensor([float("nan")]))
