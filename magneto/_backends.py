"""Backends by name. The core runs Magneto's own; all others are Python callables."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from magneto import _C, exc

Backend = Callable[..., Callable[..., Any]]
B = TypeVar("B", bound=Backend)

# Backends that the core knows (src/compiler/backends.def): name -> what it does.
NATIVE: Mapping[str, str] = {name: doc for name, _, doc in _C.backend_rows()}
# Other names for native backends, so that programs written for torch.compile run unchanged.
ALIASES: Mapping[str, str] = {alias: name for name, aliases, _ in _C.backend_rows() for alias in aliases.split()}
# Those of magneto._debug.backends, which is loaded with the first of them that is used.
DEBUGGING = (
    *("eager_debug", "eager_noexcept", "ts", "aot_ts"),
    *(f"{fault}_TESTING_ONLY" for fault in ("relu_compile_error", "relu_runtime_error", "relu_accuracy_error")),
    "non_leaf_compile_error_TESTING_ONLY",
)

_registered: dict[str, Backend] = {}


def list_backends() -> list[str]:
    """The names that `compile(backend=...)` accepts, sorted; without those that are broken on purpose, for tests."""
    return [name for name in known() if not name.endswith("_TESTING_ONLY")]


def known() -> list[str]:
    """All names that `compile(backend=...)` accepts, sorted."""
    return sorted({*NATIVE, *ALIASES, *DEBUGGING, *_registered})


@overload
def register_backend(compiler: B, name: str | None = ...) -> B: ...


@overload
def register_backend(compiler: None = None, name: str | None = ...) -> Callable[[B], B]: ...


def register_backend(compiler: Any = None, name: str | None = None) -> Any:
    """Gives a backend a name. Also a decorator, with and without arguments.

    Args:
        compiler: `compiler(graph_module, example_inputs)` returns a callable that takes the graph's inputs and gives
            its outputs as a tuple or list. The graph is a `torch.fx.GraphModule` of torch calls.
        name: Without it, the `__name__` of `compiler`.

    Raises:
        magneto.exc.InvalidValue: `compiler` can't be called, has no name, or the name is another backend's.
    """
    if compiler is None:
        return lambda function: register_backend(function, name)
    if not callable(compiler):
        raise exc.InvalidValue(f"A backend must be callable, not an object of type {type(compiler).__name__}")
    name = name or getattr(compiler, "__name__", None)
    if not name:
        raise exc.InvalidValue("This callable has no __name__: give the backend a name with name=...")
    if name in NATIVE or name in ALIASES or name in DEBUGGING:
        raise exc.InvalidValue(f"{name!r} is one of Magneto's own backends; choose another name")
    if _registered.get(name, compiler) is not compiler:
        raise exc.InvalidValue(f"Another backend is already registered as {name!r}")
    _registered[name] = compiler
    return compiler


def lookup(name: str) -> str | Backend:
    """The native name that `name` stands for, or the registered callable; `InvalidBackend` for unknown names."""
    name = ALIASES.get(name, name)
    if name in NATIVE:
        return name
    if name in _registered:
        return _registered[name]
    if name in DEBUGGING:
        from magneto._debug import backends  # few programs name one

        return backends.BACKENDS[name]
    hint = "A callable (graph_module, example_inputs) -> callable works as well."
    raise exc.InvalidBackend("backend", name, list_backends(), hint)


def resolve(backend: Any) -> str | Backend:
    """As `lookup`, for whatever a user gave."""
    if isinstance(backend, str):
        return lookup(backend)
    if callable(backend):
        compiler: Backend = backend
        return compiler
    raise exc.InvalidValue(f"backend must be a name or a callable, not {backend!r}")


def with_arguments(backend: Backend, mode: str | None, options: dict[str, Any]) -> Backend:
    """A Python backend that also gets `mode` and `options`, if they were given."""
    arguments: dict[str, Any] = {}
    if mode is not None:
        arguments["mode"] = mode
    if options:
        arguments["options"] = options
    if not arguments:
        return backend
    own = getattr(backend, "with_arguments", None)  # magneto._aot.Compilers
    return own(arguments) if own else functools.partial(backend, **arguments)
