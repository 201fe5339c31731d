"""torch.export.draft_export: a call as a program in any case, and all that keeps it from being exported, at once."""

from __future__ import annotations

import copy
import dataclasses
import enum
import linecache
import re
from collections.abc import Callable, Mapping
from typing import Any

from torch.export import Dim
from torch.utils import _pytree as pytree

import magneto
from magneto import _messages, exc
from magneto._export import capture


class FailureType(enum.IntEnum):
    """As PyTorch numbers them."""

    MISSING_FAKE_KERNEL = 1
    DATA_DEPENDENT_ERROR = 2
    GUARD_ADDED = 3

    def __str__(self) -> str:
        return self.name


_KINDS = {"data": FailureType.DATA_DEPENDENT_ERROR, "fake": FailureType.MISSING_FAKE_KERNEL}
_TITLES = {
    FailureType.MISSING_FAKE_KERNEL: "{question} has no fake: its result is taken to be {answer}, as in the example.",
    FailureType.DATA_DEPENDENT_ERROR: "{question}: the answer is taken to be {answer}, as in the example; each run "
    "checks it.",
    FailureType.GUARD_ADDED: "A size can't vary as dynamic_shapes= asks: it varies as far as the program lets it.",
}


@dataclasses.dataclass(frozen=True)
class Failure:
    """What is assumed at one place. `data`: what is asked and the answer, where, why, and what to write."""

    failure_type: FailureType
    data: dict[str, Any]

    def print(self, number: int = 1) -> str:
        """As the report says it."""
        data = self.data
        lines = [f"{number}. {self.failure_type}: " + _TITLES[self.failure_type].format(**data)]
        if code := data["code"]:
            lines.append(f'   File "{code.co_filename}", line {data["line"]}, in {code.co_qualname}')
            if source := linecache.getline(code.co_filename, data["line"]).strip():
                lines.append(f"     {source}")
        lines += [f"   {part}" for part in data["explanation"].splitlines()]
        lines += [f"   Write: {part}" for part in data["hint"].splitlines()]
        if data["times"] > 1:
            lines.append(f"   So {data['times']} times.")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Report:
    """What draft_export has found. Of a program that can be exported as it is, nothing."""

    failures: list[Failure]

    def successful(self) -> bool:
        """torch.export.export gives the same."""
        return not self.failures

    def __str__(self) -> str:
        if self.successful():
            return "Nothing was found: torch.export.export gives the same program."
        found = "\n".join(failure.print(i) for i, failure in enumerate(self.failures, 1))
        return f"{len(self.failures)} found: torch.export.export refuses the program.\n{found}"


def draft_export(
    mod: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    preserve_module_call_signature: tuple[str, ...] = (),
    strict: bool = False,
    pre_dispatch: bool = True,
    prefer_deferred_runtime_asserts_over_guards: bool = False,
) -> Any:
    """torch.export.export, where what it would refuse is taken to be as in the example: `_report` of the program says
    what, and the program checks it.

    Args:
        mod, args, kwargs, dynamic_shapes, preserve_module_call_signature, strict: As torch.export.export has them.
        pre_dispatch, prefer_deferred_runtime_asserts_over_guards: Change nothing.

    Raises:
        magneto.exc.Unsupported: What can't be part of one graph in any case, all of it: each line, why, and what to
            write instead.
    """
    capture.check_arguments(mod, args, kwargs, preserve_module_call_signature)
    named = dict(kwargs or {})
    failures: list[Failure] = []

    def attempt(shapes: Any) -> Any:
        assembly = capture.assemble(mod, args, named, shapes, preserved=preserve_module_call_signature, drafts=True)
        if assembly.captured.violated:
            raise exc.ConstraintViolation(assembly.captured.violated)
        return assembly.build(), assembly.captured.drafted

    try:
        try:
            program, drafted = attempt(dynamic_shapes)
        except exc.ConstraintViolation as violation:
            failures.append(_of_sizes(violation))
            program, drafted = _with_fewer_sizes(attempt, dynamic_shapes)
    except exc.Unsupported as first:
        raise exc.Unsupported(_all_of(mod, args, named, first)) from None
    program._report = Report(failures + _of_data(drafted))
    return program


def _with_fewer_sizes(attempt: Callable[[Any], Any], shapes: Any) -> Any:
    """Those vary that can, in ranges that were said; a relation between them is a check."""

    def automatic(dim: Any) -> Any:
        bounds = {name: bound for name in ("min", "max") if type(bound := getattr(dim, name, None)) is int}
        return Dim.AUTO(**bounds) if isinstance(dim, (Dim, type(Dim.DYNAMIC))) else dim

    try:
        return attempt(pytree.tree_map(automatic, shapes))
    except exc.ConstraintViolation:
        return attempt(None)


def _of_sizes(violation: exc.ConstraintViolation) -> Failure:
    said = {"question": "", "answer": "", "explanation": str(violation), "hint": "Dim.AUTO for such a size"}
    return Failure(FailureType.GUARD_ADDED, {**said, "code": None, "line": 0, "times": 1})


def _of_data(drafted: list[Any]) -> list[Failure]:
    """Each place once, with the first answer."""
    found: dict[Any, Failure] = {}
    for kind, question, answer, *texts, code, offset, line in drafted:
        if kind not in _KINDS:  # of layouts, which every program checks
            continue
        if code is not None:
            texts = [_messages.of_program(text, question, code, offset, line) for text in texts]
        if answer == "False":
            texts[1] = re.sub(r"torch\._check\((.*)\) in front", r"torch._check(not (\1)) in front", texts[1])
        said = {"question": question, "answer": answer, "explanation": texts[0], "hint": texts[1]}
        data = {**said, "code": code, "line": line, "times": 0}
        known = found.setdefault((kind, texts[0], code, line), Failure(_KINDS[kind], data))
        known.data["times"] += 1
    return list(found.values())


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
