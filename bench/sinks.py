"""What logs, traces and reports cost while nobody listens, and what TORCH_TRACE costs; in instructions, by valgrind.

    python -P bench/sinks.py                 # a table; some minutes
    python -P bench/sinks.py --trace         # a compile of a transformer of twelve layers, traced and not

A program is run under callgrind that compiles functions and calls them, all sinks off. Counted are the instructions
inside compiled callables, and which part of them is the sinks': asking who listens, clocks of stages, counting of
events, the progress line. What happens once (imports, first uses) is before the count.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

COMPILES, CALLS = 10, 1000

# Each call of `mark` ends a part of the count.
PROGRAM = f"""
import torch, magneto
from magneto._C import set_disabled

torch.set_num_threads(1)
x = torch.randn(8, 32)

def mark():
    set_disabled(False)

def make(number, backend):
    def block(x):
        y = torch.nn.functional.layer_norm(x * number, (32,))
        for _ in range(6):
            y = torch.nn.functional.gelu(y) + x
        return torch.softmax(y, -1).sum(0)
    return magneto.compile(block, backend=backend)

def make_small(number):
    return magneto.compile(lambda x: x + number, backend="eager")

with torch.no_grad():
    block = make(1, "magneto")
    block(x), block(x), make_small(1)(x)
    mark()
    for number in range({COMPILES}):
        make(number + 2, "magneto")(x)
    mark()
    for number in range({COMPILES}):
        make_small(number + 2)(x)
    mark()
    for _ in range({CALLS}):
        block(x)
    mark()
"""

# Compiled twice.
TRACED = """
import torch, magneto
from magneto._C import set_disabled

torch.set_num_threads(1)

def mark():
    set_disabled(False)

F = torch.nn.functional

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)
        self.up, self.down = torch.nn.Linear(64, 128), torch.nn.Linear(128, 64)
        self.first, self.second = torch.nn.LayerNorm(64), torch.nn.LayerNorm(64)

    def forward(self, x):
        q, k, v = (y.view(2, 16, 4, 16).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 16, 64)
        x = self.first(x + self.out(y))
        return self.second(x + self.down(F.gelu(self.up(x))))

model, x = torch.nn.Sequential(*(Block() for _ in range(12))).eval(), torch.randn(2, 16, 64)
with torch.no_grad():
    for _ in range(2):
        magneto.compile(model)(x)
        mark()
"""

# Functions of the core that are there for who looks on.
SINKS = {
    "who listens": r"magneto::dispatch::(CompileLog::CompileLog|log_enabled)\(",
    "structured trace": r"magneto::dispatch::CompileTrace::(CompileTrace|~CompileTrace|captured|recompiled)\(",
    "stages' clocks": r"magneto::runtime::(StageTime::(StageTime|~StageTime)|RecordedRuns::~?\w+)\(",
    "stages' texts": r"magneto::dispatch::Stages::(Stages|wanted)\(",
    "events counted": r"magneto::dispatch::History::captured\(",
    "progress line": r"magneto::runtime::Progress::~?Progress\(",
}
INSIDE = "magneto::dispatch::(anonymous namespace)::compiled_call*"
MARK = "magneto::(anonymous namespace)::set_disabled*"


def counted(profile: Path) -> tuple[int, dict[str, int]]:
    """Instructions of a part, in all and of each kind of sink."""
    listing = subprocess.run(
        ["callgrind_annotate", "--inclusive=yes", "--threshold=100", str(profile)],
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


def count(text: str, folder: str, **variables: str) -> Path:
    """Runs a program; part n of its main thread is in the file with the name given and `.n-01` behind it."""
    out, program = Path(folder, "profile"), Path(folder, "program.py")
    program.write_text(text)
    own = {"OMP_NUM_THREADS": "1", "MAGNETO_DISK_CACHE": "0", "PYTHONHASHSEED": "0"}
    subprocess.run(
        [
            *("valgrind", "--tool=callgrind", "-q", f"--callgrind-out-file={out}", "--separate-threads=yes"),
            *(f"--toggle-collect={INSIDE}", f"--dump-before={MARK}", sys.executable, "-P", str(program)),
        ],
        check=True,
        env={**os.environ, **own, **variables},
    )
    return out


def traced() -> None:
    """What a trace adds to the second of two compiles, whose code has been generated."""
    for what, cache in (("disk cache off", "0"), ("programs in the disk cache", "1")):
        totals = {}
        with tempfile.TemporaryDirectory() as folder:
            own = {"MAGNETO_DISK_CACHE": cache, "MAGNETO_CACHE_DIR": f"{folder}/cache"}
            if cache == "1":
                subprocess.run([sys.executable, "-P", "-c", TRACED], check=True, env={**os.environ, **own})
            for trace in ({}, {"TORCH_TRACE": f"{folder}/log"}):
                out = count(TRACED, folder, **own, **trace)
                totals[bool(trace)] = counted(Path(f"{out}.2-01"))[0]
        plain, with_trace = totals[False], totals[True]
        print(f"{what}: {plain:,} instructions, traced {with_trace:,}: {with_trace / plain:.2f}x", flush=True)


def main() -> None:
    """Prints the table and the numbers as JSON."""
    if sys.argv[1:] == ["--trace"]:
        return traced()
    with tempfile.TemporaryDirectory() as folder:
        out = count(PROGRAM, folder)
        parts = {  # .1 is what happens once
            "a compile": (2, COMPILES),
            'a compile of x + 1, backend="eager"': (3, COMPILES),
            "a call": (4, CALLS),
        }
        rows = {}
        for what, (part, times) in parts.items():
            total, sinks = counted(Path(f"{out}.{part}-01"))
            rows[what] = {"instructions": total / times, **{name: count / times for name, count in sinks.items()}}
    print("| | " + " | ".join(rows) + " |\n|---" + "|---" * len(rows) + "|")
    for name in ("instructions", *SINKS):
        print(f"| {name} | " + " | ".join(f"{row[name]:,.0f}" for row in rows.values()) + " |")
    shares = [sum(row[name] for name in SINKS) / row["instructions"] for row in rows.values()]
    print("| sinks' share | " + " | ".join(f"{share:.2%}" for share in shares) + " |")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
