"""`magneto.install()`: programs written for torch.compile use Magneto, unchanged.

The names that such programs write (`torch.compile`, `torch._dynamo.explain`, `torchdynamo`...) are rows of `table.py`.
Installing puts a finder in front of `sys.meta_path` that serves those modules from the rows. What no row names is
PyTorch's own, loaded when it is asked for (`peer.py`): compiling never does. `torch.compiler.*` needs nothing: its
functions go to `torch._dynamo`.

What others hold already is changed in place, so that the order of imports does not matter: `torch.compile` stays the
same function with another body, and where PyTorch's compiler was loaded before, what it has given away (`patched.py`).
Every change goes through `Changes`, which takes them back.
"""

from __future__ import annotations

import sys
import threading

import torch

from magneto import _C, _log
from magneto._install import compiled_autograd, config_modules, dynamo, exports, modules, patched, peer, settings, table
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
    config_modules.read_environment()


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

    def loaded_meanwhile(theirs: peer.Modules, stood_in: peer.Modules) -> None:
        with table.without_notes():  # they are for programs that use the names
            patched.change(changes, theirs)
            patched.give_way(stood_in)

    theirs = peer.set_aside(loaded_meanwhile)
    changes.on_undo(peer.put_back)
    symbolic_shapes = [name for name in table.STAND_INS if name in sys.modules]  # loaded: it works on, for who uses it
    changes.finder(modules.Finder([prefix for prefix in table.PREFIXES if prefix not in symbolic_shapes]))
    changes.on_undo(dynamo.forget_disabled)
    changes.on_undo(settings.forget_logs)
    changes.on_undo(compiled_autograd.give_back)
    _C.refuse_fx_tracing(True)  # error_on_nested_fx_trace is on by default
    changes.on_undo(lambda: _C.refuse_fx_tracing(False))
    changes.body(torch.compile, dynamo.torch_compile)
    for name, ours in dynamo.COMPILER.items():
        if hasattr(torch.compiler, name):  # else this PyTorch is older
            changes.body(getattr(torch.compiler, name), ours)
    for name, ours in exports.FUNCTIONS.items():
        if hasattr(torch.export, name):
            peer.keep_original("torch.export", name, getattr(torch.export, name))
            changes.body(getattr(torch.export, name), ours)
    for name, ours in exports.AHEAD.items():
        if hasattr(torch._export, name):
            changes.body(getattr(torch._export, name), ours)
    for logging in (torch._logging, torch._logging._internal):
        changes.attribute(logging, "set_logs", _log.set_logs_with_names(logging.set_logs))
    for name in ("torch._dynamo", "torch._inductor"):  # torch would import them in the middle of a capture
        modules.load(name)
    loaded_meanwhile(theirs, {})
