"""Puts a report into one HTML file: template, style, script and data, with nothing to load from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_PAGE = Path(__file__).with_name("page")
# In the order in which they build on each other.
_SCRIPTS = (
    "dom.js",
    "list.js",
    "links.js",
    "code.js",
    "charts.js",
    "tables.js",
    "findings.js",
    "overview.js",
    "main.js",
)


def html(data: dict[str, Any]) -> str:
    """The whole file."""
    parts = {
        "style": (_PAGE / "style.css").read_text(encoding="utf-8"),
        "script": "\n".join((_PAGE / name).read_text(encoding="utf-8") for name in _SCRIPTS),
        "data": in_script(data),
    }
    page = (_PAGE / "page.html").read_text(encoding="utf-8")
    for name, text in parts.items():
        before, after = page.split(f"/*{name}*/")
        page = before + text + after
    return page


def in_script(data: Any) -> str:
    """JSON that may stand in a <script>: whatever the program's names are, it does not end the element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    # A lone surrogate (a file name that is no UTF-8) can't be written.
    return text.encode("utf-8", "replace").decode("utf-8")
