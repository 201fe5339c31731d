"""Loads the C++ core, and refuses to run it with another Python or PyTorch than it was built for.

The core uses the C++ internals of both, whose layouts change between releases: running it with another one would crash
or, worse, compute nonsense. So a mismatch is an ImportError that says what was found and what to do. All builds of one
release of PyTorch are the same to the core, whatever devices they serve: the suffix of a version (`+cpu`, `+cu130`) is
not compared, but the commit that they were built from is.
"""

from __future__ import annotations

import importlib.util
import mmap
import sys
from pathlib import Path
from typing import NamedTuple

OLDEST, NEWEST = (3, 11), (3, 14)  # of CPython; src/python/abi has files for each

_REBUILD = "build Magneto with this PyTorch (`make build` in a checkout, `make wheel` for a wheel)"
_UNKNOWN = ("", "None", "Unknown")  # what builds from an unpacked archive call their commit


class TorchBuild(NamedTuple):
    """What decides whether a core that was built with one PyTorch runs with another one."""

    version: str
    git: str  # the commit that it was built from
    debug: bool
    cxx11: bool  # which of libstdc++'s two string and list layouts it uses

    @property
    def release(self) -> str:
        """The version without what tells builds of it apart."""
        return self.version.partition("+")[0]

    @property
    def commit(self) -> str:
        return "an unknown commit" if self.git in _UNKNOWN else f"commit {self.git[:10]}"


def refuse_python(implementation: str, version: tuple[int, int], has_gil: bool) -> None:
    """Raises ImportError for an interpreter that the core knows nothing of."""
    if implementation == "cpython" and OLDEST <= version <= NEWEST and has_gil:
        return
    found = "CPython" if implementation == "cpython" else implementation
    raise ImportError(
        f"Magneto supports CPython {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}, with a GIL. "
        f"This is {found} {version[0]}.{version[1]}{'' if has_gil else ' without a GIL'}."
    )


def refuse_torch(core: TorchBuild, here: TorchBuild) -> None:
    """Raises ImportError where a core that was built with one PyTorch can't run with the one that is here."""
    if core.release != here.release:
        raise ImportError(
            f"Magneto was built with PyTorch {core.release}, but PyTorch {here.version} is installed. Install the "
            f"wheel of Magneto for PyTorch {here.release} or PyTorch {core.release} (any build of it), or {_REBUILD}."
        )
    if core.cxx11 != here.cxx11:
        abi = {True: "the C++11 ABI", False: "the C++ ABI from before C++11"}
        raise ImportError(
            f"Magneto was built for {abi[core.cxx11]}, but this PyTorch {here.version} uses {abi[here.cxx11]} of the "
            f"C++ library. Install a build of PyTorch {core.release} with {abi[core.cxx11]}, or {_REBUILD}."
        )
    if core.debug != here.debug:
        kind = {True: "a debug build", False: "a release build"}
        raise ImportError(
            f"Magneto was built with {kind[core.debug]} of PyTorch {core.release}, but {kind[here.debug]} "
            f"({here.version}) is installed. Install {kind[core.debug]}, or {_REBUILD}."
        )
    # Where no commit is known, only the very same version is known to be the same.
    same = core.version == here.version if core.git in _UNKNOWN or here.git in _UNKNOWN else core.git == here.git
    if not same:
        raise ImportError(
            f"Magneto was built with PyTorch {core.version} of {core.commit}, but the PyTorch {here.version} that is "
            f"installed was built from {here.commit}. Install the PyTorch {core.release} that PyPI or "
            f"PyTorch's own package index has, or {_REBUILD}."
        )


def built_with(core: Path) -> TorchBuild:
    """What a core was built with, by its file, which is not loaded."""
    with open(core, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        start = content.find(b"magneto-built-with version=")
        if start < 0:
            raise ImportError(f"{core} does not say which PyTorch it was built with; {_REBUILD}.")
        _, *facts = content[start : content.find(b"\0", start)].decode().split(" ")
    found = dict(fact.split("=", 1) for fact in facts)
    return TorchBuild(found["version"], found["git"], found["debug"] == "1", found["cxx11"] == "1")


def _load() -> None:
    refuse_python(sys.implementation.name, sys.version_info[:2], "t" not in sys.abiflags)
    import torch

    spec = importlib.util.find_spec("magneto._C")
    if spec is None or spec.origin is None:
        raise ImportError(
            f"Magneto's C++ core is not built for this Python ({_python()}). Install the wheel of Magneto for "
            f"{_python()} and PyTorch {torch.__version__}, or {_REBUILD}."
        )
    facts = torch.version
    here = TorchBuild(torch.__version__, str(facts.git_version), bool(facts.debug), torch.compiled_with_cxx11_abi())
    refuse_torch(built_with(Path(spec.origin)), here)
    try:
        from magneto import _C as _C
    except ImportError as error:
        raise ImportError(
            f"Magneto's C++ core could not be loaded with PyTorch {torch.__version__} on {_python()}: {error}. "
            f"It was probably built with another PyTorch; {_REBUILD}."
        ) from error


def _python() -> str:
    return f"CPython {sys.version_info.major}.{sys.version_info.minor}"


_load()
