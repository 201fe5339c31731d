"""torch.export with Magneto's capture: `torch.export.export` under `magneto.install()`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def export(
    mod: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    strict: bool = False,
    preserve_module_call_signature: tuple[str, ...] = (),
    prefer_deferred_runtime_asserts_over_guards: bool = False,
) -> Any:
    """torch.export.export: a call of a module or function as one graph of ATen operators, without writes.

    Args:
        mod: A module or a function. It is captured, not run: its parameters and buffers stay as they are.
        args, kwargs: Example arguments. Numbers and texts among them become part of the graph.
        dynamic_shapes: Which sizes may vary, as PyTorch takes it; a `Dim` that stands in several places is one size.
        strict: Both are Magneto's capture.
        preserve_module_call_signature: Paths of modules that torch.export.unflatten shall give with the arguments and
            results that they have: so others can take their place.
        prefer_deferred_runtime_asserts_over_guards: Both are checked by `module()`.

    Returns:
        An ExportedProgram, of PyTorch's class.

    Raises:
        magneto.exc.Unsupported: Something can't be part of one graph: which line, why, and what to write instead.
        magneto.exc.ConstraintViolation: A size that `dynamic_shapes` names can't vary.
        magneto.exc.NotYet: An argument, or a program, that is not supported yet.
    """
    from magneto._export import capture

    capture.check_arguments(mod, args, kwargs, preserve_module_call_signature)
    return capture.export(mod, args, dict(kwargs or {}), dynamic_shapes, preserve_module_call_signature)
