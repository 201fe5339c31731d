"""config.reorderable_logging_functions: calls that are put off to the end of a segment, in order, with what they were given."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import magneto
from magneto import _test_settings

LOG = logging.getLogger("tests.deferred")


@pytest.fixture(autouse=True)
def reorderable() -> Iterator[None]:
    functions = magneto.config.reorderable_logging_functions
    functions.update({print, LOG.info, warnings.warn})
    yield
    functions.clear()
    magneto.config.reorderable_logging_functions = functions


def prints(x: torch.Tensor) -> torch.Tensor:
    print("start", 1, None, sep="|", end=";\n")
    y = x * 2
    print(y, x)
    print(y.shape)
    for i in range(3):
        y = y + i
        print(i, y)
    return y.sin()


def written_after(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    print(y)
    y += 1
    print("then", y)
    return y


def around_an_exit(x: torch.Tensor) -> Any:
    print("a", x)
    n = x.sum().item()
    print("b", n)
    return x * n


def in_no_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x * 2
        print(y)
    z = x * 3
    print(z)
    return z


def raises(x: torch.Tensor) -> torch.Tensor:
    print("before")
    raise ValueError("after")


def text(x: torch.Tensor) -> torch.Tensor:
    print(f"{x.shape[0]} rows", [x])
    return x + 1


def called(x: torch.Tensor) -> torch.Tensor:
    def inner(value: torch.Tensor) -> torch.Tensor:
        print("inner", value)
        return value * 2

    return inner(x) + inner(x + 1)


NODE = re.compile("grad_fn=<[A-Za-z0-9]+>")


@pytest.mark.parametrize("every", [0, 1, 3])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    "program", [prints, written_after, around_an_exit, in_no_grad, raises, text, called], ids=lambda p: p.__name__
)
def test_prints(program: Callable[..., Any], backend: str, every: int, capfd: pytest.CaptureFixture[str]) -> None:
    def run(function: Callable[..., Any]) -> list[str]:
        seen = []
        for grad in (False, True, False):
            try:
                seen.append(repr(function(torch.ones(3, requires_grad=grad))))
            except ValueError as error:
                seen.append(repr(error))
            seen.append(capfd.readouterr().out)
        return seen

    with _test_settings.patch(exit_every=every), magneto.config.patch(cache_size_limit=100):
        actual, expected = run(magneto.compile(program, backend=backend)), run(program)
    if backend == "aot_eager":  # compiled gradients have a node of their own
        actual, expected = [[NODE.sub("grad_fn", line) for line in lines] for lines in (actual, expected)]
    assert actual == expected


@pytest.mark.parametrize("program", [prints, in_no_grad, called], ids=lambda p: p.__name__)
def test_one_graph(program: Callable[..., Any], capfd: pytest.CaptureFixture[str]) -> None:
    compiled = magneto.compile(program, backend="eager", fullgraph=True)
    for _ in range(3):
        compiled(torch.ones(3))
    assert magneto.stats()["recompiles"] == 0
    assert len(set(capfd.readouterr().out.split("start"))) in (1, 2, 4)


def test_loggers_and_warnings(caplog: pytest.LogCaptureFixture) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        LOG.info("value %s", x)
        warnings.warn("careful", stacklevel=1)
        return x + 1

    caplog.set_level(logging.INFO, "tests.deferred")
    compiled = magneto.compile(program, backend="eager", fullgraph=True)
    for turn in range(2):
        with pytest.warns(UserWarning, match="careful"):
            compiled(torch.ones(1) * turn)
    assert [record.getMessage() for record in caplog.records] == ["value tensor([0.])", "value tensor([1.])"]


def test_without_the_setting_a_print_is_a_side_exit(capfd: pytest.CaptureFixture[str]) -> None:
    magneto.config.reorderable_logging_functions.clear()
    magneto.compile(written_after, backend="eager")(torch.ones(1))
    assert magneto.stats()["breaks"] == 2
    assert capfd.readouterr().out == "tensor([2.])\nthen tensor([3.])\n"


def test_the_set_is_one_under_both_names() -> None:
    """`torch._dynamo.config.reorderable_logging_functions.add(print)` is how the documents say it."""
    magneto.install()
    try:
        dynamo = torch._dynamo.config
        assert dynamo.reorderable_logging_functions is magneto.config.reorderable_logging_functions
        magneto.config.reorderable_logging_functions.clear()
        dynamo.reorderable_logging_functions.add(print)
        torch.compile(prints, backend="eager", fullgraph=True)(torch.ones(1))
        with dynamo.patch(reorderable_logging_functions=set()):
            assert magneto.config.reorderable_logging_functions == set()
        assert magneto.config.reorderable_logging_functions == {print}
        magneto.config.reorderable_logging_functions = before = {print}
        assert dynamo.reorderable_logging_functions is before
    finally:
        magneto.uninstall()
    with pytest.raises(magneto.exc.InvalidValue, match="a set of functions"):
        magneto.config.reorderable_logging_functions = [print]
