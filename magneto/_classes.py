"""How captures make the classes of class statements, and each run makes them again."""

from __future__ import annotations

import types
from typing import Any


def class_parts(bases: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, ...]:
    """Of a class statement: the metaclass, and its bases."""
    resolved = types.resolve_bases(bases)
    meta = keywords.get("metaclass", type(resolved[0]) if resolved else type)
    for base in resolved if isinstance(meta, type) else ():
        if issubclass(type(base), meta):
            meta = type(base)
        elif not issubclass(meta, type(base)):
            raise TypeError(
                "metaclass conflict: the metaclass of a derived class must be a (non-strict) subclass of the "
                "metaclasses of all its bases"
            )
    return meta, resolved


def class_namespace(meta: Any, name: str, resolved: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Of a class statement: the mapping for its names."""
    return meta.__prepare__(name, resolved, **{key: keywords[key] for key in keywords if key != "metaclass"})


def tell_bases(cls: Any, **keywords: Any) -> None:
    """What type.__new__ does last."""
    super(cls, cls).__init_subclass__(**keywords)


def finish_class(meta: Any, name: str, bases: Any, resolved: Any, keywords: dict[str, Any], names: Any) -> type:
    """The class of a class statement whose body has run."""
    if resolved is not bases:
        names["__orig_bases__"] = bases
    made: type = meta(name, resolved, names, **{key: keywords[key] for key in keywords if key != "metaclass"})
    return made


def make_class(name: str, bases: tuple[Any, ...], keywords: dict[str, Any], entries: dict[str, Any]) -> type:
    """The class that a class statement has made, once more."""

    def fill(names: Any) -> None:
        for key, value in entries.items():
            names[key] = value

    return types.new_class(name, bases, keywords, fill)
