"""Generated code beside eager over layouts, reductions and dtypes: about 500 small programs, one thread.

    make bench ARGS="--only layouts"
    .venv/bin/python -P bench/layouts.py softmax        (only the programs whose name has the word; prints all of them)

Eager's call and ours take turns, the least of many counts. A row that seems slow is measured again for longer: on a
busy machine the first look is often the machine's. Results are checked, strides and dtypes included.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

AIM = 0.97
SIZES = {2: (512, 2048), 3: (64, 128, 128), 4: (16, 32, 32, 64)}
LARGE = (512, 4096)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int8, torch.int32, torch.int64)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)
NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in DTYPES}


@dataclass(frozen=True)
class Operand:
    """A tensor of these sizes. `order`: its dimensions from the outermost in memory to the innermost; `step`: every
    second element of that dimension of a larger one; `expanded`: a dimension of size one, expanded."""

    sizes: tuple[int, ...]
    order: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    step: int | None = None
    expanded: int | None = None

    def tensor(self) -> torch.Tensor:
        sizes = list(self.sizes)
        if self.step is not None:
            sizes[self.step] *= 2
        if self.expanded is not None:
            sizes[self.expanded] = 1
        memory = [sizes[dim] for dim in self.order]
        if self.dtype == torch.bool:
            values = torch.rand(memory) > 0.5
        elif self.dtype.is_floating_point:
            values = torch.randn(memory).to(self.dtype)
        else:
            values = torch.randint(-100, 100, memory).to(self.dtype)
        result = values.permute([self.order.index(dim) for dim in range(len(sizes))])
        if self.step is not None:
            result = result[(slice(None),) * self.step + (slice(None, None, 2),)]
        return result.expand(self.sizes)

    @property
    def name(self) -> str:
        text = "".join(map(str, self.order))
        text += f" step {self.step}" if self.step is not None else ""
        return text + (f" expanded {self.expanded}" if self.expanded is not None else "")


Row = tuple[str, str, tuple[Operand, ...]]
"""Name, program in Python, operands."""


def orders(dims: int) -> Iterator[tuple[int, ...]]:
    return itertools.permutations(range(dims))


def two_dimensions(dtype: torch.dtype = torch.float32) -> list[Operand]:
    sizes = SIZES[2]
    return [
        Operand(sizes, (0, 1), dtype),
        Operand(sizes, (1, 0), dtype),
        Operand(sizes, (0, 1), dtype, step=1),
        Operand(sizes, (0, 1), dtype, step=0),
        Operand(sizes, (0, 1), dtype, expanded=0),
        Operand(sizes, (0, 1), dtype, expanded=1),
    ]


def sums() -> Iterator[Row]:
    """Two operands and a result, each in every order."""
    results = {"as it comes": "", "contiguous": ".contiguous()", "turned": ".mT.contiguous()"}
    for (x, y), (result, suffix) in itertools.product(itertools.product(two_dimensions(), repeat=2), results.items()):
        yield f"add, {x.name}; {y.name}; {result}", f"lambda x, y: (x + y){suffix}.relu()", (x, y)
    for first, second in itertools.product(orders(3), repeat=2):
        operands = (Operand(SIZES[3], first), Operand(SIZES[3], second))
        names = f"{operands[0].name}; {operands[1].name}"
        yield f"add, {names}; contiguous", "lambda x, y: (x + y).contiguous().relu()", operands
    for order in orders(4):
        operands = (Operand(SIZES[4], order), Operand(SIZES[4], (0, 1, 2, 3)))
        yield f"add, {operands[0].name}; 0123", "lambda x, y: x + y", operands
    three = [Operand(SIZES[2], (0, 1)), Operand(SIZES[2], (1, 0)), Operand(SIZES[2], (1, 0), expanded=0)]
    for x, y, z in itertools.product(three, repeat=3):
        yield f"addcmul, {x.name}; {y.name}; {z.name}", "lambda x, y, z: x + y * z", (x, y, z)


def copies() -> Iterator[Row]:
    for dtype in (torch.float32, torch.bfloat16, torch.int8, torch.int64):
        for dims in (2, 3):
            for order in list(orders(dims))[1:]:
                x = Operand(SIZES[dims], order, dtype)
                yield f"copy, {x.name} {NAMES[dtype]}", "lambda x: x.contiguous()", (x,)
    for order in list(orders(4))[1:]:
        x = Operand(SIZES[4], order)
        yield f"copy, {x.name}", "lambda x: x.contiguous()", (x,)


REDUCTIONS = {
    "sum": "x.sum({})",
    "mean": "x.mean({})",
    "amax": "x.amax({})",
    "var": "x.var({})",
    "argmax": "x.argmax({})",
    "softmax": "x.softmax({})",
    "log_softmax": "x.log_softmax({})",
    "cumsum": "x.cumsum({})",
}


def reductions() -> Iterator[Row]:
    """Over each dimension of each layout."""
    operands = [*two_dimensions()[:4], *(Operand(SIZES[3], order) for order in ((0, 1, 2), (1, 2, 0), (2, 0, 1)))]
    for x in operands:
        dims = len(x.sizes)
        for name, program in REDUCTIONS.items():
            for dim in range(dims):
                yield f"{name} over {dim} of {dims}, {x.name}", "lambda x: " + program.format(dim), (x,)
        norm = f"lambda x: torch.nn.functional.layer_norm(x, ({x.sizes[-1]},))"
        yield f"layer_norm of {dims}, {x.name}", norm, (x,)
        for name in ("sum", "amax", "var"):
            yield f"{name} of all of {dims}, {x.name}", f"lambda x: x.{name}()", (x,)


def reduced_dtypes() -> Iterator[Row]:
    for dtype in DTYPES[1:]:
        x = Operand(SIZES[2], (0, 1), dtype)
        wanted = ["sum", "amax", "argmax", "cumsum"] + (["softmax", "var"] if dtype.is_floating_point else [])
        if dtype == torch.bool:
            wanted = ["sum", "cumsum"]
        for name, dim in itertools.product(wanted, (0, 1)):
            yield f"{name} over {dim}, {NAMES[dtype]}", "lambda x: " + REDUCTIONS[name].format(dim), (x,)
        if dtype.is_floating_point:
            norm = f"lambda x: torch.nn.functional.layer_norm(x, ({x.sizes[-1]},))"
            yield f"layer_norm, {NAMES[dtype]}", norm, (x,)


FLOAT_PROGRAMS = {
    "gelu": "torch.nn.functional.gelu(x)",
    "gelu tanh": "torch.nn.functional.gelu(x, approximate='tanh')",
    "silu": "torch.nn.functional.silu(x)",
    "exp": "x.exp()",
    "tanh": "x.tanh()",
    "sigmoid": "x.sigmoid()",
    "log": "x.abs().log()",
    "sqrt": "x.abs().sqrt()",
    "sin": "x.sin()",
    "div": "x / y",
    "pow": "x ** 3",
    "to float32": "x.to(torch.float32)",
    "to bfloat16": "x.to(torch.bfloat16)",
}
ANY_PROGRAMS = {
    "add": "x + y",
    "mul": "x * y",
    "less": "x < y",
    "where": "torch.where(x < y, x, y)",
    "turned add": "x.mT + y.mT.contiguous()",
    "to float64": "x.to(torch.float64)",
    "to int64": "x.to(torch.int64)",
    "to int8": "x.to(torch.int8)",
}


def pointwise_dtypes() -> Iterator[Row]:
    for dtype in DTYPES:
        operands = (Operand(SIZES[2], (0, 1), dtype), Operand(SIZES[2], (0, 1), dtype))
        for name, program in {**ANY_PROGRAMS, **(FLOAT_PROGRAMS if dtype.is_floating_point else {})}.items():
            yield f"{name}, {NAMES[dtype]}", f"lambda x, y: {program}", operands


def known() -> Iterator[Row]:
    """What was found slow in use."""
    x, y = Operand(LARGE, (0, 1)), Operand(LARGE, (0, 1))
    yield "512x4096: turned sum", "lambda x, y: (x.t() + y.t()).contiguous().relu()", (x, y)
    yield "512x4096: softmax over 0", "lambda x, y: x.softmax(0)", (x, y)
    yield "512x4096: softmax, turned", "lambda x, y: x.t().softmax(-1)", (x, y)
    yield "512x4096: layer norm, turned", "lambda x, y: torch.nn.functional.layer_norm(x.t(), (512,))", (x, y)
    halves = (Operand(LARGE, (0, 1), torch.bfloat16),)
    yield "512x4096: gelu, bfloat16", "lambda x: torch.nn.functional.gelu(x)", halves


def rows() -> list[Row]:
    makers = (known, sums, copies, reductions, reduced_dtypes, pointwise_dtypes)
    return [row for maker in makers for row in maker()]


def check(name: str, ours: torch.Tensor, eager: torch.Tensor) -> None:
    if ours.dtype != eager.dtype or ours.stride() != eager.stride():
        raise RuntimeError(f"{name}: {ours.dtype} {ours.stride()}, eager {eager.dtype} {eager.stride()}")
    if not eager.dtype.is_floating_point:
        torch.testing.assert_close(ours, eager, rtol=0, atol=0, msg=lambda text: f"{name}: {text}")
        return
    exact = {torch.bfloat16: 1.6e-2, torch.float16: 2e-3, torch.float32: 2e-5, torch.float64: 1e-12}[eager.dtype]
    # Sums of thousands of numbers around zero: their error is relative to what was added.
    torch.testing.assert_close(ours, eager, rtol=exact, atol=50 * exact, msg=lambda text: f"{name}: {text}")


def least(calls: tuple[Callable[[], Any], Callable[[], Any]], budget: float, found: list[float]) -> None:
    """The least time of each, which take turns, with what was found before."""
    start = time.perf_counter()
    while time.perf_counter() - start < budget:
        for at, call in enumerate(calls):
            began = time.perf_counter()
            call()
            found[at] = min(found[at], time.perf_counter() - began)


def measure(word: str = "", show: bool = False) -> dict[str, dict[str, float]]:
    """By row: seconds of our call, of eager's, and of the first call."""
    import magneto

    result: dict[str, dict[str, float]] = {}
    for name, program, operands in rows():
        if word not in name:
            continue
        torch.manual_seed(0)
        tensors = [operand.tensor() for operand in operands]
        function = eval(program, {"torch": torch})
        compiled = magneto.compile(function, dynamic=False)
        began = time.perf_counter()
        first = compiled(*tensors)
        cold = time.perf_counter() - began
        check(name, first, function(*tensors))
        del first

        def ours(compiled: Any = compiled, tensors: Any = tensors) -> Any:
            return compiled(*tensors)

        def eager(function: Any = function, tensors: Any = tensors) -> Any:
            return function(*tensors)

        found = [1e9, 1e9]
        least((ours, eager), 0.06, found)
        for _ in range(3):
            if found[1] / found[0] < AIM + 0.05:
                least((ours, eager), 0.4, found)
        result[name] = {"call": found[0], "eager": found[1], "cold": cold}
        if show:
            ratio = found[1] / found[0]
            print(f"{ratio:7.2f}x {found[1] * 1e6:9.1f} {found[0] * 1e6:9.1f} us  {name}", flush=True)
        magneto.reset()
    return result


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.no_grad():
        every = measure(sys.argv[1] if len(sys.argv) > 1 else "", show=True)
    slow = [name for name, row in every.items() if row["eager"] / row["call"] < AIM]
    print(f"{len(slow)} of {len(every)} under {AIM}x eager")
