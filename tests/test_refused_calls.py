"""Torch calls that no `__torch_function__` takes: PyTorch's own error, and each is asked once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import magneto

X = torch.arange(12.0).view(4, 3)
ASKED: list[str] = []


class Refuses:
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ASKED.append(f"{cls.__name__} {func.__name__}")
        return NotImplemented


class RefusesToo(Refuses): ...


class RefusingTensor(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ASKED.append(f"{cls.__name__} {func.__name__}")
        return NotImplemented


FIRST: Any = Refuses()
SECOND: Any = RefusesToo()
TENSOR = X.as_subclass(RefusingTensor)


def said(call: Callable[[], Any]) -> Any:
    ASKED.clear()
    try:
        return call()
    except TypeError as error:
        return str(error), list(ASKED)


RAISED = {
    "first": lambda: said(lambda: torch.mul(FIRST, X)),
    "subclass comes first": lambda: said(lambda: torch.add(FIRST, SECOND)),
    "in a list": lambda: said(lambda: torch.cat([X, FIRST, SECOND])),
    "by keyword": lambda: said(lambda: torch.add(X, other=FIRST)),
    "tensor": lambda: said(lambda: torch.sin(TENSOR)),
    "second": lambda: said(lambda: torch.add(X, TENSOR)),
}
LEFT = {
    "method": lambda: said(lambda: X.add(FIRST)),
    "operator": lambda: said(lambda: X + FIRST),
    "reflected": lambda: said(lambda: FIRST + X),
}


@pytest.mark.usefixtures("ours_alone")
@pytest.mark.parametrize("program", [*RAISED.values(), *LEFT.values()], ids=[*RAISED, *LEFT])
def test_eager_s_error(program: Callable[[], Any]) -> None:
    want = program()
    compiled = magneto.compile(program)
    assert [compiled(), compiled()] == [want, want]
    assert bool(magneto.stats()["break_reasons"]) == (program in LEFT.values())
