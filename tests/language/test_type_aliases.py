"""`int | str` and `list[int]`: values like classes, compared, asked, called, and guarded."""

from __future__ import annotations

import inspect
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

import magneto

X = torch.ones(2)
T = TypeVar("T")
NUMBERS = list[int]
NAMES = dict[str, int]
EITHER = int | str


def annotated(a: int | None, b: Tensor, c: list[int]) -> None: ...


SIGNATURE = inspect.signature(annotated, eval_str=True)


class Box(Generic[T]):
    def __init__(self, value: Any) -> None:
        self.value = value


INTEGERS = Box[int]


def signature(x: Tensor) -> Tensor:
    for name, parameter in SIGNATURE.parameters.items():
        if parameter.annotation is Tensor or parameter.annotation == "Tensor":
            x = x + 1
        elif parameter.annotation == (int | None):
            x = x * 2
        elif parameter.annotation == list[int]:
            x = x - len(name)
    return x


def called(x: Tensor) -> Tensor:
    made = NUMBERS([1, 2])
    made.append(3)
    return x * len(made) + NAMES(a=1)["a"] + INTEGERS(5).value + {NUMBERS: 1, int | str: 2}[list[int]]


def asked(x: Tensor) -> Tensor:
    return x + len(NUMBERS.__args__) if isinstance(len(x.shape), EITHER) else x * 2


def test_as_eager() -> None:
    for program in (signature, called, asked):
        assert torch.equal(magneto.compile(program, fullgraph=True, backend="eager")(X), program(X)), program


def test_another_alias_is_another_program() -> None:
    global EITHER
    compiled = magneto.compile(asked, fullgraph=True, backend="eager")
    assert torch.equal(compiled(X), asked(X))
    EITHER = str | bytes
    try:
        assert torch.equal(compiled(X), asked(X)) and torch.equal(compiled(X), X * 2)
    finally:
        EITHER = int | str
