"""magneto.aot_compile and magneto.aot_load (magneto/_export/ahead.py, loaded.py)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magneto._export.loaded import AotProgram


def aot_compile(
    model: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    path: str | os.PathLike[str],
) -> str:
    """Compiles a call of a module or function, without gradients, and writes one file: program, machine code, weights.

    Args:
        model: A module or a function. It is captured, not run.
        args, kwargs: Example arguments. Numbers and texts among them become part of the program.
        dynamic_shapes: Which sizes may vary, as `torch.export.export` takes it.
        path: The file. `aot_load` runs it in Python, `magneto/include/magneto/aot.h` in C and C++ without Python.

    Returns:
        The path.

    Raises:
        magneto.exc.Unsupported: Something can't be part of one graph: which line, why, and what to write instead.
        magneto.exc.ConstraintViolation: A size that `dynamic_shapes` names can't vary.
        magneto.exc.NotYet: Something has no place in a file: the message names it.
    """
    from magneto._export import ahead

    return ahead.aot_compile(model, args, kwargs, dynamic_shapes, path=path)


def aot_load(path: str | os.PathLike[str]) -> AotProgram:
    """Opens a file of `aot_compile`, in milliseconds: weights are mapped, and nothing is captured or compiled.

    The file holds machine code: open only files that you trust.

    Args:
        path: The file.

    Returns:
        A callable with the arguments and results of what was compiled.

    Raises:
        magneto.exc.InvalidProgram: The file is damaged, or of another build, or calls an operator that is missing.
    """
    from magneto._export import loaded

    return loaded.aot_load(path)
