"""Places that can't be written, and files that are damaged.

The program goes on with its own result or its own error, and one sentence says why there is no file and what to do, for
every tool that writes some. What reads a damaged file says a sentence, too."""

from __future__ import annotations

import io
import logging
import random
import re
import resource
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fresh
import pytest
import torch

import magneto
from magneto import _testing, _trace
from magneto._debug import children, scripts
from magneto._debug.record import container, replay


def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.tanh(x @ w) + 1
    return torch.relu(y).sum() * torch.sigmoid(x)


def opens(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    open("/dev/null").close()
    return f(x, w)


def given() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(8, 8), torch.randn(8, 8)


def is_as_eager(value: Any) -> str:
    torch.testing.assert_close(value, f(*given()))
    return "eager's result"


@dataclass(frozen=True)
class Tool:
    """Its settings, a fault that it is asked about, what the program does, and how that ends."""

    settings: dict[str, Any]
    ends: str
    fault: tuple[str, str] | None = None
    program: Callable[[], Any] = lambda: is_as_eager(magneto.compile(f)(*given()))
    ends_on_a_full_disk: str = ""  # if otherwise


def with_backend(name: str) -> Callable[[], Any]:
    return lambda: is_as_eager(magneto.compile(f, backend=name)(*given()))


def traced() -> Any:
    _trace.write_to(str(Path(magneto.config.debug_dir) / "trace"))
    return is_as_eager(magneto.compile(f)(*given()))


REFUSED = "BackendCompilerFailed: the backend relu_compile_error"
WRONG = "AccuracyError: Bad accuracy detected"
TANH = ("lower.raise", "aten.tanh.default")
TOOLS: dict[str, Tool] = {
    **{
        f"graphs, level {level}": Tool(
            {"repro_after": "dynamo", "repro_level": level},
            REFUSED,
            program=with_backend("relu_compile_error_TESTING_ONLY"),
        )
        for level in (1, 2, 3)
    },
    "graphs that are wrong": Tool(
        {"repro_after": "dynamo", "repro_level": 4}, WRONG, program=with_backend("relu_accuracy_error_TESTING_ONLY")
    ),
    **{
        f"operators, level {level}": Tool({"repro_after": "aot", "repro_level": level}, "eager's result", TANH)
        for level in (1, 2, 3)
    },
    "operators that are wrong": Tool({"repro_after": "aot", "repro_level": 4}, WRONG, ("kernel.wrong", "tanh")),
    "records": Tool(
        {"replay_record_enabled": True},
        "Unsupported: Graph break in user code",
        program=lambda: magneto.compile(opens, fullgraph=True)(*given()),
    ),
    "debug_dump": Tool({"debug_dump": True}, "eager's result"),
    "TORCH_TRACE": Tool({}, "eager's result", program=traced),
    "bisect": Tool(
        {},
        "code generation",
        ("kernel.wrong", "tanh"),
        lambda: magneto.bisect(f, given()).stage,
        "OSError: what the eager run gives can't be kept: ",
    ),
}


def a_full_disk(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def a_file_where_a_folder_should_be(folder: Path) -> None:
    (folder / "file").write_text("")
    magneto.config.debug_dir = str(folder / "file" / "below")


def attempt(tool: Tool, make_bad: Callable[[Path], None], folder: Path) -> list[str]:
    """How the program ends, and what is said. In a child."""
    said, logger = io.StringIO(), logging.getLogger("torch._dynamo.magneto")
    logger.addHandler(logging.StreamHandler(said))
    for name, value in {"debug_dir": str(folder), "strict": False, "disk_cache": False, **tool.settings}.items():
        setattr(magneto.config, name, value)
    if tool.fault:
        _testing.plant_fault(*tool.fault)
    make_bad(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ends = str(tool.program())
        except Exception as error:
            ends = f"{type(error).__name__}: {error}"
    return [ends, said.getvalue()]


@pytest.mark.parametrize("make_bad", [a_full_disk, a_file_where_a_folder_should_be], ids=lambda one: one.__name__)
@pytest.mark.parametrize("name", TOOLS)
def test_nothing_is_lost(name: str, make_bad: Callable[[Path], None], tmp_path: Path) -> None:
    tool = TOOLS[name]
    outcome = children.run(lambda: attempt(tool, make_bad, tmp_path), 60)
    assert not outcome.failed, outcome.traceback
    ends, said = outcome.result
    full = make_bad is a_full_disk
    assert ends.startswith((full and tool.ends_on_a_full_disk) or tool.ends), (ends, said)
    assert "Traceback" not in said
    reason = "File too large" if full else "Not a directory"
    # The first file, and of a full disk each further one, with its text.
    sentences = [line for line in (said + ends).splitlines() if reason in line]
    assert 1 <= len(sentences) <= (3 if full else 1), said
    assert all("Set " in line or "set " in line for line in sentences)


def test_folders_of_runs_lie_alike_where_the_usual_place_is_no_folder(tmp_path: Path) -> None:
    """Tools look for what a child wrote in the folders beside: not in all of the system's for temporary files."""

    def folder() -> list[str]:
        a_file_where_a_folder_should_be(tmp_path)
        return list(scripts.folder().parts[-4:])

    root, *below = children.run(folder, 60).result
    assert root.startswith("magneto-")
    assert below[0] == "torchdynamo_debug" and below[1].startswith("run_") and below[2] == "minifier"


# -- records that are damaged


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield (*way, key)
        yield from places(value[key], (*way, key))


ODD: tuple[Any, ...] = (None, -1, 2**70, "x", [], {}, 1e300, True, [[[]]], {"at": 10**9}, {"at": -1})


def damaged_at_random(content: bytes, count: int) -> Iterator[bytes]:
    """One bit is wrong, the end is missing, a length is huge; or the file is whole, and says something odd."""
    chance = random.Random(0)
    for _ in range(count):
        at, bits = chance.randrange(len(content) - 4), chance.randrange(8)
        yield content[:at] + bytes([content[at] ^ 1 << bits]) + content[at + 1 :]
        yield content[:at]
        yield content[:at] + b"\xff\xff\xff\xff" + content[at + 4 :]
        read = container.from_bytes(content)
        *way, last = chance.choice(list(places(read.data)))
        value: Any = read.data
        for key in way:
            value = value[key]
        value[last] = chance.choice(ODD)
        yield container.to_bytes(read)


def test_damage_at_random_places(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with magneto.config.patch(debug_dir=str(tmp_path), replay_record_enabled=True):
        with pytest.raises(magneto.exc.Unsupported) as raised:
            magneto.compile(opens, fullgraph=True)(*given())
    file = Path(raised.value.record_filename)

    def attempt() -> list[int]:
        found = []
        for content in damaged_at_random(file.read_bytes(), 60):
            file.write_bytes(content)
            found += [replay.main([str(file)]), replay.main(["--show", str(file)])]
        return found

    outcome = children.run(attempt, 100, quiet=False)
    assert not outcome.failed, outcome.traceback
    refused = outcome.result.count(2)
    assert len(outcome.result) == 480 and set(outcome.result) <= {0, 1, 2, 3} and refused > 300
    said = capfd.readouterr().err
    assert len(re.findall(r"^python -m magneto replay: .*\.$", said, re.MULTILINE)) == refused


def test_a_reader_that_has_seen_enough() -> None:
    """`python -m magneto ... | head`."""
    done = fresh.python(
        "-c",
        "import os, runpy, sys; reader, writer = os.pipe(); os.close(reader); os.dup2(writer, 1)\n"
        "sys.argv = ['magneto', '--help']; runpy.run_module('magneto', run_name='__main__')",
    )
    assert (done.returncode, done.stderr) == (1, "")


def test_a_process_that_has_used_a_gpu(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Its children can't use one: said, and the program goes on."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(magneto.exc.NotYet, match="python -m magneto doctor script.py"):
        magneto.bisect(f, given())
    with magneto.config.patch(repro_after="dynamo", strict=False):
        assert torch.equal(magneto.compile(f, backend="eager")(*given()), f(*given()))
    assert "The minifier could not go on: NotYet: This tool" in caplog.text
