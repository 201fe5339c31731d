"""Side exits beside torch.compile's graph breaks: every architecture and every module of the zoo, one cold call each.

    .venv/bin/python -P bench/breaks.py architectures zoo > bench/results/breaks.md
    .venv/bin/python -P bench/breaks.py zoo --only magneto    # ours alone, with the reasons

Each framework works through a list in a process of its own, which is started again behind a model that ends it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


def peer_call(module: Any, args: Any, kwargs: Any, fullgraph: bool) -> dict[str, int]:
    import torch
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    torch.compile(module, backend="eager", fullgraph=fullgraph, dynamic=False)(*args, **kwargs)
    return {reason.split("\n")[0]: count for reason, count in counters["graph_break"].items()}


def work(framework: str, kind: str, skip: set[str], out: Path) -> None:
    import torch

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
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


def print_reasons(results: dict[str, list[Any]]) -> None:
    print("\n| module | side exits | reason |\n|---|---|---|")
    for name, (_, breaks) in results.items():
        for reason, count in breaks.items() if isinstance(breaks, dict) else [(breaks, 1)]:
            print(f"| {name} | {count} | {reason} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=["architectures", "zoo"])
    parser.add_argument("--only", choices=("magneto", "peer"), help="one framework")
    parser.add_argument("--worker", nargs=4)
    options = parser.parse_args()
    if options.worker:
        framework, kind, out, skip = options.worker
        work(framework, kind, set(filter(None, skip.split(","))), Path(out))
        return
    for kind in options.kinds:
        if options.only:
            print_reasons(measure(options.only, kind))
            continue
        ours, theirs = measure("magneto", kind), measure("peer", kind)
        print(f"\n| {kind} | one graph | side exits | peer: one graph | peer: breaks |\n|---|---|---|---|---|")
        totals = [0, 0, 0, 0]
        for name, (full, breaks) in ours.items():
            peer_full, peer_breaks = theirs.get(name, [False, None])
            breaks, peer_breaks = total(breaks), total(peer_breaks)
            for i, value in enumerate((full, breaks, peer_full, peer_breaks)):
                totals[i] += value if isinstance(value, int) else 0
            if (full, breaks, peer_full, peer_breaks) != (True, 0, True, 0):
                print(f"| {name} | {full} | {breaks} | {peer_full} | {peer_breaks} |")
        print(f"| **all {len(ours)}** | {totals[0]} | {totals[1]} | {totals[2]} | {totals[3]} |")
        print_reasons(ours)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.path.insert(0, str(TESTS))
    main()
