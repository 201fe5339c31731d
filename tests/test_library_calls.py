"""Functions of libraries in compiled code: no exits where they only compute."""

from __future__ import annotations

import copy
import dataclasses
import fnmatch
import functools
import os.path
import re
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch

import magneto
import magneto.exc

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
