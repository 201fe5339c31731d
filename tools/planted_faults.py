#!/usr/bin/env python3
"""Plants the faults of tests/debug/faults.py, one after the other, and says what the tools find of each.

    tools/planted_faults.py [--verbose] [--write] [WORD...]

With words: the faults that have one of them in their kind, place or subject. Docs: docs/debugging.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "debugging.md"
BEGIN, END = "<!-- planted faults -->", "<!-- end of planted faults -->"


def table(rows: list[tuple[Any, Any, list[str]]]) -> str:
    """What was found of each kind, in Markdown."""
    lines = ["| fault | planted | found | by | largest script | seconds of CPU |", "|---|---|---|---|---|---|"]
    for kind in dict.fromkeys(fault.kind for fault, _, _ in rows):
        own = [row for row in rows if row[0].kind == kind]
        tools = ", ".join(dict.fromkeys(fault.finder for fault, _, _ in own))
        sizes = [found.size for _, found, _ in own if found.size]
        largest = [max((s for s in sizes if s.endswith(unit)), key=_number, default="") for unit in _UNITS]
        most = max(found.cpu_seconds for _, found, _ in own)
        right = sum(not wrong for _, _, wrong in own)
        lines.append(f"| {kind} | {len(own)} | {right} | {tools} | {', '.join(filter(None, largest))} | {most:.1f} |")
    right = sum(not wrong for _, _, wrong in rows)
    return "\n".join([*lines, f"| all | {len(rows)} | {right} | | | |"])


_UNITS = ("operators", "lines")


def _number(size: str) -> int:
    return int(size.partition(" ")[0])


def write(text: str) -> None:
    """Puts the table into the page."""
    page = PAGE.read_text()
    before, after = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
    PAGE.write_text(f"{before}\n{text}\n{after}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verbose", action="store_true", help="reports and scripts of what is not found")
    parser.add_argument("--write", action="store_true", help="puts what is found of each kind into the page")
    parser.add_argument("words", nargs="*", metavar="WORD")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "debug")]
    from faults import FAULTS
    from find import find

    chosen = [fault for fault in FAULTS if not options.words or any(word in str(fault) for word in options.words)]
    missed, seconds, cpu = 0, 0.0, 0.0
    rows = []
    for fault in chosen:
        found = find(fault)
        wrong = found.missing(fault)
        rows.append((fault, found, wrong))
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
    print(table(rows))
    if options.write:
        write(table(rows))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
