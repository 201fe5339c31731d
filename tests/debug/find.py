"""Runs the tool that finds a planted fault, and sees what it names and whether its script shows the fault by itself."""

from __future__ import annotations

import io
import logging
import os
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import fresh
import torch
from faults import Fault, layers

import magneto
from magneto import _testing
from magneto._debug import children

MOST_OPERATORS, MOST_LINES = 5, 12


@dataclass
class Found:
    """What the tool told, its script, and how that ends in a fresh process."""

    report: str = ""
    script: str = ""
    ended: str = ""
    size: str = ""
    is_small: bool = False
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def missing(self, fault: Fault) -> list[str]:
        """What was not as it should be; empty: all is well."""
        wrong = [] if fault.says in self.report + self.script else [f"the report does not say {fault.says!r}"]
        wrong += [f"{name!r} is not named" for name in fault.names if name not in self.report + self.script]
        if not self.script:
            return [*wrong, "there is no script"]
        if not self.is_small:
            wrong.append(f"the script has {self.size}")
        return (
            wrong if _is_the_same(fault, self.ended) else [*wrong, f"the script does not show it: {self.ended[:100]}"]
        )


def inputs(gradients: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the programs of the table."""
    torch.manual_seed(0)
    return torch.randn(8, 16, requires_grad=gradients), torch.randn(16, 16, requires_grad=gradients)


def arguments_of(fault: Fault) -> tuple[Any, ...]:
    """What it is called with."""
    return fault.arguments() if fault.arguments else inputs(fault.gradients)


def program_of(fault: Fault) -> Any:
    """What is called: a function, or a module."""
    made = fault.program or layers
    return made() if isinstance(made, type) else made


def _compiled(fault: Fault, **settings: Any) -> str:
    """Under the minifier; gradients are asked for as a program would."""
    said = io.StringIO()
    handler, logger = logging.StreamHandler(said), logging.getLogger("torch")
    others, logger.handlers = logger.handlers, [handler]
    try:
        with magneto.config.patch(repro_seconds=4, **settings), warnings.catch_warnings(record=True):
            try:
                out = magneto.compile(program_of(fault), backend=fault.backend or "inductor")(*arguments_of(fault))
                if fault.gradients:
                    out.sum().backward()
            except (magneto.exc.BackendCompilerFailed, magneto.exc.AccuracyError) as error:
                said.write(f"{error}\n{error.__cause__ or ''}")
    finally:
        logger.handlers = others
    return said.getvalue()


def _bisect(fault: Fault) -> str:
    before = [fault.before()] if fault.before else []
    return str(magneto.bisect(program_of(fault), arguments_of(fault), before=before))


def _program(fault: Fault) -> str:
    return str(magneto.minify(program_of(fault), arguments_of(fault)))


FINDERS: dict[str, Callable[[Fault], str]] = {
    "graphs": lambda fault: _compiled(fault, repro_after="dynamo"),
    "graphs that are wrong": lambda fault: _compiled(fault, repro_after="dynamo", repro_level=4),
    "operators": lambda fault: _compiled(fault, repro_after="aot", disk_cache=False),
    "operators that are wrong": lambda fault: _compiled(fault, repro_after="aot", repro_level=4, disk_cache=False),
    "bisect": _bisect,
    "program": _program,
}


def find(fault: Fault, seconds: float = 240) -> Found:
    """Plants it, runs the tool, both in a child, and then the script in a process of its own."""
    outcome = children.run(lambda: asdict(_find(fault)), seconds)
    return Found(report=str(outcome)) if outcome.failed else Found(**outcome.result)


def _find(fault: Fault) -> Found:
    found = Found()
    magneto.reset()
    with tempfile.TemporaryDirectory() as folder, magneto.config.patch(debug_dir=folder, strict=False):
        if fault.place != "backend":
            _testing.plant_fault(fault.place, fault.subject)
        start, cpu = time.perf_counter(), _cpu()
        try:
            found.report = FINDERS[fault.finder](fault)
        finally:
            _testing.clear_faults()
        found.seconds, found.cpu_seconds = time.perf_counter() - start, _cpu() - cpu
        scripts = sorted(Path(folder).rglob("repro.py"), key=lambda path: path.stat().st_mtime_ns)
        if scripts:
            found.script = scripts[-1].read_text()
            found.size, found.is_small = size_of(found.script)
            found.ended = ended(scripts[-1], fault)
    return found


def size_of(script: str) -> tuple[str, bool]:
    """Operators of a graph, or lines of a program; and whether these are few."""
    if "class Repro" in script:
        body = script[script.index("def forward") : script.index("mod = Repro()")]
        count = sum(
            " = " in line for line in body.splitlines()[1:] if "fx_pytree" not in line and "= self." not in line
        )
        return f"{count} operators", count <= MOST_OPERATORS
    if "def " in script:
        text = script[script.index("# --") :] if "# --" in script else script[script.index("def ") :]
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    else:
        lines = [line for line in script.splitlines() if line.strip() and not line.startswith("#")]
    return f"{len(lines)} lines", len(lines) <= MOST_LINES


_RUN = """\
import resource, runpy
resource.setrlimit(resource.RLIMIT_AS, (24 << 30, 24 << 30))
from magneto import _testing
{plant}
runpy.run_path({path!r}, run_name="__main__")
"""


def ended(script: Path, fault: Fault) -> str:
    """How the script ends in a fresh process that has the fault; empty: well."""
    plant = f"_testing.plant_fault({fault.place!r}, {fault.subject!r})" if fault.place != "backend" else ""
    environment = {**os.environ, "PYTHONPATH": str(Path(magneto.__file__).parents[1])}
    try:
        done = fresh.python(
            "-c",
            _RUN.format(plant=plant, path=str(script)),
            env=environment,
            cwd=script.parent,
            timeout=20 if "hangs" in fault.kind else 120,
        )
    except subprocess.TimeoutExpired:
        return "it hangs"
    if done.returncode < 0:
        return signal.Signals(-done.returncode).name
    return done.stderr.strip() if done.returncode else ""


def _is_the_same(fault: Fault, ended: str) -> bool:
    """The script ends as the tool said."""
    if "hangs" in fault.kind:
        return ended == "it hangs"
    if "memory" in fault.kind:
        return "memory" in ended or "bad_alloc" in ended
    if "crash" in fault.kind or "refuse" in fault.kind:
        return fault.says in ended
    return "AccuracyError" in ended


def _cpu() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
