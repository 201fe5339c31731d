"""Side exits beside torch.compile's graph breaks: every architecture and every module of the zoo, one cold call each.

    make bench ARGS="--only breaks_zoo"                       # both frameworks, as a table
    .venv/bin/python -P bench/breaks.py zoo --only peer      # one framework's reasons

A break is what TORCH_LOGS=graph_breaks writes a line for, on either side; the peer also writes one for each function
that it leaves to CPython because of a break in a loop, a `with` or a `try`. Each framework works through a list in a
process of its own, which is started again behind a model that ends it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

KINDS = ("architectures", "zoo")
TESTS = Path(__file__).parent.parent / "tests"
Case = tuple[str, Callable[[], tuple[Any, tuple[Any, ...], dict[str, Any]]]]


def cases(kind: str) -> Iterator[Case]:
    import torch

    if kind == "architectures":
        import models

        for name in models.MODELS:
            yield name, lambda name=name: (models.build(name), (), models.inputs(name))
        return
    import test_zoo

    for name in test_zoo.ZOO:

        def make(name: str = name) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
            torch.manual_seed(5)
            return test_zoo.ZOO[name].make(), test_zoo.ZOO[name].inputs(), {}

        yield name, make


def magneto_call(module: Any, args: Any, kwargs: Any, fullgraph: bool) -> dict[str, int]:
    """Reasons of the breaks of one call, and how often each."""
    import magneto

    magneto.reset()
    with magneto.config.patch(strict=True, cache_size_limit=100, accumulated_cache_size_limit=1000):
        magneto.compile(module, backend="eager", fullgraph=fullgraph)(*args, **kwargs)
    stats = magneto.stats()
    assert sum(stats["break_reasons"].values()) == stats["breaks"]
    return dict(stats["break_reasons"])


class Incidents(logging.Handler):
    """What TORCH_LOGS=graph_breaks writes: a line for each break, and for each function left to CPython for one."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: dict[str, int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        found = re.search(r"Graph Break Reason: (.*)", record.getMessage())
        reason = found[1] if found else record.getMessage().split("\n")[0]
        self.reasons[reason] = self.reasons.get(reason, 0) + 1


def peer_call(module: Any, args: Any, kwargs: Any, fullgraph: bool) -> dict[str, int]:
    import torch
    import torch._dynamo

    torch._dynamo.reset()
    torch._logging.set_logs(graph_breaks=True)
    incidents = Incidents()
    for name in list(logging.root.manager.loggerDict):
        if name.endswith("__graph_breaks"):
            logging.getLogger(name).handlers = [incidents]
    torch.compile(module, backend="eager", fullgraph=fullgraph, dynamic=False)(*args, **kwargs)
    return incidents.reasons


def work(framework: str, kind: str, skip: set[str], out: Path) -> None:
    import torch

    warnings.simplefilter("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    call = magneto_call if framework == "magneto" else peer_call
    for name, make in cases(kind):
        if name in skip:
            continue
        with out.open("a") as file:
            file.write(json.dumps([name, "crash", None]) + "\n")
        result: list[Any] = [name, False, None]
        with torch.no_grad():
            for fullgraph in (True, False):
                module, args, kwargs = make()
                torch.manual_seed(0)
                try:
                    breaks = call(module, args, kwargs, fullgraph)
                except Exception as error:
                    if not fullgraph:
                        result[2] = f"{type(error).__name__}"
                    continue
                if fullgraph:
                    result[1] = True
                else:
                    result[2] = breaks
        with out.open("a") as file:
            file.write(json.dumps(result) + "\n")


def measure(framework: str, kind: str) -> dict[str, list[Any]]:
    results: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        out.touch()
        while True:
            command = [sys.executable, "-P", __file__, "--worker", framework, kind, str(out), ",".join(results)]
            code = subprocess.run(command, stdout=sys.stderr).returncode
            before = len(results)
            for line in out.read_text().splitlines():
                name, fullgraph, breaks = json.loads(line)
                results[name] = [fullgraph, breaks]
            if code == 0 or len(results) == before:
                return results


def total(breaks: dict[str, int] | str | None) -> int | str | None:
    return sum(breaks.values()) if isinstance(breaks, dict) else breaks


Table = list[list[str]]


def compare(kind: str, with_peer: bool) -> tuple[list[str], Table, dict[str, Any], str]:
    """Headers, rows (models that neither side takes whole, and the sum), data, and one line against the aim."""
    ours = measure("magneto", kind)
    theirs = measure("peer", kind) if with_peer else {}
    sums = [0, 0, 0, 0]
    rows: Table = []
    only_peer = []
    for name, (full, breaks) in ours.items():
        peer_full, peer_breaks = theirs.get(name, [None, None])
        row = [full, total(breaks), peer_full, total(peer_breaks)]
        for i, value in enumerate(row):
            sums[i] += value if isinstance(value, int) else 0
        if peer_full and not full:
            only_peer.append(name)
        if row[:2] != [True, 0] or (with_peer and row[2:] != [True, 0]):
            rows.append([name, *("" if value is None else str(value) for value in row)])
    rows.append([f"**all {len(ours)}**", *map(str, sums)])
    verdict = f"{kind}: {sums[0]} of {len(ours)} in one graph, {sums[1]} side exits"
    if with_peer:
        verdict += f"; peer {sums[2]} and {sums[3]} breaks (aim: half). One graph for the peer alone: "
        verdict += ", ".join(only_peer) or "none"
    headers = [kind, "one graph", "side exits", "peer: one graph", "peer: breaks"]
    return headers, rows, {"magneto": ours, "peer": theirs}, verdict


def print_reasons(results: dict[str, list[Any]]) -> None:
    print("\n| module | side exits | reason |\n|---|---|---|")
    for name, (_, breaks) in results.items():
        for reason, count in breaks.items() if isinstance(breaks, dict) else [(breaks, 1)]:
            print(f"| {name} | {count} | {reason} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=KINDS)
    parser.add_argument("--only", choices=("magneto", "peer"), default="magneto", help="whose reasons (default: ours)")
    parser.add_argument("--worker", nargs=4)
    options = parser.parse_args()
    if options.worker:
        framework, kind, out, skip = options.worker
        work(framework, kind, set(filter(None, skip.split(","))), Path(out))
        return
    for kind in options.kinds:
        print_reasons(measure(options.only, kind))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.path.insert(0, str(TESTS))
    main()
