"""A compile that takes long, in a notebook: a line below the cell. On a terminal the core draws it itself."""

from __future__ import annotations

import sys
from typing import Any

_cell: Any = None  # the display of the line, while there is one


def show(line: str) -> bool:
    """Shows a line, in the place of the one before; an empty one takes it away. False: this is no notebook."""
    global _cell
    if not _is_notebook():
        return False
    display = sys.modules["IPython"].display
    if _cell is None:
        _cell = display.display({"text/plain": line}, raw=True, display_id=True)
    else:
        _cell.update({"text/plain": line}, raw=True)
    if not line:
        _cell = None
    return True


def _is_notebook() -> bool:
    """The program runs in a kernel of Jupyter, not at IPython's prompt in a terminal."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module else None
    return shell is not None and getattr(shell, "kernel", None) is not None
