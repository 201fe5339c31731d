"""torch.export.draft_export: all that keeps a call from being exported, at once."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import magneto
from magneto import exc
from magneto._export import capture


@dataclasses.dataclass(frozen=True)
class Report:
    """What draft_export has found: sizes that can't vary. Of a program that can be exported as it is, nothing."""

    failures: list[str]

    def successful(self) -> bool:
        """torch.export.export gives the same."""
        return not self.failures

    def __str__(self) -> str:
        if self.successful():
            return "Nothing was found: torch.export.export gives the same program."
        found = "\n".join(f"{i}. {failure}" for i, failure in enumerate(self.failures, 1))
        return f"{len(self.failures)} found, and left out of this program:\n{found}"


def draft_export(
    mod: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    preserve_module_call_signature: tuple[str, ...] = (),
    strict: bool = False,
    prefer_deferred_runtime_asserts_over_guards: bool = False,
) -> Any:
    """torch.export.export, where what `dynamic_shapes` asks in vain is left out: `_report` of the program says what.

    Args:
        mod, args, kwargs, dynamic_shapes, preserve_module_call_signature, strict: As torch.export.export has them.
        prefer_deferred_runtime_asserts_over_guards: Changes nothing.

    Raises:
        magneto.exc.Unsupported: What can't be part of one graph, all of it: each line, why, and what to write instead.
    """
    capture.check_arguments(mod, args, kwargs, preserve_module_call_signature)
    failures: list[str] = []
    named = dict(kwargs or {})
    try:
        try:
            program = capture.export(mod, args, named, dynamic_shapes, preserve_module_call_signature)
        except exc.ConstraintViolation as violation:
            failures.append(str(violation))
            program = capture.export(mod, args, named, None, preserve_module_call_signature)
    except exc.Unsupported as first:
        raise exc.Unsupported(_all_of(mod, args, named, first)) from None
    program._report = Report(failures)
    return program


def _all_of(mod: Any, args: tuple[Any, ...], kwargs: dict[str, Any], first: exc.Unsupported) -> str:
    """The call has been captured up to the first of them: copies of it run, for the others."""
    try:
        own, given, named = copy.deepcopy((mod, args, kwargs))
        found = magneto.explain(own)(*given, **named)._folded()
    except Exception:  # what the program raises when it runs is no part of the report
        return str(first)
    lines = [f"{len(found)} places keep the call from being one graph:"]
    for number, (reason, _) in enumerate(found, 1):
        lines += [f"{number}. {reason.reason}", *(f"   {frame}" for frame in reason.user_stack)]
    return "\n".join([*lines, "", "Of the first:", str(first)])
