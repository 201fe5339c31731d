"""torch._dynamo.compiled_autograd: backwards over several compiled functions as one program (docs/autograd.md)."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch.autograd.variable import Variable

from magneto import _C

# Backends that compile ATen graphs: they need no torch.fx.GraphModule.
_OWN = ("inductor", "magneto", "aot_eager", "aot_eager_decomp_partition", "eager_numerics", "interpreter")
_partials: list[functools.partial[Any]] = []


class _Engine:
    """In the place of autograd's engine for Python: what runs backwards is Magneto's, all else the engine's."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.run_backward = functools.partial(_C.run_backward, engine.run_backward)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def _stand_in() -> None:
    """From the first use on; without one, backwards are not touched."""
    if not isinstance(Variable._execution_engine, _Engine):
        Variable._execution_engine = _Engine(Variable._execution_engine)  # type: ignore[assignment]


@contextlib.contextmanager
def _block(compiler: Any, dynamic: bool | None = None) -> Iterator[None]:
    _stand_in()
    _C.enter_compiled_autograd(compiler, dynamic)
    try:
        yield
    finally:
        _C.leave_compiled_autograd()


def enable(
    compiler_fn: Callable[..., Any], dynamic: bool | None = None, **_: Any
) -> contextlib.AbstractContextManager[None]:
    """Backwards of the block are compiled by `compiler_fn`, which makes a callable of a torch.fx.GraphModule.

    torch.compile(backend=...) is one. `dynamic`: sizes are symbols from the first backward on, or never; None: as
    `torch.compile(dynamic=...)` says if that is the compiler, else as the settings say: where they have changed.
    """
    if dynamic is None and isinstance(compiler_fn, functools.partial):
        dynamic = compiler_fn.keywords.get("dynamic")
    return _block(_known(compiler_fn), dynamic)


def _known(compiler: Any) -> Any:
    """One compiler for all `torch.compile(...)` that ask for the same: its programs serve the next block, too."""
    if not isinstance(compiler, functools.partial):
        return compiler
    asked = {name: value for name, value in compiler.keywords.items() if value not in (None, False)}
    backend = asked.pop("backend", None)
    if compiler.func.__name__ == "torch_compile" and backend in _OWN and asked.keys() <= {"fullgraph", "dynamic"}:
        return "magneto" if backend == "inductor" else sys.intern(backend)

    def is_same(other: functools.partial[Any]) -> bool:
        return (other.func, other.args, other.keywords) == (compiler.func, compiler.args, compiler.keywords)

    known = next(filter(is_same, _partials), None)
    if known is None:
        _partials.append(compiler)
    return known or compiler


def disable() -> contextlib.AbstractContextManager[None]:
    """Backwards of the block are the engine's."""
    return _block(False)


def set_everywhere(on: Any) -> None:
    """torch._dynamo.config.compiled_autograd."""
    _stand_in()
    _C.compile_all_backwards(bool(on))


def is_enabled() -> bool:
    """Whether backwards of this thread are compiled."""
    return _C.compiles_backwards()


def give_back() -> None:
    """The engine is PyTorch's again."""
    _C.compile_all_backwards(False)
    _partials.clear()
    if isinstance(Variable._execution_engine, _Engine):
        Variable._execution_engine = Variable._execution_engine._engine
