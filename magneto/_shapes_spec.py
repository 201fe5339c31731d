"""`compile(shapes_spec=...)`: which sizes of a callable's arguments may vary, said when it is compiled.

The specification is torch.compile's (torch.fx.experimental.dynamic_spec): a dict of parameters, a ParamsSpec or a
ShapesSpec. Without these classes a tensor's sizes are a list with an entry for each dimension: None (part of the
program), a number (this one alone), or `(min, max)`, either of which may be None.

    magneto.compile(f, shapes_spec={"x": [(1, 512), None]})

The core gets it as plain data: parameter -> a tuple of dimensions, each None, an int, or (name, min, max, whether the
name stands in several places). Dimensions of one name have one size. What the core can't hold to is an error here.
"""

from __future__ import annotations

import collections
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from magneto import exc

Range = tuple[str, int | None, int | None]
Dimension = None | int | Range | tuple[str, int | None, int | None, bool]
Shapes = dict[str, tuple[Dimension, ...]]

_MODULE = "torch.fx.experimental.dynamic_spec"  # looked at by name: importing it loads PyTorch's symbolic shapes


def resolve(spec: Any, dynamic: bool | None) -> Shapes | None:
    """The specification as plain data; raises where it asks for what is not there."""
    if spec is None:
        return None
    if dynamic is not None:
        raise exc.InvalidValue("dynamic and shapes_spec can't both be given: shapes_spec says which sizes are dynamic")
    tensors = {name: _tensor(name, value) for name, value in _parameters(spec).items() if value is not None}
    names = collections.Counter(entry[0] for tensor in tensors.values() for entry in tensor if isinstance(entry, tuple))

    def counted(entry: Dimension) -> Dimension:
        return (entry[0], entry[1], entry[2], names[entry[0]] > 1) if isinstance(entry, tuple) else entry

    return {name: tuple(map(counted, tensor)) for name, tensor in tensors.items()}


def check_parameters(shapes: Shapes, model: Any) -> None:
    """Raises where the specification names what is no parameter of the callable."""
    function = model.forward if isinstance(model, torch.nn.Module) else model
    try:
        known = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return
    for name in shapes:
        if name not in known:
            raise exc.InvalidName("parameter in shapes_spec", name, known)


def _parameters(spec: Any) -> Mapping[str, Any]:
    if _is(spec, "ShapesSpec"):
        if spec.assumptions:
            raise _not_there("assumptions between sizes", "give one ShapeVar to the dimensions that are equal")
        spec = spec._params
    if _is(spec, "ParamsSpec"):
        if spec._varargs is not None or spec._varkw is not None:
            raise _not_there("specifications of *args and **kwargs", "name the parameters")
        spec = spec._named_args
    if spec is None:
        return {}
    if not isinstance(spec, Mapping) or not all(isinstance(name, str) for name in spec):
        raise exc.InvalidValue(f"shapes_spec takes a dict from parameters to their sizes, not {spec!r}")
    if starred := [name for name in spec if name.startswith("*")]:
        raise _not_there(f"a specification of {starred[0]}", "name the parameters")
    return spec


def _tensor(name: str, value: Any) -> list[int | Range | None]:
    where = f"shapes_spec[{name!r}]"
    if _is(value, "TensorSpec"):
        value = list(value)
    if not isinstance(value, Sequence) or isinstance(value, str):
        what = "a number" if isinstance(value, int) or _is(value, "IntVar", "ShapeVar") else type(value).__name__
        raise _not_there(
            f"{where}, which is {what}", "only tensors are specified; numbers become dynamic when they turn out to vary"
        )
    return [_dimension(f"{where}[{index}]", entry) for index, entry in enumerate(value)]


def _dimension(where: str, entry: Any) -> int | Range | None:
    if _is(entry, "IntVar", "ShapeVar"):
        return _range(where, f"{entry.name}#{entry._uid}", entry.min, entry.max)
    if entry is None or type(entry) is int:
        return entry
    if isinstance(entry, tuple) and len(entry) == 2 and all(bound is None or type(bound) is int for bound in entry):
        return _range(where, where, *entry)
    if type(entry).__name__ == "SymInt":
        raise _not_there(f"{where}, a size that is computed from others", "give it a ShapeVar of its own")
    raise exc.InvalidValue(f"{where} takes None, a number, (min, max) or a ShapeVar, not {entry!r}")


def _range(where: str, name: str, low: int | None, high: int | None) -> Range:
    if low is not None and high is not None and low > high:
        raise exc.InvalidValue(f"{where}: no size is at least {low} and at most {high}")
    return name, low, high


def _is(value: Any, *names: str) -> bool:
    return type(value).__module__ == _MODULE and type(value).__name__ in names


def _not_there(what: str, remedy: str) -> exc.InvalidValue:
    return exc.InvalidValue(f"compile(shapes_spec=...) does not take {what}: {remedy}.")
