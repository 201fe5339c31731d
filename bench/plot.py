"""A plot of the steady state from results of bench/run.py, as SVG: bars of Magneto and of torch.compile over eager.

.venv/bin/python -P bench/plot.py bench/results/a.json bench/results/b.json > docs/performance.svg
"""

from __future__ import annotations

import html
import json
import sys
from pathlib import Path
from typing import Any

LABEL, WIDTH, BAR, GAP, MOST = 190, 420, 7, 6, 6.0
COLOURS = {"magneto": "#2a6fbb", "peer": "#c9c9c9"}


def rows_of(results: dict[str, Any], kind: str, threads: int) -> list[tuple[str, dict[str, float]]]:
    """Name, and how many times as fast as eager each framework is."""
    ending = f", {threads} threads"
    return [
        (name.removesuffix(ending), {framework: of["eager"] / of["call"] for framework, of in both.items()})
        for name, both in results.get(kind, {}).get("rows", {}).items()
        if name.endswith(ending)
    ]


def plot(rows: list[tuple[str, dict[str, float]]], title: str) -> str:
    step = 2 * BAR + GAP
    height = 50 + step * len(rows)
    unit = WIDTH / MOST
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LABEL + WIDTH + 60}" height="{height}" '
        'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LABEL}" y="14" font-size="13">{html.escape(title)}</text>',
    ]
    for k, (framework, text) in enumerate({"magneto": "Magneto", "peer": "torch.compile"}.items()):
        parts.append(f'<rect x="{LABEL + 100 * k}" y="22" width="9" height="9" fill="{COLOURS[framework]}"/>')
        parts.append(f'<text x="{LABEL + 13 + 100 * k}" y="31">{text}</text>')
    for number, (name, ratios) in enumerate(rows):
        top = 40 + step * number
        parts.append(f'<text x="{LABEL - 6}" y="{top + BAR + 4}" text-anchor="end">{html.escape(name)}</text>')
        for k, framework in enumerate(COLOURS):
            ratio = ratios[framework]
            width, y = min(ratio, MOST) * unit, top + k * BAR
            parts.append(
                f'<rect x="{LABEL}" y="{y}" width="{width:.0f}" height="{BAR}" fill="{COLOURS[framework]}"/>'
                f'<text x="{LABEL + width + 3:.0f}" y="{y + BAR}" font-size="8">{ratio:.2f}</text>'
            )
    line = LABEL + unit
    parts.append(f'<path d="M{line:.0f} 36V{height - 6}" stroke="black" stroke-dasharray="3 3"/></svg>')
    return "\n".join(parts)


def main() -> None:
    results = {kind: data for path in sys.argv[1:] for kind, data in json.loads(Path(path).read_text()).items()}
    rows = [row for kind in ("patterns", "models") for row in rows_of(results, kind, 1)]
    print(plot(rows, "Times as fast as eager, one thread (line: eager)"))


if __name__ == "__main__":
    main()
