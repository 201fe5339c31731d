"""A class gets, changes and loses a special method after the capture: what was captured before must not serve any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import magneto

# By special method: what asks for it, of an object `a` of the class and another one `b`; and the method, which the class
# does not have at first. The program may raise: then the exception is what is compared.
PROGRAMS: dict[str, tuple[Callable[[Any, Any], Any], Callable[..., Any]]] = {
    "__eq__ with a number": (lambda a, b: a == 3, lambda self, other: True),
    "__eq__ with its like": (lambda a, b: a == b, lambda self, other: True),
    "__eq__ of the right": (lambda a, b: 3 == a, lambda self, other: True),
    "__eq__ of an item": (lambda a, b: a in [b], lambda self, other: True),
    "__eq__ of a tuple's": (lambda a, b: (a,) == (b,), lambda self, other: True),
    "__eq__ of a list's": (lambda a, b: [b, a].index(a), lambda self, other: True),
    "__eq__ counted": (lambda a, b: [a, b, 1].count(a), lambda self, other: True),
    "__ne__": (lambda a, b: a != 3, lambda self, other: False),
    "__eq__ by !=": (lambda a, b: a != b, lambda self, other: True),
    "__lt__": (lambda a, b: a < b, lambda self, other: True),
    "__gt__ of the right": (lambda a, b: a < b, lambda self, other: True),
    "__ge__": (lambda a, b: a >= 1, lambda self, other: True),
    "__hash__": (lambda a, b: hash(a) == 7, lambda self: 7),
    "__bool__": (lambda a, b: 1 if a else 2, lambda self: False),
    "__bool__ by not": (lambda a, b: not a, lambda self: False),
    "__bool__ by and": (lambda a, b: (a and 3) == 3, lambda self: False),
    "__bool__ by bool": (lambda a, b: bool(a), lambda self: False),
    "__bool__ by any": (lambda a, b: any([a]), lambda self: False),
    "__len__ as truth": (lambda a, b: 1 if a else 2, lambda self: 0),
    "__len__": (lambda a, b: len(a), lambda self: 5),
    "__iter__": (lambda a, b: list(a), lambda self: iter([1, 2])),
    "__getitem__ to iterate": (lambda a, b: [*a], lambda self, i: [1, 2][i]),
    "__contains__": (lambda a, b: 3 in a, lambda self, item: True),
    "__getitem__": (lambda a, b: a[1], lambda self, i: 10 * i),
    "__call__": (lambda a, b: a(2), lambda self, x: x + 1),
    "__call__ asked": (lambda a, b: callable(a), lambda self: 1),
    "__add__": (lambda a, b: a + 1, lambda self, other: 11),
    "__radd__": (lambda a, b: 1 + a, lambda self, other: 11),
    "__iadd__": (lambda a, b: _augmented(a), lambda self, other: 12),
    "__neg__": (lambda a, b: -a, lambda self: 3),
    "__index__": (lambda a, b: [1, 2, 3][a], lambda self: 1),
    "__index__ of a range": (lambda a, b: list(range(a)), lambda self: 2),
    "__int__": (lambda a, b: int(a), lambda self: 4),
    "__float__": (lambda a, b: float(a), lambda self: 4.5),
    "__abs__": (lambda a, b: abs(a), lambda self: 6),
    "__str__": (lambda a, b: len(str(a)), lambda self: "abc"),
    "__repr__": (lambda a, b: len(repr(a)), lambda self: "abcd"),
    "__repr__ by str": (lambda a, b: len(f"{a}"), lambda self: "abcde"),
    "__format__": (lambda a, b: len(f"{a:}"), lambda self, spec: "abcdef"),
    "__getattr__": (lambda a, b: a.missing, lambda self, name: 8),
    "__getattr__ by getattr": (lambda a, b: getattr(a, "missing", 1), lambda self, name: 8),
    "__getattr__ by hasattr": (lambda a, b: hasattr(a, "missing"), lambda self, name: 8),
    "__getattribute__": (lambda a, b: a.value, lambda self, name: 9),
    "__setattr__": (lambda a, b: _set(b), lambda self, name, value: None),
    "__enter__": (lambda a, b: _within(a), lambda self: 5),
    "__reversed__": (lambda a, b: list(reversed(a)), lambda self: iter([3, 1])),
    "__instancecheck__ no": (lambda a, b: isinstance(a, int), lambda self: 1),
    "__length_hint__": (lambda a, b: len([*range(3)]), lambda self: 1),
    "__iter__ asked": (lambda a, b: hasattr(a, "__iter__"), lambda self: iter(())),
    "__next__": (lambda a, b: next(a), lambda self: 6),
    "__missing__ no": (lambda a, b: {1: 2}.get(a, 3), lambda self, key: 4),
    "__hash__ of a key": (lambda a, b: {a: 2}[a], lambda self: 7),
    "__class_getitem__": (lambda a, b: type(a)[0], classmethod(lambda cls, i: 5)),
    "__new__ no": (lambda a, b: isinstance(type(a)(), type(a)), lambda cls: object.__new__(cls)),
    "__init__": (lambda a, b: type(a)().value, lambda self: setattr(self, "value", 44)),
    "__divmod__": (lambda a, b: divmod(a, 2), lambda self, other: (1, 2)),
    "__pow__": (lambda a, b: a**2, lambda self, other: 13),
    "__matmul__": (lambda a, b: a @ b, lambda self, other: 14),
    "__round__": (lambda a, b: round(a), lambda self: 15),
    "__lt__ sorted": (lambda a, b: [x.value for x in sorted([a, b])], lambda self, other: self.value > other.value),
    "__lt__ of max": (lambda a, b: max([a, b]).value, lambda self, other: self.value > other.value),
    "__gt__ of max": (lambda a, b: max([a, b]).value, lambda self, other: self.value > other.value),
}


def _augmented(a: Any) -> Any:
    a += 1
    return a


def _set(b: Any) -> Any:
    b.other = 4
    return object.__getattribute__(b, "__dict__").get("other", 0)


def _within(a: Any) -> Any:
    with a as inner:
        return inner


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        result = function(*args)
    except Exception as error:
        return type(error), str(error)
    return [part.tolist() if isinstance(part, torch.Tensor) else part for part in result]


def of_class() -> tuple[type, Any, Any]:
    class Some:
        value = 1

        def __exit__(self, *error: object) -> None:
            pass

    a, b = Some(), Some()
    b.value = 2
    return Some, a, b


@pytest.mark.parametrize("name", PROGRAMS)
def test_added_changed_and_removed(name: str) -> None:
    program, method = PROGRAMS[name]
    some, a, b = of_class()

    def f(x: torch.Tensor) -> Any:
        return x + 1, program(a, b)

    compiled = magneto.compile(f)
    x = torch.ones(2)
    special = name.split()[0]

    def told(value: Any) -> Any:
        return value if not isinstance(value, list) or value[-1] is not a else ["a itself"]

    steps: list[Callable[[], Any]] = [
        lambda: None,
        lambda: setattr(some, special, method),
        lambda: setattr(some, special, _other(special, method)),
        lambda: delattr(some, special),
    ]
    for step in steps:
        step()
        object.__getattribute__(b, "__dict__").pop("other", None)
        for _ in range(2):
            expected = told(outcome(f, x))
            object.__getattribute__(b, "__dict__").pop("other", None)
            assert told(outcome(compiled, x)) == expected
            object.__getattribute__(b, "__dict__").pop("other", None)


def _other(special: str, method: Any) -> Any:
    """A method that gives something else."""

    def other(*args: Any) -> Any:
        raise LookupError(special)

    return other
