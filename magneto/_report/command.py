"""The command line of `python -m magneto report`."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from magneto import _files, config
from magneto._report import log, model, page, slowest
from magneto._report.log import BadInput

_USAGE = """python -m magneto report [-o FILE] DIR
       python -m magneto report [-o FILE] --live script.py [arguments...]
       python -m magneto report [-o FILE] --live -m module [arguments...]"""
_EVERY = 2.0  # seconds between two looks at a running program's log


def main(arguments: list[str]) -> int:
    """Writes a report; gives the exit status, under --live the program's own."""
    parser = argparse.ArgumentParser(
        prog="python -m magneto report",
        usage=_USAGE,
        description="Writes one HTML file that shows what the compiler did: of a folder of logs that a program wrote "
        "under TORCH_TRACE=DIR, or of a program that is run for it now.",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the file (default: magneto_report.html)")
    parser.add_argument("--live", action="store_true", help="run a script or module, as `python -m magneto run` does")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="DIR | script.py ...", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    output = options.output or Path("magneto_report.html")
    rest = options.rest
    if not rest or (not options.live and len(rest) > 1):
        parser.print_usage(sys.stderr)
        return 2
    if options.live:
        return _live(rest, output)
    try:
        size, problems, slow = _write(Path(rest[0]), output, title=rest[0], command=f"TORCH_TRACE={rest[0]}")
    except (BadInput, OSError) as error:
        print(f"python -m magneto report: {error}", file=sys.stderr)
        return 2
    for problem in problems:
        print(f"python -m magneto report: {problem}", file=sys.stderr)
    print(f"Magneto wrote the report to {output.resolve()} ({size / 1e6:.1f} MB)")
    _print_slowest(slow)
    return 0


def _print_slowest(lines: list[str], file: TextIO | None = None) -> None:
    if lines:
        print("The slowest lines:", *lines, sep="\n  ", file=file or sys.stdout)


def _write(
    folder: Path, output: Path, title: str, command: str, live: bool = False
) -> tuple[int, list[str], list[str]]:
    """The file's size, what was wrong with the logs, the slowest lines. Machine code is made when the program ended."""
    runs = model.build(log.read_folder(folder), None if live else _assembly)
    size = _publish(output, {"title": title, "command": command, "live": live, "runs": runs})
    return size, [problem for run in runs for problem in run["problems"]], slowest.lines(runs)


def _publish(output: Path, data: dict[str, Any]) -> int:
    """Writes the page; a browser that reads it now sees the old file or the new one. Its size."""
    text = page.html(data).encode()
    if not output.parent.is_dir():
        raise BadInput(f"{output} can't be written: there is no folder {output.parent}. Make it, or give another file.")
    try:
        _files.write_whole(output, lambda out: out.write(text))
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadInput(f"{output} can't be written: {reason}. Give a file in another folder.") from None
    return len(text)


def write_findings(findings: list[dict[str, Any]], script: Sequence[str], output: Path, assembly: bool) -> None:
    """The page of what `doctor` found of a script, with what the compiler does in one run more, as far as it comes."""
    command = shlex.join(script)
    with tempfile.TemporaryDirectory(prefix="magneto-report-") as name:
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [sys.executable, "-m", "magneto", "run", *script],
                env=_environment(name),
                timeout=10 * config.repro_seconds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        try:
            logs = log.read_folder(Path(name))
        except BadInput:  # it compiles nothing, or crashes too early
            logs = [log.Log(Path(command))]
        runs = model.build(logs, _assembly if assembly else None)
    runs[0]["findings"] += findings
    _publish(output, {"title": command, "command": command, "live": False, "runs": runs})


def _environment(folder: str) -> dict[str, str]:
    """Programs that the cache on disk has would not be lowered, and what was not done can't be shown."""
    return {**os.environ, "TORCH_TRACE": folder, "MAGNETO_DISK_CACHE": "0"}


def _assembly(kernel: str, variant: int) -> str:
    """What this machine's code generator makes of it; nothing without one."""
    from magneto import _C

    try:
        return _C.kernel_texts(kernel, "host", variant, True)[2]
    except (RuntimeError, ValueError):
        return ""


def _live(script: list[str], output: Path) -> int:
    if script[0] != "-m" and not Path(script[0]).exists():
        print(f"python -m magneto report: can't open file {script[0]!r}: there is no such file", file=sys.stderr)
        return 2
    command = shlex.join(script)
    with tempfile.TemporaryDirectory(prefix="magneto-report-") as name:
        folder = Path(name)
        program = subprocess.Popen([sys.executable, "-m", "magneto", "run", *script], env=_environment(name))
        status = _follow(program, folder, output, command)
        try:
            size, _, slow = _write(folder, output, title=command, command=command)
        except BadInput:
            print("python -m magneto report: the program compiled nothing: there is nothing to report", file=sys.stderr)
            return status
        except OSError as error:
            print(f"python -m magneto report: {error}", file=sys.stderr)
            return status or 2
    if status:
        print(f"python -m magneto report: the program ended with status {status}", file=sys.stderr)
    print(f"Magneto wrote the report to {output.resolve()} ({size / 1e6:.1f} MB)", file=sys.stderr)
    _print_slowest(slow, sys.stderr)
    return status


def _follow(program: subprocess.Popen[bytes], folder: Path, output: Path, command: str) -> int:
    """Writes the report of a program that runs, again and again, until it ends; gives its status."""
    seen = 0
    said = False
    while True:
        try:
            status = program.wait(timeout=_EVERY)
            return status if status >= 0 else 128 - status
        except subprocess.TimeoutExpired:
            pass
        except KeyboardInterrupt:  # the program has got it, too
            continue
        size = sum(file.stat().st_size for file in folder.glob("*.log"))
        if size == seen:
            continue
        try:
            started = time.monotonic()
            _write(folder, output, title=command, command=command, live=True)
            seen = size
            if not said:
                print(f"Magneto writes the report to {output.resolve()} while the program runs", file=sys.stderr)
                said = True
            time.sleep(min(30.0, 5 * (time.monotonic() - started)))  # a large report is not written all the time
        except KeyboardInterrupt:
            continue
        except (BadInput, OSError):
            continue
