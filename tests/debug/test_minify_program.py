"""The minifier of programs: planted faults become functions of a few lines, as scripts."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fresh
import pytest
import torch
from tiers import some

import magneto
from magneto import _C, _testing
from magneto._debug.record import container, minify, reduce

SCALE = 2.0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with magneto.config.patch(debug_dir=str(tmp_path), strict=False):
        yield tmp_path
    _testing.clear_faults()


def activate(x: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "tanh":
        y = torch.tanh(x * SCALE)
    else:
        y = torch.relu(x)
    return y + 1


def layer(x: torch.Tensor, w: torch.Tensor, talks: bool) -> torch.Tensor:
    for _ in range(2):
        x = x @ w
    with torch.no_grad():
        shift = w.cos().sum(0)
    out = activate(x + shift, "tanh")
    if talks:
        print("layer", out.shape)
    return out


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(4, 4))
        self.talks = False

    def forward(self, x: torch.Tensor, names: list[str]) -> dict[str, Any]:
        first = layer(x, self.w, self.talks)
        again = layer(first.exp(), self.w.t(), self.talks)
        return {"out": (first + again).sum(1), "names": [name.upper() for name in names]}


def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x * 2 + y.exp()
    kept = z.sigmoid()
    x.add_(1)
    return (kept.sum(0) + z).relu()


def no_cosine(gm: torch.fx.GraphModule, inputs: Any) -> Any:
    if any(node.target == "cos" for node in gm.graph.nodes):
        raise ValueError("no cosine here")
    return gm.forward


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(3, 4), torch.randn(3, 4)


def talking() -> Any:
    net = Net()
    net.talks = True
    return magneto.compile(net, fullgraph=True)


# name -> the fault, what is called, its arguments, the words of the failure, what the shortest function calls
FAULTS: dict[str, tuple[tuple[str, str] | None, Callable[[], Any], Callable[[], Any], str, str]] = {
    "break": (None, talking, lambda: (inputs()[0], ["a"]), "InputOutput", "print("),
    "backend": (
        None,
        lambda: magneto.compile(Net(), backend=no_cosine),
        lambda: (inputs()[0], ["a"]),
        "no cosine here",
        ".cos()",
    ),
    "lowering": (
        ("lower.raise", "aten.tanh.default"),
        lambda: magneto.compile(Net()),
        lambda: (inputs()[0], ["a"]),
        "no rule for aten.tanh",
        "torch.tanh(",
    ),
    "crash": (("lower.crash", "aten.sigmoid.default"), lambda: writes, inputs, "SIGABRT", ".sigmoid()"),
    "kernel": (
        ("kernel.wrong", "tanh"),
        lambda: activate,
        lambda: (inputs()[0], "tanh"),
        "wrong result",
        "torch.tanh(",
    ),
    "lost write": (("pass.functionalise", "write"), lambda: writes, inputs, "wrong result", ".add_(1)"),
}


@pytest.mark.parametrize("name", some(FAULTS, every=4))
def test_planted_faults(name: str, folder: Path) -> None:
    fault, make, arguments, words, call = FAULTS[name]
    fn, args = make(), arguments()
    if fault is not None:
        _testing.plant_fault(*fault)
    found = magneto.minify(fn, args)
    assert words in found.failure and call in found.function
    assert found.lines <= 3 and found.script.endswith("repro.py")
    text = Path(found.script).read_text()
    assert "def " in text and "replay(" not in text
    ended = run(Path(found.script), fault)
    expected = "AccuracyError" if "wrong" in words else "SIGABRT" if words == "SIGABRT" else words
    assert ended.returncode != 0 and (expected in ended.stderr or ended.returncode == -6), ended.stderr


def run(script: Path, fault: tuple[str, str] | None) -> subprocess.CompletedProcess[str]:
    """In a fresh process that has the fault."""
    plant = f"from magneto import _testing; _testing.plant_fault{fault!r}\n" if fault else ""
    code = f"import runpy\n{plant}runpy.run_path({str(script)!r}, run_name='__main__')"
    environment = {**os.environ, "PYTHONPATH": str(Path(magneto.__file__).parents[1])}
    return fresh.python("-c", code, env=environment)


def test_of_a_record(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with magneto.config.patch(replay_record_enabled=True), pytest.raises(magneto.exc.Unsupported):
        talking()(inputs()[0], ["a"])
    (path,) = folder.rglob("*.rec")
    script = folder / "small.py"
    assert minify.main(["--program", str(path), "-o", str(script)]) == 0
    said = capfd.readouterr()
    assert "A replay runs code that the record holds" in said.err and "reduced" in said.out
    assert "print(" in script.read_text()


def test_nothing_fails(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = magneto.minify(activate, (inputs()[0], "tanh"))
    assert not found.script and "does what eager does" in str(found) and not list(folder.rglob("repro.py"))
    container.write(folder / "fine.rec", minify.record_call(activate, (inputs()[0], "tanh"), {}))
    assert minify.main([str(folder / "fine.rec")]) == 1 and "does not show" in capfd.readouterr().err
    assert minify.main([str(folder / "none.rec")]) == 2


def test_values_without_text_stay_in_a_record(folder: Path) -> None:
    class Holder:
        def __init__(self) -> None:
            self.x = torch.ones(3)

    def program(holder: Holder) -> Any:
        y = holder.x + 1
        print(holder.x)
        return y

    found = magneto.minify(magneto.compile(program, fullgraph=True), (Holder(),))
    text = Path(found.script).read_text()
    assert "torch._dynamo.replay(" in text and Path(found.script).with_suffix(".rec").exists()
    ended = run(Path(found.script), None)
    assert ended.returncode == 1 and "call of builtins.print" in ended.stderr


def test_what_cannot_be_recorded_is_refused(folder: Path) -> None:
    with pytest.raises(magneto.exc.InvalidRecord, match="The call can't be recorded: argument x: .*generator"):
        magneto.minify(lambda x: x, ((i for i in ()),))
    with pytest.raises(magneto.exc.InvalidValue):
        magneto.minify(len, ([],))


_TEXT = '''\
def f(x, y):
    """A text."""
    if x > 1:
        with open("a"):
            z = g(
                x, y
            )
    else:
        z = 0
    for i in range(3):
        z = z + i
    return h(z, [y, 1])
'''


@pytest.mark.parametrize(
    ("needed", "wanted"),
    [
        ("g(", "def f(x, y):\n    g(x, y)\n"),
        ("h(", "def f(x, y):\n    return h(z, [y, 1])\n"),
        ("range(3)", "def f(x, y):\n    range(3)\n"),
        ("z + i", "def f(x, y):\n    z = z + i\n"),
        ("def f", "def f(x, y):\n    pass\n"),
    ],
)
def test_texts(needed: str, wanted: str) -> None:
    reducer = reduce.Reducer(_TEXT, "f", 1, lambda text: needed in text)
    reducer.run()
    assert needed in reducer.text and len(reducer.text.splitlines()) <= len(_TEXT.splitlines())
    assert len(reduce.source_of(reducer.text, "f", 1).splitlines()) == len(wanted.splitlines())


def test_the_function_of_a_frame() -> None:
    """Of several with the same code the one that runs."""

    def made(number: int) -> Callable[[], types.FrameType]:
        return lambda: sys._getframe(0 * number)

    functions = [made(1), made(2)]
    assert [_C.function_of(function()) for function in functions] == functions
    with pytest.raises(TypeError, match="takes a frame"):
        _C.function_of(made)  # type: ignore[arg-type]


def test_gradients_of_a_module_around_the_function(folder: Path) -> None:
    """It is no argument: what the function reads around it is compared as well."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())

    def loss(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return model(y).pow(2).mean()

    _testing.plant_fault("backward", "aten::tanh_backward>aten::sigmoid_backward")
    found = magneto.minify(loss, (torch.randn(3, 4),))
    assert found.script and "model(" in found.function, found
