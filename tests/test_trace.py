"""TORCH_TRACE: the structured log, and the report that the real `tlparse` makes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path

import fresh
import pytest
from log_programs import PROGRAM

# ...a module that breaks in a part of it, and a backend that fails.
FAILING = """
class Part(torch.nn.Module):
    def forward(self, x):
        x = x.sin()
        print(end="")
        return x.cos()

class Whole(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Part()

    def forward(self, x):
        return self.part(x) + 1

def call(module):
    return module(torch.ones(3))

call(magneto.compile(Whole()))

def backend(gm, inputs):
    raise ValueError("not this one")

def failing(x):
    return x * 5

with magneto.config.patch(suppress_errors=True):
    magneto.compile(failing, backend=backend)(torch.ones(3))
"""


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the program's log."""
    folder = tmp_path_factory.mktemp("trace")
    (folder / "playground.py").write_text(PROGRAM + FAILING)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TORCH")}
    process = fresh.python(
        "-W",
        "ignore",
        "playground.py",
        env={
            **clean,
            "OMP_NUM_THREADS": "1",
            "TORCH_TRACE": str(folder / "log"),
            "MAGNETO_CACHE_DIR": str(folder / "cache"),
        },
        cwd=folder,
    )
    assert process.returncode == 0 and process.stderr.count("WON'T CONVERT failing ") == 1, process.stderr
    return folder / "log"


@pytest.fixture(scope="module")
def report(traces: Path) -> Path:
    return report_of(traces)


def report_of(traces: Path) -> Path:
    """What tlparse makes of the log; each line that it does not understand is an error."""
    out = traces.parent / "report"
    process = subprocess.run(
        [
            str(Path(sysconfig.get_path("scripts"), "tlparse")),
            *(str(next(traces.iterdir())), "-o", str(out), "--no-browser", "--strict", "--strict-compile-id"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "fail_" not in process.stderr and "unknown" not in process.stderr, process.stderr
    return out


def records(traces: Path, kind: str) -> list[tuple[str, dict[str, object]]]:
    """The log's records of that kind: compile id, metadata."""
    (file,) = traces.iterdir()
    found = []
    for line in file.read_text().splitlines():
        if not line.startswith("\t") and kind in (record := json.loads(line[line.index("{") :])):
            found.append((f"{record.get('frame_id')}/{record.get('frame_compile_id')}", record[kind]))
    return found


def test_each_compile_begins_and_ends(traces: Path) -> None:
    begun, ended = records(traces, "dynamo_start"), records(traces, "compilation_metrics")
    assert [compile_id for compile_id, _ in begun] == [compile_id for compile_id, _ in ended]
    assert [compile_id for compile_id, _ in begun] == [
        "0/0",
        "0/1",
        "1/0",
        "2/0",
        *(f"{number}/0" for number in range(3, 9)),
    ]
    first, _, breaks, rest, *_, fails = (metrics for _, metrics in ended)
    assert (first["co_name"], first["graph_op_count"], first["restart_reasons"]) == ("f", 2, [])
    assert first["entire_frame_compile_time_s"] > first["backend_compile_time_s"] > 0
    assert breaks["restart_reasons"] == ["InputOutput: call of builtins.print"] and rest["restart_reasons"] == []
    assert fails["fail_type"] == "backend error" and "not this one" in fails["fail_reason"]
    stack = begun[0][1]["stack"]
    assert [frame["name"] for frame in stack[-2:]] == ["<module>", "f"] and stack[-2]["loc"] == "f(torch.ones(3, 3))"


def test_modules_are_the_user_s_frames(traces: Path, report: Path) -> None:
    """Not what PyTorch calls them through."""
    whole, part = (record["stack"] for _, record in records(traces, "dynamo_start")[4:6])
    assert [frame["name"] for frame in whole[-3:]] == ["<module>", "call", "forward"]
    assert whole[-1]["loc"] == "def forward(self, x):"
    assert len({json.dumps(record["stack"]) for _, record in records(traces, "dynamo_start")[6:9]}) == 1
    assert [frame["name"] for frame in part[-4:]] == ["<module>", "call", "forward", "forward"]
    assert [frame["loc"] for frame in part[-2:]] == ["return self.part(x) + 1", 'print(end="")']
    index = (report / "index.html").read_text()
    assert "in _wrapped_call_impl" not in index and "return self.part(x) + 1" in index


def test_what_is_made_is_there(traces: Path) -> None:
    (file,) = traces.iterdir()
    text = file.read_text()
    assert records(traces, "dynamo_output_graph")[0][1]["sizes"]["l_x_"] == [3, 3]
    for kind in ("dynamo_cpp_guards_str", "aot_inference_graph", "inductor_output_code"):
        assert records(traces, kind), kind
    for part in ("torch.sin(l_x_)", "TREE_GUARD_MANAGER", "aten.sin.default", "size mismatch at index 0", "ORIGINAL"):
        assert part in text, part


def test_stages_are_nested_events(traces: Path) -> None:
    (file,) = traces.iterdir()
    lines = file.read_text().splitlines()
    events = []
    for at, line in enumerate(lines):
        if '"chromium_event"' in line:
            payload = []
            for below in lines[at + 1 :]:
                if not below.startswith("\t"):
                    break
                payload.append(below[1:])
            events.append(json.loads("\n".join(payload)))
    names = [event["name"] for event in events]
    assert names[:2] == ["compile", "compile.capture"] and names.count("compile") == 10
    whole, capture = events[:2]
    assert whole["ts"] <= capture["ts"] and capture["dur"] <= whole["dur"]


def test_tlparse_reads_it(report: Path) -> None:
    index = (report / "index.html").read_text()
    for compile_id in ("[0/0]", "[0/1]", "[1/0]", "[2/0]", "[3/0]", "[4/0]", "[5/0]"):
        assert compile_id in index
    assert "playground.py" in index and "status-break" in index and "status-error" in index and "status-ok" in index
    folder = report / "-_0_0_0"
    names = sorted(file.name for file in folder.iterdir())
    for start in (
        "dynamo_output_graph",
        "dynamo_cpp_guards_str",
        "aot_inference_graph",
        "inductor_output_code",
        "compilation_metrics",
    ):
        assert any(name.startswith(start) for name in names), names
    events = json.loads((report / "chromium_events.json").read_text())
    assert any(event["name"] == "compile.capture" for event in events)


def test_what_is_written_last_is_of_the_rank_too(tmp_path: Path) -> None:
    """The program's end comes after that of the process group; tlparse drops records of other ranks."""
    (tmp_path / "rank.py").write_text(
        "import torch, magneto\n"
        'torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)\n'
        "magneto.compile(lambda x: x.sin())(torch.ones(3))\n"
        "torch.distributed.destroy_process_group()\n"
    )
    environment = {**os.environ, "TORCH_TRACE": str(tmp_path / "log")}
    fresh.python("rank.py", check=True, cwd=tmp_path, env=environment)
    names = [file.name for file in report_of(tmp_path / "log").rglob("*")]
    assert any(name.startswith("dynamo_output_graph") for name in names), names
    assert any(name.startswith("magneto_guards") for name in names), names


def traced_program(folder: Path, text: str) -> list[str]:
    """Runs it, whatever its status, and gives the names of the records it leaves."""
    (folder / "program.py").write_text("import os, sys, time\nimport torch, magneto\n" + text)
    environment = {**os.environ, "TORCH_TRACE": str(folder / "log")}
    fresh.python("program.py", cwd=folder, env=environment)
    report_of(folder / "log")
    names = []
    for kind in ("dynamo_output_graph", "inductor_output_code", "dynamo_cpp_guards_str"):
        names += [kind for _ in records(folder / "log", kind)]
    return names + [str(record["name"]) for _, record in records(folder / "log", "artifact")]


LATE = {"dynamo_output_graph", "inductor_output_code", "dynamo_cpp_guards_str", "magneto_graph", "magneto_program"}


def test_a_killed_program_leaves_what_was_compiled_before(tmp_path: Path) -> None:
    """Not all of it waits for the program's end: `timeout`, a scheduler or the kernel may kill it."""
    names = traced_program(
        tmp_path, "magneto.compile(lambda x: x.sin())(torch.ones(3))\ntime.sleep(5)\nos.kill(os.getpid(), 9)\n"
    )
    assert {*LATE, "magneto_guards", "magneto_source"} <= set(names), names


def test_a_program_that_crashes_leaves_its_last_kernels(tmp_path: Path) -> None:
    """What has just been compiled is what may crash; and what was compiled a second before has all its texts, although
    there is no moment in which nothing is compiled."""
    text = """
end, count = time.monotonic() + 2.5, 0
while time.monotonic() < end:
    count += 1
    magneto.compile(lambda x: x.sin() + count)(torch.ones(3))
magneto.compile(lambda x: x.cos())(torch.ones(3))
os.kill(os.getpid(), 11)
"""
    names = traced_program(tmp_path, text)
    assert names.count("magneto_program") == names.count("inductor_output_code") > 3
    assert {*LATE, "magneto_guards"} <= set(names), names


def test_a_fork_s_child_leaves_its_parent_s_records_alone(tmp_path: Path) -> None:
    """...and a program that ends by an exception leaves all."""
    text = """
magneto.compile(lambda x: x.sin())(torch.ones(3))
if (child := os.fork()) == 0:
    sys.exit()  # runs what is registered for the end
os.waitpid(child, 0)
raise ValueError
"""
    names = traced_program(tmp_path, text)
    assert {name: names.count(name) for name in LATE} == dict.fromkeys(LATE, 1), names


def test_a_graph_whose_backend_fails_is_there(tmp_path: Path) -> None:
    text = """
def backend(gm, inputs):
    raise ValueError

magneto.compile(lambda x: x.sin(), backend=backend)(torch.ones(3))
"""
    assert {"dynamo_output_graph", "magneto_graph"} <= set(traced_program(tmp_path, text))


def test_a_program_that_has_gone_is_there(tmp_path: Path) -> None:
    """...and its guards."""
    names = traced_program(tmp_path, "magneto.compile(lambda x: x.sin())(torch.ones(3))\nmagneto.reset()\n")
    assert {*LATE, "magneto_guards"} <= set(names), names


def test_without_a_folder_nothing_is_traced() -> None:
    from magneto import _trace

    assert not _trace.enabled()
