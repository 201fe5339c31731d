"""`magneto.install()`: programs written for torch.compile use Magneto, unchanged.

The names that such programs write (`torch.compile`, `torch._dynamo.explain`, `torchdynamo`...) are rows of `table.py`.
Installing puts a finder in front of `sys.meta_path` that serves those modules from the rows, so PyTorch's compiler is
never loaded. `torch.compiler.*` needs nothing: its functions go to `torch._dynamo`.

What others hold already is changed in place, so that the order of imports does not matter: `torch.compile` stays the
same function with another body, and where PyTorch's compiler was loaded before, what it has given away (`held.py`).
Every change goes through `Changes`, which takes them back.
"""

from __future__ import annotations

import sys
import threading
import warnings

import torch

from magneto import _log
from magneto._install import dynamo, held, modules, settings, table
from magneto._install.changes import Changes

_lock = threading.RLock()
_changes: Changes | None = None


def install() -> None:
    """Makes torch.compile and the names around it Magneto's. A second call does nothing."""
    global _changes
    with _lock:
        if _changes is not None:
            return
        changes = Changes()
        try:
            _put_in_place(changes)
        except BaseException:
            changes.take_back()
            raise
        _changes = changes
    settings.read_environment()


def uninstall() -> None:
    """Puts back what stood there before `install`, PyTorch's compiler included if it was loaded. Else does nothing."""
    global _changes
    with _lock:
        if _changes is not None:
            _changes.take_back()
            _changes = None


def is_installed() -> bool:
    """Whether `install` holds."""
    return _changes is not None


def _put_in_place(changes: Changes) -> None:
    table.forget_notes()
    loaded = {name: module for name, module in sys.modules.items() if modules.is_replaced(name)}
    changes.on_undo(lambda: sys.modules.update(loaded))
    changes.on_undo(lambda: modules.drop(modules.is_replaced))
    for name in loaded:
        del sys.modules[name]
    for name in table.PACKAGES:
        changes.without_module(name)
    served: tuple[str, ...] = table.PREFIXES
    symbolic_shapes = "torch.fx.experimental.symbolic_shapes"
    if symbolic_shapes in sys.modules:  # loaded already: it works on, for who uses it
        served = tuple(prefix for prefix in served if prefix != symbolic_shapes)
    else:
        changes.on_undo(lambda: modules.drop(lambda name: name == symbolic_shapes))
        changes.without_module(symbolic_shapes)
    changes.finder(modules.Finder(served))
    changes.on_undo(dynamo.forget_disabled)
    changes.on_undo(settings.forget_logs)
    changes.body(torch.compile, dynamo.torch_compile)
    changes.body(torch.export.export, dynamo.export)
    for logging in (torch._logging, torch._logging._internal):
        changes.attribute(logging, "set_logs", _log.set_logs_with_names(logging.set_logs))
    if proxy_tensor := sys.modules.get("torch.fx.experimental.proxy_tensor"):  # torch loads it, in most versions
        changes.body(proxy_tensor.make_fx, dynamo.make_fx)
    for name in ("torch._dynamo", "torch._inductor"):  # torch would import them in the middle of a capture
        modules.load(name)
    if loaded:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the notes are for programs that use the names
            held.change(changes, loaded)
    table.forget_notes()
