"""Reads the files of a TORCH_TRACE folder: PyTorch's structured log, a file for each process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_LINE = re.compile(r"[A-Z]\d{4} (?P<time>[\d:.]+) (?P<pid>\d+) \S+\] ?")
# What every record has beside its own name.
_COMMON = {"rank", "frame_id", "frame_compile_id", "attempt", "compiled_autograd_id", "has_payload", "stack"}


class BadInput(Exception):
    """There is nothing to report on; the text says why, and what would help."""


@dataclass
class Record:
    """One event of the log."""

    name: str
    metadata: Any
    payload: str
    compile_id: tuple[int, int] | None
    rank: int | None


@dataclass
class Log:
    """One process's file."""

    path: Path
    pid: int | None = None
    rank: int | None = None
    records: list[Record] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read_folder(folder: Path) -> list[Log]:
    """All processes of a TORCH_TRACE folder, by rank and process id."""
    if not folder.exists():
        raise BadInput(f"there is no folder {str(folder)!r}. Run the program with TORCH_TRACE={folder} first.")
    files = [folder] if folder.is_file() else sorted(folder.glob("*.log"))
    if not files:
        raise BadInput(
            f"the folder {str(folder)!r} has no logs (*.log). A program that compiles something writes one there "
            f"when it runs with TORCH_TRACE={folder}."
        )
    logs = [log for log in map(read_file, files) if log.records or log.problems]
    if not any(log.records for log in logs):
        raise BadInput(f"the logs in {str(folder)!r} hold no record of a compile.")
    logs.sort(key=lambda log: (log.rank is None, log.rank or 0, log.pid or 0))
    return logs


def read_file(path: Path) -> Log:
    """A file that ends in the middle of a record is read up to there."""
    log = Log(path)
    strings: dict[int, str] = {}
    for number, text, payload in _records(path):
        if (start := _LINE.match(text)) is None:
            log.problems.append(f"{path.name}, line {number}: not a line of a structured log")
            continue
        try:
            fields = json.loads(text[start.end() :])
            names = [name for name in fields if name not in _COMMON] if isinstance(fields, dict) else []
        except ValueError:
            names = []
        if not names:
            log.problems.append(f"{path.name}, line {number}: the record is cut off or damaged")
            continue
        log.pid = log.pid or int(start["pid"])
        if names[0] == "str":
            text, index = fields["str"]
            strings[index] = text
            continue
        if log.rank is None:
            log.rank = fields.get("rank")
        compile_id = (fields["frame_id"], fields.get("frame_compile_id", 0)) if "frame_id" in fields else None
        metadata = _with_strings(fields[names[0]], strings)
        log.records.append(Record(names[0], metadata, payload, compile_id, fields.get("rank")))
    return log


def _records(path: Path) -> Iterator[tuple[int, str, str]]:
    """(line number, line, payload): a payload's lines begin with a tab."""
    at, head, payload = 0, "", list[str]()
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, 1):
            line = line.rstrip("\n")
            if line.startswith("\t"):
                payload.append(line[1:])
                continue
            if head:
                yield at, head, "\n".join(payload)
            at, head, payload = number, line, []
    if head:
        yield at, head, "\n".join(payload)


def _with_strings(metadata: Any, strings: dict[int, str]) -> Any:
    """File names of stacks are numbers of strings that were written before."""
    if isinstance(metadata, dict) and isinstance(stack := metadata.get("stack"), list):
        for frame in stack:
            if isinstance(frame, dict) and isinstance(name := frame.get("filename"), int):
                frame["filename"] = strings.get(name, "?")
    return metadata
