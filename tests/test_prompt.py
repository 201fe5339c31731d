"""What a prompt and a notebook show, and the command line by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import fresh
import pytest
import torch

import magneto
from magneto import _progress
from magneto._advice import advice

X = torch.ones(3)


def scaled(x: torch.Tensor, n: int) -> torch.Tensor:
    print(end="")
    return x * n


def results() -> dict[str, Any]:
    compiled = magneto.compile(scaled, backend="eager", dynamic=False)
    for size in (1, 2, 3):
        compiled(torch.ones(size), 2)
    return {
        "summary": magneto.summary(),
        "recompiles": magneto.recompiles(),
        "why": magneto.why(scaled),
        "explain": magneto.explain(scaled)(X, 2),
        "help": magneto.config.help(),
    }


def test_results_are_tables_at_prompts_and_in_notebooks() -> None:
    for name, result in results().items():
        for text in (repr(result), *([str(result)] if name != "explain" else [])):
            assert text.startswith(("Captured\n╭", "Recompiles\n╭", "scaled: ", "Settings\n╭")), (name, text)
            assert "│" in text and "╰" in text and "\033" not in text
        page = result._repr_html_()
        assert page.count("<table>") == page.count("</table>") > 0 and "<th" in page and "│" not in page, name


def test_tables_where_nothing_happened() -> None:
    magneto.reset()
    for result, text in (
        (magneto.summary(), "Nothing was captured."),
        (magneto.recompiles(), "Nothing was captured again."),
    ):
        assert (str(result), repr(result), result._repr_html_()) == (text + "\n", text, f"<p>{text}</p>")


def test_html_is_text() -> None:
    def f(x: torch.Tensor, mode: str) -> torch.Tensor:
        return x + len(mode)

    compiled = magneto.compile(f, backend="eager")
    for mode in ("<b>", "<script>"):
        compiled(X, mode)
    page = magneto.recompiles()._repr_html_()
    assert "<script>" not in page and "&lt;b&gt;" in page


def test_help_is_a_table_of_the_users_settings() -> None:
    text = magneto.config.help()
    assert isinstance(text, str) and "cache_size_limit" in text and "│ 8 " in text
    assert "exit_every" not in text and "TORCHDYNAMO_VERBOSE" in text
    assert "cache_size_limit" not in magneto.config.help("verbose")
    with magneto.config.patch(cache_size_limit=77):
        assert "│ 77 " in magneto.config.help("cache_size_limit")


def test_explain_prints_operators_as_programs_write_them() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(torch.sin(x) * 2 + x).relu()

    text = str(magneto.explain(f)(X)).partition("Out Guards:")[0]
    for name in ("torch.sin", "*", "+", "torch.nn.functional.gelu", "Tensor.relu"):
        assert f"\n    {name}\n" in text, (name, text)
    assert "built-in" not in text and "object at 0x" not in text


def test_one_row_for_a_cause() -> None:
    """An int in the bound of a loop makes a capture for each value: one row says so."""
    depth = 2

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(self.depth):
                x = x.sin() + 1
            return x

    net = Net()
    run = magneto.compile(net, backend="eager")
    for depth in (2, 3, 4, 5):
        net.depth = depth
        run(X)
    (change,) = magneto.recompiles().changes
    assert (change.count, change.what) == (3, "the value of self.depth")


@pytest.mark.parametrize(
    ("guard", "what"),
    [
        ("L['x'].size()[0] == 3", "size 0 of x"),
        ("Eq(L['x'].size()[0], 3)", "size 0 of x"),
        ("2 <= L['x'].size()[1]", "size 1 of x"),
        ("Eq(L['self'].depth, 3)", "the value of self.depth"),
        ("L['self']._modules['layers']._modules['0'].rate == 0.5", "the value of self.layers[0].rate"),
        ("L['self'].__dict__['mode'] == 'a'", "the value of self.mode"),
    ],
)
def test_advice_names_things_as_programs_do(guard: str, what: str) -> None:
    said = advice(guard)
    assert said.what == what and "L[" not in said.remedy


def command(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH", "MAGNETO_STRICT"))}
    return fresh.python("-m", "magneto", *arguments, cwd=folder, env=clean)


@pytest.mark.parametrize("arguments", [("run",), ("explain",), ("why", "f"), ("why",)])
def test_without_a_script_there_is_usage_alone(arguments: tuple[str, ...]) -> None:
    done = command(*arguments)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith("`python -m magneto`"), done
    assert "Nothing was captured" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("command_of_script", ["run", "explain", "doctor"])
def test_a_script_that_is_not_there_is_named(command_of_script: str) -> None:
    done = command(command_of_script, "nothing")
    assert done.returncode == 2 and done.stdout == "", done
    assert done.stderr == "python -m magneto: can't open file 'nothing': there is no such file\n"


def test_version() -> None:
    done = command("--version")
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith(f"Magneto {magneto.__version__} (PyTorch {torch.__version__}, CPython ")


def test_doctor_needs_no_further_word() -> None:
    done = command("doctor")
    assert "versions" in done.stdout and "backend magneto" in done.stdout and done.returncode == 0, done


class Display:
    """What IPython gives for a display that is changed later."""

    def __init__(self, shown: list[str]) -> None:
        self.shown = shown

    def update(self, data: dict[str, str], raw: bool) -> None:
        self.shown.append(data["text/plain"])


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """IPython as a notebook's kernel has it: all that is displayed."""
    shown: list[str] = []

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Display:
        shown.append(data["text/plain"])
        return Display(shown)

    module = types.ModuleType("IPython")
    module.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    module.display = types.SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython", module)
    return shown


def test_compiles_show_how_far_they_are_in_notebooks(notebook: list[str]) -> None:
    with magneto.config.patch(progress_seconds=0, disk_cache=False):
        model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)), torch.nn.GELU())
        with torch.no_grad():
            magneto.compile(model)(torch.ones(2, 8))
    assert len(notebook) > 1 and notebook[0].startswith("magneto: ") and notebook[-1] == "", notebook
    assert _progress._cell is None


@pytest.mark.threads
def test_only_the_thread_that_compiles_shows_its_line(notebook: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of a compile lies on its thread's stack: another thread that drew it would write where it was."""
    threads: set[str] = set()
    is_notebook = _progress._is_notebook
    monkeypatch.setattr(
        _progress, "_is_notebook", lambda: threads.add(threading.current_thread().name) or is_notebook()
    )
    first_compiles, second_is_done = threading.Event(), threading.Event()

    def waits(module: Any, inputs: Any) -> Any:
        first_compiles.set()
        assert second_is_done.wait(60)
        return module

    def compile_second() -> None:
        assert first_compiles.wait(60)
        time.sleep(0.2)  # a line is drawn anew after 0.1 s
        try:
            magneto.compile(lambda x: x.sin() * 3)(X)
        finally:
            second_is_done.set()

    with magneto.config.patch(progress_seconds=0, disk_cache=False):
        second = threading.Thread(target=compile_second, name="second")
        second.start()
        first = threading.Thread(target=lambda: magneto.compile(lambda x: x + 1, backend=waits)(X), name="first")
        first.start()
        first.join()
        second.join()
    assert threads == {"first"}, notebook


def test_no_progress_where_nobody_watches(capfd: pytest.CaptureFixture[str]) -> None:
    with magneto.config.patch(progress_seconds=0, disk_cache=False):
        magneto.compile(lambda x: x.sin() * 3)(X)
    assert capfd.readouterr().err == "" and not _progress.show("a line")
