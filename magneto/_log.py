"""Where the core's log lines go: PyTorch's own artifact loggers, so that TORCH_LOGS and torch._logging.set_logs apply.

The loggers are children of the one that PyTorch configures for its compiler ("torch._dynamo" is a logger's name here,
no module): so they have its handlers, its format and its levels, `TORCH_LOGS=+dynamo` included.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable

from torch._logging._internal import getArtifactLogger

_PARENT = "torch._dynamo.magneto"


_listeners: dict[str, list[weakref.WeakMethod[Callable[[str], None]]]] = {}


def listen(artifact: str, method: Callable[[str], None]) -> None:
    """Calls a bound method with each text of an artifact, as long as its object lives."""
    _listeners.setdefault(artifact, []).append(weakref.WeakMethod(method, lambda dead: _forget(artifact, dead)))


def _forget(artifact: str, dead: weakref.WeakMethod[Callable[[str], None]]) -> None:
    _listeners[artifact].remove(dead)


@functools.cache
def _logger(artifact: str) -> logging.Logger:
    return getArtifactLogger(_PARENT, artifact)


def enabled(artifact: str) -> bool:
    """Whether anybody listens; the core builds a text only then."""
    return bool(_listeners.get(artifact)) or _logger(artifact).isEnabledFor(logging.DEBUG)


def announce(text: str) -> None:
    """Shown whatever TORCH_LOGS says: where something is that the user asked for."""
    logging.getLogger(_PARENT).warning("%s", text, stacklevel=2)


def emit(artifact: str, text: str) -> None:
    """Writes `text` (graph_breaks, guards, recompiles, graph_code...) to the artifact's log."""
    for listener in _listeners.get(artifact, ()):
        if method := listener():
            method(text)
    _logger(artifact).debug("%s", text, stacklevel=2)
