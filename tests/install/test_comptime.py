"""`comptime` and `compile_times`: looking at a capture from inside the captured function."""

from __future__ import annotations

import pytest
import torch

import magneto
from magneto import exc
from magneto._comptime import comptime
from magneto._install import profiling

X = torch.ones(3, 3)


def test_callbacks_run_when_the_line_is_captured(capsys: pytest.CaptureFixture) -> None:
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        y = x + 1
        comptime.print_bt()
        comptime.print_locals()
        comptime.print(y)
        z = [n, comptime.print_value_stack_and_return(y)]
        return y + z[0]

    line = f.__code__.co_firstlineno
    compiled = magneto.compile(f, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X, 2), X + 3)
    assert capsys.readouterr().out == (
        f'  File "{__file__}", line {line + 2}, in f\n    comptime.print_bt()\n'
        "x = FakeTensor(..., size=(3, 3))\nn = 2\ny = FakeTensor(..., size=(3, 3))\n"
        "FakeTensor(..., size=(3, 3))\n"
        "- 2\n"
    )
    compiled(X, 2)
    f(X, 2)
    assert capsys.readouterr().out == ""


def test_the_user_s_stack_has_all_frames(capsys: pytest.CaptureFixture) -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        comptime.print_bt()
        comptime.disas()
        comptime.print_guards()
        return x.sin()

    magneto.compile(lambda x: inner(x) + 1, backend="eager", fullgraph=True)(X)
    text = capsys.readouterr().out
    assert text.index("in <lambda>") < text.index("in inner")
    assert "--> " in text and "TENSOR_MATCH: check_tensor(L['x']" in text


def test_guards_are_the_program_s(capsys: pytest.CaptureFixture) -> None:
    """Not those that are there because `comptime` is called."""

    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        y = torch.sin(x) + n
        comptime.print_locals()
        comptime.sleep(0)
        comptime(lambda ctx: ctx.print_guards())
        comptime.print_guards()
        return y

    magneto.compile(f, backend="eager", fullgraph=True)(X, 2)
    text = capsys.readouterr().out
    for part in (
        "TENSOR_MATCH: check_tensor(L['x']",
        "EQUALS_MATCH: L['n'] == 2",
        "ID_MATCH: ___check_obj_id(G['torch']",
    ):
        assert text.count(part) == 2, text
    assert "omptime" not in text and "stacklevel" not in text and "_C" not in text, text


def test_own_callbacks_and_fallbacks() -> None:
    seen: list[object] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        comptime(lambda ctx: seen.append(repr(ctx.get_local("y"))), lambda: seen.append("eager"))
        return y

    assert torch.equal(magneto.compile(f, backend="eager", fullgraph=True)(X), X * 2)
    assert seen == ["FakeTensor(..., size=(3, 3))"]
    f(X)
    assert seen[1:] == ["eager"]


def test_what_a_callback_raises_reaches_the_caller() -> None:
    def stop(ctx: object) -> None:
        raise KeyboardInterrupt

    def f(x: torch.Tensor) -> torch.Tensor:
        comptime(stop)
        return x + 1

    with pytest.raises(KeyboardInterrupt):
        magneto.compile(f, backend="eager")(X)
    assert torch.equal(magneto.compile(lambda x: x + 1, backend="eager")(X), X + 1)


def test_names_that_are_none() -> None:
    with pytest.raises(exc.InvalidName, match="'print_graph'"):
        comptime.print_grap()


def test_times_of_stages() -> None:
    magneto.reset()
    magneto.compile(lambda x: x.sin() + 1)(X)
    magneto.compile(lambda x: x.cos() + 1)(X)
    stages, values = profiling.compile_times(repr="csv")
    assert {"compile", "compile.capture", "compile.capture.guards", "compile.backend.code_generation"} <= set(stages)
    times = dict(zip(stages, [list(map(float, value.split(", "))) for value in values]))
    assert len(times["compile"]) == 2
    for whole, capture, backend in zip(times["compile"], times["compile.capture"], times["compile.backend"]):
        assert 0 < capture + backend <= whole + 1e-6
    total = dict(zip(*profiling.compile_times(repr="csv", aggregate=True)))
    assert abs(float(total["compile"]) - sum(times["compile"])) < 1e-5
    table = profiling.compile_times()
    assert table.startswith("TorchDynamo compilation metrics:\nFunction ") and "Runtimes (s)" in table
    magneto.reset()
    assert profiling.compile_times(repr="csv") == ([], [])
    with pytest.raises(exc.InvalidName, match="'csv'"):
        profiling.compile_times(repr="cvs")


def test_stages_are_ranges_of_profiles() -> None:
    with torch.profiler.profile() as profile:
        magneto.compile(lambda x: x.sin() + 2)(X)
    assert {"magneto::compile.capture", "magneto::compile.backend"} <= {event.key for event in profile.key_averages()}
