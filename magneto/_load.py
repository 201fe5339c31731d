"""Loads the C++ core and refuses to run it with another PyTorch than the one it was built against.

The core uses PyTorch's C++ internals, whose layout changes between releases: running it with another one would crash
or, worse, compute nonsense. So a mismatch is an ImportError that says what was found and what to do.
"""

from __future__ import annotations

import torch

_REBUILD = (
    "Rebuild Magneto against this PyTorch: `make build` in a checkout, or "
    "`pip install --force-reinstall --no-build-isolation --no-binary magneto magneto`."
)


def _load() -> None:
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
    import sys

    return f"CPython {sys.version_info.major}.{sys.version_info.minor}"


_load()
