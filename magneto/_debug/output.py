"""What a program prints, compared with what it prints under eager: texts are equal, numbers within a tolerance."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

from magneto._debug.same import WRONG, Difference

_NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?")


@contextlib.contextmanager
def to_file(path: str) -> Iterator[None]:
    """Meanwhile the process's standard output goes to a file; as before, if that can't be written."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    except OSError:
        yield
        return
    sys.stdout.flush()
    before = os.dup(1)
    os.dup2(file, 1)
    os.close(file)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os.dup2(before, 1)
        os.close(before)


def lines_of(path: str) -> list[str]:
    """What was written."""
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    return []


def differences(
    wanted: Sequence[str], printed: Sequence[str], tolerance: float, varies: Container[int] = ()
) -> list[Difference]:
    """The lines that are not eager's, but for those numbers that vary. None, where there are more or fewer lines."""
    if len(wanted) != len(printed):
        return []
    found = []
    for number, (want, got) in enumerate(zip(wanted, printed, strict=True), 1):
        if number not in varies and not _is_alike(want, got, tolerance):
            found.append(Difference(f"line {number} of the output", WRONG, f"{got.strip()!r}, not {want.strip()!r}"))
    return found


def _is_alike(want: str, got: str, tolerance: float) -> bool:
    if _without_numbers(want) != _without_numbers(got):
        return False
    return all(map(lambda a, b: _is_close(a, b, tolerance), _NUMBER.findall(want), _NUMBER.findall(got)))


def _without_numbers(line: str) -> str:
    return "".join(_NUMBER.sub("#", line).split())  # columns may be wider


def _is_close(want: str, got: str, tolerance: float) -> bool:
    """Within the tolerance, or two units of the last place that is printed."""
    a, b = float(want), float(got)
    places = len(re.split("[eE]", want)[0].partition(".")[2])
    exponent = int(re.split("[eE]", want)[1]) if re.search("[eE]", want) else 0
    if "." not in want and "." not in got and not exponent:
        return a == b
    return abs(a - b) <= max(tolerance * max(abs(a), abs(b)), 2.0 * 10.0 ** (exponent - places))
