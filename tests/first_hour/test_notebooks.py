"""Functions made from text, as notebooks do: cells run again, names bound anew, sources that are in no file."""

from __future__ import annotations

import gc
import linecache
import traceback
import weakref
from typing import Any

import pytest
import torch
from compare import assert_same

import magneto

X = torch.linspace(-1, 1, 6)


class Notebook:
    """Runs cells as IPython does: each is compiled under a file name of its own, all share one namespace."""

    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {"__name__": "__main__", "torch": torch, "magneto": magneto, "X": X}
        self.count = 0

    def __call__(self, source: str) -> str:
        self.count += 1
        name = f"<ipython-input-{self.count}-0123456789ab>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        exec(compile(source, name, "exec"), self.namespace)
        return name

    def __getitem__(self, name: str) -> Any:
        return self.namespace[name]


def test_a_cell_is_run_again() -> None:
    notebook = Notebook()
    for number in range(1, 30):  # more often than a code object may be captured
        notebook(f"@magneto.compile(fullgraph=True)\ndef step(x):\n    return x * {number}\n")
        assert_same(notebook["step"](X), X * number)
        assert_same(notebook["step"](X), X * number)
    assert magneto.stats()["recompiles"] == 0


def test_the_same_cell_is_run_again() -> None:
    notebook = Notebook()
    for _ in range(20):
        notebook("@magneto.compile\ndef step(x):\n    return x.sin()\n")
        assert_same(notebook["step"](X), X.sin())
    assert not magneto.stats()["fallbacks"]


def test_a_helper_is_defined_anew() -> None:
    notebook = Notebook()
    notebook("def helper(x):\n    return x + 1\n")
    notebook("@magneto.compile(fullgraph=True)\ndef step(x):\n    return helper(x) * 2\n")
    assert_same(notebook["step"](X), (X + 1) * 2)
    notebook("def helper(x):\n    return x - 1\n")
    assert_same(notebook["step"](X), (X - 1) * 2)
    notebook("helper = torch.sin\n")
    assert_same(notebook["step"](X), X.sin() * 2)


def test_a_class_is_defined_anew() -> None:
    notebook = Notebook()
    cell = "class Net(torch.nn.Module):\n    def forward(self, x):\n        return x {change}\nnet = magneto.compile(Net())\n"
    for change in ("+ 1", "- 1", "* 3"):
        notebook(cell.format(change=change))
        assert_same(notebook["net"](X), eval(f"X {change}"))
    notebook("def forward(self, x):\n    return x.exp()\nNet.forward = forward\n")
    assert_same(notebook["net"](X), X.exp())


def test_what_a_cell_made_is_freed() -> None:
    notebook = Notebook()
    old = []
    for number in range(5):
        notebook(f"@magneto.compile\ndef step(x):\n    return x + {number}\n")
        notebook["step"](X)
        old.append(weakref.ref(notebook["step"]))
    gc.collect()
    assert [reference() is not None for reference in old] == [False] * 4 + [True]


def test_global_of_the_notebook_changes() -> None:
    notebook = Notebook()
    notebook("scale = 2\ndef step(x):\n    return x * scale\nstep = magneto.compile(step)\n")
    assert_same(notebook["step"](X), X * 2)
    notebook("scale = 7\n")
    assert_same(notebook["step"](X), X * 7)
    notebook("del scale\n")
    with pytest.raises(NameError, match="scale"):
        notebook["step"](X)


def test_messages_show_the_cell() -> None:
    notebook = Notebook()
    name = notebook("@magneto.compile(fullgraph=True)\ndef step(x):\n    y = x + 1\n    print(y.sum())\n    return y\n")
    with pytest.raises(magneto.exc.Unsupported) as caught:
        notebook["step"](X)
    assert f'File "{name}", line 4, in step' in str(caught.value) and "print(y.sum())" in str(caught.value)


def test_traceback_shows_the_cell() -> None:
    notebook = Notebook()
    name = notebook("@magneto.compile\ndef step(x):\n    y = x + 1\n    raise ValueError(len(y))\n")
    with pytest.raises(ValueError) as caught:
        notebook["step"](X)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.lineno, last.name, last.line) == (name, 4, "step", "raise ValueError(len(y))")


def test_function_whose_source_is_nowhere() -> None:
    namespace: dict[str, Any] = {}
    exec(compile("def step(x):\n    y = x + 1\n    print(end='')\n    return y * 2\n", "<string>", "exec"), namespace)
    assert_same(magneto.compile(namespace["step"])(X), (X + 1) * 2)
    report = magneto.explain(namespace["step"], X)
    assert report.graph_break_count == 1 and str(report)


def test_code_of_a_function_is_replaced() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def other(x: torch.Tensor) -> torch.Tensor:
        return x.cos()

    compiled = magneto.compile(step)
    assert_same(compiled(X), X + 1)
    step.__code__ = other.__code__  # as %autoreload does
    assert_same(compiled(X), X.cos())


def test_code_of_a_called_function_is_replaced() -> None:
    def helper(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def other(x: torch.Tensor) -> torch.Tensor:
        return x.cos()

    compiled = magneto.compile(lambda x: helper(x) * 2)
    assert_same(compiled(X), (X + 1) * 2)
    helper.__code__ = other.__code__
    assert_same(compiled(X), X.cos() * 2)
