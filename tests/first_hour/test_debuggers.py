"""Debuggers, profilers and line tracers: compiled functions run in CPython then, and each line is seen."""

from __future__ import annotations

import cProfile
import os
import pstats
import subprocess
import sys
import textwrap
import trace
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from compare import assert_same

import magneto

X = torch.linspace(-1, 1, 6)


def session(script: str, commands: str, tmp_path: Path, *options: str) -> tuple[str, str]:
    """Runs a script with commands on its standard input; gives output and errors."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(magneto.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, *options, path],
        input=textwrap.dedent(commands),
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


DEBUGGED = """
import torch, magneto

@magneto.compile
def step(x):
    y = x + 1
    {stop}
    z = y * 2
    return z

for turn in range({turns}):
    print("result", step(torch.ones(2)).tolist())
"""


@pytest.mark.parametrize("stop", ["breakpoint()", pytest.param("import pdb; pdb.set_trace()", marks=pytest.mark.long)])
def test_breakpoint_in_a_compiled_function(stop: str, tmp_path: Path) -> None:
    step = "next\nnext\n" if sys.version_info >= (3, 13) else "next\n"  # from 3.13 on it stops in the call itself
    commands = f"p 'y is', y.tolist()\n{step}p 'z is', z.tolist()\nwhere\nz = z + 1\ncontinue\n"
    output, errors = session(DEBUGGED.format(stop=stop, turns=2), commands * 2, tmp_path)
    assert output.count("('y is', [2.0, 2.0])") == 2
    assert output.count("('z is', [4.0, 4.0])") == 2
    assert output.count("result [5.0, 5.0]") == 2  # what the user changed there counts
    assert "-> return z" in output and "step()" in output
    assert errors.count("RuntimeWarning: Compiled functions run under CPython while a tracer") == 1


def test_breakpoints_are_off(tmp_path: Path) -> None:
    output, errors = session(
        "import os; os.environ['PYTHONBREAKPOINT'] = '0'\n" + DEBUGGED.format(stop="breakpoint()", turns=2),
        "",
        tmp_path,
    )
    assert output == "result [4.0, 4.0]\n" * 2 and not errors


def test_script_under_pdb(tmp_path: Path) -> None:
    commands = "break 6\ncontinue\nnext\np 'y is', y.tolist()\nclear 1\ny\ncontinue\nquit\n"
    output, _ = session(DEBUGGED.format(stop="pass", turns=2), commands, tmp_path, "-m", "pdb")
    assert "('y is', [2.0, 2.0])" in output and output.count("result [4.0, 4.0]") == 2


def test_post_mortem_sees_the_users_frames(tmp_path: Path) -> None:
    script = """
    import pdb, sys, torch, magneto

    def inner(y, limit):
        print(end="")
        scaled = y * limit
        raise ValueError("too much")

    @magneto.compile
    def step(x):
        name = "outer"
        y = x + 1
        return inner(y, 3)

    try:
        step(torch.ones(2))
    except ValueError:
        pdb.post_mortem(sys.exc_info()[2])
    """
    output, _ = session(script, "p 'here', limit, scaled.tolist()\nup\np 'there', name\nquit\n", tmp_path)
    assert "('here', 3, [6.0, 6.0])" in output and "('there', 'outer')" in output


def stepwise(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    for _ in range(2):
        y = helper(y)
    return y


def helper(y: torch.Tensor) -> torch.Tensor:
    if y.dim() == 1:
        return y + 1
    return y


@pytest.mark.lenient
@pytest.mark.filterwarnings("ignore:Compiled functions run under CPython")
@pytest.mark.parametrize("captured_first", [False, True])
def test_line_coverage(captured_first: bool) -> None:
    compiled = magneto.compile(stepwise)
    if captured_first:
        compiled(X)
    tracer = trace.Trace(count=True, trace=False)
    before = sys.gettrace()
    try:
        result = tracer.runfunc(compiled, X)
    finally:
        sys.settrace(before)
    assert_same(result, stepwise(X))
    start, inner = stepwise.__code__.co_firstlineno, helper.__code__.co_firstlineno
    lines = {line: count for (file, line), count in tracer.results().counts.items() if file == __file__}
    assert lines == {start + 1: 1, start + 2: 3, start + 3: 2, start + 4: 1, inner + 1: 2, inner + 2: 2}
    assert_same(compiled(X), stepwise(X))


@pytest.mark.lenient
@pytest.mark.filterwarnings("ignore:Compiled functions run under CPython")
def test_cprofile() -> None:
    compiled = magneto.compile(stepwise)
    compiled(X)
    profile = cProfile.Profile()
    profile.enable()
    compiled(X)
    profile.disable()
    calls = {name: count for (_, _, name), (count, *_) in pstats.Stats(profile).stats.items()}
    assert (calls["stepwise"], calls["helper"]) == (1, 2)
    assert magneto.stats()["fallbacks"] == {"tracing": 1}
    assert_same(compiled(X), stepwise(X))


@pytest.mark.lenient
@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in Python 3.12")
@pytest.mark.filterwarnings("ignore:Compiled functions run under CPython")
def test_tools_of_sys_monitoring() -> None:
    monitoring = getattr(sys, "monitoring")  # noqa: B009
    compiled = magneto.compile(stepwise)
    compiled(X)
    names: list[str] = []
    monitoring.use_tool_id(1, "tool")
    try:
        monitoring.register_callback(1, monitoring.events.PY_START, lambda code, offset: names.append(code.co_name))
        monitoring.set_events(1, monitoring.events.PY_START)
        compiled(X)
        monitoring.set_events(1, 0)
        assert names.count("stepwise") == 1 and names.count("helper") == 2
        compiled(X)
    finally:
        monitoring.set_events(1, 0)
        monitoring.free_tool_id(1)
    assert names.count("stepwise") == 1
    assert magneto.stats()["fallbacks"] == {"tracing": 1}


def test_torch_profiler_runs_compiled_code() -> None:
    compiled = magneto.compile(stepwise, backend="aot_eager")
    compiled(X)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        got = compiled(X)
    assert_same(got, stepwise(X))
    names = [event.name for event in profile.events()]
    assert names.count("aten::sin") == 1 and names.count("aten::add") == 2
    assert magneto.stats()["frames"] == 1


@pytest.mark.parametrize("backend", ["magneto", "aot_eager", "eager"])
def test_record_function_inside(backend: str) -> None:
    def labelled(x: torch.Tensor) -> torch.Tensor:
        with torch.profiler.record_function("outer label"):
            y = x.sin()
            with torch.autograd.profiler.record_function("inner label"):
                y = y + 1
        return y * 2

    compiled = magneto.compile(labelled, backend=backend)
    for _ in range(2):
        assert_same(compiled(X), labelled(X))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert_same(compiled(X), labelled(X))
    assert "outer label" in [event.name for event in profile.events()]


def test_tracemalloc_and_gc_callbacks() -> None:
    import gc

    seen: list[str] = []

    def callback(phase: str, info: Any) -> None:
        seen.append(phase)

    compiled = magneto.compile(stepwise)
    gc.callbacks.append(callback)
    tracemalloc.start()
    try:
        for size in range(2, 6):
            assert_same(compiled(X[:size]), stepwise(X[:size]))
            gc.collect()
    finally:
        tracemalloc.stop()
        gc.callbacks.remove(callback)
    assert seen


def test_audit_hooks_and_faulthandler(tmp_path: Path) -> None:
    script = """
    import faulthandler, sys
    faulthandler.enable()
    events = []
    sys.addaudithook(lambda name, args: events.append(name))
    import torch, magneto
    faulthandler.dump_traceback_later(100)

    @magneto.compile
    def step(x):
        print("inside", x.sum().item())
        faulthandler.dump_traceback()
        return x * 2

    for _ in range(2):
        print(step(torch.ones(2)).tolist())
    """
    output, errors = session(script, "", tmp_path)
    assert output == "inside 2.0\n[2.0, 2.0]\n" * 2
    assert errors.count(" in step") == 2
