"""Magneto: torch.compile rebuilt in C++.

    import magneto

    model = magneto.compile(model)      # a module, a function, or a method; also a decorator
    model(x)                            # captured on the first call, run from C++ afterwards

The package is thin: everything but argument checking and presentation happens in the C++ core, `magneto._C`.
"""

from __future__ import annotations

from magneto import _variables as _variables  # before torch is loaded

# isort: split
from magneto import _load as _load  # first: refuses a Python or PyTorch that the core was not built for

# isort: split
from magneto import config as config
from magneto import exc as exc
from magneto._ahead import aot_compile, aot_load
from magneto._api import (
    allow_in_graph,
    assume_constant_result,
    bisect,
    compile,
    debug_dump,
    disable,
    explain,
    graph_break,
    is_compiling,
    list_modes,
    list_options,
    minify,
    recompiles,
    reset,
    stats,
    summary,
    why,
)
from magneto._artifacts import load_cache_artifacts, save_cache_artifacts
from magneto._backends import list_backends, register_backend
from magneto._installation import install, uninstall
from magneto._marks import mark_dynamic, mark_static, mark_unbacked, maybe_mark_dynamic
from magneto._module import OptimizedModule
from magneto._stance import set_stance
from magneto._substitute import substitute_in_graph

__version__ = "0.1.0"

__all__ = [
    "OptimizedModule",
    "__version__",
    "allow_in_graph",
    "aot_compile",
    "aot_load",
    "assume_constant_result",
    "bisect",
    "compile",
    "config",
    "debug_dump",
    "disable",
    "exc",
    "explain",
    "graph_break",
    "install",
    "is_compiling",
    "list_backends",
    "list_modes",
    "list_options",
    "load_cache_artifacts",
    "mark_dynamic",
    "mark_static",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "minify",
    "recompiles",
    "register_backend",
    "reset",
    "save_cache_artifacts",
    "set_stance",
    "stats",
    "substitute_in_graph",
    "summary",
    "uninstall",
    "why",
]

if _variables.asks_for_logs():
    from magneto import _log as _log  # which says in the end what had nothing to say
