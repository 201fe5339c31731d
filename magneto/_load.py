"""Loads the C++ core, and refuses to run it with another Python or PyTorch than it was built for.

The core uses the C++ internals of both, whose layouts change between releases: running it with another one would crash
or, worse, compute nonsense. So a mismatch is an ImportError that says what was found and what to do.
"""

from __future__ import annotations

import sys

OLDEST, NEWEST = (3, 11), (3, 13)  # of CPython; src/python/abi has files for each

_REBUILD = (
    "Rebuild Magneto against this PyTorch: `make build` in a checkout, or "
    "`pip install --force-reinstall --no-build-isolation --no-binary magneto magneto`."
)


def refuse_python(implementation: str, version: tuple[int, int], has_gil: bool) -> None:
    """Raises ImportError for an interpreter that the core knows nothing of."""
    if implementation == "cpython" and OLDEST <= version <= NEWEST and has_gil:
        return
    found = "CPython" if implementation == "cpython" else implementation
    raise ImportError(
        f"Magneto supports CPython {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}, with a GIL. "
        f"This is {found} {version[0]}.{version[1]}{'' if has_gil else ' without a GIL'}."
    )


def _load() -> None:
    refuse_python(sys.implementation.name, sys.version_info[:2], "t" not in sys.abiflags)
    import torch

    try:
        from magneto import _C
    except ModuleNotFoundError as error:
        if error.name != "magneto._C":
            raise
        raise ImportError(f"Magneto's C++ core is not built for this Python ({_python()}). {_REBUILD}") from error
    except ImportError as error:
        raise ImportError(
            f"Magneto's C++ core could not be loaded with PyTorch {torch.__version__} on {_python()}: {error}. "
            f"It was probably built against another PyTorch. {_REBUILD}"
        ) from error
    if _C.torch_version != torch.__version__:
        raise ImportError(
            f"Magneto was built against PyTorch {_C.torch_version}, but PyTorch {torch.__version__} is installed. "
            f"{_REBUILD} Or install PyTorch {_C.torch_version} again."
        )


def _python() -> str:
    return f"CPython {sys.version_info.major}.{sys.version_info.minor}"


_load()
