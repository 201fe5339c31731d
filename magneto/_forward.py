"""Python functions that stand in front of callables which are none, and in front of disabled ones."""

from __future__ import annotations

import functools
import os
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from magneto import _C


def forward(callable: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """What is captured when a C function, a partial or another callable object is compiled."""
    return callable(*args, **kwargs)


def custom_function(cls: Any, bound: dict[int, Any]) -> Callable[..., Any]:
    """`cls.apply` of an autograd function, as a function that graphs print by the name of the class. `bound`: those of
    the arguments that are constants, by position, in ascending order."""

    def apply(*args: Any) -> Any:
        values = list(args)
        for position, value in bound.items():
            values.insert(position, value)
        return cls.apply(*values)

    apply.__name__ = apply.__qualname__ = cls.__name__
    return apply


def checkpointed(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """torch.utils.checkpoint of the function, as graphs have it."""
    from torch.utils.checkpoint import checkpoint

    def checkpointed_call(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(function, *args, **options, **kwargs)

    return checkpointed_call


def hooked(hook: Callable[[Any], Any]) -> Callable[..., Any]:
    """Tensor.register_hook with the hook, as graphs have it."""

    def register_hook(tensor: Any) -> None:
        tensor.register_hook(hook)

    return register_hook


def gradients_of(roots: Any, leaves: Any, tangents: Any, retains: bool, differentiable: bool) -> Any:
    """torch.autograd.backward, as graphs have it: what it adds to the gradients of the leaves."""
    import torch

    return torch.autograd.grad(roots, leaves, tangents, retains, differentiable, allow_unused=True)


@functools.cache
def reentrant() -> Any:
    """What torch.utils.checkpoint.CheckpointFunction is to a capture: its backward is never asked for."""
    import torch

    class Reentrant(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, function: Callable[..., Any], *args: Any) -> Any:
            return function(*args)

    return Reentrant


def disabled(fn: Callable[..., Any], recursive: bool) -> Callable[..., Any]:
    """`fn` as captures see it when it is disabled: a side exit. Run by CPython, compiled code off if `recursive`; else
    what it calls runs as in the function that called it."""
    if not recursive:

        @functools.wraps(fn)
        def plain(*args: Any, **kwargs: Any) -> Any:
            compiled = _C.calling()
            if compiled is None:
                return fn(*args, **kwargs)
            _C.enter_block(compiled, not_the_programs(), getattr(fn, "__code__", None))
            try:
                return fn(*args, **kwargs)
            finally:
                _C.leave_block()

        return plain

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        previous = _C.set_disabled(True)
        try:
            return fn(*args, **kwargs)
        finally:
            _C.set_disabled(previous)

    return wrapper


@functools.cache
def not_the_programs() -> tuple[str, ...]:
    """What the names of files begin with whose functions are not compiled by themselves where a block is."""
    import torch

    # The library's modules one by one: site-packages, whose code is the program's, lies below it.
    library = sysconfig.get_paths()["stdlib"]
    modules = (file for file in Path(library).iterdir() if file.suffix == ".py" or (file / "__init__.py").exists())
    packages = (os.path.dirname(file or "") for file in (torch.__file__, __file__))
    return (*map(str, modules), *packages, "<")
