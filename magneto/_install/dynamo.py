"""The functions of torch.compile and torch._dynamo, in terms of Magneto's."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from magneto import _C, _api, _artifacts, _backends, _forward, _options, _stance, config, exc
from magneto._install import config_modules, controls, settings, sources, table

F = TypeVar("F", bound=Callable[..., Any])

NO = False
_OWN_OPERATORS = ("torch._higher_order_ops", "torch.nn.attention.flex_attention")

_default_backend: Any = None
_disabled_by_torch: weakref.WeakSet[Any] = weakref.WeakSet()


class NeverRaised(RuntimeError):
    """An exception of PyTorch's compiler that has no counterpart: programs name it in `except`."""


def torch_compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    shapes_spec: Any = None,
) -> Any:
    """torch.compile: magneto.compile, for classes too, with torch.compile's options and default backend."""
    arguments: dict[str, Any] = {
        "fullgraph": fullgraph,
        "dynamic": dynamic,
        "backend": backend if backend is not None else get_default_backend(),
        "mode": mode,
        "options": options,
        "disable": disable,
        "recompile_limit": recompile_limit,
        "name": name,
        "isolate_recompiles": isolate_recompiles,
        "shapes_spec": shapes_spec,
    }
    if model is None:
        return functools.partial(torch_compile, **arguments)
    if (getattr(model, "__module__", None) or "").startswith(_OWN_OPERATORS):
        from magneto._install import control_flow

        return control_flow.run_as_written(model)  # torch.cond and its like, which are called eagerly
    if isinstance(model, type):
        return _compile_class(model, arguments)
    if options is not None and isinstance(_backends.resolve(arguments["backend"]), str):
        arguments["options"] = _native_options(options)
    compiled = _api.compile(model, **arguments)
    if isinstance(compiled, _C.CompiledFunction):
        vars(compiled)["get_compiler_config"] = functools.partial(_compiler_config, arguments["options"] or {})
    return compiled


def _compiler_config(options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that hold for a compiled callable: those of torch._inductor.config, its own options in them."""
    return {**config_modules.served("torch._inductor.config").get_config_copy(), **options}


def _compile_class(cls: type, arguments: dict[str, Any]) -> type:
    """What torch.compile does to a class: calls of its instances are compiled."""
    name = "_call_impl" if issubclass(cls, torch.nn.Module) else "__call__"
    if name not in dir(cls) or isinstance(getattr(cls, name), type(type.__call__)):
        raise exc.InvalidValue(f"torch.compile of the class {cls.__name__}: its instances can't be called")
    setattr(cls, name, torch_compile(getattr(cls, name), **arguments))
    return cls


def _native_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Magneto's options among torch.compile's. Of each other one that asks for what it would not have, it is said."""
    ours: dict[str, Any] = {}
    for name, value in options.items():
        row = settings.INDUCTOR.get(name)
        said = f"torch.compile(options={{{name!r}: {value!r}}})"
        if name in _options.OPTIONS:
            ours[name] = value
            if not _options.OPTIONS[name].setting and value:
                table.note_once(f"{said}: {_options.OPTIONS[name].doc}")
        elif row and row.own in _options.OPTIONS:
            ours[row.own] = value
        elif name in ("guard_filter_fn", "use_aoti"):
            table.note_once(f"{said}: changes nothing; no guard is ever left out")
        elif row and row.state == table.WORKS:
            table.note_once(f"{said}: changes nothing; it is a setting of the process: torch._inductor.config.{name}")
        elif row:
            if value != row.default:
                table.note_once(f"{said}: changes nothing: {row.note}")
        elif name in sources.names("torch._inductor.config"):
            table.note_once(f"{said}: Magneto has no such setting; it changes nothing")
        else:
            ours[name] = value
    return ours


class optimize:
    """torch._dynamo.optimize(backend, nopython=...): a decorator, and a context manager.

    In a `with` block the functions that the block calls are compiled.
    """

    def __init__(
        self,
        backend: Any = "inductor",
        *,
        nopython: bool = False,
        guard_export_fn: Any = None,
        guard_fail_fn: Any = None,
        guard_filter_fn: Any = None,
        disable: bool = False,
        dynamic: bool | None = None,
        recompile_limit: int | None = None,
        **others: Any,
    ) -> None:
        for name, value in {"guard_export_fn": guard_export_fn, **others}.items():
            if value not in (None, False):
                raise table.NotYet(
                    f"torch._dynamo.optimize({name}=...) is not supported yet; TORCH_LOGS=guards shows them."
                )
        self._watch = controls.tell_of_guard_failures(guard_fail_fn) if guard_fail_fn else None
        limit = recompile_limit if recompile_limit is not None else getattr(backend, "recompile_limit", None)
        self._arguments: dict[str, Any] = {
            "fullgraph": nopython,
            "dynamic": dynamic,
            "backend": backend,
            "disable": disable,
            "recompile_limit": limit,
        }
        self._left: list[bool | None] = []  # what to put back, for each time the block was entered
        _backends.resolve(backend)

    def __call__(self, fn: F) -> F:
        if self._watch is not None:
            self._watch(fn)
        return torch_compile(fn, **self._arguments)  # type: ignore[no-any-return]

    def __enter__(self) -> None:
        if self._arguments["disable"]:
            self._left.append(_C.set_disabled(True))
            return
        block = _api.compile(_block, **self._arguments)
        if isinstance(block, _C.CompiledFunction):  # else the process has compiling turned off
            _C.enter_block(block, _forward.not_the_programs())
            self._left.append(None)

    def __exit__(self, *exception: object) -> None:
        if not self._left:
            return
        disabled_before = self._left.pop()
        if disabled_before is None:
            _C.leave_block()
        else:
            _C.set_disabled(disabled_before)


def _block() -> None:
    """Carries the options of a `with` block."""


def optimize_assert(backend: Any = "inductor", **arguments: Any) -> optimize:
    """`optimize` with nopython=True."""
    return optimize(backend, **{**arguments, "nopython": True})


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """magneto.explain: `explain(fn)(*args)` gives an object, `explain(fn, *args)` the same, which unpacks into four."""
    return _api.explain(fn, *args, **kwargs)


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None, wrapping: bool = True) -> Any:
    """magneto.disable. `wrapping=False` comes from torch's own functions, which keep what they get."""
    disabled = _api.disable(fn, recursive=recursive, reason=reason)
    if not wrapping:
        _disabled_by_torch.add(fn)
    return disabled


def forget_disabled() -> None:
    """Torch's own functions that were disabled by us ask anew when they are called next."""
    for fn in list(_disabled_by_torch):
        vars(fn).pop("__dynamo_disable", None)
    _disabled_by_torch.clear()


def run(fn: Any = None) -> Any:
    """Uses what is captured and captures nothing more."""
    stance = _stance.set_stance("eager_on_recompile")
    if fn is None:
        return stance
    return stance(fn)


def list_backends(exclude_tags: Any = ("debug", "experimental")) -> list[str]:
    """magneto.list_backends; without tags to exclude those for tests, too."""
    return _backends.list_backends() if exclude_tags else _backends.known()


def lookup_backend(compiler_fn: Any) -> Any:
    """What a backend's name stands for."""
    return _backends.resolve(compiler_fn)


def register_backend(compiler_fn: Any = None, name: str | None = None, tags: Any = ()) -> Any:
    """magneto.register_backend; Magneto's have no tags."""
    return _backends.register_backend(compiler_fn, name)


def get_default_backend() -> Any:
    """What torch.compile uses without `backend=`."""
    return _default_backend if _default_backend is not None else "inductor"


def set_default_backend(backend: Any) -> None:
    """Changes what torch.compile uses without `backend=`; None: "inductor" again."""
    global _default_backend
    if backend is not None:
        _backends.resolve(backend)
    _default_backend = backend


def nothing(*args: Any, **kwargs: Any) -> None:
    """For calls that need nothing done."""


def nothing_meanwhile() -> contextlib.AbstractContextManager[None]:
    """For blocks that need nothing done."""
    return contextlib.nullcontext()


def is_compile_supported(device_type: str | torch.device) -> bool:
    """There is generated code for the device."""
    return torch.device(device_type).type == "cpu"


def yes() -> bool:
    """For questions whether something is supported."""
    return True


def optimize_ddp_mode() -> str:
    """Who sees to it that DistributedDataParallel's buckets are exchanged in time: its own reducer in any case."""
    return "ddp_optimizer" if config.optimize_ddp else "no_optimization"


def same(fn: F) -> F:
    """For decorators that need nothing done."""
    return fn


def decorates_nothing(*args: Any, **kwargs: Any) -> Callable[[F], F]:
    """For decorators with arguments that need nothing done."""
    return same


NO_DECOMPOSITIONS: frozenset[Any] = frozenset()


def make_boxed_func(fn: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    """`fn` as a function of one list, which backends may give back."""

    def boxed(args: list[Any]) -> Any:
        return fn(*args)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


def make_boxed_compiler(compiler: Callable[[Any, Any], Callable[..., Any]]) -> Callable[[Any, Any], Any]:
    """A backend whose function is made by `make_boxed_func`."""

    def compile_boxed(gm: Any, example_inputs: Any) -> Any:
        return make_boxed_func(compiler(gm, example_inputs))

    return compile_boxed


def compile_graph(gm: Any, example_inputs: Any = None, *others: Any, **options: Any) -> Any:
    """compile_fx: a torch.fx.GraphModule, compiled. Its arguments beside the graph belong to PyTorch's compiler."""
    return _compile_graph(gm, {})


def compile_graph_with_options(gm: Any, example_inputs: Any = None, options: Mapping[str, Any] | None = None) -> Any:
    """torch._inductor.compile: the same, with options as torch.compile takes them."""
    return _compile_graph(gm, _native_options(options or {}))


def _compile_graph(gm: Any, options: dict[str, Any]) -> Any:
    if hasattr(gm, "real_recompile"):  # of a lazy graph module: else its first call makes its code
        gm.real_recompile()
    return _api.compile(getattr(gm, "forward", gm), fullgraph=True, options=options)


def list_mode_options(mode: str | None = None, dynamic: bool | None = None) -> dict[str, Any]:
    """The modes, each with the options that it stands for."""
    options: dict[str, dict[str, Any]] = {name: dict(_options.MODE_OPTIONS.get(name, {})) for name in _options.MODES}
    return options[mode] if mode else options


def list_options() -> list[str]:
    """What `options=` accepts."""
    return sorted(_options.OPTIONS)


def set_enable_guard_collectives(enabled: bool) -> bool:
    """torch.compiler's: ranks that wait for each other at guards. There are none: what was enabled before is False."""
    if enabled:
        raise table.NotYet("torch.compiler.set_enable_guard_collectives(True): ranks check their guards by themselves.")
    return False


# Functions of torch.compiler that do not go to torch._dynamo.
COMPILER: Mapping[str, Callable[..., Any]] = {
    "save_cache_artifacts": _artifacts.save_cache_artifacts,
    "load_cache_artifacts": _artifacts.load_cache_artifacts,
    "set_enable_guard_collectives": set_enable_guard_collectives,
    "load_compiled_function": table.refusing(
        "torch.compiler.load_compiled_function",
        "compiling ahead of time is to come; torch.compiler.load_cache_artifacts loads what was compiled elsewhere",
    ),
}
