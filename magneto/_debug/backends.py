"""Backends that help to find where something goes wrong: eager's with checks, TorchScript's, and broken ones."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from magneto import _log


class ReluCompileError(Exception):
    """`relu_compile_error_TESTING_ONLY` met a relu."""


class TestingOnlyCompileError(Exception):
    """`non_leaf_compile_error_TESTING_ONLY` met an input that is no leaf."""

    __test__ = False  # no class of tests


Forward = Callable[..., Any]


def eager_noexcept(gm: torch.fx.GraphModule, example_inputs: Any = None, **options: Any) -> Forward:
    """Runs the graph as it is; of an exception the log says that it comes from there."""

    def run(*args: Any) -> Any:
        try:
            return gm.forward(*args)
        except Exception as error:
            _log.error(f"Unexpected exception when running generated GraphModule: {type(error).__name__}: {error}")
            raise

    return run


def eager_debug(gm: torch.fx.GraphModule, example_inputs: Any = None, **options: Any) -> Forward:
    """Runs the graph call by call; of an exception the log says the call and the user's line."""

    def run(*args: Any) -> Any:
        env: dict[torch.fx.Node, Any] = {}
        given = iter(args)
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                env[node] = next(given)
            elif node.op == "output":
                return torch.fx.node.map_arg(node.args[0], env.__getitem__)
            else:
                try:
                    env[node] = _call(gm, node, env)
                except Exception as error:
                    _log.error(f"{type(error).__name__} in {node.format_node()}\n{node.stack_trace or ''}{error}")
                    raise
        return None

    return run


def _call(gm: torch.fx.GraphModule, node: torch.fx.Node, env: dict[torch.fx.Node, Any]) -> Any:
    args = torch.fx.node.map_arg(node.args, env.__getitem__)
    kwargs = torch.fx.node.map_arg(node.kwargs, env.__getitem__)
    if node.op == "get_attr":
        return operator.attrgetter(str(node.target))(gm)
    if node.op == "call_module":
        return gm.get_submodule(str(node.target))(*args, **kwargs)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def ts(gm: torch.fx.GraphModule, example_inputs: Any, **options: Any) -> Forward:
    """TorchScript: the graph as a script."""
    # A lazy graph module has methods that no script can have.
    return torch.jit.script(torch.fx.GraphModule(gm, gm.graph))  # type: ignore[no-untyped-call,no-any-return]


def aot_ts(gm: torch.fx.GraphModule, example_inputs: Any, **options: Any) -> Forward:
    """TorchScript: the operators that the graph calls for these inputs, traced."""
    return torch.jit.trace(gm, tuple(example_inputs), check_trace=False)  # type: ignore[no-untyped-call,no-any-return]


_RELUS = (torch.relu, torch.nn.functional.relu, torch.ops.aten.relu, torch.ops.aten.relu.default, "relu")


def _relus(gm: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [
        node
        for node in gm.graph.nodes
        if (node.op in ("call_function", "call_method") and node.target in _RELUS)
        or (node.op == "call_module" and isinstance(gm.get_submodule(str(node.target)), torch.nn.ReLU))
    ]


def relu_compile_error(gm: torch.fx.GraphModule, example_inputs: Any, **options: Any) -> Forward:
    """Refuses graphs with a relu."""
    if _relus(gm):
        raise ReluCompileError
    return gm.forward  # type: ignore[no-any-return]


def _replace(gm: torch.fx.GraphModule, target: Callable[..., Any], args: Callable[[Any], tuple[Any, ...]]) -> Forward:
    for node in _relus(gm):
        with gm.graph.inserting_before(node):
            other = gm.graph.call_function(target, args(node.all_input_nodes[0]))
        node.replace_all_uses_with(other)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm.forward  # type: ignore[no-any-return]


def _raise_at_run_time(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("ReluRuntimeError")


def relu_runtime_error(gm: torch.fx.GraphModule, example_inputs: Any, **options: Any) -> Forward:
    """Each relu raises as the graph runs."""
    return _replace(gm, _raise_at_run_time, lambda x: (x,))


def relu_accuracy_error(gm: torch.fx.GraphModule, example_inputs: Any, **options: Any) -> Forward:
    """Each relu adds one in its place."""
    return _replace(gm, torch.add, lambda x: (x, 1))


def non_leaf_compile_error(gm: torch.fx.GraphModule, example_inputs: Any, **options: Any) -> Forward:
    """Refuses inputs that are no leaves of autograd."""
    for x in example_inputs:
        if isinstance(x, torch.Tensor) and not x.is_leaf:
            raise TestingOnlyCompileError
    return gm.forward  # type: ignore[no-any-return]


# Name -> backend. Those that only tests of tools want say so in their names.
BACKENDS: dict[str, Callable[..., Forward]] = {
    "eager_debug": eager_debug,
    "eager_noexcept": eager_noexcept,
    "ts": ts,
    "aot_ts": aot_ts,
    "relu_compile_error_TESTING_ONLY": relu_compile_error,
    "relu_runtime_error_TESTING_ONLY": relu_runtime_error,
    "relu_accuracy_error_TESTING_ONLY": relu_accuracy_error,
    "non_leaf_compile_error_TESTING_ONLY": non_leaf_compile_error,
}
