"""Ablation and bisecting: faults planted in each stage are named, by magneto.bisect and by `python -m magneto doctor`."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import fresh
import pytest
import torch
import torch.nn.functional as F
from torch._logging._internal import trace_log

import magneto
from magneto import _C, _testing
from magneto._debug import bisect, doctor, output, speed


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with magneto.config.patch(debug_dir=str(tmp_path)):
        yield tmp_path
    _testing.clear_faults()


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = F.layer_norm(x @ w, (16,))
    z = torch.relu(y) + x
    for _ in range(2):
        z = torch.tanh(z @ w) * y
    return torch.softmax(z, -1)


def inputs(gradients: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(8, 16, requires_grad=gradients), torch.randn(16, 16, requires_grad=gradients)


def test_numbers_and_limits() -> None:
    x, w = inputs()
    want = program(x, w)
    _C.record_numbers(True)
    try:
        torch.testing.assert_close(magneto.compile(program)(x, w), want)
        numbered = _C.numbered()
    finally:
        _C.record_numbers(False)
    assert len(numbered["graph"]) == 1 and "program" in numbered["graph"][0]
    assert numbered["pass"][0] == "functionalise" and "merge_common" in numbered["pass"]
    assert any("aten.tanh.default" in name and "test_bisect.py" in name for name in numbered["kernel"])
    for setting in ("graph_limit", "pass_limit", "kernel_limit"):
        for limit in (0, 1, 2, 5):
            magneto.reset()
            _C.record_numbers(False)  # counts from one again
            with magneto.config.patch({setting: limit}), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # without passes operators run one by one
                torch.testing.assert_close(magneto.compile(program)(x, w), want)


def test_what_is_right_is_said_to_be() -> None:
    found = magneto.bisect(program, inputs(gradients=True))
    assert not found.stage and "does what eager does" in str(found)
    assert all(row.verdict == "ok" for row in found.rows)


def test_the_program_s_own_error() -> None:
    found = magneto.bisect(lambda x: x[7], (torch.randn(3),))
    assert found.stage == "the program itself" and "IndexError" in found.failure


@pytest.mark.parametrize(
    ("place", "subject", "stage", "names"),
    [
        ("kernel.lane", "tanh", "code generation", {"graph": "program", "kernel": "aten.tanh.default"}),
        ("pass.merge_common", "aten::tanh>aten::sigmoid", "passes", {"graph": "program", "pass_name": "merge_common"}),
        ("lower.raise", "aten._softmax.default", "lowering", {"graph": "program", "failure": "no rule for"}),
        ("lower.crash", "aten.tanh.default", "lowering", {"graph": "program", "failure": "SIGABRT"}),
    ],
)
def test_planted_faults(place: str, subject: str, stage: str, names: dict[str, str]) -> None:
    _testing.plant_fault(place, subject)
    found = magneto.bisect(magneto.compile(program), inputs())
    assert found.stage == stage, str(found)
    for name, text in names.items():
        assert text in getattr(found, name), (name, str(found))
    assert f"At fault: {stage}" in str(found)
    script = Path(found.script).read_text()
    assert script.count("torch.ops.aten.") == 1


def test_a_write_that_a_pass_loses() -> None:
    def writes(x):
        x.add_(1)
        return x.sin()

    _testing.plant_fault("pass.functionalise", "write")
    found = magneto.bisect(writes, (torch.randn(4),))
    assert (found.stage, found.failure.partition(":")[0]) == ("passes", "input 0 afterwards")
    assert "functionalise" in found.pass_name


def test_a_wrong_gradient() -> None:
    _testing.plant_fault("backward", "aten::tanh_backward>aten::sigmoid_backward")
    found = magneto.bisect(program, inputs(gradients=True))
    assert found.stage == "autograd" and found.function.startswith("program ")
    assert found.failure.startswith("gradient of input")
    assert {row.name: row.verdict for row in found.rows}["no joint graph"] == "ok"


class Counts(torch.nn.Module):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return x.sin()


def test_a_forward_that_loses_a_write() -> None:
    _testing.plant_fault("capture.write", "attribute")
    found = magneto.bisect(Counts(), (torch.randn(4),))
    assert found.stage == "capture" and found.function.startswith("Counts.forward "), str(found)
    assert "self.calls" in str(magneto.minify(Counts(), (torch.randn(4),)))


class Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.ReLU(), Counts(), torch.nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scaled(self.layers(x))


def scaled(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * 3


def test_an_inlined_function_is_named() -> None:
    _testing.plant_fault("capture.write", "attribute")
    found = magneto.bisect(Outer(), (torch.randn(4),))
    assert found.function.startswith("Counts.forward (") and ", which Outer.forward (" in found.function, str(found)
    _testing.clear_faults()
    _testing.plant_fault("kernel.wrong", "tanh")
    assert magneto.bisect(Outer(), (torch.randn(4),)).function == "scaled"


@pytest.mark.long
def test_doctor_names_an_inlined_function(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "counts.py"
    file.write_text(
        "import torch\n\n\nclass Inner(torch.nn.Module):\n    calls = 0\n\n    def forward(self, x):\n"
        "        self.calls = self.calls + 1\n        return x.sin()\n\n\nmodel = torch.nn.Sequential(torch.nn.ReLU(), Inner())\n"
        "y = torch.compile(lambda x: model(x) * 2)(torch.ones(3))\ncalls = model[1].calls\n"
    )
    _testing.plant_fault("capture.write", "attribute")
    assert doctor.main([str(file)]) == 1
    said = capsys.readouterr().out
    assert "At fault: capture" in said and "Inner.forward (" in said and ", which <lambda> (" in said, said
    assert "self.calls" in script_of(said)


def script_of(said: str) -> str:
    """The script that a report names."""
    found = re.search(r"script: +(\S+)", said)
    assert found, said
    return Path(found[1]).read_text()


@pytest.mark.long
def test_doctor_writes_a_script_of_a_wrong_backward(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    _testing.plant_fault("backward", "aten::tanh_backward>aten::sigmoid_backward")
    assert doctor.main([str(file)]) == 1
    said = capsys.readouterr().out
    assert "At fault: autograd" in said and "Sequential.forward" in said, said
    assert "input = module(input)" in script_of(said)


def test_a_guard_that_is_left_out() -> None:
    def times(x: torch.Tensor, n: int) -> torch.Tensor:
        y = x.cos()
        return y.sin() * n

    _testing.plant_fault("guard", "equals.type_alone")
    x = torch.randn(4)
    found = magneto.bisect(times, (x, 3), before=[(x, 2)])
    assert found.stage == "guards" and "L['n'] == 3" in found.guard and "times" in found.function, str(found)
    assert "comes first" in Path(found.script).read_text()
    assert not magneto.bisect(times, (x, 3)).stage


def test_a_check_of_one_s_own() -> None:
    _testing.plant_fault("kernel.wrong", "tanh")
    found = magneto.bisect(torch.tanh, (torch.randn(64),), check=lambda y: bool((y.abs() <= 1).all()))
    assert (found.stage, found.failure) == ("code generation", "the check says no")
    assert not magneto.bisect(torch.tanh, (torch.randn(64),), check=lambda y: y.shape == (64,)).stage


SCRIPT = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = torch.compile(model)
for _ in range(2):
    loss = step(torch.ones(4, 8)).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(sys.argv[1:], loss.item())
"""


def test_doctor_of_a_script_that_is_right(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(magneto.__file__).parents[1])}
    done = fresh.python(
        "-m", "magneto", "doctor", "train.py", "an argument", cwd=tmp_path, env=environment, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "does what eager does" in done.stdout
    missing = fresh.python("-m", "magneto", "doctor", "no.py", env=environment)
    assert missing.returncode == 2 and "no such file" in missing.stderr


@pytest.mark.long
def test_doctor_of_a_script_with_a_wrong_backend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        SCRIPT.replace("torch.compile(model)", "torch.compile(model, backend=wrong)").replace(
            "step =",
            "def wrong(gm, inputs):\n    return lambda *args: [x * 1.5 for x in gm.forward(*args)]\n\nstep =",
        )
    )
    assert doctor.main([str(file)]) == 1
    said = capsys.readouterr().out
    assert "At fault: backend" in said
    report = Path(said.rpartition("report: ")[2].strip())
    assert "At fault: backend" in report.read_text() and "doctor" in report.read_text()


@pytest.mark.long
def test_doctor_after_another_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "scaled.py").write_text("import torch\n\n\n@torch.compile\ndef times(x, n):\n    return x.cos() * n\n")
    first, then = tmp_path / "first.py", tmp_path / "then.py"
    first.write_text("import torch\nfrom scaled import times\n\nx = times(torch.ones(4), 2)\n")
    then.write_text("import torch\nfrom scaled import times\n\nx = times(torch.ones(4), 3)\n")
    _testing.plant_fault("guard", "equals.type_alone")
    assert doctor.main([str(then)]) == 0
    assert doctor.main(["--before", str(first), str(then)]) == 1
    said = capsys.readouterr().out
    assert "At fault: guards" in said and "a capture of times" in said, said
    assert "comes first" in script_of(said)
    assert f"--before {first}" in Path(said.rpartition("report: ")[2].strip()).read_text()
    assert doctor.main(["--before", str(tmp_path / "no.py"), str(then)]) == doctor.main(["--before", str(then)]) == 2


def test_values_of_a_program() -> None:
    names = {"x": torch.ones(2), "n": 3, "m": torch.nn.Linear(1, 1), "l": [torch.ones(1), 2], "__name__": "a", "s": "t"}
    assert set(doctor.values_of(names)) == {"x", "n", "m.weight", "m.bias", "l[0]"}


def test_table_of_variants() -> None:
    table = [*(stage[0].name for stage in bisect.STAGES), *bisect.OTHERS]
    assert len(set(table)) == len(table) == 11


SAYS_ALONE = """
import time, torch, magneto
from magneto import _testing
{plant}

def main():
    torch.manual_seed(0)
    print("started", time.time(), object())
    loss = torch.compile(lambda x: torch.tanh(x).sum())(torch.randn(8, 8))
    print(f"loss {loss.item():.4f}")

main()
"""


@pytest.mark.parametrize("wrong", [False, True])
def test_doctor_of_a_script_that_only_prints(wrong: bool, tmp_path: Path) -> None:
    plant = '_testing.plant_fault("kernel.wrong", "tanh")' if wrong else ""
    (tmp_path / "script.py").write_text(SAYS_ALONE.replace("{plant}", plant))
    environment = {**os.environ, "PYTHONPATH": str(Path(magneto.__file__).parents[1])}
    done = fresh.python("-m", "magneto", "doctor", "script.py", cwd=tmp_path, env=environment)
    assert done.returncode == int(wrong), done.stdout + done.stderr
    if not wrong:
        assert "Speed is not compared with eager's:\n  <lambda> (script.py:9): it ran once" in done.stdout, done.stdout
    else:
        assert "line 2 of the output: wrong result: 'loss " in done.stdout and "aten.tanh.default" in done.stdout


@pytest.mark.parametrize(
    ("want", "got", "alike"),
    [
        ("loss 0.1234", "loss 0.1235", True),
        ("loss 0.1234", "loss 0.1254", False),
        ("epoch 3", "epoch 4", False),
        ("tensor([1.0000, -2.5e-03])", "tensor([ 1.0001, -2.5e-03])", True),
        ("a 1.0", "b 1.0", False),
        ("1e10", "1.00001e10", True),
        ("nan", "1.0", False),
    ],
)
def test_what_is_printed(want: str, got: str, alike: bool) -> None:
    assert (not output.differences([want], [got], 1e-3)) == alike


def test_what_is_slower_than_eager() -> None:
    """A kernel's operators count once; what ran once, or can't be called eagerly, is not judged."""
    kernels = [{"name": "tanh+add", "operators": [0, 1]}, {"name": "exp", "operators": [1, 2]}]
    aten = [["%1 = aten.tanh.default(%0)", 0], ["%2 = aten.add.Scalar(%1, 1, 1)", 0], ["%3 = aten.exp.default(%2)", 0]]
    program = {"aten": aten, "kernels": kernels, "steps": [{"kernel": 0}, {"kernel": 1}]}

    def slower(*steps: list[float], times: tuple[float | None, ...] = (1e-4, 1e-4, 1e-4)) -> list[str]:
        return speed._slower(speed.Program("f", program, "", list(steps)), list(times))

    slow, fast = [5, 300_000, 300_000], [5, 100_000, 100_000]
    assert slower(fast, fast) == slower([1, *slow[1:]], fast) == slower(slow, slow, times=(None, None, None)) == []
    want = "f: kernel tanh+add takes 300.0 us, eager 200.0 us: aten.tanh.default(%0), aten.add.Scalar(%1, 1, 1)"
    assert slower(slow, fast) == [want]
    assert slower(fast, slow) == ["f: kernel exp takes 300.0 us, eager 100.0 us: aten.exp.default(%2)"]


def test_speed_is_compared_where_pytorch_has_dropped_its_trace_handler() -> None:
    """It goes at the first record of anybody's, where TORCH_TRACE is not set."""
    compiled, x = magneto.compile(lambda x: (x.sin() @ x).relu()), torch.ones(8, 8)
    handlers = list(trace_log.handlers)
    trace_log.handlers.clear()
    try:
        found = speed.report(lambda: compiled(x), lambda: None, 60)
    finally:
        trace_log.handlers[:] = handlers
    assert len(found["memory"]) == 1 and len(found["unjudged"]) == 1, found


def test_memory_beside_eager_s() -> None:
    """Three results of 256 by 256 floats are there at once, one alone where they are one kernel."""
    x = torch.randn(256, 256)
    found = magneto.bisect(lambda x: torch.tanh(torch.exp(x) + torch.sin(x)), (x,))
    assert found.measured["memory"] and "0.25 MB, eager's 0.75 MB" in found.measured["memory"][0], found.measured
    assert "Memory:" in str(found)
