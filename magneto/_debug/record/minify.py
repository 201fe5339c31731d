"""The minifier of programs: from a recorded frame to the shortest function that still shows the failure.

First down the calls: where a function that the frame calls fails in the same way by itself, it takes the frame's place.
Then its statements and those of what it calls (reduce.py), then its parameters. Candidates run in forked children
(children.py). What is written is a script, and the record that it came from where values have no text.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from magneto import _C, _log, config, exc
from magneto._debug import children, findings, record, same, scripts
from magneto._debug.record import called, container, reduce, replay, script, sources, state
from magneto._debug.record.described import described

_MOST_CALLS = 60  # of one function that are tried by themselves
_MOST_SECONDS = 120.0  # for that
# What is compared with eager.
NOTHING, FORWARD, BACKWARD = range(3)


@dataclass
class Case:
    """What is asked of each candidate: whether it fails as the whole did."""

    first: tuple[str, ...] = ()
    text: str = ""
    limit: float = 0.0
    asked: int = 0
    compares: int = 0
    before: list[container.Record] = field(default_factory=list)  # calls that come first, of the same function

    def begin(self, read: container.Record) -> bool:
        """The attempt with the whole frame; whether it fails, other than the program does by itself."""
        self.limit = float(config.repro_seconds)
        for self.compares in (FORWARD, BACKWARD):
            outcome = self.run(lambda: attempt(read, self.compares, self.before))
            self.first, self.text = signature(outcome), _words(outcome)
            if self.first:
                break
        if self.first and self.first[0] != "difference":
            self.compares = NOTHING
        self.limit = min(self.limit, max(2.0, 10 * outcome.seconds))
        return bool(self.first)

    def run(self, what: Callable[[], Any]) -> children.Outcome:
        """One attempt in a child."""
        self.asked += 1
        return children.run(what, self.limit, children.available_mb())

    def fails(self, read: container.Record) -> bool:
        """Whether a candidate fails as the whole did."""
        return signature(self.run(lambda: attempt(read, self.compares, self.before))) == self.first

    def fails_live(self, function: types.FunctionType, arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """The same of a call that is about to be made."""
        return signature(self.run(lambda: attempt_live(function, arguments, options, self.compares))) == self.first


def attempt_live(
    function: types.FunctionType, arguments: tuple[Any, ...], options: dict[str, Any], compares: int
) -> dict[str, Any]:
    """Captures and runs a call in the process as it is; to be compared with eager, on copies of what it is given."""
    if not compares:
        call = replay.call_of(function, list(arguments), options)
        return attempt_call(call, lambda: call, None, {}, compares)
    with record._deep_recursion():
        made = record.record_of(function, arguments, options)
    return attempt_call(replay.rebuild(made), lambda: replay.rebuild(made), None, {}, compares)


def attempt(read: container.Record, compares: int, before: Sequence[container.Record] = ()) -> dict[str, Any]:
    """Captures and runs a frame, and compares with what eager gives."""
    call = replay.rebuild(read)
    first = [replay.rebuild(given_as(read, earlier)) for earlier in before]
    return attempt_call(call, lambda: replay.rebuild(read), read.data["state"], read.data["settings"], compares, first)


def given_as(read: container.Record, earlier: container.Record) -> container.Record:
    """An earlier call of what is now left of the function."""
    names = {name for name, _ in read.data["frame"]["arguments"]}
    kept = [pair for pair in earlier.data["frame"]["arguments"] if pair[0] in names]
    data = {**earlier.data, "sources": read.data["sources"], "frame": {**earlier.data["frame"], "arguments": kept}}
    return container.Record(data, earlier.blobs, earlier.path)


def show(file: str, compares: int, *before: str) -> None:
    """What a script does that has a record beside it: raises where the call does not do what eager does. `before`:
    records of calls that come first."""
    found = attempt(container.read(file), compares, [container.read(one) for one in before]).get("difference")
    if found:
        raise exc.AccuracyError(f"the compiled call does not do what eager does: {found[0]}")


def attempt_call(
    call: replay.Call,
    again: Callable[[], replay.Call],
    process: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
    compares: int,
    before: Sequence[replay.Call] = (),
) -> dict[str, Any]:
    """The same of a call. `again`: makes it anew, for eager; `process`: None: as it is; `before`: what the same
    compiled function is called with first."""
    process = state.capture() if process is None else process
    with state.applied(process, {**settings, "disk_cache": False, "debug_dump": False}), record.listening() as failures:
        try:
            compiled = call.compiled()
            for earlier in before:
                compiled(*earlier.args, **earlier.kwargs)
            value = compiled(*call.args, **call.kwargs)
        except Exception as error:
            if _raises_alike(again, error):
                return {}
            raise
        if failures.found:
            return {"failure": failures.found[-1].text}
        got = _left(call, value, compares) if compares else {}
    if not compares:
        return {}
    with state.applied(process, settings):
        other = again()
        want = _left(other, other.subject(*other.args, **other.kwargs), compares)
    return {"difference": [found.kind for found in _compare(want, got)]}


def _raises_alike(again: Callable[[], replay.Call], error: Exception) -> bool:
    """Eager raises the same: that is the program's own error."""
    if isinstance(error, exc.MagnetoError) and not isinstance(error, exc.BackendCompilerFailed):
        return False
    try:
        call = again()
        call.subject(*call.args, **call.kwargs)
    except Exception as own:
        return children.of_exception(own).is_like(children.of_exception(error))
    return False


def _left(call: replay.Call, value: Any, compares: int) -> dict[str, Any]:
    """What a call leaves behind: tensors and gradients by name, and the rest as text."""
    found = {f"result {i}": x for i, x in enumerate(same.tensors(value))}
    losses = [same._loss(x) for x in found.values() if x.requires_grad and x.numel()]
    if losses and compares == BACKWARD:
        torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
    given = [call.args, call.kwargs, getattr(call.subject, "__self__", call.subject)]
    for i, x in enumerate(same.tensors([call.args, call.kwargs])):
        found[f"argument {i}"] = x
        if x.is_leaf and x.grad is not None:
            found[f"gradient of argument {i}"] = x.grad
    for module in given_modules(call):
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                found.setdefault(f"gradient of {name}", parameter.grad)
    rest = described([value, *given])
    return {"tensors": {name: x.detach() for name, x in found.items()}, "rest": rest}


def given_modules(call: replay.Call) -> list[torch.nn.Module]:
    """Those that the call is of, is given, or reads around it."""
    function = call.function
    around = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
    around += [function.__globals__.get(name) for name in sources.globals_read(function.__code__)]
    given = [getattr(call.subject, "__self__", call.subject), *call.args, *call.kwargs.values(), *around]
    return [one for one in given if isinstance(one, torch.nn.Module)]


def _compare(want: dict[str, Any], got: dict[str, Any]) -> list[same.Difference]:
    found = same.compare(want["tensors"], got["tensors"], None, tolerance=config.repro_tolerance)
    if not found and want["rest"] != got["rest"]:
        found.append(same.Difference("the objects that it leaves", same.STRUCTURE, "they differ"))
    return found


def signature(outcome: children.Outcome) -> tuple[str, ...]:
    """What two attempts with one failure have in common: no places, no names of functions. Empty: it did not fail."""
    if outcome.kind == children.OK:
        said = outcome.result or {}
        if said.get("difference"):
            return ("difference", "structure" if said["difference"][0] == same.STRUCTURE else "values")
        return ("failure", _bare(said["failure"])) if "failure" in said else ()
    return (outcome.kind, outcome.type, _bare(outcome.text))


def _bare(text: str) -> str:
    """Without what says where."""
    lines = text.partition("User code traceback:")[0].splitlines()
    lines = [
        line for line in lines if not line.startswith(("Graph break in user code at", "Magneto could not capture"))
    ]
    return children._bare("\n".join(lines))


def _words(outcome: children.Outcome) -> str:
    if outcome.kind != children.OK:
        return " ".join(str(outcome).partition("User code traceback:")[0].split())[:200]
    said = outcome.result or {}
    if said.get("difference"):
        return f"the compiled program does not do what eager does: {said['difference'][0]}"
    return str(said.get("failure", "")).partition("\n")[0]


# -- down the calls


def descend(case: Case, read: container.Record) -> container.Record | None:
    """A record of a call that the frame makes, and that fails in the same way by itself. None: there is none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "inner.rec"
        outcome = children.run(lambda: _search(case, read, path), _MOST_SECONDS, children.available_mb())
        case.asked = outcome.result or case.asked
        return container.read(path) if path.exists() else None


def _search(case: Case, read: container.Record, path: Path) -> int:
    """In a child: runs the frame eagerly, and tries each call of a Python function in a child of its own. How many
    attempts there were by then."""
    call = replay.rebuild(read)
    function = call.function
    options = {name: x for name, x in call.options.items() if name != "name"}
    tried: set[types.CodeType] = set()
    inside: list[types.FrameType] = []  # a call that does not fail: nor do those that it makes

    def watch(frame: types.FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if inside and frame is inside[0] and event == "return":
            inside.clear()
        if event != "call" or inside or code is function.__code__ or code in tried or len(tried) > _MOST_CALLS:
            return
        if not called.is_the_program_s(code) or code.co_name == "<lambda>":
            return
        tried.add(code)
        found = _C.function_of(frame)
        sys.setprofile(None)
        try:
            arguments = called.arguments_of(frame)
            if case.fails_live(found, arguments, options):
                inner = called.record_of(found, arguments, options)
                if inner is not None and case.fails(inner):
                    container.write(path, inner)
                    raise _Found
            else:
                inside.append(frame)
        finally:
            sys.setprofile(watch)

    with state.applied(read.data["state"], read.data["settings"]):
        sys.setprofile(watch)
        try:
            call.subject(*call.args, **call.kwargs)
        except BaseException:
            sys.setprofile(None)
        finally:
            sys.setprofile(None)
    return case.asked


class _Found(BaseException):
    pass


# -- statements and parameters


def with_text(read: container.Record, file: str, text: str) -> container.Record:
    """The record with another text of a file."""
    return container.Record({**read.data, "sources": {**read.data["sources"], file: text}}, read.blobs, read.path)


def _functions(read: container.Record) -> Iterator[dict[str, Any]]:
    """The recorded functions, the frame's first."""
    first = read.data["objects"][read.data["frame"]["function"]]
    rows = [first, *(row for row in read.data["objects"] if row is not first)]
    for row in rows:
        if row.get("kind") == "function" and row["code"]["qualname"].rpartition(".")[2] != "<lambda>":
            yield row


def reduce_statements(case: Case, read: container.Record) -> container.Record:
    """Each function without what the failure does not need."""
    for row in list(_functions(read)):
        read = _reduce_function(case, read, row["code"])
    return read


def _reduce_function(case: Case, read: container.Record, place: dict[str, Any]) -> container.Record:
    file = place["file"]

    def fails(text: str) -> bool:
        return case.fails(with_text(read, file, text))

    name = place["qualname"].rpartition(".")[2]
    reducer = reduce.Reducer(read.data["sources"][file], name, place["line"], fails)
    reducer.run()
    return with_text(read, file, reducer.text)


def without_parameters(case: Case, read: container.Record) -> container.Record:
    """The frame's function without the parameters that it does not read."""
    row = read.data["objects"][read.data["frame"]["function"]]
    place = row.get("code")
    if place is None:
        return read
    name, text = place["qualname"].rpartition(".")[2], read.data["sources"][place["file"]]
    unused = set(reduce.unused_parameters(text, name, place["line"]))
    shorter = reduce.with_parameters(text, name, place["line"], unused)
    if shorter is None:
        return read
    smaller = with_text(read, place["file"], shorter)
    kept = [[key, made] for key, made in read.data["frame"]["arguments"] if key not in unused]
    smaller.data["frame"] = {**read.data["frame"], "arguments": kept}
    objects = list(read.data["objects"])
    objects[read.data["frame"]["function"]] = {**row, "defaults": [], "kwdefaults": {}}
    smaller.data["objects"] = objects
    return smaller if case.fails(smaller) else read


def tidy(read: container.Record) -> container.Record:
    """The record anew, with what is still needed alone."""
    call = replay.rebuild(read)
    with state.applied(read.data["state"], read.data["settings"]):
        made = record.record_of(call.function, tuple(call.given), call.options, own=True)
    made.data.update(state=read.data["state"], settings=read.data["settings"], failure=read.data["failure"])
    return container.from_bytes(container.to_bytes(made))


@dataclass
class Minified:
    """What was found: `print` it. `script` is empty if nothing fails."""

    failure: str = ""
    function: str = ""
    script: str = ""
    lines_before: int = 0
    lines: int = 0
    attempts: int = 0
    seconds: float = 0.0
    record: container.Record | None = field(default=None, repr=False)

    def __str__(self) -> str:
        if not self.failure:
            return "The compiled program does what eager does: there is nothing to reduce."
        before = f"{self.lines_before} lines " if self.lines_before else ""
        how = f"reduced {before}to {self.lines} lines in {self.seconds:.1f} s, {self.attempts} attempts:"
        written = f"\n{self.script} shows it." if self.script else ""
        return f"{self.failure}\n{how}\n\n{self.function}{written}"


def minify(read: container.Record, out: Path, before: Sequence[container.Record] = ()) -> Minified:
    """Reduces a recorded frame, and writes the script `out`."""
    start = time.perf_counter()
    case = Case(before=list(before))
    if not case.begin(read):
        return Minified(attempts=case.asked)
    lines = sum(bool(line.strip()) for text in read.data["sources"].values() for line in text.splitlines())
    whole = script.functions_text(read)
    for _ in range(20):
        inner = None if before else descend(case, read)
        if inner is not None:
            read = inner
            continue
        smaller = without_parameters(case, reduce_statements(case, read))
        if smaller.data["sources"] == read.data["sources"]:
            break
        read = smaller
        if before:  # whose records are of the same places
            continue
        with contextlib.suppress(Exception):
            pruned = tidy(read)
            read = pruned if case.fails(pruned) else read
    found = Minified(failure=case.text, record=read, lines_before=lines)
    found.function = script.functions_text(read)
    found.lines = sum(bool(line.strip()) for line in found.function.splitlines())
    path = script.write(case, read, out)
    found.script = str(path or "")
    found.attempts, found.seconds = case.asked, time.perf_counter() - start
    counts = (lines, found.lines)
    findings.tell(findings.minified("program", whole, found.function, counts, found.failure, found.seconds))
    return found


def minify_call(
    fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: str, before: Sequence[Sequence[Any]] = ()
) -> Minified:
    """Of a call: records it, and reduces it."""
    read = record_call(fn, args, kwargs)
    earlier = [record_call(fn, tuple(given), kwargs) for given in before]
    path = Path(out) if out else scripts.folder() / "repro.py"
    found = minify(read, path, earlier)
    _log.announce(str(found).partition("\n\n")[0] + (f" {found.script}" if found.script else ""))
    return found


def record_call(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> container.Record:
    """The record of a call that has not been made. `fn`: compiled, or to be compiled as by default."""
    import inspect

    from magneto import _C, _api, _arguments
    from magneto._module import OptimizedModule

    original = _api._original(fn)
    if isinstance(fn, OptimizedModule):
        options = fn._core_options
    elif isinstance(fn, _C.CompiledFunction):
        compiled: Any = fn
        options = compiled.__reduce__()[1][1]
    else:
        options = _arguments.core_options()
    function: Any = original
    if isinstance(original, torch.nn.Module):
        function, args = torch.nn.Module.__call__, (original, *args)
    elif isinstance(original, types.MethodType):
        function, args = original.__func__, (original.__self__, *args)
    if not isinstance(function, types.FunctionType):
        raise exc.InvalidValue(f"minify takes a function, a method or a module, not {type(fn).__name__}")
    bound = inspect.Signature.from_callable(function, follow_wrapped=False).bind(*args, **kwargs)
    bound.apply_defaults()
    given = tuple(bound.arguments[name] for name in called.parameters_of(function.__code__))
    try:
        return called.made_record(function, given, dict(options))
    except record.Refused as refused:
        raise exc.InvalidRecord(f"The call can't be recorded: {refused}. Make that where it is used.") from None


def main(arguments: list[str]) -> int:
    """`python -m magneto minify FILE.rec [-o repro.py]`. Exit status: 0 a script was written, 1 the failure does not
    show, 2 the record can't be replayed."""
    out = "repro.py"
    files = [argument for argument in arguments if argument != "--program"]
    if "-o" in files[:-1]:
        at = files.index("-o")
        out = files[at + 1]
        del files[at : at + 2]
    if len(files) != 1 or files[0].startswith("-"):
        print("usage: python -m magneto minify [--program] FILE.rec [-o repro.py]", file=sys.stderr)
        return 2
    from magneto._debug.record import show

    try:
        read = container.read(files[0])
        print(show.what_runs(read), file=sys.stderr)
        found = minify(read, Path(out))
    except exc.InvalidRecord as error:
        print(f"python -m magneto minify: {error}", file=sys.stderr)
        return 2
    if not found.failure:
        print(f"{read.path}: the failure does not show here. Nothing was written.", file=sys.stderr)
        return 1
    print(found)
    return 0 if found.script else 1
