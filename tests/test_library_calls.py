"""Functions of libraries in compiled code: no exits where they only compute."""

from __future__ import annotations

import contextvars
import copy
import dataclasses
import fnmatch
import functools
import importlib.util
import os.path
import re
import sys
import textwrap
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import pytest
import torch
from compare import assert_same
from torch import nn

import magneto
import magneto.exc

TABLE: dict[Any, int] = {(str, 2): 3, (int, (1, None)): 4}
PATTERN = re.compile("a+")


@dataclasses.dataclass
class Options:
    scale: int = 2
    names: list[str] = dataclasses.field(default_factory=lambda: ["a", "b"])


class Config:
    def __init__(self) -> None:
        self.scale, self.nested = 2, {"k": [1]}


@functools.cache
def called_back(function: Callable[[int], int], n: int) -> int:
    return function(n)


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "patterns": lambda x: (x * len(PATTERN.findall("aaba")), PATTERN.sub("c", "aab"), PATTERN.split("1aa2")),
    "paths": lambda x: (x + 1, os.path.join("a", "b"), os.path.basename("a/b"), os.path.splitext("a.b")),
    "dedent": lambda x: (x + 1, textwrap.dedent("  a\n  b")),
    "fnmatch": lambda x: x + fnmatch.fnmatch("abc", "a*"),
    "asdict": lambda x: (x * dataclasses.asdict(Options())["scale"], dataclasses.astuple(Options(3))),
    "deepcopy": lambda x: x * copy.deepcopy(Config()).scale,
    "substitution by a function": lambda x: (x + 1, re.sub(r"[0-9]+", lambda found: found[0] * 2, "a1b22")),
    "so by a pattern": lambda x: (x + 1, PATTERN.sub(lambda found: found[0].upper(), "aab")),
    "counted": lambda x: (x + 1, re.subn("a", lambda found: "b", "aa", count=1)),
    "cast": lambda x: (typing.cast("torch.Tensor", x) + typing.cast(int, 2), typing.cast(list, [1])),
    "pairs as keys": lambda x: x * TABLE[str, 2] + TABLE[int, (1, None)] + len([key for key in TABLE if key[0] is str]),
    "cached": lambda x: x * called_back(abs, -3),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_exits(name: str) -> None:
    program = PROGRAMS[name]
    compiled = magneto.compile(program, backend="aot_eager")
    for _ in range(3):
        got, want = compiled(torch.ones(3)), program(torch.ones(3))
        if not isinstance(want, tuple):
            got, want = (got,), (want,)
        assert torch.equal(got[0], want[0]) and got[1:] == want[1:]
    assert magneto.stats()["breaks"] == 0, magneto.stats()["break_reasons"]


BACKENDS = ("eager", "aot_eager", "magneto")


def test_a_changed_table_with_pairs_as_keys() -> None:
    table: dict[Any, int] = {(str, 2): 3}

    def program(x: torch.Tensor) -> Any:
        return x * table.get((str, 2), 7) + table.get((int, 1), 10)

    compiled = magneto.compile(program, backend="aot_eager")
    for change in ({}, {(str, 2): 4}, {(int, 1): 5}, {(int, 2): 6}):
        table.update(change)
        assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))
    table.clear()
    assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))
    assert magneto.stats()["breaks"] == 0


def test_a_function_writes_to_a_table_with_pairs_as_keys() -> None:
    def program(x: torch.Tensor, table: dict[Any, Any]) -> Any:
        if (x.dtype, 1) not in table:
            table[x.dtype, 1] = x * 2
        return table[x.dtype, 1] + 1

    compiled = magneto.compile(program, backend="aot_eager")
    ours: dict[Any, Any] = {("a", "b"): 0}
    theirs: dict[Any, Any] = {("a", "b"): 0}
    for dtype in (torch.float32, torch.float32, torch.float64):
        x = torch.ones(2, dtype=dtype)
        assert torch.equal(compiled(x, ours), program(x, theirs))
        assert list(ours) == list(theirs)
    assert magneto.stats()["breaks"] == 0


LINEAR, LAYERS = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))


def copied_layers(x: torch.Tensor) -> torch.Tensor:
    for layer in [copy.deepcopy(LINEAR) for _ in range(3)]:
        x = layer(x)
    return x


def averaged(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mine = copy.deepcopy(LAYERS)
    with torch.no_grad():
        for weight in mine.parameters():
            weight.mul_(0.5)
    return mine(x), LAYERS(x)


@pytest.mark.parametrize("program", [copied_layers, averaged])
def test_modules_are_copied_in_the_graph(program: Callable[[torch.Tensor], Any]) -> None:
    """CPython keeps what `copyreg` finds of a class on it, where the class takes attributes; OrderedDict takes none."""
    x = torch.randn(2, 4)
    compiled = magneto.compile(program, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), program(x))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("copies", [copy.copy, copy.deepcopy])
def test_a_copied_tensor_is_one_exit(copies: Callable[[Any], Any], backend: str) -> None:
    """Of tensors that share memory. What is in front and behind is captured."""

    def program(x: torch.Tensor, base: torch.Tensor) -> Any:
        part = copies(base[:])
        whole = copies([base, base[1:], {"a": base}])
        return part, whole[0] is whole[2]["a"], part.add_(x.sin()) + 1

    compiled = magneto.compile(program, backend=backend)
    for _ in range(3):
        ours, theirs = torch.arange(4.0), torch.arange(4.0)
        got, want = compiled(torch.ones(4), ours), program(torch.ones(4), theirs)
        assert torch.allclose(got[0], want[0]) and torch.allclose(got[2], want[2]) and got[1] == want[1]
        shared = [
            t[0].untyped_storage().data_ptr() == t[1].untyped_storage().data_ptr()
            for t in ((got[0], ours), (want[0], theirs))
        ]
        assert shared[0] == shared[1] == (copies is copy.copy)
        assert torch.allclose(ours, theirs)
    assert magneto.stats()["breaks"] <= (1 if copies is copy.copy else 2), magneto.stats()["break_reasons"]


LIBRARY = """
import random

class Frame:
    def __init__(self, columns):
        self.columns = {}
        for name, values in columns.items():
            self.columns[name] = list(values)
            self.order = random.getrandbits(8) >= 0  # what a capture can't see into
    def __getitem__(self, name):
        return Column([value for value in self.columns[name] if hash(str(random.getrandbits(8))) is not None])
    def __len__(self):
        return max(len(values) + 0 * random.getrandbits(8) for values in self.columns.values())

class Column:
    def __init__(self, values):
        self.values = [value for value in values if random.getrandbits(8) >= 0]
    def mean(self):
        total = 0.0
        for value in self.values:
            total += value + 0 * random.getrandbits(8)
        return total / len(self.values)
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_call_of_a_library_of_tables_is_one_exit(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pandas and the like: an exit for each call of the library, whatever it calls itself."""
    package = tmp_path / "pandas" / "core"
    package.mkdir(parents=True)
    (tmp_path / "pandas" / "__init__.py").write_text("from pandas.core.frame import Frame")
    (package / "__init__.py").write_text("")
    (package / "frame.py").write_text(LIBRARY)
    for name in [name for name in sys.modules if name.split(".")[0] == "pandas"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    import pandas

    monkeypatch.delitem(sys.modules, "pandas")  # at the end
    columns = {"a": [1, 2, 3], "b": [4.0, 5.0, 6.0]}

    def program(x: torch.Tensor) -> Any:
        y = x.sin() * 2
        frame = pandas.Frame(columns)
        scale = frame["b"].mean()
        return y * scale + len(frame)

    compiled = magneto.compile(program, backend=backend)
    for _ in range(3):
        assert torch.allclose(compiled(torch.ones(3)), program(torch.ones(3)))
    stats = magneto.stats()
    assert stats["breaks"] == 4, stats["break_reasons"]
    assert all("pandas.core.frame" in reason for reason in stats["break_reasons"])
    assert not stats["fallbacks"]


def test_a_configuration_that_is_copied_for_the_first_time() -> None:
    """Copying one puts `__slotnames__` into its class."""

    class Fresh(Config):
        pass

    def program(x: torch.Tensor, config: Fresh) -> torch.Tensor:
        mine = copy.deepcopy(config)
        mine.scale += 1
        return x * mine.scale

    compiled = magneto.compile(program, backend="aot_eager")
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2), Fresh()), torch.ones(2) * 3)
    assert magneto.stats()["breaks"] == 0
    assert magneto.stats()["frames"] <= 2


@pytest.mark.lenient
def test_a_program_that_raises_only_when_compiled_is_no_error_of_ours() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            raise ValueError("not here")
        return x * 2

    compiled = magneto.compile(program, backend="aot_eager")
    with pytest.warns(RuntimeWarning, match="when it hears that it is being compiled") as caught:
        assert torch.equal(compiled(torch.ones(2)), torch.ones(2) * 2)
    assert not any("internal error" in str(w.message) or "error of Magneto" in str(w.message) for w in caught)
    assert magneto.stats()["fallbacks"] == {"Exception": 1}
    with pytest.raises(magneto.exc.Unsupported, match="not here"):
        magneto.compile(program, backend="aot_eager", fullgraph=True)(torch.ones(2))


def test_a_size_makes_an_empty_tensor_and_a_tuple_data() -> None:
    def program(x: torch.Tensor) -> Any:
        return x.new(x.shape).zero_(), x.new(torch.Size([2, 3])).fill_(1), x.new((2, 3)), x.new(2, 3).zero_()

    for backend in ("eager", "aot_eager", "magneto"):
        compiled = magneto.compile(program, backend=backend)
        for n in (4, 5, 6):
            for got, want in zip(compiled(torch.rand(n)), program(torch.rand(n)), strict=True):
                assert torch.equal(got, want)


def test_a_model_that_a_library_prepares_at_the_first_call() -> None:
    """transformers puts hooks on a model's layers, once and under a lock, where all hidden states are wanted."""
    got, want = models.build("bert"), models.build("bert")
    compiled = magneto.compile(got, fullgraph=True)
    for seed in (0, 1):
        given = {**models.inputs("bert", seed), "output_hidden_states": True}
        with torch.no_grad():
            found, expected = compiled(**given), want(**given)
        assert_same(found.hidden_states, expected.hidden_states)
    assert magneto.stats()["graphs"] == 1
    hooks = [[len(module._forward_hooks) for module in model.modules()] for model in (got, want)]
    assert hooks[0] == hooks[1]


def test_such_a_model_behind_a_context_variable() -> None:
    """What has changed by then is nothing that the library looks at."""
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")
    options = Options()
    model = models.build("bert")

    def program(given: dict[str, Any]) -> Any:
        token = variable.set(2)
        options.scale = variable.get() + 1
        out = model(**given)
        variable.reset(token)
        return out.hidden_states

    compiled = magneto.compile(program, fullgraph=True)
    given = {**models.inputs("bert", 0), "output_hidden_states": True}
    with torch.no_grad():
        assert_same(compiled(given), program(given))
    assert options.scale == 3
    assert magneto.stats()["graphs"] == 1


def test_a_finder_of_modules_that_calls_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given the name of a module, which is among the arguments of the library's function, too."""
    asked = []

    def resolve(name: str) -> str:
        asked.append(name)
        return name

    class Finder:
        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> None:
            resolve(name)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if importlib.util.find_spec("no_such_module") is None else x

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert_same(magneto.compile(program, fullgraph=True)(torch.ones(2)), torch.full((2,), 2.0))
    assert set(asked) == {"no_such_module"}
