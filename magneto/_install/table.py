"""Which name of PyTorch's compiler stands for what: one row per name. docs/install.md is checked against it.

A row's target is `module:attribute`, a module without a dot being one of this package. Without a target the name is a
function that raises `NotYet` when the program calls it. Names without a row are PyTorch's own (peer.py).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from magneto import _log
from magneto.exc import NotYet as NotYet

WORKS = "works"
REPLACED = "replaced"  # something else does it; the note says what
NO_EFFECT = "no effect"  # accepted: there is nothing to do; the note says why
TO_COME = "to come"  # the note says what to do until then


PEERS = "PyTorch's own"
"""The target of a row whose value is PyTorch's, with the note that using it changes nothing here."""


class Name(NamedTuple):
    """One row."""

    name: str
    state: str
    target: str = ""
    note: str = ""


_CUDAGRAPHS = "nothing is to be done: plans don't rely on addresses"
_FRAMES = "Magneto's core runs frames without a Python callback"
_PASSES = "Magneto's passes are in C++ (docs/passes.md); a backend of your own gets the graph: backend=callable"
_AHEAD = "magneto.aot_compile's file, not a package of AOTInductor"
_ERRORS = "never raised by Magneto, there for `except`"
_SHAPES = "for sizes that are plain numbers; others decide with bool()"

_TOP = (
    Name("optimize", WORKS, "dynamo:optimize"),
    Name("optimize_assert", WORKS, "dynamo:optimize_assert"),
    Name("explain", WORKS, "dynamo:explain"),
    Name("reset", WORKS, "magneto:reset"),
    Name("reset_code_caches", REPLACED, "magneto:reset", "magneto.reset() forgets the captures, and counters as well"),
    Name("disable", WORKS, "dynamo:disable"),
    Name("run", WORKS, "dynamo:run"),
    Name("graph_break", WORKS, "magneto:graph_break"),
    Name("is_compiling", WORKS, "magneto:is_compiling"),
    Name("allow_in_graph", WORKS, "magneto:allow_in_graph"),
    Name("assume_constant_result", WORKS, "magneto:assume_constant_result"),
    Name("set_stance", WORKS, "magneto:set_stance"),
    Name("list_backends", WORKS, "dynamo:list_backends"),
    Name("lookup_backend", WORKS, "dynamo:lookup_backend"),
    Name("register_backend", WORKS, "dynamo:register_backend"),
    Name("OptimizedModule", WORKS, "magneto:OptimizedModule"),
    Name("is_dynamo_supported", WORKS, "dynamo:yes"),
    Name("is_inductor_supported", WORKS, "dynamo:yes"),
    Name("patch_dynamo_config", WORKS, "config_modules:patch_dynamo"),
    Name("mark_static", WORKS, "magneto:mark_static"),
    Name("mark_static_address", NO_EFFECT, "dynamo:nothing", _CUDAGRAPHS),
    Name("mark_dynamic", WORKS, "magneto:mark_dynamic"),
    Name("maybe_mark_dynamic", WORKS, "magneto:maybe_mark_dynamic"),
    Name("forbid_in_graph", WORKS, "controls:forbid_in_graph"),
    Name("substitute_in_graph", WORKS, "controls:substitute_in_graph"),
    Name("disallow_in_graph", WORKS, "controls:disallow_in_graph"),
    Name("nonstrict_trace", WORKS, "controls:nonstrict_trace", "as magneto.allow_in_graph"),
    Name("error_on_graph_break", WORKS, "controls:error_on_graph_break"),
    Name("skip_frame", WORKS, "controls:skip_frame", "what stands before the call is compiled"),
    Name("on_compile_start", WORKS, "controls:on_compile_start"),
    Name("on_compile_end", WORKS, "controls:on_compile_end"),
    Name("export", WORKS, "exports:dynamo_export", "the graph is of ATen operators ([export](guide/export.md))"),
    Name("replay", WORKS, "magneto._debug.record.replay:replay"),
)

# Backends of programs name these; libraries import them when they are loaded.
_AOT = (
    Name("make_boxed_func", WORKS, "dynamo:make_boxed_func"),
    Name("make_boxed_compiler", WORKS, "dynamo:make_boxed_compiler"),
    *(
        Name(name, WORKS, f"magneto._aot:{name}")
        for name in ("aot_function", "aot_module", "aot_module_simplified", "compiled_function", "compiled_module")
    ),
)
_PARTITIONS = (
    Name("default_partition", WORKS, "magneto._aot:default_partition", "for partition_fn="),
    Name(
        "min_cut_rematerialization_partition",
        WORKS,
        "magneto._aot:min_cut_rematerialization_partition",
        "for partition_fn=",
    ),
    Name("draw_graph", TO_COME, "", "use torch._inductor.config.trace.graph_diagram, which draws it"),
)
_COMPILERS = (
    Name("nop", WORKS, "magneto._aot:nop"),
    Name("print_compile", WORKS, "magneto._aot:print_compile"),
    Name("memory_efficient_fusion", WORKS, "magneto._aot:memory_efficient_fusion", "without compilers: torch.compile"),
    Name("ts_compile", TO_COME, "", "torch.compile(fn, backend='ts') runs TorchScript"),
    Name("default_decompositions", NO_EFFECT, "dynamo:NO_DECOMPOSITIONS", "graphs have the operators that run"),
)

_COMPILED_AUTOGRAD = (
    Name("_enable", WORKS, "compiled_autograd:enable", "one program for a backward over several graphs"),
    Name("enable", WORKS, "compiled_autograd:enable", "its older name"),
    Name("_disable", WORKS, "compiled_autograd:disable", "torch.func calls it while it differentiates"),
    Name("in_compiled_autograd_region", NO_EFFECT, "dynamo:NO", "a backward is captured before it runs"),
    Name("compiled_autograd_enabled", NO_EFFECT, "dynamo:NO", "compiled functions need not know"),
    Name("reset", NO_EFFECT, "dynamo:nothing", "magneto.reset() forgets the programs"),
    Name("enable_compiler", REPLACED, "compiled_autograd:enable", "as `enable`"),
)

_SYMBOLIC = "is_concrete_bool is_concrete_int is_concrete_float is_symbolic is_nested_int has_free_symbols"
_SYMBOLIC += (
    " has_free_unbacked_symbols free_symbols free_unbacked_symbols has_hint has_static_value hint_int size_hint"
)
_SYMBOLIC += " guard_bool guard_int guard_float guard_scalar guard_or_false guard_or_true guard_size_oblivious"
_SYMBOLIC += " definitely_true definitely_false statically_known_true statically_known_false expect_true sym_eq sym_and"
_SYMBOLIC += " has_guarding_hint guarding_hint_or_throw optimization_hint"
_SYMBOLIC += " sym_or constrain_range _constrain_range_for_size _advise_is_size _advise_is_bounded"

MODULES: dict[str, tuple[Name, ...]] = {
    "torch._dynamo": _TOP,
    "torch._dynamo.config": (),  # settings.DYNAMO
    "torch._dynamo.callback": (
        Name("on_compile_start", WORKS, "controls:on_compile_start"),
        Name("on_compile_end", WORKS, "controls:on_compile_end"),
        Name("callback_handler", WORKS, "controls:callback_handler"),
        Name("CompilationCallbackHandler", WORKS, "controls:CompilationCallbackHandler"),
        Name("CallbackArgs", WORKS, "controls:CallbackArgs"),
        Name("CallbackTrigger", WORKS, "controls:CallbackTrigger"),
    ),
    "torch._dynamo.compiled_autograd": _COMPILED_AUTOGRAD,
    "torch._dynamo.decorators": (*_TOP, Name("mark_unbacked", WORKS, "magneto:mark_unbacked")),
    "torch._dynamo.eval_frame": (
        *_TOP,
        Name("set_fullgraph_compiled_frame_count", NO_EFFECT, "dynamo:nothing", _FRAMES),
    ),
    "torch._dynamo.trace_rules": (
        Name("clear_lru_cache", NO_EFFECT, "dynamo:nothing", "torch.distributed calls it; Magneto keeps no such cache"),
    ),
    "torch._dynamo.external_utils": (Name("is_compiling", WORKS, "magneto:is_compiling"),),
    "torch._dynamo.backends": (),
    "torch._dynamo.backends.registry": (
        Name("list_backends", WORKS, "dynamo:list_backends"),
        Name("lookup_backend", WORKS, "dynamo:lookup_backend"),
        Name("register_backend", WORKS, "dynamo:register_backend"),
        Name("get_default_backend", WORKS, "dynamo:get_default_backend"),
        Name("set_default_backend", WORKS, "dynamo:set_default_backend"),
    ),
    "torch._dynamo.backends.debugging": (
        Name("eager", WORKS, "profiling:eager"),
        Name("pre_dispatch_eager", WORKS, "profiling:eager"),
        Name("eager_noexcept", WORKS, "magneto._debug.backends:eager_noexcept"),
        Name("eager_debug", WORKS, "magneto._debug.backends:eager_debug"),
        Name("torchscript", WORKS, "magneto._debug.backends:ts"),
        Name("ReluCompileError", WORKS, "magneto._debug.backends:ReluCompileError"),
        Name("TestingOnlyCompileError", WORKS, "magneto._debug.backends:TestingOnlyCompileError"),
        *(
            Name(f"{name}_TESTING_ONLY", WORKS, f"magneto._debug.backends:{name}")
            for name in (
                "relu_compile_error",
                "relu_runtime_error",
                "relu_accuracy_error",
                "non_leaf_compile_error",
            )
        ),
        Name("make_eager_backend_with_torch_function_mode", WORKS, "profiling:make_eager_backend_with_mode"),
        Name("make_eager_backend_with_torch_function_modes", WORKS, "profiling:make_eager_backend_with_modes"),
    ),
    "torch._dynamo.backends.common": (
        Name("aot_autograd", WORKS, "magneto._aot:aot_autograd", "the compilers get ATen graphs without writes"),
    ),
    "torch._dynamo.utils": (
        Name("CompileProfiler", WORKS, "profiling:CompileProfiler"),
        Name("CompilationProfiler", WORKS, "profiling:CompileProfiler", "the documents' other spelling"),
        Name("compile_times", WORKS, "profiling:compile_times"),
        Name("counters", WORKS, "profiling:counters"),
        Name("disable_cache_limit", WORKS, "profiling:disable_cache_limit"),
        Name(
            "get_optimize_ddp_mode", WORKS, "dynamo:optimize_ddp_mode", "torch.nn.parallel asks who exchanges gradients"
        ),
        Name("is_compile_supported", WORKS, "dynamo:is_compile_supported"),
        Name("clone_input", WORKS, "profiling:clone_input"),
        Name("warn_once", WORKS, "profiling:warn_once"),
    ),
    "torch._dynamo.testing": (
        Name("CompileCounter", WORKS, "profiling:CompileCounter"),
        Name("CompileCounterWithBackend", WORKS, "profiling:CompileCounterWithBackend"),
        Name("EagerAndRecordGraphs", WORKS, "profiling:EagerAndRecordGraphs"),
        Name("rand_strided", WORKS, "profiling:rand_strided"),
    ),
    "torch._dynamo.debug_utils": (
        Name("run_fwd_maybe_bwd", WORKS, "profiling:run_fwd_maybe_bwd"),
        Name("same_two_models", WORKS, "magneto._debug.names:same_two_models"),
        Name("backend_accuracy_fails", WORKS, "magneto._debug.names:backend_accuracy_fails"),
        Name("cast_to", WORKS, "magneto._debug.same:cast_to"),
        Name("cast_to_fp64", WORKS, "magneto._debug.same:cast_to_fp64"),
        Name("clone_inputs_retaining_gradness", WORKS, "magneto._debug.same:clone_inputs"),
        Name("generate_env_vars_string", WORKS, "magneto._debug.names:generate_env_vars_string"),
        Name("generate_config_string", WORKS, "magneto._debug.names:generate_config_string"),
        Name("minifier_dir", WORKS, "magneto._debug.names:minifier_dir"),
        Name("get_minifier_repro_path", WORKS, "magneto._debug.names:get_minifier_repro_path"),
        Name("AccuracyError", WORKS, "magneto.exc:AccuracyError"),
        Name("InputReader", WORKS, "magneto._debug.names:InputReader"),
        Name("NopInputReader", WORKS, "magneto._debug.names:InputReader"),
    ),
    "torch._dynamo.repro": (),
    "torch._dynamo.repro.after_dynamo": (Name("run_repro", WORKS, "magneto._debug.command:run_after_dynamo"),),
    "torch._dynamo.repro.after_aot": (Name("run_repro", WORKS, "magneto._debug.command:run_after_aot"),),
    "torch._dynamo.exc": (
        Name("Unsupported", WORKS, "magneto.exc:Unsupported"),
        Name("BackendCompilerFailed", WORKS, "magneto.exc:BackendCompilerFailed"),
        Name("InvalidBackend", WORKS, "magneto.exc:InvalidBackend"),
        Name("RecompileError", WORKS, "magneto.exc:RecompileError"),
        Name("TorchDynamoException", WORKS, "magneto.exc:MagnetoError"),
        Name("InternalTorchDynamoError", WORKS, "magneto.exc:FailedFallback"),
        Name("RecompileLimitExceeded", WORKS, "magneto.exc:FailOnRecompileLimitHit", "the older name of the next"),
        Name("FailOnRecompileLimitHit", WORKS, "magneto.exc:FailOnRecompileLimitHit"),
        Name("TorchRuntimeError", NO_EFFECT, "dynamo:NeverRaised", _ERRORS),
        Name("UserError", WORKS, "magneto.exc:ConstraintViolation", "torch.export raises it of sizes"),
        Name("ResetRequired", NO_EFFECT, "dynamo:NeverRaised", _ERRORS),
        Name("CondOpArgsMismatchError", WORKS, "dynamo:NeverRaised", "torch.cond raises it"),
        Name(
            "UncapturedHigherOrderOpError",
            WORKS,
            "magneto.exc:UncapturedHigherOrderOpError",
            "torch.cond and its like raise it",
        ),
    ),
    "torch._dynamo.comptime": (Name("comptime", WORKS, "magneto._comptime:comptime"),),
    "torch._dynamo._trace_wrapped_higher_order_op": (
        Name("TransformGetItemToIndex", WORKS, "attention:TransformGetItemToIndex"),
    ),
    "torch._inductor": (
        Name("compile", WORKS, "dynamo:compile_graph_with_options"),
        Name("list_mode_options", WORKS, "dynamo:list_mode_options"),
        Name("list_options", WORKS, "dynamo:list_options"),
        Name("cudagraph_mark_step_begin", NO_EFFECT, "dynamo:nothing", _CUDAGRAPHS),
        Name("aoti_compile_and_package", WORKS, "exports:aoti_compile_and_package", _AHEAD),
        Name("aot_compile", WORKS, "exports:aot_compile", _AHEAD),
        Name("aoti_load_package", WORKS, "exports:aoti_load_package", _AHEAD),
    ),
    "torch._inductor.config": (),  # settings.INDUCTOR
    "torch._inductor.metrics": (
        Name("generated_kernel_count", WORKS, "metrics:generated_kernel_count"),
        Name("reset", WORKS, "metrics:reset"),
    ),
    "torch._inductor.cudagraph_trees": (Name("mark_step_begin", NO_EFFECT, "dynamo:nothing", _CUDAGRAPHS),),
    "torch._inductor.compile_fx": (
        Name("compile_fx", WORKS, "dynamo:compile_graph"),
        Name("compile_fx_inner", WORKS, "dynamo:compile_graph"),
    ),
    "torch._inductor.ir": (
        Name("get_fill_order", WORKS, "attention:fill_order"),
        Name("get_stride_order", WORKS, "attention:stride_order"),
    ),
    "torch._inductor.utils": (
        Name("fresh_cache", WORKS, "profiling:fresh_cache"),
        Name("fresh_inductor_cache", WORKS, "profiling:fresh_cache"),
    ),
    "torch._inductor.decomposition": (Name("register_decomposition", NO_EFFECT, PEERS, _PASSES),),
    "torch._inductor.lowering": (Name("register_lowering", NO_EFFECT, PEERS, _PASSES),),
    "torch._inductor.pattern_matcher": (
        Name("PatternMatcherPass", NO_EFFECT, PEERS, _PASSES),
        Name("register_replacement", NO_EFFECT, PEERS, _PASSES),
    ),
    "torch._functorch.config": (),  # settings.FUNCTORCH
    "torch._functorch.aot_autograd": _AOT,
    "torch._functorch.compilers": (*_COMPILERS, *_AOT),
    "torch._functorch.partitioners": _PARTITIONS,
    "functorch.compile": (
        *_AOT,
        *_COMPILERS,
        *_PARTITIONS,
        Name("minifier", WORKS, "magneto._debug.minify:minifier"),
    ),
    "torch.fx.experimental.symbolic_shapes": (
        *(Name(name, WORKS, f"shapes:{name}", _SHAPES) for name in _SYMBOLIC.split()),
        Name("GuardOnDataDependentSymNode", NO_EFFECT, "dynamo:NeverRaised", "sizes that are numbers raise none"),
    ),
}

# What of PyTorch's compiler is put aside, with all that lies below.
PACKAGES = (
    "torch._dynamo",
    "torch._inductor",
    "torch._functorch.config",
    "torch._functorch.aot_autograd",
    "torch._functorch.compilers",
    "torch._functorch.partitioners",
    "functorch.compile",
)

# Modules below these are served here or not at all.
PREFIXES = (*PACKAGES, "torch.fx.experimental.symbolic_shapes")

# Served only while PyTorch's own is not loaded: that compiles nothing, and does more.
STAND_INS = frozenset({"torch.fx.experimental.symbolic_shapes"})

# Older names of whole packages: the same module objects.
ALIASES = {"torchdynamo": "torch._dynamo", "torchinductor": "torch._inductor"}

_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_TORCH = os.path.dirname(torch.__file__)
_noted: set[str] = set()
_quiet = False


def note_once(text: str) -> None:
    """A one-line warning at the program's line, the first time in an installation; of the log, where warnings are
    errors."""
    if _quiet or text in _noted:
        return
    frame = _caller()
    if _is_torchs(frame):
        return  # torch's own code sets things for itself
    _noted.add(text)
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    try:
        warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno, registry=registry)
    except UserWarning:
        _log.announce(text)


def _caller() -> types.FrameType:
    """The innermost frame that is neither of Magneto nor of torch.compiler, whose functions hand arguments over."""
    passed = (_PACKAGE + os.sep, os.path.dirname(torch.compiler.__file__) + os.sep, "<frozen importlib")
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(passed):
        frame = frame.f_back
    return frame


def _is_torchs(frame: types.FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_TORCH)


@contextlib.contextmanager
def without_notes() -> Iterator[None]:
    """Nothing is said in the block."""
    global _quiet
    before, _quiet = _quiet, True
    try:
        yield
    finally:
        _quiet = before


def forget_notes() -> None:
    """All notes are said anew."""
    _noted.clear()


def has_row(module: str, name: str) -> bool:
    """Whether a name of a served module is ours."""
    return any(row.name == name for row in MODULES[module])


def children(module: str) -> list[str]:
    """The names of a served module's direct submodules."""
    depth = module + "."
    return [name.removeprefix(depth) for name in MODULES if name.startswith(depth) and "." not in name[len(depth) :]]


def names_of(module: str) -> Iterable[str]:
    """What can be written behind the module's dot."""
    return (*(row.name for row in MODULES[module]), *children(module))


def value_of(module: str, row: Name) -> Any:
    """What a row stands for. What has no effect here is said once."""
    if not row.target:
        return refusing(f"{module}.{row.name}", row.note, lambda: peer.original(module, row.name))
    if row.target == PEERS or row.state in (TO_COME, REPLACED):
        note_once(f"{module}.{row.name}: {row.note}")
    if row.target == PEERS:
        return peer.original(module, row.name)
    where, _, attribute = row.target.partition(":")
    home = where if where.startswith("magneto") else f"magneto._install.{where}"
    return getattr(importlib.import_module(home), attribute)


def refusing(name: str, note: str, original: Callable[[], Any] | None = None) -> Any:
    """A function that says, when the program calls it, that `name` is not served.

    PyTorch's own eager code (torch.library.opcheck, torch.onnx) uses some of these parts: it gets the `original`.
    """

    def refuse(*args: Any, **kwargs: Any) -> Any:
        if original is not None and _is_torchs(_caller()):
            return original()(*args, **kwargs)
        raise NotYet(f"{name} is not supported yet under magneto.install(): {note}.")

    refuse.__name__ = refuse.__qualname__ = name.rpartition(".")[2]
    return refuse


from magneto._install import peer  # noqa: E402 (which imports this module)
