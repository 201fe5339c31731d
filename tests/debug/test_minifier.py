"""The minifier at both levels: faults of backends and of the code generator become scripts of one operator."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import fresh
import pytest
import torch
import torch.nn.functional as F

import magneto
from magneto import _testing
from magneto._debug import children, fx_graphs, minify, minify_operators


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with magneto.config.patch(debug_dir=str(tmp_path)):
        yield tmp_path
    _testing.clear_faults()


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = F.layer_norm(x @ w, (16,))
    z = torch.relu(y) + x
    for _ in range(3):
        z = torch.tanh(z @ w) * y
    return torch.softmax(z, -1)


def inputs(gradients: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(8, 16, requires_grad=gradients), torch.randn(16, 16, requires_grad=gradients)


def script_of(folder: Path) -> str:
    return (folder / "repro.py").read_text()


def forward_of(script: str) -> list[str]:
    """The lines of the forward that call something."""
    body = script[script.index("def forward") : script.index("mod = Repro()")]
    return [line.strip() for line in body.splitlines()[1:] if " = " in line]


def run(script: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(magneto.__file__).parents[1])}
    return fresh.python(script, env=environment)


# -- children


def test_how_children_end() -> None:
    assert children.run(lambda: [1, "a"]).result == [1, "a"]
    assert str(children.run(lambda: 1 / 0)) == "ZeroDivisionError: division by zero"
    assert children.run(lambda: os.kill(os.getpid(), signal.SIGSEGV)).type == "SIGSEGV"
    assert children.run(os.abort).type == "SIGABRT"
    assert children.run(lambda: os._exit(3)).kind == children.EXIT
    start = time.perf_counter()
    assert children.run(lambda: time.sleep(60), seconds=0.3).kind == children.TIME
    assert time.perf_counter() - start < 5
    assert children.run(lambda: torch.empty(1 << 34), memory_mb=500).kind == children.MEMORY


def test_what_is_the_same_failure() -> None:
    def outcome(text, kind=children.RAISED, type="RuntimeError"):
        return children.Outcome(kind, type, text)

    one = outcome("no rule for aten.relu.default at 0x7f00, node relu_3")
    assert one.is_like(outcome("no rule for aten.relu.default at 0x8a, node relu_12"))
    assert not one.is_like(outcome("no rule for aten.sin.default at 0x7f00, node relu_3"))
    assert not one.is_like(outcome(one.text, type="ValueError"))
    assert not one.is_like(outcome(one.text, kind=children.SIGNAL))
    assert outcome("off by 4").is_like(outcome("off by 1.25"))
    late = outcome("not done after 4 s", children.TIME, "")
    assert late.is_like(outcome("not done after 1.0625 s", children.TIME, ""))
    assert not late.is_like(outcome("no memory", children.MEMORY, ""))


# -- graphs handed to backends


def refuses(gm: torch.fx.GraphModule, example_inputs: list) -> object:
    for node in gm.graph.nodes:
        if node.target is torch.relu:
            raise ValueError(f"no relu, please: {node.name} in {id(gm):#x}")
    return gm.forward


def crashes(gm: torch.fx.GraphModule, example_inputs: list) -> object:
    if any(node.target is torch.tanh for node in gm.graph.nodes):
        os.kill(os.getpid(), signal.SIGSEGV)
    return gm.forward


def crashes_when_run(gm: torch.fx.GraphModule, example_inputs: list) -> object:
    def forward(*args):
        if any(node.target is torch.softmax for node in gm.graph.nodes):
            os.abort()
        return gm.forward(*args)

    return forward


def hangs(gm: torch.fx.GraphModule, example_inputs: list) -> object:
    if any(node.target is torch.tanh for node in gm.graph.nodes):
        time.sleep(1000)
    return gm.forward


def eats(gm: torch.fx.GraphModule, example_inputs: list) -> object:
    if any(node.target is torch.tanh for node in gm.graph.nodes):
        raise MemoryError
    return gm.forward


def is_wrong(gm: torch.fx.GraphModule, example_inputs: list) -> object:
    for node in gm.graph.nodes:
        if node.target is torch.tanh:
            node.target = torch.sigmoid
    gm.recompile()
    return gm.forward


def test_a_backend_that_refuses_an_operator(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with magneto.config.patch(repro_after="dynamo"), caplog.at_level(logging.WARNING):
        with pytest.raises(magneto.exc.BackendCompilerFailed, match="no relu, please"):
            magneto.compile(program, backend=refuses)(*inputs())
    script = script_of(folder)
    assert [line.split(";")[0].split(" = ")[1] for line in forward_of(script)] == ["torch.relu(y)"]
    launchers = list(folder.glob("torchdynamo_debug/run_*/minifier/minifier_launcher.py"))
    assert len(launchers) == 1
    said = caplog.text
    for text in ("Writing minified repro to:", str(launchers[0]), "Writing checkpoint with 3 nodes to", "repro.py"):
        assert text in said


@pytest.mark.parametrize(
    ("backend", "message", "operator"),
    [
        (crashes, "SIGSEGV", "torch.tanh"),
        (crashes_when_run, "SIGABRT", "torch.softmax"),
        (hangs, "not done after", "torch.tanh"),
    ],
)
def test_backends_that_take_the_process_with_them(folder: Path, backend, message: str, operator: str) -> None:
    with magneto.config.patch(repro_after="dynamo", repro_seconds=4):
        with pytest.raises(magneto.exc.BackendCompilerFailed, match=message):
            magneto.compile(program, backend=backend)(*inputs())
    calls = forward_of(script_of(folder))
    assert len(calls) == 1 and operator in calls[0]


def test_memory_that_runs_out(folder: Path) -> None:
    with magneto.config.patch(repro_after="dynamo"), pytest.raises(magneto.exc.BackendCompilerFailed):
        magneto.compile(program, backend=eats)(*inputs())
    assert "torch.tanh" in forward_of(script_of(folder))[0]


def test_a_backend_that_reads_what_is_around_it(folder: Path) -> None:
    target, how = torch.tanh, "refuses"

    def backend(gm: torch.fx.GraphModule, example_inputs: list) -> object:
        if how == "refuses" and any(node.target is target for node in gm.graph.nodes):
            raise ValueError(f"no tanh {signal.SIGINT:d}")
        return gm.forward

    with magneto.config.patch(repro_after="dynamo"), pytest.raises(magneto.exc.BackendCompilerFailed):
        magneto.compile(program, backend=backend)(*inputs())
    done = run(folder / "repro.py")
    assert done.returncode == 1 and "ValueError: no tanh 2" in done.stderr


def test_wrong_results(folder: Path) -> None:
    with magneto.config.patch(repro_after="dynamo", repro_level=4):
        with pytest.raises(magneto.exc.AccuracyError, match="Bad accuracy detected") as raised:
            magneto.compile(program, backend=is_wrong)(*inputs(gradients=True))
    assert Path(raised.value.minifier_path).exists()
    calls = forward_of(script_of(folder))
    assert len(calls) == 1 and "torch.tanh" in calls[0]
    assert "accuracy=True" in script_of(folder)


def test_the_program_s_own_error_is_none_of_the_backend_s(folder: Path) -> None:
    def wrong_index(x, index):
        return x[index]

    with magneto.config.patch(repro_after="dynamo"), pytest.raises(IndexError):
        magneto.compile(wrong_index)(torch.randn(3), torch.tensor([7]))
    assert not list(folder.iterdir())


@pytest.mark.parametrize("level", [1, 3])
def test_levels(folder: Path, level: int) -> None:
    with magneto.config.patch(repro_after="dynamo", repro_level=level):
        magneto.compile(program)(*inputs())
        launchers = list(folder.glob("torchdynamo_debug/*/minifier/*.py"))
        assert len(launchers) == (1 if level == 3 else 0)
        with pytest.raises(magneto.exc.BackendCompilerFailed):
            magneto.compile(program, backend=refuses)(*inputs())
    assert (len(forward_of(script_of(folder))) > 10) == (level == 1)


def test_nothing_is_written_where_nothing_fails(folder: Path) -> None:
    state = torch.get_rng_state()
    for after in ("dynamo", "aot"):
        for level in (2, 4):
            magneto.reset()
            with magneto.config.patch(repro_after=after, repro_level=level):
                x, w = inputs(gradients=True)
                torch.testing.assert_close(magneto.compile(program)(x, w), program(x, w))
    assert not list(folder.iterdir())
    torch.set_rng_state(state)


def test_dynamic_sizes(folder: Path) -> None:
    """Sizes become numbers, and small ones."""

    def sized(x):
        y = x.reshape(x.shape[0] * x.shape[1]).sin()
        return torch.relu(y) + x.shape[0]

    with magneto.config.patch(repro_after="dynamo"), pytest.raises(magneto.exc.BackendCompilerFailed):
        magneto.compile(sized, backend=refuses, dynamic=True)(torch.randn(6, 7))
    script = script_of(folder)
    assert len(forward_of(script)) == 1 and "args = [((1,), (1,), torch.float32, 'cpu', False)]" in script


def test_scripts_run_in_a_process_of_their_own(folder: Path) -> None:
    with magneto.config.patch(repro_after="dynamo"), pytest.raises(magneto.exc.BackendCompilerFailed):
        magneto.compile(program, backend="relu_compile_error_TESTING_ONLY")(*inputs())
    done = run(folder / "repro.py")
    assert done.returncode == 1 and "ReluCompileError" in done.stderr
    launcher = next(folder.glob("torchdynamo_debug/*/minifier/minifier_launcher.py"))
    (folder / "repro.py").unlink()
    done = fresh.python(
        launcher, "minify", cwd=folder, env={**os.environ, "PYTHONPATH": str(Path(magneto.__file__).parents[1])}
    )
    assert done.returncode == 0 and "ReluCompileError" in done.stdout, done.stderr
    assert len(forward_of(script_of(folder))) == 1


def test_launchers_that_can_show_nothing(folder: Path) -> None:
    """The fault is mended, the inputs are damaged, or gone: a sentence, and nothing is written over."""
    with magneto.config.patch(repro_after="dynamo"), pytest.raises(magneto.exc.BackendCompilerFailed):
        magneto.compile(program, backend="relu_compile_error_TESTING_ONLY")(*inputs())
    launcher = next(folder.glob("torchdynamo_debug/*/minifier/minifier_launcher.py"))
    (values,) = launcher.parent.glob("inputs_*.pt")
    before = (folder / "repro.py").read_text()
    text = launcher.read_text()
    launcher.write_text(text.replace("backend=relu_compile_error", "backend='eager'"))
    done = run(launcher)
    assert done.returncode == 1 and "the failure does not show any more. Nothing was written. --accuracy" in done.stdout
    launcher.write_text(text)
    values.write_bytes(values.read_bytes()[:100])
    damaged = run(launcher)
    values.unlink()
    for done, why in ((damaged, "is damaged"), (run(launcher), "is not there")):
        assert done.returncode == 1 and done.stderr.startswith(f"{values} {why}") and "Traceback" not in done.stderr
    assert (folder / "repro.py").read_text() == before


def test_a_folder_that_can_t_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said, and the program's own error comes through."""
    (tmp_path / "torchdynamo_debug").write_text("a file where a folder should be")
    with magneto.config.patch(debug_dir=str(tmp_path), repro_after="dynamo"), caplog.at_level(logging.WARNING):
        with pytest.raises(magneto.exc.BackendCompilerFailed, match="no relu, please"):
            magneto.compile(program, backend=refuses)(*inputs())
    assert f"{tmp_path} can't be written: Not a directory. What tools write goes to " in caplog.text
    assert "Writing checkpoint with 3 nodes to " in caplog.text  # there


# -- graphs of operators handed to the code generator


@pytest.mark.lenient
@pytest.mark.filterwarnings("ignore:Magneto could not capture")
@pytest.mark.parametrize("gradients", [False, True])
def test_an_operator_that_is_not_lowered(folder: Path, gradients: bool) -> None:
    _testing.plant_fault("lower.raise", "aten.tanh_backward.default" if gradients else "aten.tanh.default")
    with magneto.config.patch(repro_after="aot", disk_cache=False):
        got = magneto.compile(program)(*inputs(gradients))
    torch.testing.assert_close(got, program(*inputs(gradients)))
    calls = forward_of(script_of(folder))
    assert len(calls) == 1 and ("tanh_backward" if gradients else "torch.ops.aten.tanh.default(") in calls[0]


@pytest.mark.parametrize(
    ("fault", "message"),
    [("lower.crash", "SIGABRT"), pytest.param("lower.hang", "not done after", marks=pytest.mark.long)],
)
def test_operators_that_take_the_process_with_them(folder: Path, fault: str, message: str) -> None:
    _testing.plant_fault(fault, "aten._softmax.default")
    with magneto.config.patch(repro_after="aot", repro_seconds=2, disk_cache=False):
        with pytest.raises(magneto.exc.BackendCompilerFailed, match=message):
            magneto.compile(program)(*inputs())
    calls = forward_of(script_of(folder))
    assert len(calls) == 1 and "torch.ops.aten._softmax.default(" in calls[0]


@pytest.mark.parametrize(
    ("place", "fault"),
    [("kernel.wrong", "tanh"), ("kernel.lane", "tanh"), ("pass.merge_common", "aten::tanh>aten::sigmoid")],
)
def test_kernels_and_passes_that_are_wrong(folder: Path, place: str, fault: str) -> None:
    _testing.plant_fault(place, fault)
    with magneto.config.patch(repro_after="aot", repro_level=4, disk_cache=False):
        with pytest.raises(magneto.exc.AccuracyError):
            magneto.compile(program)(*inputs())
    calls = forward_of(script_of(folder))
    assert len(calls) == 1 and "torch.ops.aten.tanh.default(" in calls[0]


# -- functorch.compile.minifier


def traced() -> torch.fx.GraphModule:
    def f(x, y):
        a = x.sin() + y
        b = torch.ops.aten.mul.Tensor(a, y)
        return (b.cos() + a,)

    return torch.fx.symbolic_trace(f)


def has_mul(graph: torch.fx.GraphModule, inputs: list) -> bool:
    return torch.ops.aten.mul.Tensor in (node.target for node in graph.graph.nodes)


def test_minifier_of_a_graph_and_a_function() -> None:
    dumped = []
    graph, left = minify.minifier(traced(), [torch.randn(3), torch.randn(3)], has_mul, lambda *one: dumped.append(one))
    assert [node.op for node in graph.graph.nodes].count("call_function") == 1 and has_mul(graph, left)
    assert dumped and len(left) == 1
    assert len(graph(*left)) == 1
    other, _ = minify.minifier(has_mul, traced(), [torch.randn(3), torch.randn(3)])
    assert other.code == graph.code
    with pytest.raises(RuntimeError, match="did not fail"):
        minify.minifier(traced(), [torch.randn(3), torch.randn(3)], lambda graph, inputs: False)
    with pytest.raises(magneto.exc.InvalidValue, match="takes a torch.fx.GraphModule"):
        minify.minifier(1, 2, 3)


def test_minifier_keeps_modules_and_attributes() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    graph, left = minify.minifier(
        torch.fx.symbolic_trace(module),
        [torch.randn(3, 4)],
        lambda graph, inputs: any(isinstance(one, torch.nn.ReLU) for one in graph.modules()),
    )
    assert [node.op for node in graph.graph.nodes] == ["placeholder", "call_module", "output"]
    assert graph(*left)[0].shape == (3, 4)


def test_shrinking_keeps_equal_sizes_equal() -> None:
    graph = torch.fx.symbolic_trace(lambda x, y: (torch.mm(x, y).view(200, 40),))
    smaller, left = fx_graphs.shrink(graph, [torch.randn(200, 30), torch.randn(30, 40)], lambda graph, inputs: True)
    assert [tuple(x.shape) for x in left] == [(1, 1), (1, 1)]
    assert smaller(*left)[0].shape == (1, 1)


def test_sizes_that_only_the_data_says(folder: Path) -> None:
    """The tool compiled such a graph as one, with memory for one size."""

    def masked(x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x)[x > 0] * 2
        return y.cos().sum() + y.numel()

    _testing.plant_fault("kernel.wrong", "cos")
    with (
        magneto.config.patch(repro_after="aot", repro_level=4, capture_dynamic_output_shape_ops=True),
        pytest.raises(magneto.exc.AccuracyError),
    ):
        magneto.compile(masked)(torch.randn(64, requires_grad=True))
    assert "aten.cos.default" in script_of(folder)


def test_a_backward_is_tried_on_what_is_saved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On random indices eager raises, and nothing would be found."""
    tried: list[list[torch.Tensor]] = []
    monkeypatch.setattr(minify_operators.OperatorCase, "begin", lambda self, graph, given: tried.append(given))
    rows, weight = torch.tensor([2, 0, 3]), torch.randn(4, 8, requires_grad=True)
    with magneto.config.patch(repro_after="aot", repro_level=4):
        magneto.compile(lambda w, i: torch.tanh(F.embedding(i, w)).sum())(weight, rows)
    assert len(tried) == 2
    assert any(x.dtype == torch.int64 and torch.equal(x, rows) for x in tried[1])
    saved = torch.tanh(weight.detach()[rows])
    assert any(x.shape == saved.shape and torch.allclose(x, saved) for x in tried[1])
