"""Environment variables that PyTorch reads when it is loaded, where the documents spell a value in another way.

Imported before torch. Where a program has imported torch before, PyTorch has answered by itself.
"""

from __future__ import annotations

import os
import sys


def _translate() -> None:
    logs = os.environ.get("TORCH_LOGS", "")
    if "torch" not in sys.modules and "aot_joint_graphs" in logs:
        os.environ["TORCH_LOGS"] = logs.replace("aot_joint_graphs", "aot_joint_graph")


_translate()
