"""Attempts in forked children: what crashes, hangs or eats the memory there is an answer here, and nothing is changed.

A child has the process as it is now: the model, the inputs, the state of random numbers. It computes on one thread, as
the pools of the parent's threads are not there, and says how it ended through a pipe, as JSON. What it starts itself
ends with it: the child is a process group of its own, and children of children are looked for.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from magneto import _trace, exc

OK, RAISED, SIGNAL, TIME, MEMORY, EXIT = "ok", "raised", "signal", "time limit", "memory limit", "exit"


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended."""

    kind: str
    type: str = ""  # of the exception, with its module; the signal's name
    text: str = ""
    result: Any = None  # what the attempt gave, where it ended well: of JSON's types
    traceback: str = ""
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """It did not end well."""
        return self.kind != OK

    def is_like(self, other: Outcome) -> bool:
        """The same failure: kind, type and text agree, but for addresses, numbers and names that end in numbers. Of two
        that took too long, the limits may differ."""
        if self.kind == TIME:
            return other.kind == TIME
        return (self.kind, self.type, _bare(self.text)) == (other.kind, other.type, _bare(other.text))

    def __str__(self) -> str:
        if self.kind == RAISED:
            return f"{self.type}: {self.text}" if self.text else self.type
        if self.kind == SIGNAL:
            return f"the process ended by {self.type}"
        if self.kind == OK:
            return "ok"
        return f"{self.kind}: {self.text}" if self.text else self.kind


# What differs between two graphs with one fault: addresses, numbers, the names of nodes and files.
_VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+\.\d+|\b\w*\d\w*|/[\w./-]+|\d+")


def _bare(text: str) -> str:
    return _VARIES.sub("#", text.split("\n\n")[0])


_OUT_OF_MEMORY = ("can't allocate memory", "bad_alloc")


def of_exception(error: BaseException) -> Outcome:
    """What an exception says. Of a backend's failure it is the backend's own exception that counts."""
    shown = "".join(traceback.format_exception(error))
    while isinstance(error, exc.BackendCompilerFailed) and error.__cause__ is not None:
        error = error.__cause__
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    out_of_memory = isinstance(error, MemoryError) or any(words in str(error) for words in _OUT_OF_MEMORY)
    return Outcome(MEMORY if out_of_memory else RAISED, name, str(error), traceback=shown)


def available_mb() -> int:
    """Memory that can be had without swapping."""
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) // 1024
    return 0


def run(attempt: Callable[[], Any], seconds: float = 60.0, memory_mb: int = 0, quiet: bool = True) -> Outcome:
    """Runs `attempt` in a child. `memory_mb`: how much more memory than now it may take; 0: as much as there is.

    Raises:
        magneto.exc.NotYet: This process has used a GPU, which its children can't.
    """
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise exc.NotYet(
            "This tool tries programs in forked children, which can't be where the process itself has used a GPU. Put "
            "the program into a script: `python -m magneto doctor script.py` gives each try a process of its own."
        )
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads exist: the child leaves them alone
        child = os.fork()
    if child == 0:
        os.close(reader)
        _in_child(attempt, writer, memory_mb, quiet)
    os.close(writer)
    said = None
    try:
        said = _read_all(reader, child, start + seconds)
    finally:
        os.close(reader)
        taken = time.perf_counter() - start
        _end(child)
        _, status = os.waitpid(child, 0)
    if said is None:
        return Outcome(TIME, text=f"not done after {seconds:g} s", seconds=taken)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in signal.Signals._value2member_map_ else f"signal {number}"
        return Outcome(SIGNAL, name, seconds=taken)
    if not said:
        return Outcome(EXIT, text=f"the process left with status {os.WEXITSTATUS(status)}", seconds=taken)
    return Outcome(**json.loads(said), seconds=taken)


def _read_all(reader: int, child: int, deadline: float) -> bytes | None:
    """What the child writes until it has ended; None: it takes too long."""
    parts: list[bytes] = []
    ended = os.pidfd_open(child)  # what the child has started may keep the pipe open
    watched = [reader, ended]
    try:
        while True:
            left = deadline - time.perf_counter()
            ready = select.select(watched, [], [], left)[0] if left > 0 else []
            if not ready:
                return None
            part = os.read(reader, 1 << 16) if reader in ready else b""
            if part:
                parts.append(part)
            elif ended in ready:
                return b"".join(parts)
            else:  # the child has closed its end: it is about to be gone
                watched = [ended]
    finally:
        os.close(ended)


def _end(child: int) -> None:
    """Ends a child that has not been waited for, and all that it has started."""
    for process in [*_descendants(child), child]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(process) == process:
                os.killpg(process, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


def _descendants(process: int) -> list[int]:
    """Its children, theirs, and so on, as far as the system tells."""
    found, left = [], [process]
    while left:
        parent = left.pop()
        with contextlib.suppress(OSError):
            for file in Path(f"/proc/{parent}/task").glob("*/children"):
                left += [int(number) for number in file.read_text().split()]
        found.append(parent)
    return found[1:]


def _in_child(attempt: Callable[[], Any], writer: int, memory_mb: int, quiet: bool) -> NoReturn:
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTTIN, signal.SIG_IGN)  # reading from the terminal is an error, and does not stop it
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        faulthandler.disable()  # a crash is an answer, no news
        _trace.mute()
        if quiet:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
        torch.set_num_threads(1)
        if memory_mb:
            _limit_memory(memory_mb)
        try:
            answer = {"kind": OK, "result": attempt()}
        except (Exception, SystemExit) as error:
            outcome = of_exception(error)
            answer = {"kind": outcome.kind, "type": outcome.type, "text": outcome.text, "traceback": outcome.traceback}
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(json.dumps(answer).encode())
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _limit_memory(more_mb: int) -> None:
    """Of what can be written: what a GPU's driver only reserves is no memory."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[5])
    limit = pages * resource.getpagesize() + more_mb * 2**20
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most != resource.RLIM_INFINITY:  # the child of a child: it can have no more than that one
        limit = min(limit, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
