"""Environment variables that PyTorch reads when it is loaded, where the documents spell a value in another way.

Imported before torch. Where a program has imported torch before, PyTorch has answered by itself.
"""

from __future__ import annotations

import os
import sys

LOGS = {"aot_joint_graphs": "aot_joint_graph"}  # the documents' names, and PyTorch's


def _translate() -> None:
    logs = os.environ.get("TORCH_LOGS", "")
    for documented, name in LOGS.items():
        if "torch" not in sys.modules and documented in logs:
            os.environ["TORCH_LOGS"] = logs = logs.replace(documented, name)


_translate()


def asks_for_logs() -> bool:
    """The program was started with logs on, or for one function alone."""
    return any(os.environ.get(name) for name in ("TORCH_LOGS", "TORCHDYNAMO_DEBUG_FUNCTION"))
