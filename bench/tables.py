"""The tables of docs/performance.md from results of bench/run.py: a row each, both numbers of threads in it.

.venv/bin/python -P bench/tables.py bench/results/a.json bench/results/b.json           prints them
.venv/bin/python -P bench/tables.py --write bench/results/a.json bench/results/b.json   puts them into the page

Each ratio is made of the numbers in its row, as they are shown; tests/test_claims.py computes them again.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
NAMES = {"magneto": "Magneto", "peer": "torch.compile", "frozen": "torch.compile, freezing"}
COMPILES = ["cold ms", "torch.compile's", "of the peer's", "warm ms", "torch.compile's", "of the peer's"]
By = dict[str, dict[str, float]]  # framework -> what was measured


def headers(frameworks: list[str]) -> list[str]:
    found = []
    for framework in frameworks:
        found += [f"eager us beside {NAMES[framework]}, 1 / 2 threads", f"{NAMES[framework]} us"]
    found += ["over eager", *(f"over {NAMES[framework]}" for framework in frameworks[1:])]
    return found + COMPILES


def row(name: str, both: dict[int, By], frameworks: list[str]) -> list[str]:
    """`both`: by threads, then by framework, what bench/run.py measured."""
    of = [both[threads] for threads in sorted(both)]
    times = [
        {framework: [round(one[framework][key] * 1e6) for key in ("eager", "call")] for framework in frameworks}
        for one in of
    ]
    gains = [{framework: eager / call for framework, (eager, call) in one.items()} for one in times]
    cells = [name]
    for framework in frameworks:
        cells += [" / ".join(f"{one[framework][i]:,}" for one in times) for i in range(2)]
    cells.append(" / ".join(f"{one['magneto']:.2f}x" for one in gains))
    for framework in frameworks[1:]:
        cells.append(" / ".join(f"{one['magneto'] / one[framework]:.2f}x" for one in gains))
    for key in ("cold", "warm"):
        ours, theirs = (round(of[0][framework][key] * 1e3, 1) for framework in ("magneto", "peer"))
        cells += [f"{ours:,.1f}", f"{theirs:,.1f}", f"1/{theirs / ours:.0f}" if ours > 0 else "-"]
    return cells


def table(kind: str, rows: dict[str, By]) -> list[str]:
    found: dict[str, dict[int, By]] = {}
    for key, both in rows.items():
        name, threads = key.removesuffix(" threads").rsplit(", ", 1)
        found.setdefault(name, {})[int(threads)] = both
    frameworks = [name for name in NAMES if name in next(iter(rows.values()))]
    lines = [[kind, *headers(frameworks)], *(row(name, both, frameworks) for name, both in found.items())]
    head, *body = [f"| {' | '.join(line)} |" for line in lines]
    return [head, "|" + "---|" * len(lines[0]), *body]


def put(page: str, kind: str, text: str) -> str:
    """The page with the table between its marks replaced."""
    begin, end = f"<!-- {kind} -->\n", f"<!-- end of {kind} -->"
    assert begin in page and end in page, f"{PAGE.name} has no marks for {kind}"
    return re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: begin + text + end, page, flags=re.DOTALL)


def main() -> None:
    paths = [path for path in sys.argv[1:] if path != "--write"]
    results: dict[str, Any] = {kind: of for path in paths for kind, of in json.loads(Path(path).read_text()).items()}
    for kind in ("patterns", "models"):
        if kind not in results:
            continue
        text = "\n".join(table(kind.removesuffix("s"), results[kind]["rows"])) + "\n"
        if "--write" in sys.argv:
            PAGE.write_text(put(PAGE.read_text(), kind, text))
        else:
            print(text)


if __name__ == "__main__":
    main()
