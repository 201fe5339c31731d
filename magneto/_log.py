"""Where the core's log lines go: PyTorch's own artifact loggers, so that TORCH_LOGS and torch._logging.set_logs apply.

The loggers are children of the one that PyTorch configures for its compiler ("torch._dynamo" is a logger's name here,
no module): so they have its handlers, its format and its levels, `TORCH_LOGS=+dynamo` included.
"""

from __future__ import annotations

import functools
import logging

from torch._logging._internal import getArtifactLogger

_PARENT = "torch._dynamo.magneto"


@functools.cache
def _logger(artifact: str) -> logging.Logger:
    return getArtifactLogger(_PARENT, artifact)


def enabled(artifact: str) -> bool:
    """Whether anybody listens; the core builds a text only then."""
    return _logger(artifact).isEnabledFor(logging.DEBUG)


def announce(text: str) -> None:
    """Shown whatever TORCH_LOGS says: where something is that the user asked for."""
    logging.getLogger(_PARENT).warning("%s", text, stacklevel=2)


def emit(artifact: str, text: str) -> None:
    """Writes `text` (graph_breaks, guards, recompiles, graph_code...) to the artifact's log."""
    _logger(artifact).debug("%s", text, stacklevel=2)
