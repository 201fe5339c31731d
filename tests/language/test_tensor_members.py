"""Every member of torch.Tensor, read and called without arguments: compiled gives what eager gives."""

from __future__ import annotations

import itertools
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from compare import assert_same
from tiers import picked

import magneto

MAKERS: dict[str, Callable[[], torch.Tensor]] = {
    "float": lambda: torch.randn(3, 4),
    "leaf": lambda: torch.randn(3, 4, requires_grad=True),
    "integer": lambda: torch.arange(6).reshape(2, 3),
    "number": lambda: torch.tensor(2.5),
    "complex": lambda: torch.randn(3, 3, dtype=torch.complex64),
    "view": lambda: torch.randn(4, 4)[1:, ::2],
    "empty": lambda: torch.empty(0, 2),
}
# Differ from tensor to tensor, or from call to call.
ADDRESSES = {"data_ptr", "const_data_ptr", "mutable_data_ptr", "__hash__", "_cdata", "__sizeof__"}
UNINITIALISED = {"new", "new_empty", "_sparse_mask_projection"}
STORAGES = (torch.UntypedStorage, torch.TypedStorage)


def programs(name: str) -> list[Callable[[torch.Tensor], Any]]:
    space: dict[str, Any] = {}
    exec(f"def read(x):\n    return x.{name}\ndef call(x):\n    return x.{name}()\n", space)
    return [space["read"], space["call"]]


def outcome(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Any:
    torch.manual_seed(1)
    try:
        return function(x)
    except Exception as error:
        # The rest of a dispatcher's text lists what is registered.
        return type(error), str(error).split(". ")[0]


def comparable(value: Any, x: torch.Tensor, name: str) -> Any:
    if name in ADDRESSES and not isinstance(value, tuple):
        return type(value)
    if isinstance(value, STORAGES):
        return type(value), value.nbytes(), value.data_ptr() == x.data_ptr()
    if isinstance(value, torch.Tensor):
        facts = value.dtype, value.layout, value.requires_grad, value.is_leaf
        value = value.detach() if value.requires_grad else value
        value = value.to_dense() if value.layout != torch.strided else value
        return facts, value.to(torch.complex64) if value.dtype == torch.complex32 else value
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return [comparable(item, x, name) for item in value]
    if isinstance(value, types.BuiltinMethodType):
        return type(value), value.__name__
    plain = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.Size, torch.layout, dict)
    return value if isinstance(value, plain) else type(value)


MEMBERS = sorted(set(dir(torch.Tensor)) - {"__init_subclass__", "__subclasshook__"})


def cases() -> Iterator[Any]:
    """Each member of two kinds of tensors; of the other kinds in `make test-all`."""
    for name in MEMBERS:
        now = picked(name, MAKERS)
        yield pytest.param(name, now, id=name)
        yield pytest.param(name, MAKERS.keys() - now, id=f"{name}-of-others", marks=pytest.mark.long)


@pytest.mark.parametrize(("name", "kinds"), list(cases()))
def test_tensor_member_is_as_eager(name: str, kinds: set[str]) -> None:
    for kind, function in itertools.product(sorted(kinds), programs(name)):
        make = MAKERS[kind]
        torch.manual_seed(0)
        x = make()
        torch.manual_seed(0)
        y = make()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = outcome(function, x)
            actual = outcome(magneto.compile(function), y)
            place = f"{name} ({function.__name__}, {kind})"
            if name not in UNINITIALISED:
                assert_same(comparable(actual, y, name), comparable(expected, x, name), path=place)
            if name != "data":
                assert_same(comparable(y, y, "self"), comparable(x, x, "self"), path=f"input of {place}")


@pytest.mark.lenient
def test_c_function_that_throws_through_the_evaluator() -> None:
    """THPStorage's is_shared does not catch PyTorch's C++ exceptions, and a fake's storage has no data."""
    space = {"__name__": "torch.nn.functional"}
    exec("def is_shared(x):\n    return x.untyped_storage().is_shared()\n", space)
    is_shared = space["is_shared"]

    def f(x: torch.Tensor) -> Any:
        try:
            return [is_shared(x) for _ in range(2)]
        finally:
            x.add_(1)

    x = torch.zeros(3)
    with pytest.warns(RuntimeWarning, match="could not capture"):
        assert magneto.compile(f)(x) == [False, False]
    assert x.tolist() == [1.0, 1.0, 1.0]
    assert sys._getframe().f_code.co_name == "test_c_function_that_throws_through_the_evaluator"
    with pytest.raises(RecursionError):
        deeper(0)


def deeper(depth: int) -> int:
    return deeper(depth + 1) + 1
