"""Which operators take which way: docs/operators.md, made from runs of PyTorch's operator database.

python tests/ops/ways.py            prints the page
python tests/ops/ways.py --write    writes it
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import sweep
import torch

import magneto

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"
SAMPLES = 3

HEAD = """# Which way operators go

Made by `python tests/ops/ways.py --write` on PyTorch {version}, from the first {samples} samples of each operator in
PyTorch's database (float32; int64 where there is no float32), each compiled as a function of its own. A test keeps it
current.

- **generated**: kernels of our own, fused with what is around them. `view`: index maps, which cost nothing in a kernel.
- **called**: eager's own kernel, in the plan; `magneto.stats()["externs"]` counts them. Both: some of its parts, or some
  of its cases (dtypes, layouts, arguments), are generated.
- **one by one**: all operators of the graph run as captured; `magneto.stats()["uncompiled"]` says why, a warning once.
  Graphs with nothing but complex, quantised or other devices' tensors go this way.
- **not captured**: it ends the graph (it reads data, or makes no tensors); `magneto.explain` says why.

| operator | way | called |
|---|---|---|
"""


def dtype_of(info: Any) -> torch.dtype | None:
    return next((dtype for dtype in (torch.float32, torch.int64) if dtype in info.dtypes), None)


def rows(infos: Iterable[Any]) -> dict[str, tuple[set[str], set[str]]]:
    """operator -> (ways, what is called)."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for info in infos:
        dtype = dtype_of(info)
        if dtype is None:
            continue
        sweep.ways.clear()
        for problem in sweep.check(info, dtype, SAMPLES):
            print(problem, file=sys.stderr)
        for seen in sweep.ways.values():
            ways, called = found.setdefault(info.name, (set(), set()))
            for way in seen:
                kind, _, name = way.partition(" ")
                if way.startswith("operator by operator"):
                    ways.add("one by one")
                elif kind == "extern":
                    ways.add("called")
                    called.add(name)
                else:
                    ways.add(way)
            if not ways:
                ways.add("view")
    return found


def line(name: str, ways: set[str], called: set[str]) -> str:
    return f"| {name} | {', '.join(sorted(ways))} | {', '.join(sorted(called))} |"


def listed() -> dict[str, tuple[set[str], set[str]]]:
    """What the page says."""
    found = {}
    for text in PAGE.read_text().split("|---|---|---|\n")[1].splitlines():
        _, name, ways, called, _ = (part.strip() for part in text.split("|"))
        found[name] = (set(ways.split(", ")), set(filter(None, called.split(", "))))
    return found


def version() -> str:
    return ".".join(torch.__version__.split(".")[:2])


def main() -> None:
    torch.set_num_threads(1)
    magneto.config.strict = True
    found = rows(sweep.infos())
    text = HEAD.format(version=version(), samples=SAMPLES)
    text += "".join(line(name, *found[name]) + "\n" for name in sorted(found))
    if "--write" in sys.argv:
        PAGE.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
