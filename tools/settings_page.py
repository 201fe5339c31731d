"""Writes what follows from the table of settings (src/support/settings.def): docs/settings.md, and the types that
editors and type checkers see in magneto/config.py.

python tools/settings_page.py          # after a change of the table, and a build
"""

from __future__ import annotations

import re
from pathlib import Path

from magneto import _setting, config

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "settings.md"
MODULE = ROOT / "magneto" / "config.py"

_HEAD = """# Settings

`magneto.config.NAME = value` for the process, `with magneto.config.patch(NAME=value):` for a block; an unknown name or
a value of another type is an error at once. `print(magneto.config.help())` lists all with the values that hold. The
table is `src/support/settings.def`; everything else follows from it (`python tools/settings_page.py` writes this page).

"""
_TITLES = {
    "process": "",
    "callable": "\n## Also for one compiled callable\n\nIn `compile(..., options={NAME: value})` as well.\n\n",
    "tests": "\n## For tests of Magneto\n\nIn `magneto._test_settings`.\n\n",
}
_COLUMNS = "| setting | default | environment | torch | |\n|---|---|---|---|---|\n"


def _row(name: str, setting: _setting.Setting) -> str:
    torch = ", ".join(f"`{alias}`" for alias in config.torch_names(setting))
    environment = f"`{setting.environment}`" if setting.environment else ""
    return f"| `{name}` | `{setting.default!r}` | {environment} | {torch} | {setting.doc} |\n"


def page() -> str:
    """docs/settings.md."""
    text = _HEAD
    for use, title in _TITLES.items():
        text += title + _COLUMNS
        text += "".join(_row(name, setting) for name, setting in _setting.rows().items() if setting.use == use)
    return text


def module(source: str) -> str:
    """magneto/config.py with the annotations of the table."""
    annotations = "".join(
        f"    {name}: {type(setting.default).__name__}\n" for name, setting in config.SETTINGS.items()
    )
    return re.sub(r"(?<=^if TYPE_CHECKING:)([^\n]*\n)(?:    \w+: \w+\n)+", rf"\1{annotations}", source, flags=re.M)


if __name__ == "__main__":
    PAGE.write_text(page())
    MODULE.write_text(module(MODULE.read_text()))
