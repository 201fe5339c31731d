"""torch.export and torch._dynamo.export, with Magneto's capture (magneto/_export)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from magneto import exc
from magneto._install import peer, table


def _ours_or_torchs(name: str, ours: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch's own code that exports (torch.onnx) goes on with what only PyTorch's has."""

    def choose(*args: Any, **kwargs: Any) -> Any:
        if table._is_torchs(table._caller()):
            return peer.original("torch.export", name)(*args, **kwargs)
        return ours(*args, **kwargs)

    return choose


def _export(*args: Any, **kwargs: Any) -> Any:
    from magneto import _export as package

    return package.export(*args, **kwargs)


def _draft_export(*args: Any, **kwargs: Any) -> Any:
    from magneto._export import draft

    return draft.draft_export(*args, **kwargs)


def _unflatten(module: Any, flat_args_adapter: Any = None) -> Any:
    from magneto._export import program, unflattened

    if isinstance(module, program.ExportedProgram):
        return unflattened.unflatten(module, flat_args_adapter)
    return peer.original("torch.export", "unflatten")(module, flat_args_adapter)


def _save(ep: Any, f: Any, *args: Any, extra_files: Any = None, **kwargs: Any) -> Any:
    from magneto._export import program, saved

    if isinstance(ep, program.ExportedProgram):
        return saved.save(ep, f, extra_files=extra_files)
    return peer.original("torch.export", "save")(ep, f, *args, extra_files=extra_files, **kwargs)


def _load(f: Any, *args: Any, extra_files: Any = None, **kwargs: Any) -> Any:
    from magneto._export import container, saved

    if container.is_ours(f):
        return saved.load(f, extra_files=extra_files)
    return peer.original("torch.export", "load")(f, *args, extra_files=extra_files, **kwargs)


# Functions of torch.export.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "export": _ours_or_torchs("export", _export),
    "unflatten": _ours_or_torchs("unflatten", _unflatten),
    "save": _ours_or_torchs("save", _save),
    "load": _ours_or_torchs("load", _load),
    "draft_export": _ours_or_torchs("draft_export", _draft_export),
}


def aoti_compile_and_package(
    exported_program: Any, *, package_path: Any = None, inductor_configs: Any = None, **unused: Any
) -> str:
    """torch._inductor.aoti_compile_and_package: a file of magneto.aot_compile. `inductor_configs` changes nothing."""
    from magneto._export import ahead, program

    if not isinstance(exported_program, program.ExportedProgram):
        raise exc.InvalidValue(
            "torch._inductor.aoti_compile_and_package takes a program that torch.export.export gave under "
            f"magneto.install(), not {type(exported_program).__name__}"
        )
    return ahead.compile_exported(exported_program, package_path)


def aoti_load_package(path: Any, model_name: str = "model", run_single_threaded: bool = False, **unused: Any) -> Any:
    """torch._inductor.aoti_load_package of such a file."""
    from magneto._export import loaded

    return loaded.aot_load(path)


def aot_compile(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    options: dict[str, Any] | None = None,
    **unused: Any,
) -> str:
    """torch._inductor.aot_compile and torch._export.aot_compile: likewise such a file, at the path that the options
    name (`aot_inductor.output_path`), or a temporary one."""
    from magneto._export import ahead

    path = (options or {}).get("aot_inductor.output_path")
    if path is None:
        path = os.path.join(tempfile.mkdtemp(prefix="magneto-"), "model.mag")
    return ahead.aot_compile(f, args, kwargs, dynamic_shapes, path=path)


def aot_load(so_path: Any, device: str) -> Any:
    """torch._export.aot_load of such a file."""
    return aoti_load_package(so_path)


# Functions of torch._export.
AHEAD: dict[str, Callable[..., Any]] = {"aot_compile": aot_compile, "aot_load": aot_load}


class ExportResult(NamedTuple):
    """What torch._dynamo.export gives."""

    graph_module: torch.fx.GraphModule
    guards: set[str]


def dynamo_export(
    f: Callable[..., Any],
    *extra_args: Any,
    aten_graph: bool = False,
    pre_dispatch: bool = False,
    decomposition_table: Any = None,
    tracing_mode: str = "symbolic",
    dynamic_shapes: Any = None,
    specialize_float: bool = True,
    assume_static_by_default: bool = True,
    same_signature: bool = True,
    disable_constraint_solver: bool = False,
    prefer_deferred_runtime_asserts_over_guards: bool = False,
    **extra_kwargs: Any,
) -> Any:
    """torch._dynamo.export: `export(f)(*args)`, or `export(f, *args)`. A module that runs the graph, of ATen operators,
    and what it checks of its arguments."""
    if decomposition_table:
        raise exc.NotYet("torch._dynamo.export(decomposition_table=...) is not supported yet")

    def inner(*args: Any, **kwargs: Any) -> ExportResult:
        exported = _export(f, args, kwargs, dynamic_shapes=dynamic_shapes)
        return ExportResult(exported.module(), exported.checked())

    return inner(*extra_args, **extra_kwargs) if extra_args or extra_kwargs else inner
