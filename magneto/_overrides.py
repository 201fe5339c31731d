"""What PyTorch says where nobody takes a call that `__torch_function__` may override."""

from __future__ import annotations

from typing import Any


class Namesake(type):
    """A class that is printed as another one."""

    original: type

    def __repr__(cls) -> str:
        return repr(cls.original)


def takes_nothing(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """A `__torch_function__`."""
    return NotImplemented


def call_of_nobody(function: Any, types: tuple[type, ...], args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """The call, with objects in place of those of the classes, whose `__torch_function__` has been asked already: it
    raises what it raised for them.
    """
    namesakes: dict[type, type] = {}
    for each in sorted(types, key=lambda each: len(each.__mro__)):
        bases = [namesake for original, namesake in namesakes.items() if issubclass(each, original)]
        entries = {"original": each, "__torch_function__": classmethod(takes_nothing)}
        namesakes[each] = Namesake(each.__name__, tuple(reversed(bases)), entries)

    def replaced(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)([replaced(item) for item in value])
        return namesakes[type(value)]() if type(value) in namesakes else value

    return function(*replaced(args), **{name: replaced(value) for name, value in (kwargs or {}).items()})
