"""What logs, traces and reports cost while nobody listens: instructions, counted by valgrind.

    python -P bench/sinks.py                 # a table; a quarter of an hour

A program is run under callgrind that compiles functions and calls them, all sinks off. Counted are the instructions
inside compiled callables, and which part of them is the sinks': asking who listens, clocks of stages, counting of
events, the progress line. For calls the two halves of a run are compared: what a call costs more with sinks in the
program is what grows with the number of calls.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import sys
import torch, magneto

torch.set_num_threads(1)
kind, count = sys.argv[1], int(sys.argv[2])
x = torch.randn(8, 32)

def make(number):
    def block(x):
        y = torch.nn.functional.layer_norm(x * number, (32,))
        for _ in range(6):
            y = torch.nn.functional.gelu(y) + x
        return torch.softmax(y, -1).sum(0)
    return magneto.compile(block)

with torch.no_grad():
    if kind == "compile":
        for number in range(count):
            make(number + 1)(x)
    else:
        block = make(1)
        for _ in range(count):
            block(x)
"""

# Functions of the core that are there for who looks on.
SINKS = {
    "who listens": r"magneto::dispatch::(CompileLog::CompileLog|log_enabled)\(",
    "structured trace": r"magneto::dispatch::CompileTrace::(CompileTrace|~CompileTrace|captured|recompiled)\(",
    "stages' clocks": r"magneto::runtime::(StageTime::(StageTime|end|~StageTime)|RecordedRuns::\w+)\(",
    "stages' texts": r"magneto::dispatch::Stages::\w+\(",
    "events counted": r"magneto::dispatch::History::\w+\(",
    "progress line": r"magneto::runtime::Progress::",
}
INSIDE = "magneto::dispatch::(anonymous namespace)::compiled_call*"


def counted(kind: str, count: int) -> tuple[int, dict[str, int]]:
    """Instructions inside compiled callables, in all and of each kind of sink."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "callgrind.out")
        program = Path(folder, "program.py")
        program.write_text(PROGRAM)
        subprocess.run(
            [
                *("valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", f"--toggle-collect={INSIDE}", "-q"),
                *(sys.executable, "-P", str(program), kind, str(count)),
            ],
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MAGNETO_DISK_CACHE": "0", "PYTHONHASHSEED": "0"},
        )
        listing = subprocess.run(
            ["callgrind_annotate", "--inclusive=yes", "--threshold=100", str(out)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    total = re.search(r"^\s*([\d,]+).*PROGRAM TOTALS", listing, re.MULTILINE)
    assert total, listing[:2000]
    parts = dict.fromkeys(SINKS, 0)
    for line in listing.splitlines():
        found = re.match(r"\s*([\d,]+) (?:\([^)]*\))?\s+\S*?:(.*)", line)
        for name, pattern in SINKS.items():
            if found and re.search(pattern, found[2]):
                parts[name] += int(found[1].replace(",", ""))
    return int(total[1].replace(",", "")), parts


def main() -> None:
    """Prints the table and the numbers as JSON."""
    rows = {}
    for kind, counts in (("compile", (4, 12)), ("call", (500, 1500))):
        (less, few), (more, many) = (counted(kind, count) for count in counts)
        times = counts[1] - counts[0]
        rows[kind] = {
            "instructions": (more - less) / times,
            **{name: (many[name] - few[name]) / times for name in SINKS},
        }
    print("| | a compile | a call |\n|---|---|---|")
    for name in ("instructions", *SINKS):
        print(f"| {name} | {rows['compile'][name]:,.0f} | {rows['call'][name]:,.0f} |")
    shares = {kind: sum(row[name] for name in SINKS) / row["instructions"] for kind, row in rows.items()}
    print(f"| sinks' share | {shares['compile']:.2%} | {shares['call']:.2%} |")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
