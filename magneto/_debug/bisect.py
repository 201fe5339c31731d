"""What is at fault: the program under each backend and setting, then halves of graphs, passes and kernels.

Each run is a child process (children.py) of the process as it is now, so nothing is changed by it. The core numbers
graphs, passes and kernels and leaves out what is above a limit (src/observe/limits.h).
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from magneto import _C, _files, _log, _text_table, config, exc
from magneto._debug import children, findings, inner, same, scripts, speed
from magneto._debug.children import Outcome
from magneto._debug.record.described import described

MINIFIES = 20  # times as long as others may a run take that minifies: it tries many candidates


@dataclass(frozen=True)
class Variant:
    """One way to run the program."""

    name: str
    backend: str | None = "magneto"  # for all that is compiled; "": what the program says; None: nothing is compiled
    settings: Mapping[str, Any] = field(default_factory=dict)
    anew: bool = False  # calls that come first are made eagerly: nothing is there that could be used again
    threads: int = 1  # more than one only in processes that have not computed before

    @property
    def patience(self) -> int:
        """How many times as long as others it may run."""
        return MINIFIES if self.settings.get("repro_after") else 1

    def with_settings(self, **settings: Any) -> Variant:
        """The same with other settings."""
        return replace(self, settings={**self.settings, **settings})


EAGER = Variant("eager", None)
CAPTURED = Variant('backend "eager"', "eager")
ANEW = replace(CAPTURED, anew=True)
OPERATORS = Variant('backend "aot_eager"', "aot_eager")
NORMAL_FORM = Variant('"aot_eager_decomp_partition"', "aot_eager_decomp_partition", {"disk_cache": False})
INTERPRETED = Variant('backend "interpreter"', "interpreter", {"disk_cache": False})
GENERATED = Variant('backend "inductor"', settings={"disk_cache": False})
DEFAULT = Variant("as the program says", "", {"disk_cache": False})

# The stages of a compile in order: the first that fails is at fault.
STAGES = (
    (CAPTURED, "capture", "the bytecode interpreter, guards, or writes that are replayed"),
    (OPERATORS, "autograd", "the ATen operators that were recorded, or their gradients"),
    (NORMAL_FORM, "passes", "a pass over the graph (docs/passes.md)"),
    (INTERPRETED, "lowering", "tensor expressions, fusion, or the plan of memory"),
    (GENERATED, "code generation", "machine code of a kernel"),
    (DEFAULT, "backend", "the program's own backend or options"),
)
# What else a failure may depend on.
OTHERS = {
    "with the cache on disk": Variant("with the cache on disk", settings={"disk_cache": True}),
    "dynamic sizes always": DEFAULT.with_settings(assume_static_by_default=False),
    "dynamic sizes never": DEFAULT.with_settings(automatic_dynamic_shapes=False),
    "deterministic": DEFAULT.with_settings(deterministic=True),
    "no joint graph": DEFAULT.with_settings(joint_graph=False),
}

Run = Callable[[Variant], Outcome]


@contextlib.contextmanager
def sharing_kernels(run: Run) -> Iterator[Run]:
    """Runs differ in few kernels: those without the cache on disk get one of their own, which is empty at first."""
    from magneto._debug import minify

    with tempfile.TemporaryDirectory() as folder:

        def shared(variant: Variant) -> Outcome:
            if variant.settings.get("disk_cache") is False and variant != DEFAULT:
                variant = variant.with_settings(disk_cache=True, disk_cache_dir=folder)
            return run(variant)

        minify.shared_kernels = folder
        try:
            yield shared
        finally:
            minify.shared_kernels = ""


Stage = tuple[Variant, str, str]
_MOST_GUARDS = 4  # are named


# What speed.py measures -> in front of its sentences.
_MEASURED = {
    "speed": "Slower than eager:",
    "unjudged": "Speed is not compared with eager's:",
    "memory": "Memory:",
}


@dataclass
class Row:
    """A variant and how it ended."""

    name: str
    outcome: Outcome
    verdict: str

    @property
    def bad(self) -> bool:
        """It is not what eager does."""
        return _is_bad(self.outcome)


@dataclass
class Diagnosis:
    """What was found: `print` it. `stage` is empty if the compiled program does as eager does."""

    rows: list[Row] = field(default_factory=list)
    stage: str = ""
    what: str = ""  # of the stage, in words
    failure: str = ""
    function: str = ""
    graph: str = ""
    pass_name: str = ""
    kernel: str = ""
    guard: str = ""
    value: str = ""  # the first that is wrong
    script: str = ""
    seconds: float = 0.0
    runs: int = 0
    measured: dict[str, list[str]] = field(default_factory=dict)  # key of _MEASURED -> sentences, where all is right
    findings: list[findings.Finding] = field(default_factory=list, repr=False)  # for the report and TORCH_TRACE

    def named(self) -> dict[str, str]:
        """What is said of the fault."""
        return {
            "failure": self.failure,
            "value": self.value,
            "function": self.function,
            "graph": self.graph,
            "pass": self.pass_name,
            "kernel": self.kernel,
            "guard": self.guard,
            "script": self.script,
        }

    def told(self) -> Diagnosis:
        """Itself, with the table as its first finding; all are in the log."""
        self.findings.insert(0, findings.ablation(self))
        for finding in self.findings:
            findings.tell(finding)
        return self

    def __str__(self) -> str:
        table = _text_table.plain(
            ("Run", "Result", "Seconds"), [(row.name, row.verdict, f"{row.outcome.seconds:.2f}") for row in self.rows]
        )
        lines = [*(line.removeprefix("# ") for line in scripts.environment().splitlines()), "", *table, ""]
        if not self.stage:
            lines.append("The compiled program does what eager does.")
            for key, title in _MEASURED.items():
                if texts := self.measured.get(key):
                    lines += [title, *(f"  {text}" for text in texts)]
        else:
            lines.append(f"At fault: {self.stage}{f' ({self.what})' if self.what else ''}")
            lines += [f"  {name + ':':10}{text}" for name, text in self.named().items() if text]
        lines.append(f"{self.runs} runs, {self.seconds:.1f} s")
        return "\n".join(lines)


class Bisection:
    """Runs variants, remembers how they ended, and narrows down."""

    def __init__(
        self,
        run: Run,
        guards: Callable[[], str] | None = None,
        stages: Sequence[Stage] = STAGES,
        calls: Callable[[], Mapping[str, Sequence[str]]] = dict,
        others: Mapping[str, Variant] | None = None,
    ) -> None:
        """`guards`: where there are earlier calls: which guards of this one are none of theirs. `calls`: which
        functions of the program call which (inner.py). `others`: runs for the table alone."""
        self._stages = stages
        self._others = OTHERS if others is None else others
        self._calls = calls
        self._run = run
        self._guards = guards
        self.found = Diagnosis()

    def diagnose(self) -> Diagnosis:
        """All of it."""
        start = time.perf_counter()
        try:
            self._diagnose()
        finally:
            self.found.seconds = time.perf_counter() - start
        return self.found

    def _diagnose(self) -> None:
        eager = self._try(EAGER, EAGER.name)
        if not eager.failed and (why := eager.result.get("unkept")):
            raise OSError(f"what the eager run gives can't be kept: {why}. Set TMPDIR to a folder with room.")
        if eager.failed:
            self.found.stage = "the program itself"
            self.found.failure = str(eager)
            return
        outcomes = [(stage, self._try(stage[0], stage[0].name)) for stage in self._stages]
        for name, variant in self._others.items():
            self._try(variant, name)
        default = outcomes[-1][1]
        if not _is_bad(default):
            bad = next((row for row in self.found.rows if _is_bad(row.outcome)), None)
            if bad is not None:
                self.found.stage = bad.name
                self._note(bad.outcome)
            return
        (variant, self.found.stage, self.found.what), outcome = next(pair for pair in outcomes if _is_bad(pair[1]))
        self._note(outcome)
        if self.found.stage in ("passes", "lowering", "code generation"):
            self._find_graph(variant, outcome)
            return
        if self.found.stage == "capture" and self._guards is not None and not _is_bad(self._ask(ANEW)):
            self.found.stage, self.found.what = (
                "guards",
                "a capture of an earlier call is used that is not for this one",
            )
            self.found.guard = self._guards()
        self._find_function(variant)

    def _note(self, outcome: Outcome) -> None:
        """How it failed, and its first wrong value."""
        self.found.failure = _failure(outcome)
        if not outcome.failed and (first := outcome.result.get("first")):
            finding = findings.wrong(f"stage {self.found.stage}", [first])
            self.found.findings.append({**finding, "others": len(outcome.result["differences"]) - 1})
            self.found.value = findings.value_text(finding)

    def _try(self, variant: Variant, name: str) -> Outcome:
        outcome = self._ask(variant)
        self.found.rows.append(Row(name, outcome, "ok" if not _is_bad(outcome) else _failure(outcome)[:100]))
        return outcome

    def _ask(self, variant: Variant) -> Outcome:
        self.found.runs += 1
        return self._run(variant)

    def _numbers(self, variant: Variant) -> dict[str, list[str]]:
        """What has a number in a run that ends well enough to tell."""
        outcome = self._ask(variant)
        return (outcome.result or {}).get("numbers") or {"graph": [], "pass": [], "kernel": [], "function": []}

    def _find_function(self, variant: Variant) -> None:
        """The one function that fails when only it is captured."""
        for name in dict.fromkeys(self._numbers(CAPTURED)["function"]):
            if self._fails_alone(variant, name):
                self.found.function = self._innermost(variant, name)
                return

    def _fails_alone(self, variant: Variant, name: str) -> bool:
        return _is_bad(self._ask(variant.with_settings(debug_function=name.partition(" ")[0])))

    def _innermost(self, variant: Variant, outer: str) -> str:
        """Of what the function calls, and a capture of it inlines: the innermost function that fails alone."""
        calls, function = self._calls(), outer.rpartition(":")[0]
        start = next((name for name in calls if name.rpartition(":")[0] == function), "")
        at, asked = start, {start}
        while len(asked) <= _MOST_CALLED:
            called = [name for name in calls.get(at, ()) if name not in asked][:_MOST_CALLED]
            asked.update(called)
            found = next((name for name in called if self._fails_alone(variant, name)), None)
            if found is None:
                break
            at = found
        return outer if at == start else f"{at}, which {outer} calls"

    def _find_graph(self, variant: Variant, outcome: Outcome) -> None:
        """`outcome`: of the variant, which fails. Where it ended well enough to tell, all names are known from it."""
        known = (outcome.result or {}).get("numbers") or {}
        last, self.found.graph = self._find(variant, "graph", known)
        if last is None:
            return
        within = variant.with_settings(graph_limit=last)
        if self.found.stage == "passes":
            _, self.found.pass_name = self._find(within, "pass", known)
        elif self.found.stage == "code generation":
            _, self.found.kernel = self._find(within, "kernel", known)
            self.found.function = self._function_of_kernel(variant)

    def _function_of_kernel(self, variant: Variant) -> str:
        """Of the functions whose operators the kernel computes, the first that fails alone; else all of them."""
        names = list(dict.fromkeys(re.findall(r":\d+ in ([^\s,]+)", self.found.kernel)))
        if 1 < len(names) <= _MOST_CALLED:
            names = [next((name for name in names if self._fails_alone(variant, name)), ", ".join(names))]
        return ", ".join(names)

    def _find(self, variant: Variant, kind: str, known: dict[str, list[str]]) -> tuple[int | None, str]:
        """The number and name of what brings the fault in."""
        setting = f"{kind}_limit"
        number = self._first_bad(variant, setting, len(known.get(kind, ())))
        if number is None:
            return None, ""
        # What is above the limit is numbered as well: the last run that ends well has all names.
        names = known.get(kind) or self._numbers(variant.with_settings(**{setting: number - 1}))[kind]
        return number, _name(names, number)

    def _first_bad(self, variant: Variant, setting: str, count: int) -> int | None:
        """The lowest limit at which it fails; None: it fails, or does not, whatever the limit is. `count`: how many
        there are; 0: nobody knows."""
        if _is_bad(self._ask(variant.with_settings(**{setting: 0}))):
            return None
        good, bad = 0, count or 1
        while not count and not _is_bad(self._ask(variant.with_settings(**{setting: bad}))):
            good, bad = bad, bad * 4
            if bad > _MOST:
                return None
        while bad - good > 1:
            middle = (good + bad) // 2
            if _is_bad(self._ask(variant.with_settings(**{setting: middle}))):
                bad = middle
            else:
                good = middle
        return bad


_MOST = 1 << 20  # graphs, passes, kernels
_MOST_CALLED = 32  # functions that are tried alone


def _name(names: Sequence[str], number: int) -> str:
    text = names[number - 1] if number <= len(names) else "?"
    return f"number {number}, {text}"


def _is_bad(outcome: Outcome) -> bool:
    return outcome.failed or bool((outcome.result or {}).get("differences"))


def _failure(outcome: Outcome) -> str:
    if outcome.failed:
        lines = str(outcome).splitlines()
        return next((line for line in lines if line.startswith("internal error")), lines[0])
    return str(outcome.result["differences"][0]) if _is_bad(outcome) else ""


# -- what a child does


def apply(variant: Variant) -> None:
    """Makes the process, a child, run as the variant says."""
    import magneto

    magneto.reset()
    # An error of Magneto's own is one here, no fallback to CPython.
    for name, value in {"repro_after": "", "strict": True, **variant.settings}.items():
        setattr(config, name, value)
    if variant.backend is None:
        _C.set_disabled(True)
    elif variant.backend:
        _C.force_backend(variant.backend)
    _C.record_numbers(True)


def numbers() -> dict[str, list[str]]:
    """What the core has numbered, and the functions that were captured."""
    from magneto import _history

    functions = [f"{row.function} ({row.file}:{row.line})" for row in _history.rows("capture")]
    return {**_C.numbered(), "function": functions}


def differing(found: Sequence[same.Difference]) -> dict[str, Any]:
    """What a child says when its results have been compared with eager's."""
    first = found[0].data() if found else None
    return {"differences": [str(one) for one in found], "first": first, "numbers": numbers()}


def kept(values: Any, file: str) -> dict[str, Any]:
    """What the child of the eager run says, which writes its results down for the others."""
    try:
        _files.write_whole(Path(file), lambda out: torch.save(values, out))
    except OSError as error:
        return {"differences": [], "unkept": f"{os.path.dirname(file)}: {error.strerror}"}
    return {"differences": []}


class FunctionRuns:
    """Runs a function on arguments; results and gradients are compared with eager's, or `check` judges them."""

    def __init__(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        check: Callable[[Any], Any] | None,
        before: Sequence[Sequence[Any]] = (),
    ) -> None:
        from magneto import _api

        self._original = _api._original(fn)
        self._args, self._kwargs, self._check = list(args), dict(kwargs), check
        self._before = [list(given) for given in before]
        self._folder = tempfile.TemporaryDirectory()
        self._reference = os.path.join(self._folder.name, "eager.pt")

    def __call__(self, variant: Variant) -> Outcome:
        seconds = variant.patience * config.repro_seconds
        return children.run(lambda: self._attempt(variant), seconds, children.available_mb())

    def close(self) -> None:
        """Removes what was written."""
        self._folder.cleanup()

    def _call(self, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        return fn(*args, **self._kwargs)

    def _attempt(self, variant: Variant) -> Any:
        import magneto

        apply(variant)
        compiled = self._original if variant.backend is None else magneto.compile(self._original)
        for given in self._before:
            self._call(self._original if variant.anew else compiled, same.clone_inputs(given))
        if self._check is not None:
            good = self._check(self._call(compiled, same.clone_inputs(self._args)))
            return {"differences": [] if good or good is None else ["the check says no"], "numbers": numbers()}
        parameters = same.parameters_of(self._original)
        state = torch.get_rng_state()
        left: list[Any] = []

        def call(*args: Any) -> Any:
            value = self._call(compiled, args)
            left.extend([value, args, self._kwargs, self._original])
            return value

        got = same.results(call, self._args, parameters=parameters)
        objects = described(left)
        if variant.backend is None:
            torch.set_rng_state(state)
            return kept((got, self._exact(), objects), self._reference)
        want, exact, wanted_objects = torch.load(self._reference, weights_only=True)
        found = same.compare(want, got, exact, config.repro_ignore_non_fp, config.repro_tolerance)
        if not found and objects != wanted_objects:
            found.append(same.Difference("the objects that it leaves", same.STRUCTURE, "they differ"))
        return differing(found)

    def repeat(self) -> None:
        """Some calls, as by default."""
        import magneto

        apply(DEFAULT)
        self._repeat(magneto.compile(self._original))

    def eagerly(self) -> None:
        """The same calls without compiling anything."""
        apply(EAGER)
        self._repeat(self._original)

    def _repeat(self, fn: Callable[..., Any]) -> None:
        for _ in range(5):
            same.results(lambda *args: self._call(fn, args), self._args)

    def guards(self) -> str:
        """What a capture of the call asks for, and one of the calls before it does not."""
        outcome = children.run(self._guards_apart, config.repro_seconds, children.available_mb())
        return "; ".join(outcome.result or ())

    def calls(self) -> dict[str, list[str]]:
        """Which functions the call calls."""
        outcome = children.run(self._calls_made, config.repro_seconds, children.available_mb())
        return outcome.result or {}

    def _calls_made(self) -> dict[str, list[str]]:
        apply(EAGER)
        return inner.calls_during(lambda: self._call(self._original, same.clone_inputs(self._args)))

    def _guards_apart(self) -> list[str]:
        apply(DEFAULT)  # another backend leaves no texts
        texts = []
        for given in (*self._before, self._args):
            dumps = _C.debug_dump(self._original, tuple(same.clone_inputs(given)), self._kwargs)
            lines = [line.strip(" |+-") for dump in dumps for line in dump.get("guards", "").splitlines()]
            texts.append([line for line in lines if "(" in line or "==" in line])
        return [line for line in texts[-1] if any(line not in earlier for earlier in texts[:-1])][:_MOST_GUARDS]

    def _exact(self) -> dict[str, torch.Tensor] | None:
        """Eager in float64, or where it draws, on numbers that are a little off; None: it does not run so."""
        state = torch.get_rng_state()
        try:
            found = self._results_of(*same.cast_to_fp64(self._original, same.clone_inputs(self._args)))
            if torch.equal(state, torch.get_rng_state()):
                return found
            torch.set_rng_state(state)
            return self._results_of(*same.nudged(self._original, self._args))
        except Exception:
            return None

    def _results_of(self, model: Any, args: Sequence[Any]) -> dict[str, torch.Tensor]:
        return same.results(lambda *args: self._call(model, args), args, parameters=same.parameters_of(model))


def bisect(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    check: Callable[[Any], Any] | None = None,
    before: Sequence[Sequence[Any]] = (),
) -> Diagnosis:
    """See `magneto.bisect`."""
    runs = FunctionRuns(fn, args, kwargs or {}, check, before)
    try:
        with sharing_kernels(runs) as run:
            # A function says nothing of its backend: the last stage is the one in front of it.
            found = Bisection(run, runs.guards if before else None, STAGES[:-1], runs.calls).diagnose()
            if found.stage in ("passes", "lowering", "code generation"):
                minified(found, run)
        if not found.stage:
            found.measured = speed.report(runs.repeat, runs.eagerly, config.repro_seconds)
        if found.stage in ("capture", "guards", "autograd") and check is None:
            reduced(found, lambda: program_script(fn, args, kwargs or {}, before))
        return found.told()
    finally:
        runs.close()


def minifying(found: Diagnosis) -> dict[str, Any]:
    """Settings under which a run minifies what fails."""
    wrong = any(row.outcome.kind == children.OK and row.name == GENERATED.name for row in found.rows)
    return {"repro_after": "aot", "repro_level": 4 if wrong else 2}


def minified(found: Diagnosis, run: Run) -> None:
    """A run under the minifier: its script, and what it says of the graph."""
    reduced(found, lambda: script_of(lambda: run(DEFAULT.with_settings(**minifying(found)))))


def reduced(found: Diagnosis, minify: Callable[[], str]) -> None:
    """Has a minifier write a script, and keeps what it tells."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name, "findings")
        with findings.kept_in(file):
            found.script = minify()
        found.findings += findings.read(file)


def script_of(run: Callable[[], Outcome]) -> str:
    """A run under the minifier; where its script is."""
    try:
        folder = scripts.folder()
    except OSError as error:
        scripts.say_unwritten(Path(error.filename or config.debug_dir), error)
        return ""
    before = {file: file.stat().st_mtime_ns for file in folder.parent.parent.rglob("repro.py")}
    run()
    new = [file for file in folder.parent.parent.rglob("repro.py") if before.get(file) != file.stat().st_mtime_ns]
    return str(new[-1]) if new else ""


def program_script(
    fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], before: Sequence[Sequence[Any]] = ()
) -> str:
    """The call under the minifier of programs, where the operators are not at fault; where its script is."""
    from magneto._debug.record import minify

    try:
        return minify.minify_call(fn, tuple(args), kwargs, "", before).script
    except exc.InvalidRecord as error:
        _log.announce(f"no script can be written: {error}")
    except OSError as error:
        scripts.say_unwritten(Path(error.filename or config.debug_dir), error)
    return ""


def write_report(found: Diagnosis, command: str, folder: Path) -> Path | None:
    """A report to paste."""
    text = f"# {found.stage}: {found.failure}\n\ncommand: {command}\n\n```\n{found}\n```\n"
    if found.script:
        text += f"\nScript:\n\n```python\n{Path(found.script).read_text(encoding='utf-8')}```\n"
    path = folder / "doctor_report.md"
    return path if scripts.write(path, text) else None
