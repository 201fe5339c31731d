"""Processes that train together: a script run once a rank, each of which prints what it found as its last line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def found_by_each(script: str, size: int, folder: Path) -> list[dict[str, Any]]:
    """By rank. They meet over a file in `folder` and share a cache in it, which is empty at first."""
    store = folder / "store"
    environment = {
        **os.environ,
        "MAGNETO_CACHE_DIR": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", script, str(rank), str(store), str(size)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=environment,
            text=True,
        )
        for rank in range(size)
    ]
    found = []
    try:
        for each in processes:
            output, errors = each.communicate(timeout=300)
            assert each.returncode == 0, errors
            found.append(json.loads(output.splitlines()[-1]))
    finally:
        for each in processes:
            each.kill()
    return found
