"""Source text of generated graph modules: torch.fx registers it for tracebacks, and never forgets it."""

from __future__ import annotations

import linecache
import weakref
from typing import Any


def forget_with(graph_module: Any) -> None:
    """Lets go of a graph module's source text when the module itself dies."""
    weakref.finalize(graph_module, _forget, type(graph_module)).atexit = False


def _forget(generated_class: type) -> None:
    from torch.fx import graph_module

    # Each graph module has a class of its own, whose forward is compiled from the registered text.
    code = getattr(generated_class.forward, "__code__", None)  # type: ignore[attr-defined]
    if code is None or not code.co_filename.startswith("<eval_with_key>"):
        return
    loader = getattr(graph_module, "_loader", None)
    getattr(loader, "eval_cache", {}).pop(code.co_filename, None)
    linecache.cache.pop(code.co_filename, None)
