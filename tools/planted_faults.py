#!/usr/bin/env python3
"""Plants the faults of tests/debug/faults.py, one after the other, and says what the tools find of each.

    tools/planted_faults.py [--verbose] [WORD...]

With words: the faults that have one of them in their kind, place or subject. Docs: docs/debugging.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verbose", action="store_true", help="reports and scripts of what is not found")
    parser.add_argument("words", nargs="*", metavar="WORD")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "debug")]
    from faults import FAULTS
    from find import find

    chosen = [fault for fault in FAULTS if not options.words or any(word in str(fault) for word in options.words)]
    missed, seconds, cpu = 0, 0.0, 0.0
    for fault in chosen:
        found = find(fault)
        wrong = found.missing(fault)
        missed += bool(wrong)
        seconds += found.seconds
        cpu += found.cpu_seconds
        verdict = "; ".join(wrong) or f"{found.size}, {found.ended[-60:].splitlines()[-1]}"
        print(
            f"{fault!s:80} {fault.finder:24} {found.seconds:5.1f} s {found.cpu_seconds:5.1f} s CPU  {verdict}",
            flush=True,
        )
        if wrong and options.verbose:
            print(f"{found.report}\n{found.script}\n{found.ended}")
    print(f"{len(chosen) - missed} of {len(chosen)} found, named and minified; {seconds:.0f} s, {cpu:.0f} s CPU")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
