"""`python -m magneto doctor script.py`: runs a program in all ways, finds what is at fault, and writes a report.

Each run is a child of a process that has imported PyTorch and nothing else, so that it costs what the program costs.
What the program leaves in its names (tensors, the parameters of modules, numbers) is compared with what eager leaves.
"""

from __future__ import annotations

import argparse
import os
import random
import runpy
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from magneto import config
from magneto._debug import bisect, children, same, scripts
from magneto._debug.bisect import Variant
from magneto._debug.children import Outcome


class ScriptRuns:
    """Runs a script with arguments."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = list(arguments)
        self._folder = tempfile.TemporaryDirectory()
        self._reference = os.path.join(self._folder.name, "eager.pt")

    def __call__(self, variant: Variant) -> Outcome:
        return children.run(lambda: self._attempt(variant), 10 * config.repro_seconds, children.available_mb())

    def close(self) -> None:
        """Removes what was written."""
        self._folder.cleanup()

    def _attempt(self, variant: Variant) -> Any:
        import magneto

        magneto.install()
        bisect.apply(variant)
        torch.manual_seed(0)
        random.seed(0)
        sys.argv = self._arguments
        sys.path.insert(0, str(Path(self._arguments[0]).resolve().parent))
        try:
            names = runpy.run_path(self._arguments[0], run_name="__main__")
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                raise
            names = {}
        got = values_of(names)
        if variant.backend is None:
            torch.save(got, self._reference)
            return {"differences": []}
        want = torch.load(self._reference, weights_only=True)
        found = same.compare(want, got, None, config.repro_ignore_non_fp, config.repro_tolerance)
        return bisect.differing(found)


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
        usage="python -m magneto doctor [--report FILE] script.py [arguments...]",
        description="Runs a program in all ways, and finds what is at fault where it fails when it is compiled.",
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="an HTML page with what was found")
    parser.add_argument("script", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not options.script:
        parser.print_usage(sys.stderr)
        return 2
    return _diagnose(options.script, options.report)


def _diagnose(arguments: Sequence[str], page: Path | None) -> int:
    if not Path(arguments[0]).exists():
        print(f"python -m magneto: can't open file {arguments[0]!r}: there is no such file", file=sys.stderr)
        return 2
    runs = ScriptRuns(arguments)
    try:
        found = bisect.Bisection(runs).diagnose()
        if found.stage in ("passes", "lowering", "code generation"):
            bisect.minified(found, runs)
    finally:
        runs.close()
    print(found.told())
    if page is not None:
        _write_page(found, arguments, page)
    if not found.stage:
        return 0
    try:
        report = bisect.write_report(found, f"python -m magneto doctor {shlex.join(arguments)}", scripts.folder())
    except OSError as error:
        print(f"no report can be written: {error}", file=sys.stderr)
        return 1
    if report:
        print(f"report: {report}")
    return 1


def _write_page(found: bisect.Diagnosis, arguments: Sequence[str], page: Path) -> None:
    from magneto._report import command

    crashes = any(row.outcome.kind == children.SIGNAL for row in found.rows)  # making machine code may crash, too
    try:
        command.write_findings(found.findings, arguments, page, assembly=not crashes)
    except OSError as error:
        print(f"no page can be written: {error}", file=sys.stderr)
        return
    print(f"page: {page.resolve()}")
