"""Side exits: a program that can't be captured in one piece runs in segments, in its own frames, with eager's results.

Each program runs in eager and compiled; results, what is printed (and when), exceptions and changes to its arguments
must be equal. `segments` says which torch operations each captured graph holds, in order.
"""

from __future__ import annotations

import contextlib
import copy
import io
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from compare import assert_same

import magneto


class Segments:
    """A backend that notes the operations of each graph."""

    def __init__(self) -> None:
        self.graphs: list[list[str]] = []

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        operations = [node for node in graph_module.graph.nodes if node.op in ("call_function", "call_method")]
        self.graphs.append([getattr(node.target, "__name__", node.target) for node in operations])
        return graph_module.forward


def observe(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Result, printed text, exception with the line it came from, and the arguments afterwards."""
    arguments = copy.deepcopy(arguments)
    result = failure = None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            result = function(*arguments)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            failure = (type(error), str(error), [(f.name, f.lineno) for f in frames if f.filename == __file__][1:])
    return result, printed.getvalue(), failure, arguments


def check(program: Callable[..., Any], *arguments: Any, segments: list[list[str]] | None = None, runs: int = 3) -> None:
    want = observe(program, arguments)
    for backend in ("aot_eager", "eager", Segments()):
        magneto.reset()
        compiled = magneto.compile(program, backend=backend)
        for _ in range(runs):
            got = observe(compiled, arguments)
            assert got[1:3] == want[1:3]
            assert_same(got[0], want[0])
            assert_same(got[3], want[3], path="arguments")
        stats = magneto.stats()
        assert stats["breaks"] > 0, stats
        assert sum(stats["break_reasons"].values()) > 0
        if isinstance(backend, Segments) and segments is not None:
            assert backend.graphs == segments


X = torch.linspace(-1, 1, 6)


def test_print_in_the_middle() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        print("here", tuple(x.shape))
        return x.cos()

    check(program, X, segments=[["sin"], ["cos"]])


def test_item_in_the_middle() -> None:
    def program(x: torch.Tensor) -> Any:
        y = x.exp()
        total = y.sum().item()
        return y.tanh() * total, total

    check(program, X, segments=[["exp", "sum"], ["tanh", "mul"]])


def test_value_stack_is_not_empty() -> None:
    """The exit happens while an operand waits on the value stack."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + x.sum().item() * x.cos()

    check(program, X, segments=[["sin", "sum"], ["cos", "mul", "add"]])


def test_print_in_a_loop() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for step in range(4):
            x = x.sin()
            print("step", step)
            x = x.cos()
        return x + 1

    check(program, X)


def test_segments_of_a_loop_hold_both_sides() -> None:
    backend = Segments()

    def program(x: torch.Tensor) -> torch.Tensor:
        for step in range(3):
            x = x.sin()
            print("step", step)
            x = x.cos()
        return x + 1

    with contextlib.redirect_stdout(io.StringIO()):
        magneto.compile(program, backend=backend)(X)
    names = [name for graph in backend.graphs for name in graph]
    assert names.count("sin") >= 2 and names.count("cos") >= 2 and names.count("add") == 1


def test_item_decides_a_loop() -> None:
    def program(x: torch.Tensor) -> Any:
        steps = 0
        while x.abs().sum().item() > 0.5:
            x = x * 0.5
            steps += 1
        return x, steps

    check(program, X)


def test_branch_on_a_tensor() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if y.sum() > 0:
            return y.sin()
        return y.cos()

    check(program, X)
    check(program, X + 5)


def inner_print(x: torch.Tensor, label: str = "inner") -> torch.Tensor:
    y = x.sin()
    print(label)
    return y.cos()


def middle(x: torch.Tensor) -> torch.Tensor:
    before = x + 1
    after = inner_print(before, label="deep")
    return before * after


def test_print_in_a_called_function() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return inner_print(x * 2).exp()

    check(program, X, segments=[["mul", "sin"], ["cos"], ["exp"]])


def test_print_two_calls_deep() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        first = middle(x)
        return middle(first) - x

    check(program, X)


def test_called_in_a_loop_with_operands_waiting() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        total = x
        for label in ("a", "b", "c"):
            total = total + inner_print(x, label) * 2
        return total

    check(program, X)


class Resource:
    def __init__(self, events: list[str], swallow: bool = False) -> None:
        self.events = events
        self.swallow = swallow

    def __enter__(self) -> Resource:
        self.events.append("enter")
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> bool:
        self.events.append(f"exit {kind.__name__ if kind else None}")
        return self.swallow


def test_print_in_with() -> None:
    def program(events: list[str], x: torch.Tensor) -> torch.Tensor:
        with Resource(events) as resource:
            y = x.sin()
            print("events", resource.events)
            y = y.cos()
        return y + len(events)

    check(program, [], X)


def test_exception_leaves_with() -> None:
    def program(events: list[str], x: torch.Tensor, swallow: bool) -> torch.Tensor:
        y = x.sin()
        with Resource(events, swallow):
            print("before")
            if y.sum().item() < 100:
                raise ValueError("left")
            y = y.exp()
        return y.cos()

    check(program, [], X, True)
    check(program, [], X, False)


def test_grad_mode_in_with() -> None:
    def program(x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = x.sin()
            print(torch.is_grad_enabled(), y.requires_grad)
            z = y.cos()
        print(torch.is_grad_enabled())
        return y, z, (x * z).requires_grad

    check(program, X.clone().requires_grad_())


def test_print_in_try() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            y = x.sin()
            print("try")
            y = y.cos()
        finally:
            print("finally")
        return y + 1

    check(program, X)


def test_exception_after_an_exit_is_caught() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        try:
            print("in try")
            y = y.cos()
            raise KeyError("mine")
        except KeyError as error:
            print("caught", error)
            y = y.exp()
        else:
            y = y.neg()
        finally:
            print("finally")
        return y * 2

    check(program, X)


def test_print_in_an_except_block() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            raise ValueError("first")
        except ValueError:
            x = x.sin()
            print("handling", repr(sys.exc_info()[1]))
            x = x.cos()
            try:
                raise TypeError("second")
            except TypeError as error:
                print(repr(error.__context__))
                x = x.exp()
        return x

    check(program, X)


def test_operator_raises_after_an_exit() -> None:
    """The error of a torch call is eager's own, from the user's line, and can be caught."""

    def program(x: torch.Tensor, caught: bool) -> Any:
        y = x.sin()
        print("before")
        try:
            return y @ torch.ones(4, 4)
        except RuntimeError as error:
            if not caught:
                raise
            return str(error), y.cos()

    check(program, X, True)
    check(program, X, False)


def failing(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    print("about to fail")
    raise RuntimeError(f"deep {tuple(y.shape)}")


def test_traceback_has_the_users_lines() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        return failing(y) * 2

    check(program, X)


class Record:
    def __init__(self) -> None:
        self.count = 0
        self.values: list[torch.Tensor] = []


def test_writes_happen_before_the_exit() -> None:
    """What the segment wrote to outside objects is there when the instruction at the exit runs."""

    def program(record: Record, table: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        record.count += 1
        record.values.append(y)
        table["y"] = y
        print(record.count, len(record.values), sorted(table))
        del table["old"]
        record.count += 1
        return y + record.count

    check(program, Record(), {"old": 1}, X)


def test_in_place_on_both_sides() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        view = x[:3]
        view.mul_(2)
        print(x.sum().item())
        view.sub_(y[:3])
        return x + y

    check(program, X, X * 3)


def test_closures_and_cells() -> None:
    def program(x: torch.Tensor) -> Any:
        count = 0
        results = []

        def step(value: torch.Tensor) -> torch.Tensor:
            nonlocal count
            count += 1
            print("step", count)
            value = value.sin()
            results.append(value)
            return value

        y = step(step(x)).cos()
        return y, count, results

    check(program, X)


def test_arguments_of_all_kinds() -> None:
    def callee(a: Any, /, b: Any, *rest: Any, c: Any, d: Any = 4, **more: Any) -> Any:
        a = a.sin()
        print(b, rest, c, d, sorted(more))
        return a + b + sum(rest) + c + d + sum(more.values())

    def program(x: torch.Tensor, *args: Any) -> torch.Tensor:
        return callee(x, *args, c=3, e=5, f=6).cos()

    check(program, X, 1, 2, 3)


def test_recursion() -> None:
    def down(x: torch.Tensor, depth: int) -> torch.Tensor:
        x = x + depth
        if depth == 0:
            print("bottom")
            return x.sin()
        return down(x * 2, depth - 1) - depth

    def program(x: torch.Tensor) -> torch.Tensor:
        return down(x, 5).cos()

    check(program, X)


def test_comprehension() -> None:
    def noisy(x: torch.Tensor, factor: int) -> torch.Tensor:
        print("factor", factor)
        return x * factor

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        parts = [noisy(y, factor) for factor in range(3)]
        return torch.stack(parts).cos()

    check(program, X)


def test_generator() -> None:
    def produce(x: torch.Tensor) -> Iterator[torch.Tensor]:
        for factor in range(3):
            print("produce", factor)
            yield x * factor

    def program(x: torch.Tensor) -> torch.Tensor:
        total = x.sin()
        for value in produce(x):
            total = total + value.cos()
        return total

    check(program, X)


def test_break_inside_a_callback_of_c_code() -> None:
    """sorted() calls the key back; the exit can't cut C code, so the segment ends in front of the call."""

    def program(x: torch.Tensor) -> Any:
        y = x.sin()

        def key(value: int) -> float:
            print("key", value)
            return -y[value].item()

        order = sorted(range(3), key=key)
        return y.cos()[order], order

    check(program, X)


def test_locals_and_frames_are_the_users() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        number = 3
        print(sorted(locals()), number)
        print(sys._getframe().f_code.co_name, sys._getframe().f_lineno - sys._getframe().f_code.co_firstlineno)
        return y.cos()

    check(program, X)


def test_deleted_and_unbound_locals() -> None:
    def program(x: torch.Tensor, flag: bool) -> torch.Tensor:
        y = x.sin()
        if flag:
            late = y * 2
        del x
        print("middle")
        y = y.cos()
        return y + late

    check(program, X, True)
    check(program, X, False)  # UnboundLocalError, from the same line


def test_loop_with_break_and_continue() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for outer in range(3):
            for index, value in enumerate([1.0, 2.0, 3.0]):
                if index == 1:
                    continue
                with contextlib.nullcontext():
                    x = x * value
                    if x.sum().item() > 1e6:
                        break
            else:
                print("outer", outer)
                x = x.sin()
        return x

    check(program, X)


class Printing(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        print("forward", self.training)
        return y.relu()


def test_print_in_a_submodule_with_hooks() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(6, 6), Printing(), torch.nn.Linear(6, 2))
    network[1].register_forward_hook(lambda module, args, output: output * 2)
    network[2].register_forward_pre_hook(lambda module, args: print("pre hook"))
    with torch.no_grad():
        check(network, X.reshape(1, 6))


def test_gradients_through_segments() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        print("middle", y.requires_grad)
        return (y.exp() * y.sum().item()).sum()

    def gradient(function: Callable[..., Any]) -> torch.Tensor:
        leaf = X.clone().requires_grad_()
        with contextlib.redirect_stdout(io.StringIO()):
            function(leaf).backward()
        assert leaf.grad is not None
        return leaf.grad

    compiled = magneto.compile(program)
    for _ in range(3):
        assert_same(gradient(compiled), gradient(program))


def test_random_numbers_on_both_sides() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(5)
        y = x + torch.rand(6)
        print("middle")
        return torch.nn.functional.dropout(y, 0.5, training=True) + torch.randn(6)

    check(program, X)


def test_opaque_call_of_a_disabled_function() -> None:
    calls = []

    @magneto.disable
    def outside(x: torch.Tensor) -> torch.Tensor:
        calls.append(magneto.is_compiling())
        return x.numpy().copy() is not None and x * 2

    def program(x: torch.Tensor) -> torch.Tensor:
        return outside(x.sin()).cos()

    check(program, X, segments=[["sin"], ["cos"]])
    assert not any(calls)


def test_fullgraph_refuses_and_says_where() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        print("not run by the capture")
        return y.cos()

    compiled = magneto.compile(program, fullgraph=True)
    with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(magneto.exc.Unsupported) as caught:
        compiled(X)
    assert printed.getvalue() == ""
    message = str(caught.value)
    assert "test_exits.py" in message and f"line {program.__code__.co_firstlineno + 2}" in message
    assert "print" in message


READS = [float, int, bool, repr, str, lambda t: t.item(), lambda t: t.tolist(), lambda t: f"{t}"]


@pytest.mark.parametrize("read", READS)
def test_reading_a_value(read: Callable[[torch.Tensor], Any]) -> None:
    def program(x: torch.Tensor) -> Any:
        total = (x * 3).sum()
        return read(total), total.cos()

    check(program, X)
