"""Compilers that users wrote for forward and backward: the names of aot_autograd. src/compiler/user_compilers.cpp asks.

The graphs are those of Magneto's own joint graph, cut by its own partition (docs/autograd.md), as torch.fx in the form
that AOTAutograd's users know: ATen operators without writes, `primals_1`, `tangents_1`.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from magneto import _api, _messages, exc

Compiler = Callable[[Any, Any], Callable[..., Any]]


class _Cuts(threading.local):
    """Magneto's own partitions of the joint graphs that functions of the program have in hand, innermost last."""

    def __init__(self) -> None:
        self.open: list[tuple[Any, str, Callable[[bool], tuple[Any, Any]]]] = []


_cuts = _Cuts()


def default_partition(joint_module: Any, joint_inputs: Any = (), *, num_fwd_outputs: int, **others: Any) -> Any:
    """A `partition_fn`: what eager saves is saved. Gives forward and backward as graph modules."""
    return _cut(joint_module, min_cut=False)


def min_cut_rematerialization_partition(
    joint_module: Any, joint_inputs: Any = (), compiler: Any = "inductor", *, num_fwd_outputs: int, **others: Any
) -> Any:
    """A `partition_fn`: values are computed again where that is cheaper than saving them."""
    return _cut(joint_module, min_cut=True)


_OWN_PARTITIONS = (None, default_partition, min_cut_rematerialization_partition)


def _cut(joint_module: Any, *, min_cut: bool) -> tuple[Any, Any]:
    for module, text, cut in reversed(_cuts.open):
        if module is joint_module:
            if str(module.graph) != text:
                raise exc.NotYet(
                    "the joint graph was changed: Magneto's partitions cut it as it was given. Let the compilers "
                    "change forward and backward, or cut it by a function of the program"
                )
            halves: tuple[Any, Any] = cut(min_cut)
            return halves
    raise exc.InvalidValue(
        "Magneto's partitions cut the joint graph that a partition_fn has been given, while that runs; this is another"
    )


class Compilers:
    """The backend that `aot_autograd` gives: `torch.compile(fn, backend=aot_autograd(fw_compiler=mine))`.

    Args:
        fw_compiler: `(graph_module, example_inputs) -> callable`, for the forward.
        bw_compiler: The same for the backward; None: `fw_compiler`.
        inference_compiler: For graphs without gradients; None: `fw_compiler`.
        partition_fn: `default_partition` or `min_cut_rematerialization_partition`, or a function that gives forward
            and backward: `(joint_module, (primals, tangents), num_fwd_outputs=n) -> (forward, backward)`.
        decompositions: A dict from operators to functions, which take the operators' arguments. They are called on
            tensors without data when a graph is captured; its sizes are numbers then.
        keep_inference_input_mutations: Graphs without gradients write their inputs themselves, with `copy_` at the end.

    Raises:
        magneto.exc.InvalidValue: A compiler or the partition can't be called, or the decompositions are no such dict.
    """

    exports = False  # torch.export's has no compilers (magneto/_export.py)

    def __init__(
        self,
        fw_compiler: Compiler,
        bw_compiler: Compiler | None = None,
        partition_fn: Any = None,
        decompositions: Mapping[Any, Any] | None = None,
        inference_compiler: Compiler | None = None,
        keep_inference_input_mutations: bool = False,
    ) -> None:
        self._compilers: dict[str, Any] = {
            "forward": fw_compiler,
            "backward": bw_compiler if bw_compiler is not None else fw_compiler,
            "inference": inference_compiler if inference_compiler is not None else fw_compiler,
        }
        for half, compiler in self._compilers.items():
            if not callable(compiler):
                raise exc.InvalidValue(f"the compiler of the {half} must be callable, not {compiler!r}")
        if partition_fn is not None and not callable(partition_fn):
            raise exc.InvalidValue(f"partition_fn must be callable, not {partition_fn!r}")
        self._partition = partition_fn
        self.partitions = partition_fn not in _OWN_PARTITIONS
        self.min_cut = partition_fn is min_cut_rematerialization_partition
        self.decompositions = _overloads(decompositions or {})
        self.keep_inference_input_mutations = bool(keep_inference_input_mutations)

    def with_arguments(self, arguments: Mapping[str, Any]) -> Compilers:
        """torch.compile's mode and options are not for them."""
        warnings.warn(f"aot_autograd: its compilers are not given {', '.join(arguments)}", stacklevel=2)
        return self

    def __call__(self, gm: Any, example_inputs: Any = None, **options: Any) -> Callable[..., Any]:
        """Another backend hands its graph on."""
        return simplified(gm, example_inputs, self)

    def compile(self, half: str, module: Any, inputs: list[Any], place: str) -> tuple[Callable[..., Any], str, bool]:
        """What the half's compiler makes of its graph; what that is, for messages; whether it takes one list."""
        compiler = self._compilers[half]
        try:
            made = compiler(module, inputs)
            if not callable(made):
                raise TypeError(f"the backend returned {made!r}, which can't be called")
        except Exception as cause:
            what = f"the {half} of {place}"
            raise exc.BackendFailed(_messages.backend_failure(compiler, cause, what)) from cause
        name = f"what {_messages.name_of(compiler)} gave for the {half} of {place}"
        return made, name, bool(getattr(made, "_boxed_call", False))

    def partition(
        self,
        joint: Any,
        primals: list[Any],
        tangents: list[Any],
        results: int,
        cut: Callable[[bool], tuple[Any, Any]],
        place: str,
    ) -> tuple[Any, Any, list[bool], list[Any]]:
        """Forward and backward by the program's function; which of what is saved are numbers; the backward's inputs."""
        _cuts.open.append((joint, str(joint.graph), cut))
        try:
            forward, backward = self._partition(joint, (primals, tangents), num_fwd_outputs=results)
            saved = list(_returned(forward))[results:]
            numbers = [isinstance(node.meta.get("val"), int) for node in saved]
            inputs = [_example(node) for node in backward.graph.nodes if node.op == "placeholder"]
            if len(inputs) != len(saved) + len(tangents):
                raise ValueError(
                    f"the forward saves {len(saved)} values, and the backward takes {len(inputs)} inputs for them and "
                    f"{len(tangents)} tangents"
                )
        except Exception as cause:
            what = f"the joint graph of {place}"
            raise exc.BackendFailed(_messages.backend_failure(self._partition, cause, what)) from cause
        finally:
            _cuts.open.pop()
        return forward, backward, numbers, inputs


def _returned(module: Any) -> Any:
    return next(node for node in module.graph.nodes if node.op == "output").args[0]


def _example(node: Any) -> Any:
    """Something of the form that the node's value has, if that is known."""
    like = node.meta.get("val")
    if not isinstance(like, torch.Tensor):
        return like
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype).zero_()


def _overloads(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """By overload: `torch.ops.aten.gelu` stands for all that it has."""
    functions: dict[Any, Callable[..., Any]] = {}
    for operator, function in dict(table).items():
        if isinstance(operator, torch._ops.OpOverloadPacket):
            functions |= {
                getattr(operator, name): function
                for name in operator.overloads()  # type: ignore[no-untyped-call]
            }
        elif isinstance(operator, torch._ops.OpOverload):
            functions[operator] = function
        else:
            raise exc.InvalidValue(
                f"decompositions are of operators like torch.ops.aten.gelu.default, not {operator!r}"
            )
        if not callable(function):
            raise exc.InvalidValue(f"the decomposition of {operator} must be callable, not {function!r}")
    return functions


def raise_failed_decomposition(function: Any, operator: str, cause: BaseException) -> None:
    """A decomposition raised, when it was called on tensors without data."""
    raise exc.BackendFailed(
        f"the decomposition {_messages.name_of(function)} of {operator} raised {type(cause).__name__}: {cause}"
    ) from cause


def aot_autograd(**arguments: Any) -> Compilers:
    """torch._dynamo.backends.common.aot_autograd: `Compilers` by keywords."""
    if "fw_compiler" not in arguments:
        raise exc.InvalidValue("aot_autograd needs fw_compiler=")
    return Compilers(**arguments)


def simplified(gm: Any, example_inputs: Any, compilers: Compilers) -> Callable[..., Any]:
    """A graph module of torch calls, compiled. It is captured when it is first called."""
    if hasattr(gm, "real_recompile"):  # of a lazy graph module: else its first call makes its code
        gm.real_recompile()
    numbers = any(isinstance(x, int) for x in example_inputs or ())
    forward: Callable[..., Any] = getattr(gm, "forward", gm)
    return _api.compile(forward, backend=compilers, fullgraph=True, dynamic=True if numbers else None)


def aot_module_simplified(
    mod: Any,
    args: Any,
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: Any = None,
    decompositions: Mapping[Any, Any] | None = None,
    keep_inference_input_mutations: bool = False,
    inference_compiler: Compiler | None = None,
    **others: Any,
) -> Callable[..., Any]:
    """For backends: the graph that they get, with compilers for its forward and backward."""
    compilers = Compilers(
        fw_compiler, bw_compiler, partition_fn, decompositions, inference_compiler, keep_inference_input_mutations
    )
    return simplified(mod, args, compilers)


def aot_function(
    fn: Callable[..., Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: Any = None,
    decompositions: Mapping[Any, Any] | None = None,
    num_params_buffers: int = 0,
    keep_inference_input_mutations: bool = False,
    inference_compiler: Compiler | None = None,
    *,
    dynamic: bool = False,
    enable_log: bool = True,
    disable_functionalization: bool = False,
) -> Callable[..., Any]:
    """The function with compilers for its forward and backward. It is captured anew where other code would run.

    `disable_functionalization` changes nothing: graphs that compilers get are functional, and what is written is copied
    back behind them."""
    compilers = Compilers(
        fw_compiler, bw_compiler, partition_fn, decompositions, inference_compiler, keep_inference_input_mutations
    )
    return _api.compile(fn, backend=compilers, fullgraph=True, dynamic=dynamic)


def aot_module(mod: Any, *args: Any, **kwargs: Any) -> Any:
    """The same of a module, whose parameters are among the primals."""
    return aot_function(mod, *args, **kwargs)


compiled_function = aot_function
compiled_module = aot_module


def memory_efficient_fusion(fn: Any, **kwargs: Any) -> Any:
    """Fused, and computed again rather than saved: what magneto.compile does; with compilers, theirs."""
    if not kwargs:
        return _api.compile(fn)
    return aot_function(fn, **{"partition_fn": min_cut_rematerialization_partition, **kwargs})


def print_compile(fx_g: Any, inputs: Any = None) -> Any:
    """A compiler that prints the graph's code and runs it as it is."""
    print(fx_g.code)
    return fx_g


def nop(fx_g: Any, inputs: Any = None) -> Any:
    """A compiler that runs the graph as it is."""
    return fx_g
