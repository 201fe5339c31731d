"""The tables of docs/performance.md from results of bench/run.py: a row each, both numbers of threads in it.

.venv/bin/python -P bench/tables.py bench/results/a.json bench/results/b.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HEADERS = ["eager us, 1 / 2 threads", "Magneto us", "torch.compile us", "over eager", "over the peer"]
HEADERS += ["cold ms", "peer's", "warm ms", "peer's"]


def row(name: str, both: dict[int, dict[str, dict[str, float]]]) -> list[str]:
    """`both`: by threads, then by framework, what bench/run.py measured."""
    of = [both[threads] for threads in sorted(both)]

    def each(text: Any) -> str:
        return " / ".join(text(one) for one in of)

    def over_eager(framework: dict[str, float]) -> float:
        return framework["eager"] / framework["call"]

    return [
        name,
        each(lambda one: f"{min(one['magneto']['eager'], one['peer']['eager']) * 1e6:,.0f}"),
        each(lambda one: f"{one['magneto']['call'] * 1e6:,.0f}"),
        each(lambda one: f"{one['peer']['call'] * 1e6:,.0f}"),
        each(lambda one: f"{over_eager(one['magneto']):.2f}x"),
        each(lambda one: f"{over_eager(one['magneto']) / over_eager(one['peer']):.2f}x"),
        *(f"{of[0][framework][key] * 1e3:,.0f}" for key in ("cold", "warm") for framework in ("magneto", "peer")),
    ]


def table(kind: str, rows: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    found: dict[str, dict[int, dict[str, dict[str, float]]]] = {}
    for key, both in rows.items():
        name, threads = key.removesuffix(" threads").rsplit(", ", 1)
        found.setdefault(name, {})[int(threads)] = both
    lines = [[kind, *HEADERS], *(row(name, both) for name, both in found.items())]
    head, *body = [f"| {' | '.join(line)} |" for line in lines]
    return [head, "|" + "---|" * (1 + len(HEADERS)), *body]


def main() -> None:
    results = {kind: data for path in sys.argv[1:] for kind, data in json.loads(Path(path).read_text()).items()}
    for kind in ("patterns", "models"):
        if kind in results:
            print("\n".join([*table(kind.removesuffix("s"), results[kind]["rows"]), ""]))


if __name__ == "__main__":
    main()
