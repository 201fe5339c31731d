"""Looking at compiles and kernels from outside: memory of stages, ranges of profiles, names for `perf`, progress."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import fresh
import pytest
import torch

import magneto
from magneto import _C, config
from magneto._install import profiling

X = torch.randn(64, 64)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.sin(), -1)


def test_stages_measure_memory_only_when_asked() -> None:
    magneto.compile(softmax)(X)
    assert not any(peaks for _, peaks in _C.compile_times().values())
    assert "Peak memory" not in profiling.compile_times()
    magneto.reset()
    with config.patch(stage_memory=True, disk_cache=False):
        magneto.compile(softmax)(X)
    rows = _C.compile_times()
    assert all(len(seconds) == len(peaks) for seconds, peaks in rows.values())
    assert max(peak for _, peaks in rows.values() for peak in peaks) == rows["compile"][1][0] > 1 << 20
    assert "Peak memory (MB)" in profiling.compile_times()


def test_profiles_have_stages_and_kernels_as_ranges() -> None:
    with torch.profiler.profile() as profile, config.patch(disk_cache=False):
        compiled = magneto.compile(softmax)
        compiled(X)
        compiled(X)
    seen = {event.key: event.count for event in profile.key_averages()}
    for stage in ("compile", "compile.capture", "compile.backend", "compile.backend.code_generation"):
        assert seen[f"magneto::{stage}"] == 1, seen
    assert [count for name, count in seen.items() if name.startswith("magneto::") and "softmax" in name] == [2]


def test_profiles_have_torch_compiles_ranges() -> None:
    """A region with its compile's id around its kernels, a lookup of guards before each."""

    def breaking(x: torch.Tensor) -> torch.Tensor:
        y = softmax(x)
        magneto.graph_break()
        return torch.tanh(y) * 3

    compiled = magneto.compile(breaking, name="half")
    x = X.clone().requires_grad_()
    compiled(x)
    with torch.profiler.profile() as profile:
        compiled(x).sum().backward()
    ranges = ("Torch-Compiled Region", "TorchDynamo Cache Lookup")
    events = [event for event in profile.events() if event.name.startswith(ranges)]
    events.sort(key=lambda event: event.time_range.start)
    first, second = "Torch-Compiled Region: 0/0 (half)", "Torch-Compiled Region: 1/0 (half)"
    assert [event.name for event in events] == [ranges[1], first, ranges[1], second]
    kernels = {event.name: event.cpu_parent for event in profile.events() if event.name.startswith("magneto::")}
    parents = {parent.name for parent in kernels.values() if parent is not None}
    assert {first, second, "CompiledFunctionBackward"} <= parents, kernels


PERF = """
import os, torch, magneto
magneto.compile(lambda x: torch.softmax(x.sin(), -1))(torch.randn(64, 64))
print(os.getpid())
"""


@pytest.mark.parametrize("on", ["0", "1"])
def test_kernels_have_names_for_perf(on: str) -> None:
    process = fresh.python("-c", PERF, env={**os.environ, "MAGNETO_PERF_MAP": on})
    assert process.returncode == 0, process.stderr
    file = Path(f"/tmp/perf-{process.stdout.strip()}.map")
    assert file.exists() == (on == "1")
    if file.exists():
        names = [line.split(maxsplit=2) for line in file.read_text().splitlines()]
        file.unlink()
        assert names and all(int(begin, 16) and int(size, 16) for begin, size, _ in names)
        assert any(name.startswith("magneto::") and "softmax" in name for _, _, name in names), names


LONG = """
import torch, magneto
magneto.config.progress_seconds = {seconds}
def block(x):
    return torch.softmax(x.sin(), -1)
magneto.compile(block)(torch.randn(64, 64))
"""


def on_terminal(folder: Path, seconds: int, **variables: str) -> str:
    """What a terminal shows of a compile."""
    environment = {**os.environ, "TERM": "xterm", "MAGNETO_CACHE_DIR": str(folder), **variables}
    terminal, other = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-P", "-W", "ignore", "-c", LONG.format(seconds=seconds)], stderr=other, env=environment
    )
    os.close(other)
    text: list[bytes] = []

    def read() -> None:
        try:
            while part := os.read(terminal, 4096):
                text.append(part)
        except OSError:  # the other side is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    assert process.wait(timeout=120) == 0
    reader.join()
    os.close(terminal)
    return b"".join(text).decode()


def test_a_terminal_sees_how_far_a_compile_is(tmp_path: Path) -> None:
    text = on_terminal(tmp_path, 0)
    assert text.startswith("\r\033[Kmagneto: block (<string>:") and ": compile" in text
    assert text.endswith("\r\033[K")


@pytest.mark.parametrize("case", [(-1, "xterm"), (600, "xterm"), (0, "dumb")])
def test_else_nothing_is_shown(tmp_path: Path, case: tuple[int, str]) -> None:
    assert on_terminal(tmp_path, case[0], TERM=case[1]) == ""
