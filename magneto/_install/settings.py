"""The settings of PyTorch's modules of configuration: one row for each that Magneto knows of.

The modules made of them are in config_modules.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from magneto import _C, _log, config, exc
from magneto._install import compiled_autograd
from magneto._install.table import NO_EFFECT, REPLACED, TO_COME, WORKS


class Setting(NamedTuple):
    """One row. `own` is the setting of magneto.config that it is; `apply` is told of a new value."""

    state: str
    own: str = ""
    apply: Callable[[Any], None] | None = None
    note: str = ""
    default: Any = None


# What the old documents' settings show, as artifacts of TORCH_LOGS.
_LEVELS = {
    logging.DEBUG: ("graph_breaks", "recompiles", "graph_code", "guards", "aot_graphs", "bytecode", "trace_bytecode"),
    logging.INFO: ("graph_breaks", "recompiles", "graph_code", "bytecode"),
    logging.WARNING: ("graph_breaks",),
}
_artifacts: dict[str, tuple[str, ...]] = {}  # setting -> what it asks for
_log_file: logging.Handler | None = None


def _show(setting: str, artifacts: tuple[str, ...]) -> None:
    """Turns on the artifacts that all settings together ask for."""
    _artifacts[setting] = artifacts
    wanted: dict[str, Any] = {name: True for names in _artifacts.values() for name in names}
    if "bytecode" in wanted:  # the messages of each step, too
        wanted |= {"dynamo": logging.INFO, "inductor": logging.INFO}
    torch._logging.set_logs(**wanted)  # type: ignore[attr-defined]


def _set_log_level(level: Any) -> None:
    if not isinstance(level, int):
        raise exc.InvalidValue(f"log_level takes a level of logging, not {level!r}")
    _show("log_level", next((_LEVELS[known] for known in sorted(_LEVELS) if level <= known), ()))


# The modes without, and with, an exchange while the backward runs.
_DDP_MODES: Mapping[Any, bool] = {
    False: False,
    "no_optimization": False,
    "python_reducer_without_compiled_forward": False,
    True: True,
    "ddp_optimizer": True,
    "python_reducer": True,
}


def _cut_backwards(mode: Any) -> None:
    if mode not in _DDP_MODES:
        raise exc.InvalidValue(f"optimize_ddp is one of {', '.join(map(repr, _DDP_MODES))}, not {mode!r}")
    config.optimize_ddp = _DDP_MODES[mode]


def _set_log_file(name: Any) -> None:
    global _log_file
    # Loggers' names: their children are ours (magneto/_log.py).
    parents = [logging.getLogger(parent.rpartition(".")[0]) for parent in _log.COMPONENTS.values()]
    children = [
        logging.getLogger(name)
        for name in list(logging.Logger.manager.loggerDict)
        if name.startswith(tuple(_log.COMPONENTS.values()))
    ]
    if _log_file is not None:
        for logger in (*parents, *children):
            logger.removeHandler(_log_file)
        _log_file.close()
        _log_file = None
    if name:
        _log_file = logging.FileHandler(name)
        _log_file.setFormatter(logging.Formatter("%(levelname).1s%(asctime)s %(filename)s:%(lineno)d] %(message)s"))
        for logger in parents:
            logger.addHandler(_log_file)
        for artifact in children:  # some of those that PyTorch has configured keep their lines to themselves
            if not artifact.propagate:
                artifact.addHandler(_log_file)


def _writes(*stages: str) -> Callable[[Any], None]:
    """A file of the debug directory is written or left out."""

    def apply(on: Any) -> None:
        left_out = [name for name in config.debug_dump_without.split(",") if name and name not in stages]
        config.debug_dump_without = ",".join(left_out if on else [*left_out, *stages])

    return apply


def forget_logs() -> None:
    """Ends what log settings have turned on."""
    _set_log_file(None)
    if any(_artifacts.values()):
        torch._logging.set_logs()  # type: ignore[attr-defined]
    _artifacts.clear()


_SIZES = "sizes and ints are symbols where they vary, floats are not"
_ALWAYS = "Magneto always does so"
_KERNELS = "Magneto chooses its kernels by itself"
_COSTS = "what is saved is the cheapest choice, by costs in time, within the budget"

# What is to be said of a setting that is one of Magneto's (src/support/settings.def).
_NOTES = {
    "dynamo.debug_dir_root": (WORKS, "torch_compile_debug/ lies in it"),
    "dynamo.base_dir": (WORKS, "repro.py lies in it"),
    "inductor.trace.debug_dir": (WORKS, "torch_compile_debug/ lies in it"),
}


def _own(module: str) -> dict[str, Setting]:
    """The rows of a module that are Magneto's settings under PyTorch's names."""
    rows = {}
    for own, setting in config.SETTINGS.items():
        for alias in setting.torch:
            of, _, name = alias.partition(".")
            if of == module:
                state, note = _NOTES.get(alias, (WORKS, ""))
                rows[name] = Setting(state, own, note=note)
    return rows


DYNAMO: Mapping[str, Setting] = {
    **_own("dynamo"),
    "log_level": Setting(WORKS, apply=_set_log_level, note="as TORCH_LOGS", default=logging.WARNING),
    "log_file": Setting(WORKS, apply=_set_log_file),
    "log_file_name": Setting(WORKS, apply=_set_log_file),
    "debug": Setting(
        WORKS,
        apply=lambda on: _show("debug", ("graph_code", "guards") if on else ()),
        note="TORCH_LOGS=graph_code,guards",
        default=False,
    ),
    "inline_inbuilt_nn_modules": Setting(NO_EFFECT, note=_ALWAYS, default=True),
    "nested_graph_breaks": Setting(NO_EFFECT, note=_ALWAYS, default=True),
    "guard_nn_modules": Setting(NO_EFFECT, note=_ALWAYS, default=True),
    "allow_empty_graphs": Setting(NO_EFFECT, note=_ALWAYS, default=True),
    "error_on_nested_fx_trace": Setting(
        WORKS,
        apply=_C.refuse_fx_tracing,
        note="without it torch.fx traces what the function was compiled from",
        default=True,
    ),
    "reorderable_logging_functions": Setting(
        WORKS,
        "reorderable_logging_functions",
        note="`magneto.config.reorderable_logging_functions`, the same set",
        default=frozenset(),
    ),
    "dynamic_shapes": Setting(TO_COME, note=_SIZES, default=True),
    "specialize_int": Setting(TO_COME, note=_SIZES, default=False),
    "specialize_float": Setting(TO_COME, note=_SIZES, default=False),
    "optimize_ddp": Setting(
        WORKS,
        apply=_cut_backwards,
        note="`magneto.config.optimize_ddp`: backwards are cut at the buckets, graphs are not",
        default=True,
    ),
    "compiled_autograd": Setting(
        WORKS,
        apply=compiled_autograd.set_everywhere,
        note="one program for a backward over several graphs",
        default=False,
    ),
}

INDUCTOR: Mapping[str, Setting] = {
    **_own("inductor"),
    "debug": Setting(
        WORKS,
        apply=lambda on: _show("inductor", ("output_code", "kernel_code") if on else ()),
        note="TORCH_LOGS=output_code,kernel_code",
        default=False,
    ),
    **{
        f"trace.{name}": Setting(WORKS, apply=_writes(*stages), note=note, default=default)
        for name, stages, note, default in (
            ("fx_graph", ("captured", "functional"), "captured.txt, aten_functional.txt", True),
            ("fx_graph_transformed", ("normal_form",), "aten_normal_form.txt", True),
            ("ir_pre_fusion", ("expressions",), "ir_pre_fusion.txt", True),
            ("ir_post_fusion", ("loops",), "ir_post_fusion.txt", True),
            ("output_code", ("llvm_ir", "assembly", "buffers", "plan"), "kernels.ll, kernels.s, plan.txt...", True),
            ("graph_diagram", ("diagram",), "graph_diagram.svg", False),
            ("compile_profile", ("profile",), "compile_profile.txt", False),
            ("log_autotuning_results", ("choices",), "choices.txt", True),
        )
    },
    "trace.debug_log": Setting(REPLACED, note="TORCH_LOGS=+inductor", default=False),
    "trace.info_log": Setting(REPLACED, note="TORCH_LOGS=inductor", default=False),
    "fallback_random": Setting(NO_EFFECT, note="random numbers are always eager's", default=False),
    "compile_threads": Setting(NO_EFFECT, note="machine code is made in this process", default=1),
    "max_autotune_gemm": Setting(NO_EFFECT, note="max_autotune measures matrix products, too", default=False),
    "coordinate_descent_tuning": Setting(NO_EFFECT, note=_KERNELS, default=False),
    "epilogue_fusion": Setting(NO_EFFECT, note=_KERNELS, default=True),
    "shape_padding": Setting(NO_EFFECT, note=_KERNELS, default=True),
    "cpp_wrapper": Setting(NO_EFFECT, note="plans always run from C++", default=False),
    "freezing": Setting(NO_EFFECT, note="weights may change at any time", default=False),
    "triton.cudagraphs": Setting(NO_EFFECT, note="kernels are made for CPUs", default=False),
}

FUNCTORCH: Mapping[str, Setting] = {
    **_own("functorch"),
    "activation_memory_budget_runtime_estimator": Setting(NO_EFFECT, note=_COSTS, default="flops"),
    "activation_memory_budget_solver": Setting(NO_EFFECT, note=_COSTS, default="dp"),
    "aggressive_recomputation": Setting(NO_EFFECT, note=_COSTS, default=False),
    "ban_recompute_used_far_apart": Setting(NO_EFFECT, note=_COSTS, default=True),
    "ban_recompute_long_fusible_chains": Setting(NO_EFFECT, note=_COSTS, default=True),
    "ban_recompute_materialized_backward": Setting(NO_EFFECT, note=_COSTS, default=True),
    "ban_recompute_not_in_allowlist": Setting(NO_EFFECT, note=_COSTS, default=True),
    "ban_recompute_reductions": Setting(NO_EFFECT, note=_COSTS, default=True),
    "recompute_views": Setting(NO_EFFECT, note="views are always made again", default=False),
}

# Environment variables of the documents that the core does not read: each as the setting it stands for.
ENVIRONMENT: Mapping[str, tuple[str, str]] = {
    "TORCHINDUCTOR_TRACE": ("torch._inductor.config", "trace.enabled"),
}
