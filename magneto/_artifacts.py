"""What this process has compiled, in one piece: for the cache on disk of another machine."""

from __future__ import annotations

import collections
import dataclasses
import warnings

from magneto import _C, exc


@dataclasses.dataclass
class CacheInfo:
    """What is in artifacts: their keys, by kind. PyTorch's class of this name belongs to its compiler; this has what
    people ask of it."""

    artifacts: collections.defaultdict[str, list[str]] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(list)
    )

    def empty(self) -> bool:
        """Nothing is in them."""
        return not self.artifacts


def save_cache_artifacts() -> tuple[bytes, CacheInfo] | None:
    """All programs and kernels that this process has compiled or found in its cache on disk.

    Returns:
        Their bytes and what is in them (`info.artifacts["magneto"]` has the keys); None if there are none.

    Raises:
        magneto.exc.MagnetoError: The cache on disk is off or can't be used, so that nothing was kept.
    """
    try:
        saved = _C.save_cache_artifacts()
    except RuntimeError as error:
        raise exc.MagnetoError(f"There are no artifacts to save: {error} (magneto.config.disk_cache).") from None
    return None if saved is None else (saved[0], _info(saved[1]))


def load_cache_artifacts(serialized_artifacts: bytes) -> CacheInfo | None:
    """Puts what `save_cache_artifacts` gave into this process's cache on disk.

    They are machine code: load only what you trust. With `magneto.config.disk_cache_key_file` they are refused unless
    they were saved with the same key. They are found by the same PyTorch and Magneto on the same kind of CPU.

    Args:
        serialized_artifacts: The bytes.

    Returns:
        What was in them; None, with a warning, if they are damaged, of another version, or made with another key.

    Raises:
        magneto.exc.MagnetoError: The cache on disk is off or can't be used: there is no place for them.
    """
    if not isinstance(serialized_artifacts, bytes):
        raise exc.InvalidValue(f"artifacts are bytes, not an object of type {type(serialized_artifacts).__name__}")
    try:
        return _info(_C.load_cache_artifacts(serialized_artifacts))
    except ValueError as error:
        warnings.warn(f"Cache artifacts are not loaded: {error}.", RuntimeWarning, stacklevel=2)
        return None
    except RuntimeError as error:
        raise exc.MagnetoError(f"Artifacts have no place to go: {error} (magneto.config.disk_cache).") from None


def _info(keys: list[str]) -> CacheInfo:
    info = CacheInfo()
    info.artifacts["magneto"] = keys
    return info
