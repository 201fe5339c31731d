"""`python -m magneto report`: the page, in a real headless Chromium."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import fresh
import pytest
from browser import Browser
from log_programs import PROGRAM
from report_logs import LogFile, large_graph

from magneto._report import log, model, page

# Twelve layers of BERT, small enough to run quickly; a break, a recompile; and a script that goes on.
BERT = """
import torch, magneto
from transformers import BertConfig, BertModel

torch.manual_seed(0)
model = BertModel(BertConfig(hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=500)).eval()
run = magneto.compile(model)
with torch.no_grad():
    for _ in range(3):
        run(torch.arange(32).reshape(2, 16))
"""


def clean_environment(folder: Path, **more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH", "MAGNETO"))}
    return {**clean, "OMP_NUM_THREADS": "1", "MAGNETO_CACHE_DIR": str(folder / "cache"), **more}


def magneto(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """`python -m magneto ...` in the folder."""
    return fresh.python(
        "-W", "ignore", "-m", "magneto", *arguments, timeout=600, cwd=folder, env=clean_environment(folder, **more)
    )


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    (folder / "bert.py").write_text(BERT)
    done = magneto(folder, "report", "-o", "bert.html", "--live", "bert.py")
    assert done.returncode == 0, done.stderr
    assert f"wrote the report to {folder / 'bert.html'}" in done.stderr
    return folder / "bert.html"


def write(folder: Path, runs: list[dict[str, Any]], name: str = "report.html") -> Path:
    file = folder / name
    file.write_text(page.html({"title": "test", "command": "test", "live": False, "runs": runs}), encoding="utf-8")
    return file


def assembly(kernel: str, variant: int) -> str:
    return "magneto_kernel:\n\t.loc\t0 2 0\n\tvmovups\t(%rax), %zmm0\n\t.loc\t0 3 0\n\tvmulps\t%zmm1, %zmm0, %zmm0\n\tretq\n"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, the first with a graph of 5,000 nodes, a break and a failure."""
    folder = tmp_path_factory.mktemp("large")
    source = folder / "model.py"
    source.write_text("def forward(x):\n" + "    x = torch.sin(x)\n" * 40 + "    return x\n")
    main = (str(folder / "train.py"), 10, "<module>")
    reason = {"reason": "InputOutput", "message": "call of builtins.print", "hint": "", "text": "", "stack": [[*main]]}
    failures = ["tensor 'L['x']' size mismatch at index 0. expected 3, actual 4"]
    for rank in (0, 1):
        file = LogFile(folder / "log", 100 + rank, rank)
        forward = {"file": str(source), "line": 1, "name": "forward", "stack": [main]}
        file.compile((0, 0), **forward, data=large_graph(5000 if rank == 0 else 500, str(source)))
        recompile = [{"entry": "0/0", "failures": failures, "condition": ""}]
        again = {**large_graph(50, str(source)), "recompile": recompile}
        file.compile((0, 1), **forward, begin=1000.03, data=again)
        file.compile((1, 0), file=main[0], line=20, name="loss", stack=[main], begin=1000.06, data={"break": reason})
        if rank == 0:
            failing = ("backend error", "not this one")
            file.compile((2, 0), file=main[0], line=30, name="lost", stack=[main], begin=1000.1, fail=failing)
        file.write()
    return write(folder, model.build(log.read_folder(folder / "log"), assembly))


def rows(browser: Browser, selector: str) -> list[str]:
    return browser.run(f"[...document.querySelectorAll({selector!r})].map((one) => one.textContent)")


def tree(browser: Browser) -> list[tuple[str, str]]:
    """The frames that are shown, with their states."""
    found = browser.run(
        "[...document.querySelectorAll('.tree .row')].filter((row) => row.querySelector('.mark'))"
        ".map((row) => [row.querySelector('.name, .id').textContent, row.querySelector('.mark').ariaLabel])"
    )
    return [(name, state) for name, state in found]


def show_all_levels(browser: Browser) -> None:
    browser.run("for (const name of [...app.views.code.hidden]) app.views.code.toggle(name)")
    browser.settle()


def lit(browser: Browser) -> list[list[str]]:
    """For each level the texts of the visible rows that are lit."""
    return browser.run(
        "[...document.querySelectorAll('.column')].map((column) => [...column.querySelectorAll('.row.lit:not(.heading)')]"
        ".sort((a, b) => a.dataset.index - b.dataset.index).map((row) => (row.querySelector('.text') ?? row).textContent.trim()))"
    )


# -- a model


def test_bert_opens_quickly_and_is_small(bert: Path, browser: Browser) -> None:
    assert bert.stat().st_size < 5_000_000
    browser.errors.clear()
    browser.requests.clear()
    browser.call("Performance.enable", timeDomain="threadTicks")
    wall = browser.open(bert.as_uri())
    metrics = {one["name"]: one["value"] for one in browser.call("Performance.getMetrics")["metrics"]}
    # On a busy machine the wall clock tells of others; then what the page itself computes has to be little.
    assert wall < 2 or metrics["TaskDuration"] < 1, (wall, metrics)
    assert browser.errors == []
    assert all(url.startswith(("file:", "data:")) for url in browser.requests)
    assert tree(browser) == [("<module>", "captured"), ("BertModel.forward", "captured")]


def test_a_line_lights_up_what_came_of_it(bert: Path, browser: Browser) -> None:
    browser.open(bert.as_uri())
    browser.key("]")
    assert browser.run("document.querySelectorAll('.column').length") == 5
    show_all_levels(browser)
    # gelu of a layer: its line, call, operators, the kernel's lines and instructions.
    browser.run(
        "(() => { const { torch } = app.links.rows; const at = torch.findIndex((row) => row.text.includes('gelu'));"
        " app.code().torch.pick(at); })()"
    )
    browser.settle()
    source, torch, aten, loops, machine = lit(browser)
    assert source and len(torch) == 1 and "gelu" in torch[0]
    assert len(aten) == 1 and "aten.gelu" in aten[0]
    assert any("erf" in line for line in loops) and machine
    # And back, from an instruction.
    browser.run("app.choose(null)")
    browser.run(
        "(() => { const { assembly } = app.links.rows; app.code().assembly.pick(assembly.findIndex((row) => row.aten.length && !row.heading)); })()"
    )
    browser.settle()
    assert all(lit(browser))


def test_each_view_shows_the_model(bert: Path, browser: Browser) -> None:
    browser.open(bert.as_uri())
    browser.key("]")
    expected = {
        "2": (".steps .row", "addmm"),
        "3": (".table-rows .row", "arena"),
        "4": (".table-rows .row", "GB/s"),
        "5": (".guards .row", "TENSOR_MATCH"),
        "6": (".history li", "The first"),
        "7": (".flame .bar", "capture"),
        "8": (".text-names button", "plan"),
    }
    for key, (selector, text) in expected.items():
        browser.key(key)
        found = rows(browser, selector)
        assert any(text in row for row in found), (key, found[:5])
    assert browser.run("app.views.guards.shown.some((row) => row.check?.cost > 0 && row.text.includes('TENSOR_MATCH'))")
    assert browser.errors == []


# -- the program of the documents, by its log


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documents")
    (folder / "playground.py").write_text(PROGRAM)
    environment = clean_environment(folder, TORCH_TRACE=str(folder / "log"))
    fresh.python("playground.py", check=True, cwd=folder, env=environment, whole=True)
    return folder


def test_a_folder_becomes_a_page(documents: Path, browser: Browser) -> None:
    done = magneto(documents, "report", "log")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert f"wrote the report to {documents / 'magneto_report.html'}" in done.stdout
    browser.open((documents / "magneto_report.html").as_uri())
    assert tree(browser) == [
        *(("<module>", "captured"), ("f", "captured")),
        *(("<module>", "recompiled"), ("f", "recompiled")),
        *(("<module>", "broken"), ("broken", "broken"), ("broken", "captured")),
    ]
    overview = browser.run("document.querySelector('.overview').innerText")
    for part in ("InputOutput: call of builtins.print", "size 0 of x", "mark_dynamic"):
        assert part in overview, part


def test_the_second_run_is_linked_too(documents: Path) -> None:
    """What the cache on disk has was not lowered, and knows its torch calls all the same."""
    environment = clean_environment(documents, TORCH_TRACE=str(documents / "again"))
    for _ in range(2):
        fresh.python("playground.py", check=True, cwd=documents, env=environment)
    runs = model.build(log.read_folder(documents / "again"))
    for run in runs:
        program = run["compiles"][0]["program"]
        assert [torch for _, torch in program["aten"]] == [0, 1]
        (kernel,) = program["kernels"]
        assert kernel["operators"] == [0, 1] and set(kernel["values"]) == {0, 1}
        assert run["compiles"][0]["runs"]["steps"][0][0] == 1
    assert "fx graph cache hit" in runs[1]["compiles"][0]["texts"]


# -- many nodes, several ranks, keys


def test_5000_nodes_are_a_few_rows(large: Path, browser: Browser) -> None:
    browser.errors.clear()
    browser.open(large.as_uri())
    browser.key("]")
    assert browser.run("app.links.rows.torch.length") > 5000
    show_all_levels(browser)
    assert browser.run("document.querySelectorAll('.row').length") < 500
    begin = "const begin = performance.now();"
    took = browser.run(f"(() => {{ {begin} app.code().torch.pick(4321); return performance.now() - begin; }})()")
    assert took < 500
    browser.settle()
    source, torch, aten, loops, _ = lit(browser)
    assert torch == ["%4322: f32[64, 256] = torch.sin(%4321)"]
    assert aten == ["%4322: f32[64, 256] = aten.sin.default(%4321)"]
    assert source == ["x = torch.sin(x)"] and loops == ["%2:f32 = sin %1"]
    for key in "2345678":
        browser.key(key)
    assert browser.errors == []


def test_keys(large: Path, browser: Browser) -> None:
    browser.open(large.as_uri())
    browser.key("t")
    assert browser.run("document.activeElement.ariaLabel") == "frames"
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"  # focus is visible
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "Enter"):
        browser.key(key)
    assert browser.run("app.compile.id") == "0/0"
    browser.key("]")
    assert browser.run("app.compile.id") == "0/1"
    browser.key("3")
    assert browser.run("document.querySelector('[role=tab][aria-selected=true]').textContent") == "Memory3"
    browser.key("1")
    browser.key("ArrowDown")
    browser.key("ArrowRight")
    assert browser.run("document.activeElement.ariaLabel") == "Torch graph"
    for key in ("Home", "ArrowDown", "Enter"):
        browser.key(key)
    assert lit(browser)[1] == ["%2: f32[64, 256] = torch.sin(%1)"]
    browser.key("Escape")
    assert lit(browser) == [[], [], [], [], []]
    browser.key("?")
    assert browser.run("document.querySelector('dialog').open")
    browser.key("Escape")
    browser.key("/")
    browser.key("z")
    assert rows(browser, ".tree .row") == ["◆The whole program"]


def test_dark_mode(large: Path, browser: Browser) -> None:
    def background() -> str:
        return browser.run("getComputedStyle(document.body).backgroundColor")

    browser.open(large.as_uri())
    browser.run("localStorage.clear()")
    browser.prefer_dark(True)
    browser.open(large.as_uri())
    dark = background()
    browser.prefer_dark(False)
    assert dark != background() == "rgb(255, 255, 255)"
    browser.key("d")  # the first one changes what is seen
    assert background() == dark
    browser.run("localStorage.clear()")


def test_ranks_side_by_side(large: Path, browser: Browser) -> None:
    browser.open(large.as_uri())
    assert rows(browser, ".top select option") == ["rank 0", "rank 1"]
    browser.click("[...document.querySelectorAll('button')].find((one) => one.textContent === 'Side by side')")
    differing = rows(browser, ".ranks tr.differs th")
    assert "torch calls" in differing and "failed" in differing and "graphs" not in differing
    assert any(row.startswith("train.py:30") for row in differing)


def test_names_are_text(tmp_path: Path, browser: Browser) -> None:
    name = "</script><script>document.title='broken in'</script>\u2028<!-- \U0001f525 ' \" & 名前"
    file = LogFile(tmp_path / "log")
    graph = {
        "inputs": [[0, name, "f32[2]"]],
        "torch": [[f"%1 = torch.sin({name})", name, 1, name]],
        "aten": [],
        "outputs": [1],
    }
    file.compile((0, 0), file=name, line=1, name=name, data={"graph": graph}, fail=(name, name))
    file.write()
    report = write(tmp_path, model.build(log.read_folder(tmp_path / "log")))
    browser.errors.clear()
    browser.open(report.as_uri())
    assert browser.run("document.title") == "test – Magneto report" and browser.errors == []
    assert tree(browser) == [(name, "failed")]
    browser.key("]")
    assert any(name in row for row in rows(browser, ".column .row"))


# -- bad input


def test_no_such_folder(tmp_path: Path) -> None:
    done = magneto(tmp_path, "report", "nowhere")
    assert done.returncode == 2
    assert "there is no folder 'nowhere'. Run the program with TORCH_TRACE=nowhere first." in done.stderr


def test_a_folder_without_logs(tmp_path: Path) -> None:
    done = magneto(tmp_path, "report", str(tmp_path))
    assert done.returncode == 2 and "has no logs" in done.stderr and "TORCH_TRACE=" in done.stderr


def test_a_truncated_log(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "log")
    file.compile((0, 0), file="a.py", line=1, name="f")
    file.compile((1, 0), file="a.py", line=9, name="g", data={"graph": large_graph(5, "a.py")["graph"]})
    path = file.write()
    lines = path.read_text().split("\n")
    at = next(number for number, line in enumerate(lines) if '"frame_id": 1' in line and "magneto_graph" in line)
    path.write_text("\n".join(lines[: at + 1] + [lines[at + 1][:40], lines[0][:50]]))
    done = magneto(tmp_path, "report", "log")
    assert done.returncode == 0
    assert "cut off" in done.stderr and "[1/0] artifact" in done.stderr and f"line {at + 3}" in done.stderr
    (run,) = model.build(log.read_folder(tmp_path / "log"))
    assert [one["state"] for one in run["compiles"]] == ["captured", "unfinished"]


def test_a_script_that_raises_keeps_its_status(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(PROGRAM + "\nraise SystemExit(7)\n")
    done = magneto(tmp_path, "report", "--live", "fails.py")
    assert done.returncode == 7 and "ended with status 7" in done.stderr
    assert (tmp_path / "magneto_report.html").stat().st_size > 10_000


def test_a_script_that_compiles_nothing(tmp_path: Path) -> None:
    (tmp_path / "nothing.py").write_text("print('done')")
    done = magneto(tmp_path, "report", "--live", "nothing.py")
    assert done.returncode == 0 and done.stdout == "done\n" and "compiled nothing" in done.stderr
    assert magneto(tmp_path, "report", "--live", "missing.py").returncode == 2


def test_without_a_browser_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import browser as module

    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CHROMIUM", raising=False)
    with pytest.raises(RuntimeError, match="apt-get install chromium"):
        module.find()
