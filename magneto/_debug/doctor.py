"""`python -m magneto doctor [--before FIRST.py] script.py`: runs a program in all ways, finds what is at fault, and
writes a report.

Each run is a child of a process that has imported PyTorch and nothing else, so that it costs what the program costs.
What the program leaves in its names (tensors, the parameters of modules, numbers) is compared with what eager leaves,
and what it prints with what eager prints (output.py).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import runpy
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from magneto import _history, _log, config
from magneto._debug import bisect, children, inner, output, same, scripts, speed
from magneto._debug.bisect import Variant
from magneto._debug.children import Outcome
from magneto._debug.record import called


class ScriptRuns:
    """Runs a script with arguments."""

    def __init__(self, arguments: Sequence[str], before: Sequence[str] = ()) -> None:
        """`before`: scripts that run first in the same process, where the fault shows after them only."""
        self._arguments = list(arguments)
        self._before = list(before)
        self._folder = tempfile.TemporaryDirectory()
        self._reference = os.path.join(self._folder.name, "eager.pt")
        self._printed = os.path.join(self._folder.name, "printed")
        self._varies: set[int] = set()  # lines of the output

    def __call__(self, variant: Variant) -> Outcome:
        outcome = self._run(variant)
        printed = (outcome.result or {}).get("printed")
        if printed:  # eagerly, once more: what no two runs have alike is not compared
            again = (self._run(variant).result or {}).get("printed", ())
            pairs = itertools.zip_longest(printed, again)
            self._varies = {number for number, (a, b) in enumerate(pairs, 1) if a != b}
        return outcome

    def _run(self, variant: Variant) -> Outcome:
        seconds = max(10, variant.patience) * config.repro_seconds
        return children.run(lambda: self._attempt(variant), seconds, children.available_mb())

    def close(self) -> None:
        """Removes what was written."""
        self._folder.cleanup()

    def _attempt(self, variant: Variant) -> Any:
        import magneto

        magneto.install()
        bisect.apply(variant)
        torch.set_num_threads(variant.threads)
        for script in self._before:
            with magneto.disable() if variant.anew else contextlib.nullcontext():
                _run([script])
        earlier = _captures()
        with output.to_file(self._printed):
            got = values_of(_run(self._arguments))
        printed = output.lines_of(self._printed)
        if variant.backend is None:
            return {**bisect.kept((got, printed), self._reference), "printed": printed}
        want, wanted = torch.load(self._reference, weights_only=True)
        found = same.compare(want, got, None, config.repro_ignore_non_fp, config.repro_tolerance)
        if not found:
            found = output.differences(wanted, printed, config.repro_tolerance, self._varies)
        captured = [name for name, times in _captures().items() if times > earlier.get(name, 0)]
        return {**bisect.differing(found), "captured": captured}

    def once(self) -> None:
        """As the program says."""
        self._run_as(bisect.DEFAULT)

    def eagerly(self) -> None:
        """Without compiling anything."""
        self._run_as(bisect.EAGER)

    def _run_as(self, variant: Variant) -> None:
        import magneto

        magneto.install()
        bisect.apply(variant)
        _run(self._arguments)

    def calls(self) -> dict[str, list[str]]:
        """Which functions the script calls, and these."""
        outcome = children.run(self._calls_made, 10 * config.repro_seconds, children.available_mb())
        return outcome.result or {}

    def _calls_made(self) -> dict[str, list[str]]:
        import magneto

        magneto.install()
        bisect.apply(bisect.EAGER)
        return inner.calls_during(lambda: _run(self._arguments))

    def script(self, found: bisect.Diagnosis) -> str:
        """The call of the function at fault under the minifier of programs; where its script is."""
        inner, _, outer = found.function.partition(", which ")
        for name in filter(None, (inner, outer.removesuffix(" calls"))):
            seconds = bisect.MINIFIES * config.repro_seconds
            outcome = children.run(
                partial(self._minified, name, found.stage == "guards"), seconds, children.available_mb()
            )
            if outcome.failed:
                _log.announce(f"no script can be written: {outcome}")
            if outcome.result:
                return str(outcome.result)
        return ""

    def _minified(self, name: str, guards: bool) -> str:
        import magneto

        magneto.install()
        bisect.apply(bisect.EAGER)
        return called.minified(self._all, name, guards)

    def _all(self) -> None:
        for script in self._before:
            _run([script])
        _run(self._arguments)

    def reused(self) -> str:
        """The functions of which the script uses captures that the scripts before it made."""
        alone, after = self(bisect.ANEW), self(bisect.CAPTURED)
        made = (after.result or {}).get("captured", ())
        names = [name for name in dict.fromkeys((alone.result or {}).get("captured", ())) if name not in made]
        return ", ".join(f"a capture of {name}" for name in names)


def _captures() -> dict[str, int]:
    """How often each function has been captured."""
    return {row.place: row.total for row in _history.rows("capture")}


def _run(arguments: Sequence[str]) -> dict[str, Any]:
    """The names that a script leaves."""
    torch.manual_seed(0)
    random.seed(0)
    sys.argv = list(arguments)
    sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
    try:
        return runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise
        return {}


def values_of(names: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors, parameters, gradients and numbers in a program's names."""
    found: dict[str, torch.Tensor] = {}
    for name, value in names.items():
        if name.startswith("__"):
            continue
        if isinstance(value, torch.nn.Module):
            for own, x in [*value.named_parameters(), *value.named_buffers()]:
                found[f"{name}.{own}"] = x
                if x.grad is not None:
                    found[f"{name}.{own}.grad"] = x.grad
        elif type(value) in (int, float, bool):
            found[name] = torch.tensor(value, dtype=torch.float64 if type(value) is float else None)
        elif isinstance(value, (torch.Tensor, tuple, list, dict)):
            for i, x in enumerate(same.tensors(value)):
                found[f"{name}[{i}]" if i or not isinstance(value, torch.Tensor) else name] = x
    return {name: x.detach().clone() for name, x in found.items()}


def main(arguments: Sequence[str]) -> int:
    """The process's exit status: 0 if the compiled program does what eager does."""
    parser = argparse.ArgumentParser(
        prog="python -m magneto doctor",
        usage="python -m magneto doctor [--report FILE] [--before FIRST.py] script.py [arguments...]",
        description="Runs a program in all ways, and finds what is at fault where it fails when it is compiled.",
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="an HTML page with what was found")
    parser.add_argument(
        "--before", action="append", default=[], metavar="FIRST.py", help="a script that runs first in each process"
    )
    parser.add_argument("script", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not options.script:
        parser.print_usage(sys.stderr)
        return 2
    command = f"python -m magneto doctor {shlex.join(arguments)}"
    try:
        return _diagnose(options.script, options.before, options.report, command)
    except OSError as error:
        print(f"python -m magneto doctor: {error}", file=sys.stderr)
        return 2


def _diagnose(arguments: Sequence[str], before: Sequence[str], page: Path | None, command: str) -> int:
    for file in (*before, arguments[0]):
        if not Path(file).exists():
            print(f"python -m magneto: can't open file {file!r}: there is no such file", file=sys.stderr)
            return 2
    runs = ScriptRuns(arguments, before)
    try:
        with bisect.sharing_kernels(runs) as run:
            guards = runs.reused if before else None
            found = bisect.Bisection(run, guards, calls=runs.calls, others=_others()).diagnose()
            if found.stage in ("passes", "lowering", "code generation"):
                bisect.minified(found, run)
            elif found.function:
                bisect.reduced(found, lambda: runs.script(found))
        if not found.stage:
            found.measured = speed.report(runs.once, runs.eagerly, 10 * config.repro_seconds)
    finally:
        runs.close()
    print(found.told())
    if page is not None:
        _write_page(found, arguments, page)
    if not found.stage:
        return 0
    report = bisect.write_report(found, command, scripts.folder())
    if report:
        print(f"report: {report}")
    return 1


def _others() -> dict[str, Variant]:
    """All other runs compute on one thread."""
    threads = len(os.sched_getaffinity(0))
    if threads < 2:
        return bisect.OTHERS
    return {**bisect.OTHERS, f"{threads} threads": replace(bisect.DEFAULT, threads=threads)}


def _write_page(found: bisect.Diagnosis, arguments: Sequence[str], page: Path) -> None:
    from magneto._report import command
    from magneto._report.log import BadInput

    crashes = any(row.outcome.kind == children.SIGNAL for row in found.rows)  # making machine code may crash, too
    try:
        command.write_findings(found.findings, arguments, page, assembly=not crashes)
    except (BadInput, OSError) as error:
        print(f"no page can be written: {error}", file=sys.stderr)
        return
    print(f"page: {page.resolve()}")
