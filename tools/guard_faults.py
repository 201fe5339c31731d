"""Which tests would notice guards that check too little: `python tools/guard_faults.py` (docs/guards.md).

Each fault of src/guards/guard_faults.def is planted in turn while a program is compiled that has guards of its kind,
until one of the programs behaves otherwise than eager."""

from __future__ import annotations

import argparse
import re
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS.parent), str(TESTS), str(TESTS / "language")]

import guard_fault_runs  # noqa: E402
import torch  # noqa: E402

from magneto import _testing  # noqa: E402

SUITES = {"generated": guard_fault_runs.generated, "written": guard_fault_runs.written}


def search(cases: Iterator[guard_fault_runs.Case], only: str, seconds: float) -> tuple[dict[str, str], int]:
    """The first program that notices each fault."""
    found: dict[str, str] = {}
    wanted = {name for name, _ in _testing.guard_faults()}
    end, count = time.monotonic() + seconds, 0
    for name, scenario in cases:
        if not wanted or time.monotonic() > end:
            break
        if not re.search(only, name):
            continue
        count += 1
        for fault in sorted(guard_fault_runs.found_by(scenario, wanted)):
            found[fault] = name
            wanted.discard(fault)
            print(f"{count}: {fault}: {name}", file=sys.stderr, flush=True)
    return found, count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", default=list(SUITES))
    parser.add_argument("--seconds", type=float, default=600.0, help="for each suite")
    parser.add_argument("--only", default="", help="programs whose name has this, a regular expression")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    results = {}
    for suite in options.suites:
        begin = time.monotonic()
        guard_fault_runs.unusable.clear()
        results[suite], count = search(SUITES[suite](), options.only, options.seconds)
        programs = f"{count} programs ({len(guard_fault_runs.unusable)} unusable)"
        print(f"{suite}: {len(results[suite])} found by {programs}, {time.monotonic() - begin:.0f} s")
    print("| fault | what is wrong | " + " | ".join(results) + " |\n|" + " --- |" * (2 + len(results)))
    for fault, meaning in _testing.guard_faults():
        cells = " | ".join(result.get(fault, "**no**") for result in results.values())
        print(f"| `{fault}` | {meaning} | {cells} |")


if __name__ == "__main__":
    main()
