"""Scripts of minified programs: the functions as text and what they are given, or a record beside the script."""

from __future__ import annotations

import contextlib
import math
import runpy
import types
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from magneto import _log
from magneto._debug import scripts
from magneto._debug.record import container, reduce, replay, sources

if TYPE_CHECKING:
    from magneto._debug.record.minify import Case


class _NoText(Exception):
    """A value that a script can't write down."""


def functions_text(read: container.Record) -> str:
    """The recorded functions, the frame's last."""
    rows = [row for row in read.data["objects"] if row.get("kind") == "function"]
    first = read.data["objects"][read.data["frame"]["function"]]
    ordered = [row for row in rows if row is not first and row["name"] not in _backends(read)]
    texts = [_function_text(read, row) for row in [*ordered, first]]
    return "\n\n".join(dict.fromkeys(text for text in texts if text))


def _backends(read: container.Record) -> set[str]:
    backend = read.data["options"].get("backend")
    return {read.data["objects"][backend["at"]].get("name", "")} if isinstance(backend, dict) else set()


def _function_text(read: container.Record, row: dict[str, Any]) -> str:
    place = row.get("code")
    if place is None:
        return ""
    return reduce.source_of(read.data["sources"][place["file"]], place["qualname"].rpartition(".")[2], place["line"])


def write(case: Case, read: container.Record, path: Path) -> Path | None:
    """Writes the script that shows the failure. None, and a sentence: it can't be written."""
    from magneto._debug.record import minify

    path = path.absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(_NoText, SyntaxError):
            text = _plain(case, read)
            if scripts.write(path, text) and _shows(case, path):
                return path
        beside = [path.with_suffix(".rec")]
        container.write(beside[0], read)
        for earlier in case.before:
            beside.append(path.with_suffix(f".before{len(beside)}.rec"))
            container.write(beside[-1], minify.given_as(read, earlier))
    except OSError as error:
        _log.announce(f"No script could be written to {path.parent}: {error.strerror}. Give another place with -o.")
        return None
    shown = "".join(f"# {line}\n" for line in functions_text(read).splitlines())
    text = _HEAD.format(failure=case.text, environment=scripts.environment()) + shown
    before = "".join(f", at({file.name!r})" for file in beside[1:])
    text += (_COMPARED if case.compares else _REPLAY).format(compares=case.compares, file=beside[0].name, before=before)
    return path if scripts.write(path, text) else None


_HEAD = """\
# {failure}
{environment}
import torch

import magneto

"""

_REPLAY = """
import os

magneto.install()
magneto.config.disk_cache = False
torch._dynamo.replay(os.path.join(os.path.dirname(os.path.abspath(__file__)), {file!r}))
"""

_COMPARED = """
import os

from magneto._debug.record import minify

magneto.install()
magneto.config.disk_cache = False
at = os.path.join(os.path.dirname(os.path.abspath(__file__)), "").__add__
minify.show(at({file!r}), {compares}{before})
"""


def _shows(case: Case, path: Path) -> bool:
    """Whether the script fails as the whole did."""
    from magneto._debug.record import minify

    outcome = case.run(lambda: runpy.run_path(str(path), run_name="__main__") and None)
    if case.first[0] == "difference":
        return outcome.type == "magneto.exc.AccuracyError"
    if case.first[0] == "failure":
        return outcome.type == "magneto.exc.FailedFallback"
    return minify.signature(outcome) == case.first


def _plain(case: Case, read: container.Record) -> str:
    """A script without a file beside it."""
    from magneto._debug.record import minify

    call = replay.rebuild(read)
    writer = _Writer(read)
    name = writer.function(call.function)
    backend = call.options.get("backend", "magneto")
    choice = repr(backend) if isinstance(backend, str) else writer.value(backend, "backend")
    arguments = [writer.value(x, f"argument {i}") for i, x in enumerate(call.args_of_function())]
    named = [f"{key}={writer.value(x, key)}" for key, x in call.kwargs.items()]
    options = {"fullgraph": call.options["fullgraph"], "dynamic": call.options["dynamic"]}
    given = "".join(f", {key}={value!r}" for key, value in options.items() if value is not None and value is not False)
    compiled = f"magneto.compile({name}, backend={choice}{given})"
    before = [_arguments_text(writer, replay.rebuild(minify.given_as(read, earlier))) for earlier in case.before]
    parts = [
        _HEAD.format(failure=case.text, environment=scripts.environment()),
        *_state_lines(read),
        *writer.lines,
        f"\nargs = [{', '.join(arguments)}]\n",
    ]
    if before:
        parts += [f"compiled = {compiled}\n", *(f"compiled({given})  # comes first\n" for given in before)]
        compiled = "compiled"
    if case.first[0] == "difference":
        if named:
            raise _NoText
        parts.append(_DIFFERENCE.format(name=name, compiled=compiled))
    else:
        if case.first[0] == "failure":
            parts.append("magneto.config.strict = True  # what is a warning else\n")
        parts.append(f"{compiled}({', '.join(['*args', *named])})\n")
    return "".join(parts)


def _arguments_text(writer: _Writer, call: replay.Call) -> str:
    given = [writer.value(x, f"argument {i}") for i, x in enumerate(call.args_of_function())]
    return ", ".join([*given, *(f"{key}={writer.value(x, key)}" for key, x in call.kwargs.items())])


_DIFFERENCE = """
from magneto._debug import same

found = same.differences({name}, {compiled}, args, use_fp64=False)
if found:
    raise magneto.exc.AccuracyError("; ".join(map(str, found)))
"""


def _state_lines(read: container.Record) -> Iterator[str]:
    state = read.data["state"]
    if any(how["enabled"] for how in state["autocast"].values()) or state["inference_mode"]:
        raise _NoText
    for name, value in {**read.data["settings"], "disk_cache": False}.items():
        yield f"magneto.config.{name} = {value!r}\n"
    if state["default_dtype"] != "float32":
        yield f"torch.set_default_dtype(torch.{state['default_dtype']})\n"
    if state["default_device"] != "cpu":
        yield f"torch.set_default_device({state['default_device']!r})\n"
    if state["deterministic"]:
        yield f"torch.use_deterministic_algorithms(True, warn_only={state['deterministic_warn_only']})\n"
    if not state["grad_mode"]:
        yield "torch.set_grad_enabled(False)\n"
    yield "torch.manual_seed(0)\n"


class _Writer:
    """Lines that define functions and what they read."""

    def __init__(self, read: container.Record) -> None:
        self.lines: list[str] = []
        self._read = read
        self._texts = {
            (row["code"]["qualname"], row["code"]["line"]): _function_text(read, row)
            for row in read.data["objects"]
            if row.get("kind") == "function"
        }
        self._names: dict[str, Any] = {}

    def function(self, function: types.FunctionType) -> str:
        """Defines it; gives its name."""
        name = function.__code__.co_name
        text = self._texts.get((function.__code__.co_qualname, function.__code__.co_firstlineno), "")
        if not text or "super()" in text:
            raise _NoText(name)
        if self._names.get(name) is function:
            return name
        self._bind(name, function)
        around = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        for key, cell in around.items():
            self._define(key, cell.cell_contents)
        for key in sources.globals_read(function.__code__):
            if key in function.__globals__:
                self._define(key, function.__globals__[key])
        self.lines.append(f"\n\n{text}\n")
        return name

    def _bind(self, name: str, value: Any) -> None:
        if name in self._names and self._names[name] is not value:
            raise _NoText(f"two values of {name}")
        self._names[name] = value

    def _define(self, name: str, value: Any) -> None:
        if name in self._names and self._names[name] is value:
            return
        if isinstance(value, types.FunctionType) and sources.name_of(value) is None:
            defined = self.function(value)
            if defined != name:
                self._bind(name, value)
                self.lines.append(f"{name} = {defined}\n")
            return
        self._bind(name, value)
        if isinstance(value, types.ModuleType):
            own = value.__name__
            if name != own or own not in ("torch", "magneto"):
                self.lines.append(f"import {own} as {name}\n" if name != own else f"import {own}\n")
            return
        self.lines.append(f"{name} = {self.value(value, name)}\n")

    def value(self, x: Any, where: str) -> str:
        """An expression for a value."""
        if x is None or x is ... or type(x) in (bool, int, str, bytes):
            return repr(x)
        if type(x) is float:
            return repr(x) if math.isfinite(x) else f"float({str(x)!r})"
        if type(x) in (list, tuple, set) and (x or type(x) is not set):
            items = [self.value(item, where) for item in x]
            opening, closing = next(pair for kind, pair in _BRACKETS if type(x) is kind)
            return f"{opening}{', '.join(items)}{',' if type(x) is tuple and len(x) == 1 else ''}{closing}"
        if type(x) is dict:
            return "{" + ", ".join(f"{self.value(k, where)}: {self.value(v, where)}" for k, v in x.items()) + "}"
        if isinstance(x, (torch.dtype, torch.memory_format, torch.layout)):
            return str(x)
        if isinstance(x, torch.device):
            return f"torch.device({str(x)!r})"
        if isinstance(x, torch.Tensor):
            return _tensor(x)
        if isinstance(x, types.FunctionType) and sources.name_of(x) is None:
            return self.function(x)
        named = sources.name_of(x) if callable(x) else None
        if named is None:
            raise _NoText(where)
        if f"import {named[0]}\n" not in self.lines and named[0] not in ("torch", "builtins"):
            self.lines.append(f"import {named[0]}\n")
        return named[1] if named[0] == "builtins" else ".".join(named)


_BRACKETS: tuple[tuple[type, tuple[str, str]], ...] = ((list, ("[", "]")), (tuple, ("(", ")")), (set, ("{", "}")))


def _tensor(x: torch.Tensor) -> str:
    if type(x) not in (torch.Tensor, torch.nn.Parameter) or x.device.type != "cpu" or not x.is_leaf or x.is_conj():
        raise _NoText
    grad = ".requires_grad_()" if x.requires_grad else ""
    plain = x.detach()
    if plain.numel() <= scripts.FEW and plain.is_contiguous():
        text = str(plain.tolist()).replace("nan", "float('nan')").replace("inf", "float('inf')")
        return f"torch.tensor({text}, dtype={plain.dtype}){grad}"
    if not plain.is_floating_point():
        raise _NoText
    if plain.is_contiguous():
        return f"torch.randn({tuple(plain.shape)}).to({plain.dtype}){grad}"
    return f"torch._dynamo.testing.rand_strided({tuple(plain.shape)}, {plain.stride()}, {plain.dtype}){grad}"


__all__ = ["functions_text", "write"]
