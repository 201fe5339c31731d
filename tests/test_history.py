"""`magneto.why`, `magneto.recompiles`, `magneto.summary`: why code runs under CPython, and what keeps changing."""

from __future__ import annotations

import subprocess
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fresh
import pytest
import torch

import magneto
from magneto._advice import advice

X = torch.ones(3)


def plain(x: torch.Tensor) -> torch.Tensor:
    return helper(x) + 1


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def never(x: torch.Tensor) -> torch.Tensor:
    return x


@magneto.disable
def disabled(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def breaks(x: torch.Tensor) -> torch.Tensor:
    y = disabled(x)
    now = time.perf_counter()
    return y + now * 0


def test_why_of_what_runs_compiled() -> None:
    compiled = magneto.compile(plain, backend="eager")
    assert "has not been called" in magneto.why(compiled).verdict
    compiled(X)
    assert magneto.why(compiled).verdict == magneto.why(plain).verdict == "runs compiled"
    found = magneto.why(helper)
    assert found.verdict == "runs compiled" and "captured once, the last time from plain (" in found.reasons[0]
    assert "no capture has met it" in str(magneto.why(never))


def test_why_of_what_breaks() -> None:
    magneto.compile(breaks, backend="eager")(X)
    found = magneto.why(breaks)
    assert found.verdict == "runs compiled, but some of it runs under CPython"
    assert "OpaqueCall: call of time.perf_counter" in str(found) and "now = time.perf_counter()" in str(found)
    assert "it is marked with magneto.disable" in str(magneto.why(disabled))
    assert "once called for real, by CPython: DisabledFunction" in str(magneto.why(disabled))
    assert "runs under CPython" in str(magneto.why(time.perf_counter))
    with pytest.raises(magneto.exc.InvalidValue, match="magneto.why takes a callable"):
        magneto.why(3)


def test_why_of_a_compiled_generator() -> None:
    """Its body is no capture's: the reason says so, not an instruction's name."""

    def generator(x: torch.Tensor) -> Any:
        yield x + 1

    compiled = magneto.compile(generator)
    assert [one.tolist() for one in compiled(X)] == [[2, 2, 2]]
    text = str(magneto.why(compiled))
    assert "Generator: the body of a generator is captured with what iterates over it" in text, text


def test_why_of_what_is_no_python_function() -> None:
    assert "is no Python function" in str(magneto.why(torch.ones))


def test_why_of_what_debug_function_leaves_out() -> None:
    with magneto.config.patch(debug_function="another"):
        magneto.compile(plain)(X)
        text = str(magneto.why(plain))
    assert "runs under CPython" in text and "config.debug_function is 'another'" in text, text


def test_why_of_calls_while_something_watches() -> None:
    compiled = magneto.compile(plain, backend="eager")
    with magneto.disable():
        compiled(X)
        compiled(X)
    with magneto.set_stance("force_eager"):
        compiled(X)
    text = str(magneto.why(compiled))
    assert "runs under CPython" in text and "twice under CPython: compiling was off" in text
    assert 'once under CPython: the stance was "force_eager"' in text


@pytest.mark.lenient
def test_why_of_what_is_given_up() -> None:
    compiled = magneto.compile(plain, backend="eager", dynamic=False, recompile_limit=1)
    with pytest.warns(RuntimeWarning, match="cache_size_limit"), magneto.config.patch(strict=False):
        for size in (1, 2, 3):
            compiled(torch.ones(size))
    text = str(magneto.why(compiled))
    assert "twice under CPython from line" in text and "config.cache_size_limit is reached" in text
    model = magneto.compile(torch.nn.ReLU(), backend="eager")
    model(X)
    assert magneto.why(model).verdict == "runs compiled"


def run(function: Callable[..., Any], *calls: tuple[Any, ...]) -> list[tuple[int, str, str]]:
    compiled = magneto.compile(function, backend="eager", dynamic=False)
    for arguments in calls:
        compiled(*arguments)
    return [(change.count, change.what, change.remedy) for change in magneto.recompiles().changes]


def test_what_keeps_changing_is_ranked() -> None:
    sizes = [(torch.ones(size), "sum") for size in (1, 2, 3)]
    modes = [(torch.ones(3), "mean")]

    def reduce(x: torch.Tensor, mode: str) -> torch.Tensor:
        return x.sum() if mode == "sum" else x.mean()

    found = run(reduce, *sizes, *modes)
    assert [(count, what) for count, what, _ in found] == [(2, "size 0 of x"), (1, "the value of mode")]
    assert found[0][2].startswith("leave out dynamic=False") and found[1][2].startswith("decide before the call")
    text = str(magneto.recompiles())
    assert "What keeps changing" in text and "expected 2, actual 3" in text
    magneto.reset()
    assert str(magneto.recompiles()) == "Nothing was captured again.\n"


def test_the_remedy_is_one_that_helps() -> None:
    """Marks hold where sizes are not fixed by `dynamic=False`."""

    def double(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n

    for dynamic, remedies in (
        (None, ["mark it dynamic: torch._dynamo.mark_dynamic(x, 0)"]),
        (False, ["leave out dynamic=False: without it one capture serves all"] * 2),
    ):
        magneto.reset()
        compiled = magneto.compile(double, backend="eager", dynamic=dynamic)
        for size, number in ((2, 3), (3, 3), (4, 3), (4, 4)):
            compiled(torch.ones(size), number)
        assert [change.remedy for change in magneto.recompiles().changes][: len(remedies)] == remedies, dynamic


SCALE = 1.0


class Layer:
    rate = 0.1


def constant(x: torch.Tensor, n: float) -> torch.Tensor:
    return x * torch.full((2,), n).sum()


def with_object(x: torch.Tensor, layer: Any) -> torch.Tensor:
    return x * layer.rate if layer else x


# Function, calls; what changes, how the remedy begins.
KINDS: dict[str, tuple[Any, list[tuple[Any, ...]], str, str]] = {
    "dtype": (plain, [(X,), (X.double(),)], "the dtype of x", "x = x.to("),
    "rank": (plain, [(X,), (X[None],)], "the number of dimensions of x", "give it one shape"),
    "stride": (plain, [(torch.ones(2, 3),), (torch.ones(3, 2).t(),)], "the strides of x", "x = x.contiguous()"),
    "grad": (plain, [(X,), (X.clone().requires_grad_(),)], "whether x requires grad", "nothing need"),
    "length": (lambda xs: xs[0] + len(xs), [([X],), ([X, X],)], "the length of xs", "make it a tensor"),
    "object": (lambda x, f: f(x), [(X, lambda x: x), (X, lambda x: x + 1)], "", "move it out"),
    "type": (with_object, [(X, Layer()), (X, None)], "", ""),
    "keys": (lambda d: sum(d.values()), [({"a": X},), ({"b": X},)], "whether 'a' is in d", "use the same keys"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_advice(kind: str) -> None:
    function, calls, what, remedy = KINDS[kind]
    ((count, found, line),) = run(function, *calls)
    assert count == 1 and what in found and line.startswith(remedy), (found, line)
    assert not line.startswith("move it out of the compiled function"), found


def test_advice_on_global_state() -> None:
    compiled = magneto.compile(plain, backend="eager")
    compiled(X)
    with torch.no_grad():
        compiled(X)
    (change,) = magneto.recompiles().changes
    assert change.what == "global state (grad mode)" and "same modes" in change.remedy
    assert tuple(advice("something new")) == ("something new", "move it out of the compiled function")


PROGRAM = """
import torch, sys

def helper(x):
    print("woo")
    return x + 1

class Model(torch.nn.Module):
    def forward(self, x):
        return helper(x) * 2

model = torch.compile(Model(), backend="eager", dynamic=False)
for size in range(1, 5):
    model(torch.ones(size))
sys.exit(int(sys.argv[1]))
"""


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(PROGRAM)
    return fresh.python("-m", "magneto", *arguments, "program.py", "3", cwd=folder)


def test_explain_a_program(tmp_path: Path) -> None:
    process = command(tmp_path, "explain")
    assert process.returncode == 3, process.stderr
    for part in (
        "Captured",
        "Graph breaks",
        "InputOutput: call of builtins.print",
        "Recompiles",
        "leave out dynamic=False",
    ):
        assert part in process.stdout.replace("\n", " "), (part, process.stdout)


@pytest.mark.parametrize("name", ["helper", "Model.forward", "torch.nn.functional.relu", "no_such_name"])
def test_why_in_a_program(tmp_path: Path, name: str) -> None:
    process = command(tmp_path, "why", name)
    assert process.returncode == 3, process.stderr
    last = process.stdout.partition("woo\nwoo\nwoo\nwoo\n")[2]
    wanted = {
        "helper": "helper: runs compiled, but some of it runs under CPython\n╭",
        "Model.forward": "Model.forward: runs compiled",
        "torch.nn.functional.relu": "relu: no capture has met it",
        "no_such_name": "no_such_name: no capture has met it",
    }
    assert last.startswith(wanted[name]), process.stdout


@pytest.mark.parametrize(
    ("guard", "what", "remedy"),
    [
        ("L['x'].size()[0] == 3", "size 0 of x", "pad it to one size"),
        ("2 <= L['x'].size()[1]", "size 1 of x", "call with sizes on one side"),
        ("L['x'].size()[0] == 2*L['y'].size()[0]", "whether x.size()[0] == 2*y.size()[0]", "call with sizes of which"),
        ("L['self'].depth == 3", "the value of self.depth", "make it a tensor"),
        ("L['self'].depth <= 3", "the value of self.depth", "make it a tensor"),
        (
            "L['self']._modules['layers']._modules['0'].rate == 0.5",
            "the value of self.layers[0].rate",
            "make it a tensor",
        ),
        ("L['self'].__dict__['mode'] == 'a'", "the value of self.mode", "move it out"),
    ],
)
def test_advice_on_values(guard: str, what: str, remedy: str) -> None:
    said = advice(guard)
    assert said.what == what and said.remedy.startswith(remedy), said
    assert "L[" not in said.remedy


class Lookup(torch.autograd.Function):
    """Its backward can't be captured: it prints."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        print(end="")
        return gradient * 2


class Trained(torch.nn.Module):
    def __init__(self, custom: bool) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.custom = custom

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return Lookup.apply(y) if self.custom else y * 2


@pytest.mark.parametrize("custom", [False, True])
def test_why_tells_whether_a_model_trains_compiled(custom: bool) -> None:
    model = magneto.compile(Trained(custom))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said once in a process
        for _ in range(2):
            model(X).sum().backward()
    found = magneto.why(model)
    if custom:
        assert found.verdict == "is captured, but its gradients are not compiled: it trains at eager's speed"
        assert "under autograd: " in str(found) and "Lookup" in str(found), str(found)
        assert "Trained at eager's speed" in str(magneto.summary())
    else:
        assert found.verdict == "runs compiled"
    assert magneto.why(Trained.forward).verdict == found.verdict


def test_frames_of_pytorch_behind_a_break_count_with_the_programs_line() -> None:
    """`Module._call_impl` returns what the module does: it is captured anew for the size as well."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            if y.sum() < 1:
                y = y.repeat(2)
            return y

    compiled = magneto.compile(Model())
    for rows in (2, 3):
        compiled(torch.ones(rows))
    first, second = magneto.recompiles().changes
    assert (first.what, first.count, first.source) == ("size 0 of y", 3, "return y")
    assert (second.what, second.count) == ("size 0 of args[0]", 1)


def test_training_and_evaluation_are_a_capture_each() -> None:
    model = torch.nn.Dropout(0.5)
    compiled = magneto.compile(model)
    for _ in range(2):
        for mode in (True, False):
            compiled.train(mode)(X)
    (change,) = magneto.recompiles().changes
    assert change.what == "whether self is in training mode" and change.remedy.startswith("nothing need")
