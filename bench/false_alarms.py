"""How often the accuracy check cries wolf: the architectures of tests/architectures under `repro_level` 4.

python -P bench/false_alarms.py [--every 3 [--first 1]] [--only WORD] [--ways eval-aot,training-dynamo]

Nothing is planted: what the check says is a false alarm, or a fault that is news. One line for each alarm, and at the
end one for each way.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import random
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import magneto

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS)]
models: Any = importlib.import_module("models")

WAYS = {
    "eval-aot": ("aot", False),
    "eval-dynamo": ("dynamo", False),
    "training-aot": ("aot", True),
    "training-dynamo": ("dynamo", True),
}


@dataclass
class Count:
    """Of one way."""

    checked: int = 0
    alarms: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # fail in eager, too, or otherwise than by the check
    seconds: float = 0.0


def run(name: str, after: str, trains: bool) -> None:
    """Compiles and calls one architecture under the check; raises AccuracyError for an alarm."""
    magneto.reset()
    torch.manual_seed(0)
    random.seed(0)
    model = models.build(name).train(trains)
    if trains:
        models.spread_zeros(model)
    given = models.inputs(name)
    with magneto.config.patch(repro_after=after, repro_level=4, disk_cache=False), torch.set_grad_enabled(trains):
        torch.manual_seed(1)
        outputs = magneto.compile(model)(**given)
        if not trains:
            return
        values = outputs.values() if hasattr(outputs, "values") else outputs
        loss = sum(x.float().pow(2).mean() for x in values if isinstance(x, torch.Tensor) and x.requires_grad)
        if isinstance(loss, torch.Tensor):
            loss.backward()  # type: ignore[no-untyped-call]


def check(name: str, way: str, count: Count) -> None:
    """One architecture in one way."""
    start = time.perf_counter()
    try:
        run(name, *WAYS[way])
        count.checked += 1
    except magneto.exc.AccuracyError as error:
        count.checked += 1
        count.alarms.append(name)
        print(f"{way}: {name}: {str(error).splitlines()[0][:300]}", flush=True)
    except Exception as error:
        count.refused.append(name)
        print(f"{way}: {name}: not checked: {type(error).__name__}: {str(error)[:120]!r}", flush=True)
    count.seconds += time.perf_counter() - start


def main() -> int:
    """1: there were alarms."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every Nth architecture")
    parser.add_argument("--first", type=int, default=0, metavar="K", help="from that one on, counted from 0")
    parser.add_argument("--only", default="", metavar="WORD", help="those with it in their name")
    parser.add_argument("--ways", default=",".join(WAYS), help=", ".join(WAYS))
    options = parser.parse_args()
    logging.getLogger("torch._dynamo.magneto").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = [name for name in sorted(models.MODELS) if options.only in name][options.first :: options.every]
    counts = {way: Count() for way in options.ways.split(",")}
    with tempfile.TemporaryDirectory() as folder, magneto.config.patch(debug_dir=folder):
        for number, name in enumerate(names, 1):
            for way, count in counts.items():
                check(name, way, count)
            if number % 20 == 0:
                print(f"{number} of {len(names)}", flush=True)
    for way, count in counts.items():
        print(
            f"{way}: {len(count.alarms)} alarms in {count.checked} of {len(names)} architectures "
            f"({len(count.refused)} not checked), {count.seconds:.0f} s"
        )
    return 1 if any(count.alarms for count in counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
