"""Programs whose guards have a planted fault: which ones behave otherwise than eager then, as their tests would say."""

from __future__ import annotations

import hashlib
import importlib
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from generated_changes import CHANGES, PLACES, READERS, scenario_of
from scenario import observe
from test_generated_changes import READERS_OF_A_PAIR, useful
from tiers import picked

import magneto
from magneto import _testing

Case = tuple[str, Callable[..., Any]]
SECONDS = 20  # of one program with all faults; what takes longer counts as not noticed
unusable: list[Callable[..., Any]] = []  # they behave otherwise than eager, or leave something behind, with no fault


def generated() -> Iterator[Case]:
    """Those that `make test` runs, in an order that is mixed and the same each time."""
    names = [
        (place, change, reader)
        for place in PLACES
        for change in CHANGES
        for reader in picked(f"{place} {change}", useful(change), READERS_OF_A_PAIR)
    ]
    for place, change, reader in sorted(names, key=lambda name: hashlib.sha256(" ".join(name).encode()).digest()):
        name = f"{place} {change} {reader}"
        yield name, generated_case(name)


def generated_case(name: str) -> Callable[..., None]:
    place, change, reader = name.split()
    return scenario_of(PLACES[place], CHANGES[change], READERS[reader])


def written_case(name: str) -> Callable[..., None]:
    """`family: program`, as docs/guards.md has it."""
    family, program = name.split(": ")
    scenario: Callable[..., None] = importlib.import_module(f"changed_{family}_programs").scenario.scenarios[program][0]
    return scenario


def written() -> Iterator[Case]:
    for path in sorted(Path(__file__).parent.glob("changed_*_programs.py")):
        for name, (scenario, _) in importlib.import_module(path.stem).scenario.scenarios.items():
            yield f"{path.stem} {name}", scenario


def trace_of(scenario: Callable[..., Any], fault: str) -> list[str]:
    magneto.reset()
    _testing.plant_fault("guard", fault)
    with magneto.config.patch(cache_size_limit=1000):
        return observe(scenario, lambda function: magneto.compile(function, backend="eager"))


def try_faults(scenario: Callable[..., Any], faults: set[str], say: Callable[[str], Any]) -> None:
    """In a child. Says which fault it tries, and of each that was noticed that it was."""
    expected = observe(scenario, None)
    _testing.guard_fault_survey()
    if trace_of(scenario, "survey") != expected:
        say("unusable")
        return
    for fault in sorted(faults.intersection(_testing.guard_fault_survey())):
        say(f"try {fault}")
        try:
            noticed = trace_of(scenario, fault) != expected
        except Exception:  # as assertions in the scenario are
            noticed = True
        if noticed and trace_of(scenario, "survey") != expected:
            say("unusable")  # it leaves something behind that another run sees
            return
        say(f"{'found' if noticed else 'missed'} {fault}")


def found_by(scenario: Callable[..., Any], faults: set[str]) -> set[str]:
    """Those of the faults that a program notices. In a process of its own: a crash is a fault found."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(SECONDS)
            os.close(read)
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 2)
            warnings.simplefilter("ignore")
            try_faults(scenario, faults, lambda line: os.write(write, f"{line}\n".encode()))
            os.write(write, b"end\n")
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as lines:
        said = lines.read().split("\n")
    _, status = os.waitpid(child, 0)
    found = {line.split()[1] for line in said if line.startswith("found")}
    tried = [line.split()[1] for line in said if line.startswith("try")]
    if "unusable" in said:
        unusable.append(scenario)
    crashed = os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGALRM
    if crashed and tried:  # by the last one
        found.add(tried[-1])
        rest = {fault for fault in faults if fault > tried[-1]}
        found |= found_by(scenario, rest) if rest else set()
    return found
