"""magneto.aot_load: a program of a file of magneto.aot_compile."""

from __future__ import annotations

import json
import os
from typing import Any

import torch
from torch.utils import _pytree as pytree

from magneto import _C, exc
from magneto._export import values

_NOTHING = object()


class AotProgram:
    """A program that was compiled ahead of time. Calling it is calling what it was made from, without gradients."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._program, text = _C.aot_open(os.fspath(path))
        self._path = os.fspath(path)
        data = json.loads(text)
        self._in_spec, self._out_spec = values.decode_tree(data["in_spec"]), values.decode_tree(data["out_spec"])
        self._arguments = [(row["where"], _value(row)) for row in data["arguments"]]
        self._results = [_value(row) for row in data["results"]]
        self._keywords = list(self._in_spec.children()[1].context)

    def __repr__(self) -> str:
        return f"AotProgram({self._path!r})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises RuntimeError (of another form: ValueError) for arguments that it was not compiled for."""
        if len(kwargs) > 1:
            kwargs = {**{name: kwargs[name] for name in self._keywords if name in kwargs}, **kwargs}
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._in_spec:
            raise ValueError(f"The program takes arguments of the form\n{self._in_spec}\nbut got\n{spec}")
        tensors = []
        for leaf, (where, expected) in zip(leaves, self._arguments, strict=True):
            if expected is _NOTHING:
                if not isinstance(leaf, torch.Tensor):
                    raise RuntimeError(f"Expected input at {where} to be a tensor, but got {type(leaf).__name__}")
                tensors.append(leaf)
            elif type(leaf) is not type(expected) or leaf != expected:
                raise RuntimeError(f"Expected input at {where} to be equal to {expected!r}, but got {leaf!r}")
        made = iter(_C.aot_run(self._program, *tensors))
        results = [next(made) if expected is _NOTHING else expected for expected in self._results]
        return pytree.tree_unflatten(results, self._out_spec)


def _value(row: dict[str, Any]) -> Any:
    return values.decode(row["value"], values._none) if "value" in row else _NOTHING


def aot_load(path: str | os.PathLike[str]) -> AotProgram:
    """See magneto.aot_load."""
    try:
        return AotProgram(path)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise exc.InvalidProgram(f"{os.fspath(path)} is damaged ({error}). Compile the program again.") from None
