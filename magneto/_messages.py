"""What users read when a capture ends, fails or is made again: the core's messages (src/dispatch/report.h).

A user's stack comes as [(code, offset of the instruction, line)], outermost frame first.
"""

from __future__ import annotations

import dis
import functools
import itertools
import linecache
import os
import platform
import re
import sys
import tempfile
import traceback
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from magneto import _expressions, config

Stack = Sequence[tuple[types.CodeType, int, int]]

_PAGES = Path(__file__).parents[1] / "docs" / "breaks"
_SECRET = "MAGNETO_CACHE_KEY"  # not for reports: what it is


def page(reason: str) -> str:
    """Where the page of a break reason is: in a checkout a file, else its name in the repository."""
    file = _PAGES / f"{reason}.md"
    return str(file) if file.exists() else f"docs/breaks/{file.name}"


def user_stack(stack: Stack) -> str:
    """As tracebacks show it, the expression that was being computed marked."""
    lines = []
    for code, offset, line in stack:
        lines.append(f'  File "{code.co_filename}", line {line}, in {code.co_name}')
        lines += _marked(code, offset, line)
    return "\n".join(lines) + "\n"


def _marked(code: types.CodeType, offset: int, line: int) -> list[str]:
    source = linecache.getline(code.co_filename, line).rstrip("\n")
    if not source.strip():
        return []
    shown = [f"    {source.strip()}"]
    positions = next(itertools.islice(code.co_positions(), offset // 2, None), None)
    if positions is None or None in positions or positions[0] != line:
        return shown
    _, last_line, first, last = positions
    if (line, first) == (last_line, last):  # a function's beginning
        return shown
    as_bytes = source.encode()  # positions count bytes
    end = len(source.rstrip()) if last_line != line else len(as_bytes[:last].decode(errors="replace"))
    begin = len(as_bytes[:first].decode(errors="replace"))
    indent = len(source) - len(source.lstrip())
    return [*shown, " " * (4 + begin - indent) + "^" * (end - begin)]


def graph_break(reason: str, message: str, explanation: str, hint: str, stack: Stack) -> str:
    """A graph break, in the log and in the errors of `fullgraph=True`."""
    user = _users(stack)
    code, offset, line = user[-1]
    explanation, hint = (of_program(text, message, code, offset, line) for text in (explanation, hint))
    lines = [
        f"Graph break in user code at {code.co_filename}:{line}",
        f"Reason: {reason}: {message}",
        f"  Explanation: {explanation}",
        *([f"  Hint: {hint}"] if hint else []),
        f"  Page: {page(reason)}",
        "User code traceback:",
    ]
    return "\n".join(lines) + "\n" + user_stack(stack)


def of_program(text: str, message: str, code: types.CodeType, offset: int, line: int) -> str:
    """What is said of all breaks of a kind, with what the program calls and computes there."""
    expression = _expressions.at(code, offset) or linecache.getline(code.co_filename, line).strip() or "this"
    return text.replace("{name}", _called(message)).replace("{expression}", expression)


TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(__file__) + os.sep
_PYTHON = os.path.dirname(os.__file__) + os.sep
_PACKAGES = f"{os.sep}site-packages{os.sep}"  # in the same folder, of libraries


def _users(stack: Stack) -> Stack:
    """The stack down to the innermost frame that is not PyTorch's, Magneto's or Python's own; all of it, if none is."""
    for length in range(len(stack), 0, -1):
        file = stack[length - 1][0].co_filename
        if not file.startswith((TORCH_FOLDER, _OURS)) and not (file.startswith(_PYTHON) and _PACKAGES not in file):
            return stack[:length]
    return stack


def _ordinal(count: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th") if count % 100 not in (11, 12, 13) else "th"
    return f"{count}{ending}"


def _called(message: str) -> str:
    """The name in a break's message, as programs write it: "call of builtins.print", "mylib.f.default: no kernel"."""
    called = message.partition("call of ")[2].removeprefix("the C function ")
    if called.startswith("an object of type "):
        return " ".join(called.split(" ")[:5])
    if called:
        name = called.partition(" ")[0].rstrip(":").removeprefix("builtins.").removeprefix("__main__.")
        name = name.removeprefix("torch._tensor.")
        return re.sub(r"^torch\._C\.(TensorBase|_TensorBase)\.", "Tensor.", name)
    operator = message.partition(": ")[0]
    return re.sub(r"^(\w+)\.(\w+)(\.default)?$", r"\1::\2", operator)


def readable(text: str, code: types.CodeType, offset: int) -> str:
    """A guard's failure with the user's expressions for what lay on the value stack in front of the instruction."""

    def expression(found: re.Match[str]) -> str:
        return _expressions.on_stack(code, offset, int(found[1])) or "a value of the line"

    return re.sub(r"___stack(\d+)", expression, text)


_PLACE = re.compile(r"(?P<file>.*):(?P<line>\d+) in (?P<function>\S+)")


def needed_at(place: str, indent: int) -> str:
    """The user's line that needed a guard, as a further line: `return x + 1  # playground.py:6 in fn`."""
    if (found := _PLACE.fullmatch(place)) is None:
        return ""
    line = linecache.getline(found["file"], int(found["line"])).strip()
    name = f"{os.path.basename(found['file'])}:{found['line']} in {found['function']}"
    return "\n" + " " * indent + (f"{line}  # {name}" if line else f"# {name}")


def backend_failure(backend: Any, cause: BaseException, place: str) -> str:
    """A backend raised, or gave what can't be called: who, when it compiled what, in which line of its own."""
    name = name_of(backend)
    frames = traceback.extract_tb(cause.__traceback__)
    if not frames and str(cause).startswith("the backend returned"):
        returned = str(cause).removeprefix("the backend returned ").partition(",")[0]
        return f"the backend {name} returned {returned} for {place}; it must return a callable"
    text = f"the backend {name} raised {type(cause).__name__} when it compiled {place}: {cause}"
    if frames:
        last = frames[-1]
        text += f'\n  File "{last.filename}", line {last.lineno}, in {last.name}'
        text += f"\n    {last.line}" if last.line else ""
    return text + "\nUntil that is mended, backend='eager' runs the same graph without it."


def name_of(backend: Any) -> str:
    """A backend as messages name it: "mine (mine.py:3)"."""
    name = getattr(backend, "__qualname__", None) or type(backend).__qualname__
    code = getattr(backend, "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def broken_promise(promise: str, place: str, code: types.CodeType | None, line: int) -> str:
    """An operator gave another tensor than its fake says: who, where, both sides, and what to do."""
    operator, _, sides = promise.partition(" returned ")
    where = ""
    if code is not None:
        source = linecache.getline(code.co_filename, line).strip()
        where = f" at {code.co_filename}:{line} in {code.co_qualname}" + (f": `{source}`" if source else "") + ";"
    return (
        f"The operator {operator} breaks its promise: it returned {sides}{where} CPython runs {place} instead. Mend "
        f'the function under torch.library.register_fake("{operator}"): it has to give the shape and the dtype that '
        "the operator gives."
    )


def graph_break_again(reason: str, stack: Stack, count: int) -> str:
    """The same break as in an earlier message, of another capture."""
    code, _, line = _users(stack)[-1]
    return f"Graph break in user code at {code.co_filename}:{line}, the same for the {_ordinal(count)} time: {reason}"


def failure(
    code: types.CodeType,
    cause: str,
    message: str,
    stage: str,
    stack: Stack,
    graph: str,
    exception: BaseException | None,
    raises: bool,
) -> str:
    """A frame that is left to CPython: for our own fault, or because a backend raised."""
    internal = cause == "internal error"
    due_to = f"{cause}: {message}"
    if exception is not None:
        due_to = "".join(traceback.format_exception(exception)).rstrip()
    if stage:
        due_to += f"\nin the stage {stage}"
    from_user = "from user code:\n" + user_stack(stack)
    report = _write_report(code, due_to, from_user, graph) if internal else ""
    if config.suppress_errors and not raises:
        head = f"WON'T CONVERT {code.co_name} {code.co_filename} line {code.co_firstlineno}\ndue to:\n"
        more = _environment() if config.verbose else "Set torch._dynamo.config.verbose=True for more information\n"
        return f"{head}{due_to}\n\n{from_user}\n{report}{more}=========="
    where = f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"
    text = f"Magneto could not capture {where}"
    text += "." if raises else " and leaves it to CPython: results are eager's."
    text += f"\n{due_to}\n\n{from_user}{report}"
    if internal:
        text += (
            "How to go on: magneto.config.suppress_errors = True (TORCHDYNAMO_SUPPRESS_ERRORS=1) logs such frames and "
            "leaves them to CPython; @magneto.disable on the function keeps it out; backend='eager' and "
            "backend='aot_eager' leave out later stages."
        )
    return text


_reports = itertools.count()


def _write_report(code: types.CodeType, due_to: str, from_user: str, graph: str) -> str:
    """One file with what is needed to find an error of ours; gives the sentence that names it."""
    parts = {
        "what failed": due_to,
        "the user's stack": from_user,
        "environment": _environment(),
        "the function": _source(code),
        "its bytecode": dis.Bytecode(code).dis(),
        "the graph": graph or "none was captured",
    }
    folder = config.debug_dir or tempfile.gettempdir()
    file = os.path.join(folder, f"magneto_error_{os.getpid()}_{next(_reports)}.txt")
    try:
        with open(file, "x", encoding="utf-8", errors="replace") as out:
            out.write("".join(f"== {name}\n{text.rstrip()}\n\n" for name, text in parts.items()))
    except OSError as error:
        return f"This is an error of Magneto's; no report of it could be written: {error}\n"
    return f"This is an error of Magneto's: please report it, with the file {file} (it has source, no data).\n"


def _source(code: types.CodeType) -> str:
    lines = sorted({line for _, _, line in code.co_lines() if line})
    if not lines:
        return ""
    return "".join(linecache.getline(code.co_filename, line) for line in range(code.co_firstlineno, lines[-1] + 1))


@functools.cache
def _versions() -> str:
    import torch

    import magneto

    return (
        f"Magneto {magneto.__version__}, PyTorch {torch.__version__}, CPython {platform.python_version()}, "
        f"{platform.platform()}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    )


def _environment() -> str:
    changed = {name: value for name, value in config.current().items() if value != config.SETTINGS[name].default}
    variables = {
        name: "..." if name == _SECRET else value
        for name, value in os.environ.items()
        if name.startswith(("TORCH_", "TORCHDYNAMO", "MAGNETO"))
    }
    return f"{_versions()}\nsettings: {changed}\nvariables: {variables}\ncommand: {sys.argv[:1]}\n"
