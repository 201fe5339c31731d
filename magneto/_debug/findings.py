"""What the tools found, as plain data: records of the structured log (TORCH_TRACE), which the report's page shows.

A finding is a dict of JSON's types. Its "kind" is "ablation" (the table of runs, and what is at fault), "minified" (a
graph or program before and after) or "wrong" (the first value that is not eager's, with the sizes of its errors).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magneto import _trace

if TYPE_CHECKING:
    from magneto._debug.bisect import Diagnosis
    from magneto._debug.same import Difference

Finding = dict[str, Any]

_file: Path | None = None


def tell(finding: Finding) -> None:
    """Writes a finding where somebody looks for it."""
    if _file is not None:
        with contextlib.suppress(OSError), _file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finding) + "\n")
    elif _trace.enabled():
        _trace.finding(finding, _texts(finding))


@contextlib.contextmanager
def kept_in(file: Path) -> Iterator[None]:
    """Meanwhile findings of this process and of its children, whose logs nobody reads, go to a file of their own."""
    global _file
    before, _file = _file, file
    try:
        yield
    finally:
        _file = before


def read(file: Path) -> list[Finding]:
    """What a file of findings has; a line that a killed child has not ended is left out."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def ablation(found: Diagnosis) -> Finding:
    """The table of a diagnosis, and what it names."""
    return {
        "kind": "ablation",
        "rows": [[row.name, row.verdict, row.outcome.seconds, row.bad] for row in found.rows],
        "stage": found.stage,
        "what": found.what,
        "named": [[name, text] for name, text in found.named().items() if text],
        "runs": found.runs,
        "seconds": found.seconds,
        "text": str(found),
    }


def minified(level: str, before: str, after: str, counts: tuple[int, int], failure: str, seconds: float) -> Finding:
    """`level`: "graph", "operators" or "program"; `counts`: of operators or lines, before and after."""
    return {
        "kind": "minified",
        "level": level,
        "before": before,
        "after": after,
        "counts": list(counts),
        "failure": failure,
        "seconds": seconds,
    }


def wrong(where: str, differences: Sequence[Difference | Finding]) -> Finding:
    """The first of the results that are not eager's. `where`: the place or stage that made it."""
    first = differences[0]
    data = first if isinstance(first, dict) else first.data()
    return {"kind": "wrong", "place": where, "others": len(differences) - 1, **data}


def _texts(finding: Finding) -> dict[str, str]:
    """What other readers of the log (`tlparse`) show: name -> text."""
    match finding["kind"]:
        case "ablation":
            return {"magneto_doctor": finding["text"]}
        case "minified":
            said = f"# {finding['level']}, {finding['counts'][0]} to {finding['counts'][1]}: {finding['failure']}\n"
            return {"magneto_minified_before": finding["before"], "magneto_minified_after": said + finding["after"]}
        case _:
            return {"magneto_first_wrong_value": wrong_text(finding)}


def wrong_text(finding: Finding) -> str:
    """A wrong value in words, below it the errors by powers of ten."""
    lines = [f"{finding['place']}: {finding['where']}: {finding['difference']}: {finding['text']}"]
    errors = finding.get("errors")
    if not errors:
        return lines[0]
    lines.append(value_text(finding))
    sums: dict[int, list[int]] = {}
    for at, name in enumerate(("compiled", "eager")):
        for _, power, count in errors[name]:
            sums.setdefault(power, [0, 0])[at] += count
    lines.append(f"|error|     compiled      eager   (exact: {errors['exact'][0]}, {errors['exact'][1]})")
    lines += [f"1e{power:<+4}  {sums[power][0]:>12} {sums[power][1]:>10}" for power in sorted(sums, reverse=True)]
    return "\n".join(line for line in lines if line)


def value_text(finding: Finding) -> str:
    """ "at [3, 4]: 0.5, not 0.25"."""
    first = (finding.get("errors") or {}).get("first")
    return f"at {first[0]}: {first[1]}, not {first[2]}" if first else ""
