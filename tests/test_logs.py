"""TORCH_LOGS: each artifact that the documents name, the messages of the steps, and the compile ids in front of lines."""

from __future__ import annotations

import collections
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import fresh
import pytest
import torch
from log_programs import PROGRAM

import magneto
from magneto import _log, _variables
from magneto._comptime import comptime

ALL = (
    "graph,graph_code,graph_sizes,graph_breaks,guards,recompiles,recompiles_verbose,trace_source,trace_bytecode,bytecode,"
    "aot_graphs,aot_joint_graph,output_code,kernel_code,schedule,fusion,perf_hints,cudagraphs,dynamic,dynamo,inductor"
)


def run(folder: Path, text: str, **settings: str) -> dict[str, str]:
    """The log of the program, by artifact ("": messages that belong to none), without the time and place of each line."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TORCH")}
    (folder / "playground.py").write_text(text)
    documented = settings.get("TORCH_LOGS") in _variables.LOGS
    process = fresh.python("playground.py", env={**clean, **settings}, cwd=folder, whole=documented)
    assert process.returncode == 0, process.stderr
    logs: dict[str, str] = collections.defaultdict(str)
    for line in process.stderr.splitlines():
        found = re.match(r"[VIW]\d+ \S+ \d+ \S+\](?P<id> \[\d\S*\])?(?: \[__(?P<artifact>\w+)\])? ?(?P<text>.*)", line)
        assert found, line
        logs[found["artifact"] or ""] += f"{(found['id'] or '').strip()} {found['text']}\n"
    return logs


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return run(tmp_path_factory.mktemp("logs"), PROGRAM, TORCH_LOGS=ALL)


LOAD = "LOAD_FAST_BORROW" if sys.version_info >= (3, 14) else "LOAD_FAST"
NULL_IS_ABOVE = sys.version_info >= (3, 13)  # of a callable without a self

# What each artifact shows, in this order.
SHOWN = {
    "trace_source": (
        "[0/0] TRACE starts_line ",
        "playground.py:9 in f (f)\n[0/0]         x = torch.sin(x)",
        "playground.py:5 in g (g) (inline depth: 1)\n[0/0]         return x + y",
        "playground.py:11 in f (f)",
    ),
    "trace_bytecode": (
        "[0/0] TRACE RESUME 0 []",
        f"TRACE {LOAD} x {'[<built-in function sin>, NULL]' if NULL_IS_ABOVE else '[NULL, <built-in function sin>]'}",
        "TRACE BINARY_OP 0 [Tensor(f32[3, 3]), Tensor(f32[3, 3])]",
        "[2/0] TRACE RETURN_VALUE None [Tensor(f32[3])]",
    ),
    "graph_code": (
        "[0/0] TRACED GRAPH\n[0/0] ===== __compiled_fn_1 =====\n[0/0] class GraphModule(torch.nn.Module):",
        '    def forward(self, L_x_: "f32[3, 3][3, 1]cpu"):\n[0/0]         l_x_ = L_x_',
        "playground.py:9 in f, code: x = torch.sin(x)\n",
        ': "f32[3, 3][3, 1]cpu" = torch.sin(l_x_);  l_x_ = None',
        "playground.py:5 in g, code: return x + y\n",
        '[0/1]     def forward(self, s0: "Sym(s0)", L_x_: "f32[s0, s0][s0, 1]cpu"):\n',
    ),
    "graph": ("TRACED GRAPH", "opcode ", "-----", "placeholder ", "call_function ", "output "),
    "graph_sizes": ("TRACED GRAPH TENSOR SIZES", "l_x_: (3, 3)\n", "[0/1] l_x_: (s0, s0)\n"),
    "guards": (
        "[0/0] GUARDS:\n[0/0] \n[0/0] TREE_GUARD_MANAGER:\n[0/0] +- RootGuardManager\n",
        "| +- GLOBAL_STATE: ___check_global_state(",
        "| +- GuardManager: source=L['x'], accessed_by=DictGetItemGuardAccessor(x)\n",
        "| | +- TENSOR_MATCH: check_tensor(L['x'], Tensor, DispatchKeySet(CPU",
        "size=[3, 3], stride=[3, 1])  # x = torch.sin(x)  # playground.py:9 in f\n",
    ),
    "recompiles": (
        "[0/1] Recompiling function f in ",
        "playground.py:7\n[0/1]     triggered by the following guard failure(s):\n",
        "[0/1]     - 0/0: tensor 'L['x']' size mismatch at index 0. expected 3, actual 4\n",
    ),
    "recompiles_verbose": ("[0/1]     guard 0/0 failures:\n[0/1]     - tensor 'L['x']' size mismatch",),
    "graph_breaks": (
        "[1/0] Graph break in user code at ",
        "playground.py:19\n[1/0] Reason: InputOutput: call of builtins.print\n",
        'playground.py", line 19, in broken',
    ),
    "bytecode": ("[0/0] ORIGINAL BYTECODE f ", "LOAD_GLOBAL", "[0/0] PLAN f ", "plan {", "exit InputOutput"),
    "aot_graphs": ("aten.sin.default",),
    "output_code": ("arena: ",),
    "kernel_code": ("magneto_kernel:",),
    "": (
        "[0/0] Step 1: torchdynamo start tracing f in ",
        "[0/0] Step 1: torchdynamo done tracing f in ",
        "[0/0] Step 2: calling compiler function magneto\n",
        "[0/0] Step 3: torchinductor compiling FORWARDS graph 0\n",
        "[0/0] Step 3: torchinductor done compiling FORWARDS graph 0\n",
        "[0/0] Step 2: done compiler function magneto\n",
        "[0/1] Step 1",
        "[1/0] Step 1",
        "[2/0] Step 1",
    ),
}


@pytest.mark.parametrize("artifact", SHOWN)
def test_artifact(logs: dict[str, str], artifact: str) -> None:
    text = logs[artifact]
    position = 0
    for part in SHOWN[artifact]:
        found = text.find(part, position)
        assert found >= 0, (part, text)
        position = found


@pytest.mark.parametrize("name", ["aot_joint_graph", "aot_joint_graphs"])  # PyTorch's name, and the documents'
def test_the_joint_graph_or_why_there_is_none(tmp_path: Path, name: str) -> None:
    text = """
import warnings
import magneto, torch

warnings.simplefilter("ignore")  # that g trains at eager's speed

@magneto.compile
def f(x):
    return x.sin()

@magneto.compile
def g(x):
    weight = torch.ones(3).requires_grad_()
    return weight, x * weight

f(torch.ones(3))
f(torch.ones(3, requires_grad=True)).sum().backward()
g(torch.ones(3, requires_grad=True))
"""
    logs = run(tmp_path, text, TORCH_LOGS=name)
    assert set(logs) == {"aot_joint_graph"}
    shown = logs["aot_joint_graph"]
    assert "aten.sin.default" in shown and "aten.cos.default" in shown
    (reason,) = [line for line in shown.splitlines() if "no joint graph" in line]
    assert (
        reason.startswith("[1/0] no joint graph of g ")
        and "a result that is made inside requires gradients of its own" in reason
    )


# What says in the end that it had nothing to say, and why.
SILENT = {
    "aot_joint_graph": "aot_joint_graph: no graph with gradients",
    "perf_hints": "perf_hints: no hints",
    "cudagraphs": "cudagraphs: there are none: nothing runs on a GPU",
}


@pytest.mark.parametrize("artifact", SILENT)
def test_what_has_nothing_to_show_says_so(logs: dict[str, str], artifact: str) -> None:
    assert set(logs) == {*SHOWN, "schedule", "fusion", *SILENT}
    (line,) = logs[artifact].splitlines()
    assert line.strip().startswith(SILENT[artifact])


def test_silence_is_told_once_for_all(tmp_path: Path) -> None:
    text = "import torch, magneto\nmagneto.compile(lambda x: x + 1, backend='eager')(torch.ones(3))\n"
    logs = run(tmp_path, text, TORCH_LOGS="graph_breaks,recompiles,dynamic,kernel_code,sym_node")
    assert logs["graph_breaks"].strip() == "graph_breaks: no graph break"
    assert logs["recompiles"].strip() == "recompiles: nothing was captured again"
    assert "kernel_code: no graph was lowered" in logs["kernel_code"]
    assert "dynamic: no size is dynamic" in logs[""] and "TORCH_LOGS=sym_node: Magneto writes nothing" in logs[""]
    assert "guards: nothing was compiled" in run(tmp_path, "import magneto", TORCH_LOGS="guards")["guards"]


SIZES = """
import torch, magneto

def inner(x):
    return x.reshape(2, -1)

@magneto.compile(backend="eager")
def f(x):
    return inner(x) + 1

f(torch.ones(4))
f(torch.ones(8))
g = magneto.compile(lambda x: x + 1, backend="eager", dynamic=True)
g(torch.ones(5, 3))
marked = torch.ones(6)
magneto.mark_dynamic(marked, 0)
h = magneto.compile(lambda x: x * 2, backend="eager")
h(marked)
"""


def test_dynamic_says_why_a_size_became_dynamic(tmp_path: Path) -> None:
    text = run(tmp_path, SIZES, TORCH_LOGS="dynamic")[""]
    lines = [line for line in text.splitlines() if "create_symbol" in line]
    why = ("it differs from call to call: it was 4", "dynamic=True", "dynamic=True", "marked by mark_dynamic")
    assert len(lines) == len(why)
    for line, reason in zip(lines, why, strict=True):
        assert f"({reason}), for more info run with TORCHDYNAMO_EXTENDED_DEBUG_CREATE_SYMBOL=" in line
    assert "create_symbol s0 = 8 for L['x'].size()[0] [2, int_oo] at playground.py:" in lines[0].replace(
        f"{tmp_path}/", ""
    )


def test_extended_debug_shows_the_stack(tmp_path: Path) -> None:
    text = run(tmp_path, SIZES, TORCHDYNAMO_EXTENDED_DEBUG_CREATE_SYMBOL="s0")[""]
    assert "create_symbol s0 = 8" in text and "User stack (most recent call last):" in text
    assert 'playground.py", line 9, in f' in text and "return inner(x) + 1" in text
    text = run(tmp_path, SIZES, TORCHDYNAMO_EXTENDED_DEBUG_GUARD_ADDED="Eq(s0%2, 0)", TORCH_LOGS="dynamic")[""]
    at = text.index("eval Eq(s0%2, 0) [guard added]")
    stack = text[at:]
    assert 'playground.py", line 9, in f' in stack and 'playground.py", line 5, in inner' in stack
    assert "C++ stack:" not in text
    more = run(tmp_path, SIZES, TORCHDYNAMO_EXTENDED_DEBUG_CREATE_SYMBOL="s0", TORCHDYNAMO_EXTENDED_DEBUG_CPP="1")[""]
    assert "C++ stack:" in more


def test_guards_print_device_modes_and_lines(tmp_path: Path) -> None:
    text = """
import torch, magneto

@magneto.compile(backend="eager")
def f(x, scale=2):
    return x * scale + torch.ones(3)

f(torch.ones(3))
with torch.device("cpu"):
    f(torch.ones(3))
"""
    shown = run(tmp_path, text, TORCH_LOGS="guards")["guards"]
    first, _, second = shown.partition("[0/1] GUARDS:")
    for part in (
        "| +- DEFAULT_DEVICE: utils_device.CURRENT_DEVICE == None\n",
        "| +- GLOBAL_STATE: ___check_global_state(",
        "| +- TORCH_FUNCTION_MODE_STACK: ___check_torch_function_mode_stack()\n",
    ):
        assert part in first, part
    assert "# return x * scale + torch.ones(3)  # playground.py:6 in f" in first
    assert "CURRENT_DEVICE == device('cpu')" in second
    assert "___check_torch_function_mode_stack(DeviceContext)" in second


def test_a_debug_function_that_matches_nothing_says_so(tmp_path: Path) -> None:
    text = "import torch, magneto\n\ndef forward(x):\n    return x + 1\n\n"
    text += "magneto.compile(forward, backend='eager')(torch.ones(3))\n"
    said = run(tmp_path, text, TORCHDYNAMO_DEBUG_FUNCTION="foward")[""]
    assert "config.debug_function is 'foward', and nothing of that name was captured." in said
    assert "Did you mean 'forward'?" in said and "Called were: forward." in said
    assert run(tmp_path, text, TORCHDYNAMO_DEBUG_FUNCTION="forward") == {}


def test_attempts_are_in_the_id(tmp_path: Path) -> None:
    text = """
import torch, magneto

def callback(x):
    print(end="")
    return x

@magneto.compile
def f(x):
    return sorted([x.sin(), x], key=lambda x: callback(1))[0]

f(torch.ones(3))
"""
    assert "[0/0_1] Step 1: torchdynamo start tracing f in " in run(tmp_path, text, TORCH_LOGS="dynamo")[""]


# Setting -> artifacts that it turns on (some of them), artifacts that it does not.
PARTS = {
    "+all": ("graph_code guards trace_bytecode aot_graphs post_grad_graphs", "bytecode output_code"),
    "+dynamo": ("graph_code guards trace_source recompiles", "aot_graphs post_grad_graphs"),
    "+aot": ("aot_graphs", "graph_code post_grad_graphs"),
    "+inductor": ("post_grad_graphs", "graph_code aot_graphs"),
    "dynamo": ("", "graph_code guards"),
}


@pytest.mark.parametrize("setting", PARTS)
def test_parts(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on, off = (texts.split() for texts in PARTS[setting])
    for name in off:
        monkeypatch.setattr(_log._logger(name)[0], "handlers", [])  # pytest's own
    level = logging.DEBUG if setting.startswith("+") else logging.INFO
    torch._logging.set_logs(**{setting.lstrip("+"): level})
    try:
        assert [name for name in on if not _log.enabled(name)] == []
        assert [name for name in off if _log.enabled(name)] == []
        assert set(_log.wanted()) >= {*on, *({"dynamo"} if setting.endswith(("all", "dynamo")) else ())}
    finally:
        torch._logging.set_logs()
    assert not {*on, "dynamo", "inductor", "aot"} & set(_log.wanted())


# TORCH_LOGS as "Debugging Dynamo" writes it.
WRITTEN = {
    "+dynamo": {"", "graph", "graph_breaks", "graph_code", "guards", "trace_bytecode", "trace_source", "recompiles"},
    "+graph_breaks": {"graph_breaks"},
    "+guards": {"guards"},
    "+bytecode": {"bytecode"},
    "+dynamo,+graph_breaks,+guards": {"", "graph_code", "graph_breaks", "guards"},
}


@pytest.mark.parametrize("setting", WRITTEN)
def test_as_documents_write_it(tmp_path: Path, setting: str) -> None:
    seen = set(run(tmp_path, PROGRAM, TORCH_LOGS=setting)) - set(SILENT)
    assert seen >= WRITTEN[setting] and ("dynamo" in setting or seen == WRITTEN[setting])


class Texts:
    """Keeps what is logged."""

    def __init__(self, *artifacts: str) -> None:
        self.taken: list[str] = []
        for artifact in artifacts:
            _log.listen(artifact, self.take)

    def take(self, text: str) -> None:
        self.taken.append(text)


@pytest.fixture
def again() -> Iterator[None]:
    """Frames are counted from nought."""
    magneto.reset()
    yield
    magneto.reset()


@pytest.mark.usefixtures("again")
def test_all_failing_guards_are_told() -> None:
    first, all_of_them = Texts("recompiles"), Texts("recompiles_verbose")

    def f(x: torch.Tensor, n: int, names: list[str]) -> torch.Tensor:
        return x * n + len(names)

    compiled = magneto.compile(f, backend="eager")
    compiled(torch.ones(3), 2, ["a"])
    compiled(torch.ones(4), 5, [])
    (text,) = all_of_them.taken
    assert "size mismatch" in text and "L['n'] == 2: expected 2, actual 5" in text and "len(L['names']) == 1" in text
    assert first.taken[0].count("    - ") == 1 and text.count("    - ") == 3


@pytest.mark.usefixtures("again")
def test_watching_does_not_change_what_is_captured() -> None:
    """Logging runs Python code, tensors' reprs and numbers that are not known yet among what it meets."""

    def f(x: torch.Tensor, n: int, scale: float) -> torch.Tensor:
        x = x.sin() * n
        print(end="")
        with torch.no_grad():
            return (x + n) * scale

    texts = Texts("trace_source", "trace_bytecode", "guards", "bytecode", "graph", "graph_code", "graph_sizes")
    for n in range(5):
        compiled = magneto.compile(f, backend="eager")
        x = torch.randn(4)
        assert torch.equal(compiled(x, n, 0.5 + n), f(x, n, 0.5 + n))
    assert any(f"TRACE {LOAD} n" in text for text in texts.taken)
    assert not magneto.stats()["fallbacks"]


@pytest.mark.usefixtures("again")
def test_watching_fixes_no_sizes() -> None:
    """Dynamic sizes are shown by their symbols: to ask for their numbers would fix them."""
    texts = Texts("trace_bytecode")
    shown: list[str] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        comptime(lambda ctx: shown.append(repr(ctx.get_local("y"))))
        return y + 1

    compiled = magneto.compile(f, backend="eager")
    for size in (3, 4, 5, 6):
        compiled(torch.ones(size, 2))
    assert magneto.stats()["graphs"] == 2 and any("Tensor(f32[s0, 2])" in text for text in texts.taken)
    assert shown == ["FakeTensor(..., size=(3, 2))", "FakeTensor(..., size=(s0, 2))"]


def test_cudagraphs_are_skipped() -> None:
    texts = Texts("cudagraphs")
    magneto.compile(lambda x: x + 1, mode="reduce-overhead")
    assert texts.taken and "skipping cudagraphs" in texts.taken[0]


def test_what_is_turned_on_later_is_heard() -> None:
    """That nobody listens is remembered until a level changes."""
    assert _log.wanted() == () == _log.wanted()
    logger, level = _log._logger("graph_code")
    before = logger.level, logger.propagate
    try:
        logger.setLevel(level)
        assert _log.wanted() == ("graph_code",)
        logger.propagate = False
        handlers, logger.handlers = logger.handlers, []
        assert _log.wanted() == ()
        logger.handlers = handlers or [logging.NullHandler()]
        assert _log.wanted() == ("graph_code",)
        logger.handlers = handlers
    finally:
        logger.setLevel(before[0])
        logger.propagate = before[1]
    assert _log.wanted() == ()
    texts = Texts("guards")
    assert _log.wanted() == ("guards",)
    del texts
    assert _log.wanted() == ()
