"""Where the frameworks under measurement keep what they compiled."""

from __future__ import annotations


def caches(folder: str) -> dict[str, str]:
    """The environment that gives each framework a cache of its own below `folder`: each has its locks there."""
    return {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/peer", "MAGNETO_CACHE_DIR": f"{folder}/magneto"}
