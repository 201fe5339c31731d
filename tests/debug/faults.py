"""Faults planted in backends and in the compiler, as rows: what is planted where, which tool a user would run, and what
that tool must name. find.py runs them, tools/planted_faults.py prints them as a table."""

from __future__ import annotations

import copy
import operator
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Fault:
    """One row. `place`: of observe::fault_at, or "backend", then `backend` is the faulty one."""

    kind: str
    place: str
    subject: str
    finder: str  # a key of find.FINDERS
    says: str  # of the failure
    names: tuple[str, ...]  # what the report and the small script name: stage, pass, operator, kernel, line
    program: Callable[..., Any] | None = None  # None: `layers`; a class of modules: one of them
    gradients: bool = False
    backend: Callable[..., Any] | None = None
    before: Callable[[], tuple[Any, ...]] | None = None  # the arguments of a call that comes first
    arguments: Callable[[], tuple[Any, ...]] | None = None  # other ones than find.inputs
    quick: bool = False  # in `make test`, too

    def __str__(self) -> str:
        return f"{self.kind}: {self.place} {self.subject}"


# -- programs


def layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = F.layer_norm(x @ w, (16,))
    z = torch.relu(y) + x
    z = torch.tanh(z @ w) * y
    z = F.gelu(z) + torch.sigmoid(z)
    z = z.cos() - z.exp()
    z = torch.where(z > 0, z, z * 0.5)
    return torch.softmax(z @ w, -1)


def writes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x.sin() @ w
    x.add_(1)
    z = y.tanh() * w.sum()
    return z.exp()


def writes_a_view(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x @ w
    x[2:4].mul_(y[2:4])
    return y.cos() + 1


def makes_nan(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x @ w) + x
    z = torch.tanh((x - 1e6).sqrt())
    return (y.exp() + 1, z * y)


def twice_alike(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    a, b = torch.tanh(x @ w), torch.tanh(x @ w)
    return a.exp() * b.cos() + torch.sigmoid(a)


def of_constants(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    mask = torch.arange(16, dtype=torch.float32).cos()
    return torch.tanh(x @ w) * mask + x.sigmoid()


class Counter(torch.nn.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        torch.manual_seed(0)
        self.w = torch.nn.Parameter(torch.randn(16, 16))


class SetsAttribute(Counter):
    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x @ self.w) + w.sum()
        self.calls = self.calls + 1
        return y.exp() + y


def appends(x: torch.Tensor, w: torch.Tensor, kept: list[int]) -> torch.Tensor:
    y = torch.tanh(x @ w)
    kept.append(len(kept))
    return y.exp() + y


def stores(x: torch.Tensor, w: torch.Tensor, kept: dict[str, int]) -> torch.Tensor:
    y = torch.tanh(x @ w)
    kept["calls"] = 1
    return y.exp() + y


def adds(x: torch.Tensor, w: torch.Tensor, kept: set[int]) -> torch.Tensor:
    y = torch.tanh(x @ w)
    kept.add(7)
    return y.exp() + y


def with_a_flag(x: torch.Tensor, w: torch.Tensor, times: int) -> torch.Tensor:
    y = torch.tanh(x @ w)
    z = torch.sigmoid(y) + x
    return z.exp() * times


def of_its_size(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.tanh(x @ w)
    if x.shape[0] > 4:
        y = y.exp()
    return y + x


def of_all_items(x: torch.Tensor, w: torch.Tensor, shifts: list[float]) -> torch.Tensor:
    y = torch.tanh(x @ w)
    for shift in shifts:
        y = y + shift
    return y.cos()


def of_keys(x: torch.Tensor, w: torch.Tensor, options: dict[str, float]) -> torch.Tensor:
    y = torch.tanh(x @ w)
    if "scale" in options:
        y = y * 3
    return y.cos()


def with_inputs(*more: Any, rows: int = 8, dtype: torch.dtype = torch.float32) -> Callable[[], tuple[Any, ...]]:
    """Tensors as find.inputs has them, and what else the program takes."""

    def made() -> tuple[Any, ...]:
        torch.manual_seed(0)
        return torch.randn(rows, 16, dtype=dtype), torch.randn(16, 16), *map(copy.copy, more)

    return made


# -- backends that are broken: closures, which a script defines from their source


def refusing(target: Any) -> Callable[..., Any]:
    def refuses(gm: torch.fx.GraphModule, example_inputs: list) -> object:
        if any(node.op.startswith("call") and node.target == target for node in gm.graph.nodes):
            raise ValueError("this operator is refused")
        return gm.forward

    return refuses


def crashing(target: Any, ends_by: int) -> Callable[..., Any]:
    def crashes(gm: torch.fx.GraphModule, example_inputs: list) -> object:
        if any(node.op.startswith("call") and node.target == target for node in gm.graph.nodes):
            os.kill(os.getpid(), ends_by)
        return gm.forward

    return crashes


def crashing_when_run(target: Any) -> Callable[..., Any]:
    def crashes_when_run(gm: torch.fx.GraphModule, example_inputs: list) -> object:
        def forward(*args):
            if any(node.op.startswith("call") and node.target == target for node in gm.graph.nodes):
                os.abort()
            return gm.forward(*args)

        return forward

    return crashes_when_run


def hanging(target: Any) -> Callable[..., Any]:
    def hangs(gm: torch.fx.GraphModule, example_inputs: list) -> object:
        if any(node.op.startswith("call") and node.target == target for node in gm.graph.nodes):
            time.sleep(1000)
        return gm.forward

    return hangs


def eating(target: Any) -> Callable[..., Any]:
    def eats(gm: torch.fx.GraphModule, example_inputs: list) -> object:
        held = []
        while any(node.op.startswith("call") and node.target == target for node in gm.graph.nodes):
            held.append(torch.empty(1 << 30))
        return gm.forward

    return eats


def replacing(target: Any, other: Any) -> Callable[..., Any]:
    def is_wrong(gm: torch.fx.GraphModule, example_inputs: list) -> object:
        for node in gm.graph.nodes:
            if node.op.startswith("call") and node.target == target:
                node.target = other
        gm.recompile()
        return gm.forward

    return is_wrong


def wrong_in_one_row(target: Any) -> Callable[..., Any]:
    def is_wrong_in_one_row(gm: torch.fx.GraphModule, example_inputs: list) -> object:
        class Wrong(torch.fx.Interpreter):
            def run_node(self, node):
                out = super().run_node(node)
                is_it = node.op.startswith("call") and node.target == target
                return torch.cat([out[:-1], out[-1:] + 1]) if is_it else out

        return Wrong(gm).run

    return is_wrong_in_one_row


def losing_gradients(target: Any) -> Callable[..., Any]:
    def has_no_gradient(gm: torch.fx.GraphModule, example_inputs: list) -> object:
        for node in gm.graph.nodes:
            if node.op.startswith("call") and node.target == target:
                with gm.graph.inserting_before(node):
                    detached = gm.graph.call_method("detach", (node.args[0],))
                node.replace_input_with(node.args[0], detached)
        gm.recompile()
        return gm.forward

    return has_no_gradient


def _backend(kind: str, made: Callable[..., Any], says: str, op: str, **more: Any) -> Fault:
    finder = "graphs that are wrong" if "wrong" in kind else "graphs"
    return Fault(kind, "backend", op, finder, says, (op,), backend=made, **more)


FAULTS = (
    # A program's own backend (TORCHDYNAMO_REPRO_AFTER=dynamo).
    _backend("a backend refuses", refusing(torch.relu), "refused", "torch.relu", quick=True),
    _backend("a backend refuses", refusing(F.layer_norm), "refused", "layer_norm"),
    _backend("a backend refuses", refusing("exp"), "refused", ".exp()"),
    _backend("a backend crashes", crashing(torch.tanh, signal.SIGSEGV), "SIGSEGV", "torch.tanh"),
    _backend("a backend crashes", crashing(torch.where, signal.SIGFPE), "SIGFPE", "torch.where"),
    _backend("a backend crashes", crashing_when_run(torch.softmax), "SIGABRT", "torch.softmax"),
    _backend("a backend hangs", hanging(torch.tanh), "not done after", "torch.tanh"),
    _backend("a backend hangs", hanging("cos"), "not done after", ".cos()"),
    _backend("a backend eats memory", eating(F.gelu), "memory", "gelu"),
    _backend("a backend eats memory", eating(torch.sigmoid), "memory", "torch.sigmoid"),
    _backend("a backend is wrong", replacing(torch.tanh, torch.sigmoid), "Bad accuracy", "torch.tanh"),
    _backend("a backend is wrong", replacing(torch.relu, torch.abs), "Bad accuracy", "torch.relu"),
    _backend("a backend is wrong", replacing(operator.sub, operator.add), "Bad accuracy", " - "),
    _backend("a backend is wrong in one row", wrong_in_one_row(torch.softmax), "Bad accuracy", "torch.softmax"),
    _backend("a backend is wrong backward", losing_gradients(torch.tanh), "gradient", "torch.tanh", gradients=True),
    _backend("a backend is wrong backward", losing_gradients(F.gelu), "gradient", "gelu", gradients=True),
    # The code generator (TORCHDYNAMO_REPRO_AFTER=aot).
    *(
        Fault(kind, place, f"aten.{op}.default", "operators", says, (f"aten.{op}.default",), gradients=gradients)
        for kind, place, says, ops in (
            ("an operator is refused", "lower.raise", "no rule for", "tanh gelu tanh_backward _softmax_backward_data"),
            ("an operator crashes", "lower.crash", "SIGABRT", "_softmax exp sigmoid_backward"),
            ("an operator hangs", "lower.hang", "not done after", "_softmax gelu_backward"),
            ("an operator eats memory", "lower.memory", "memory", "_softmax tanh_backward"),
        )
        for op in ops.split()
        for gradients in ["backward" in op]
    ),
    *(
        Fault(kind, place, f"aten.{op}.default", finder, says, names)
        for kind, place, says, op in (
            ("an operator is refused", "lower.raise", "no rule for", "gelu"),
            ("an operator crashes", "lower.crash", "SIGABRT", "cos"),
        )
        for finder, names in (
            ("bisect", ("lowering", "layers", f"aten.{op}.default")),
            ("program", (f"{op}(",)),
        )
    ),
    # Passes.
    Fault(
        "a pass drops a write",
        "pass.functionalise",
        "write",
        "bisect",
        "input 0 afterwards",
        ("passes", "functionalise"),
        writes,
        quick=True,
    ),
    Fault(
        "a pass drops a write",
        "pass.eliminate_dead",
        "write",
        "bisect",
        "input 0 afterwards",
        ("passes", "eliminate_dead"),
        writes,
    ),
    Fault(
        "a pass drops a write",
        "pass.place_slices",
        "write",
        "bisect",
        "input 0 afterwards",
        ("passes", "place_slices"),
        writes_a_view,
    ),
    Fault("a pass drops a write", "pass.functionalise", "write", "program", "wrong result", (".add_(1)",), writes),
    Fault(
        "a pass drops a node",
        "pass.merge_common",
        "aten::tanh>aten::alias",
        "bisect",
        "result 0",
        ("passes", "merge_common", "aten.tanh.default"),
        twice_alike,
    ),
    Fault(
        "a pass drops a node",
        "pass.eliminate_dead",
        "aten::exp>aten::alias",
        "bisect",
        "result 0",
        ("passes", "eliminate_dead", "aten.exp.default"),
    ),
    Fault(
        "a pass changes a node",
        "pass.fold_constants",
        "aten::sigmoid>aten::tanh",
        "bisect",
        "result 0",
        ("passes", "fold_constants", "aten.sigmoid.default"),
        of_constants,
    ),
    Fault(
        "a pass changes a node",
        "pass.separate_bias",
        "aten::cos>aten::sin",
        "operators that are wrong",
        "Bad accuracy",
        ("aten.cos.default",),
    ),
    Fault(
        "a pass changes a node",
        "pass.merge_common",
        "aten::tanh_backward>aten::sigmoid_backward",
        "bisect",
        "gradient of input",
        ("passes", "merge_common", "aten.tanh_backward.default"),
        gradients=True,
    ),
    # Kernels.
    Fault(
        "a kernel is wrong everywhere",
        "kernel.wrong",
        "tanh",
        "bisect",
        "result 0",
        ("code generation", "layers", "faults.py", "aten.tanh.default"),
        quick=True,
    ),
    Fault(
        "a kernel is wrong everywhere",
        "kernel.wrong",
        "cos",
        "operators that are wrong",
        "Bad accuracy",
        ("aten.cos.default",),
    ),
    Fault(
        "a kernel is wrong everywhere",
        "kernel.wrong",
        "exp",
        "bisect",
        "result 0",
        ("code generation", "layers", "faults.py"),
    ),
    Fault("a kernel is wrong everywhere", "kernel.wrong", "sin", "program", "wrong result", (".sin()",), writes),
    Fault(
        "a kernel is wrong in one lane",
        "kernel.lane",
        "tanh",
        "bisect",
        "result 0",
        ("code generation", "layers", "faults.py", "aten.tanh.default"),
    ),
    Fault(
        "a kernel is wrong in one lane",
        "kernel.lane",
        "cos",
        "operators that are wrong",
        "Bad accuracy",
        ("aten.cos.default",),
    ),
    Fault("a kernel is wrong in one lane", "kernel.lane", "sin", "program", "wrong result", (".sin()",), writes),
    Fault(
        "a kernel is wrong for NaN",
        "kernel.nan",
        "tanh",
        "bisect",
        "result 1",
        ("code generation", "makes_nan", "faults.py", "aten.tanh.default"),
        makes_nan,
    ),
    Fault(
        "a kernel is wrong for NaN",
        "kernel.nan",
        "sqrt",
        "operators that are wrong",
        "Bad accuracy",
        ("aten.sqrt.default",),
        makes_nan,
    ),
    Fault(
        "a kernel is wrong for one size",
        "kernel.size",
        "cos:16",
        "bisect",
        "result 0",
        ("code generation", "layers", "faults.py", "aten.cos.default"),
    ),
    Fault(
        "a kernel is wrong for one size",
        "kernel.size",
        "tanh:16",
        "operators that are wrong",
        "Bad accuracy",
        ("aten.tanh.default",),
    ),
    Fault("a kernel is wrong for NaN", "kernel.nan", "sqrt", "program", "NaN", (".sqrt()",), makes_nan),
    Fault("a kernel is wrong for one size", "kernel.size", "sin:16", "program", "wrong result", (".sin()",), writes),
    # Gradients.
    *(
        Fault("a backward is wrong", "backward", f"aten::{one}>aten::{other}", finder, says, names, gradients=True)
        for one, other, call in (
            ("tanh_backward", "sigmoid_backward", "torch.tanh"),
            ("sigmoid_backward", "tanh_backward", "torch.sigmoid"),
        )
        for finder, says, names in (
            ("bisect", "gradient of input", ("autograd", "layers", call)),
            ("program", "wrong result", (call,)),
        )
    ),
    # The capture.
    *(
        Fault(
            "a capture loses a side effect",
            "capture.write",
            subject,
            finder,
            says,
            (*stage, name),
            program,
            arguments=arguments,
        )
        for subject, program, arguments, name in (
            ("attribute", SetsAttribute, None, "SetsAttribute.forward"),
            ("list", appends, with_inputs([1]), "append("),
            ("item", stores, with_inputs({"a": 1}), "kept['calls']"),
            ("set", adds, with_inputs({1}), ".add("),
        )
        for finder, says, stage in (("bisect", "objects", ("capture",)), ("program", "other structure", ()))
        if finder == "bisect" or subject == "list"
    ),
    # Guards.
    *(
        Fault(
            "a guard is left out",
            "guard",
            subject,
            "bisect",
            "result 0",
            ("guards", program.__name__, name),
            program,
            before=before,
            arguments=arguments,
        )
        for subject, program, before, arguments, name in (
            ("equals.type_alone", with_a_flag, with_inputs(2), with_inputs(3), "L['times'] == 3"),
            ("tensor.sizes", of_its_size, with_inputs(rows=4), with_inputs(rows=8), "size=[8, 16]"),
            ("item_count.at_least", of_all_items, with_inputs([1.0]), with_inputs([1.0, 2.0]), "len(L['shifts']) == 2"),
            ("absent.item", of_keys, with_inputs({"a": 1.0}), with_inputs({"scale": 1.0}), "L['options']"),
        )
    ),
)
