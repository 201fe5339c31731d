"""What the tools find: in TORCH_TRACE, in what tlparse makes of it, and in the report's page."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import fresh
import pytest
import torch
from browser import Browser
from test_report import magneto as command
from test_report import rows
from test_trace import report_of

import magneto
from magneto._debug import errors, findings, same
from magneto._report import log, model

PROGRAM = """
import torch, magneto
import torch.nn.functional as F
from magneto import _testing

_testing.plant_fault("kernel.lane", "tanh")

def program(x, w):
    y = F.layer_norm(x @ w, (16,))
    for _ in range(2):
        y = torch.tanh(y @ w) * x
    return y

torch.manual_seed(0)
x, w = torch.randn(8, 16), torch.randn(16, 16)
"""
CALL = "y = torch.compile(program)(x, w)\n"
BISECT = "print(magneto.bisect(program, (x, w)))\n"


def test_errors_by_powers_of_ten() -> None:
    want = torch.tensor([1.0, 20.0, 0.0, 3.0, 5.0])
    got = torch.tensor([1.5, 20.0, 0.02, 3.0, float("nan")])
    found = errors.distribution(want, got, None, allowed=0.1)
    assert found["compiled"] == [[-40, -2, 1], [0, -1, 1]] and found["eager"] == []
    assert (found["values"], found["odd"], found["exact"]) == (5, 1, [2, 4])
    assert found["first"] == [[0], "1.5", "1"]
    exact = torch.tensor([1.0, 20.001, 0.0, 3.0, 5.0], dtype=torch.float64)
    assert errors.distribution(want, got, exact)["eager"] == [[1, -3, 1]]


def test_errors_of_other_kinds_of_numbers() -> None:
    z = torch.tensor([1 + 2j, 3j])
    assert errors.distribution(z, z.conj(), None)["compiled"] == [[0, 0, 2]]
    whole = torch.tensor([1, 7, 9])
    found = same.compare({"result 0": whole}, {"result 0": torch.tensor([1, 8, 9])}, None)
    assert found[0].data()["errors"]["first"] == [[1], "8", "7"]
    structure = same.compare({"result 0": whole}, {"result 0": whole.double()}, None)
    assert structure[0].data()["errors"] is None
    json.dumps([found[0].data(), structure[0].data()], allow_nan=False)


def test_a_wrong_value_in_words() -> None:
    want = torch.ones(100)
    found = same.compare({"result 0": want}, {"result 0": want + 0.5}, None)
    text = findings.wrong_text(findings.wrong("kernel 3", found))
    assert "kernel 3: result 0: wrong result" in text and "at [0]: 1.5, not 1" in text
    assert text.splitlines()[-1].split() == ["1e-1", "100", "0"]


def environment(folder: Path, **more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH", "MAGNETO"))}
    paths = {"PYTHONPATH": str(Path(magneto.__file__).parents[1]), "MAGNETO_CACHE_DIR": str(folder / "cache")}
    return {**clean, **paths, **more}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of a program that looks for its fault."""
    folder = tmp_path_factory.mktemp("findings")
    (folder / "program.py").write_text(PROGRAM + BISECT)
    done = fresh.python("program.py", env=environment(folder, TORCH_TRACE=str(folder / "log")), cwd=folder, timeout=200)
    assert done.returncode == 0 and "At fault: code generation" in done.stdout, done.stdout + done.stderr
    return folder / "log"


def test_they_are_in_the_log(trace: Path) -> None:
    (own,) = log.read_folder(trace)  # children that try something write none
    (run,) = model.build([own])
    kinds = [finding["kind"] for finding in run["findings"]]
    assert kinds == ["ablation", "wrong", "minified", "wrong"] and run["compiles"] == []
    ablation, value, minified, smallest = run["findings"]
    assert ablation["stage"] == "code generation" and dict(ablation["named"])["value"].startswith("at [0")
    assert [row[0] for row in ablation["rows"] if row[3]][0] == 'backend "inductor"'
    assert value["difference"] == "wrong result" and value["errors"]["values"] == 128
    assert minified["counts"][1] == 1 and "aten.tanh" in minified["after"] and "layer_norm" in minified["before"]
    assert smallest["place"] == "the minified operators" and smallest["errors"]["compiled"]


def test_tlparse_shows_them(trace: Path) -> None:
    report = report_of(trace)
    texts = {file.name: file.read_text() for file in report.rglob("magneto_*") if file.suffix in (".txt", ".json")}
    for name, text in (
        ("doctor", "At fault: code generation"),
        ("minified_after", "aten.tanh.default"),
        ("minified_before", "native_layer_norm"),
        ("first_wrong_value", "|error|"),
    ):
        assert any(name in file and text in said for file, said in texts.items()), sorted(texts)
    index = (report / "index.html").read_text()
    assert "magneto_doctor" in index and "magneto_first_wrong_value" in index


def test_a_run_that_is_checked(tmp_path: Path) -> None:
    """config.verify: the first difference is in the log, beside the compile."""
    (tmp_path / "program.py").write_text(PROGRAM + CALL.replace("torch.compile", "magneto.compile"))
    more = {"TORCH_TRACE": str(tmp_path / "log"), "MAGNETO_VERIFY": "all", "PYTHONWARNINGS": "ignore"}
    fresh.python("program.py", env=environment(tmp_path, **more), cwd=tmp_path, check=True)
    (run,) = model.build(log.read_folder(tmp_path / "log"))
    (finding,) = run["findings"]
    assert finding["kind"] == "wrong" and "program" in finding["place"] and finding["errors"]["first"]
    assert [compile_["state"] for compile_ in run["compiles"]] == ["captured"]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `doctor --report` writes."""
    folder = tmp_path_factory.mktemp("doctor")
    (folder / "program.py").write_text(PROGRAM + CALL)
    done = command(folder, "doctor", "--report", "page.html", "program.py")
    assert done.returncode == 1 and f"page: {folder / 'page.html'}" in done.stdout, done.stdout + done.stderr
    return folder / "page.html"


def test_the_page_shows_them(page: Path, browser: Browser, tmp_path: Path) -> None:
    browser.open(page.as_uri() + "#0,overview")
    assert rows(browser, ".finding h2") == [
        "At fault: code generation",
        "First wrong value: y",
        "Minified: 9 operators to 1, in " + rows(browser, ".finding.minified h2")[0].rpartition(" in ")[2],
        "First wrong value: result 0",
    ]
    runs = rows(browser, ".finding .runs tbody tr")
    with_threads = len(os.sched_getaffinity(0)) > 1  # a run with all of them
    assert len(runs) == 12 + with_threads and "eager" in runs[0]
    assert len(rows(browser, ".finding .runs .bad")) == 7 + with_threads
    assert "aten.tanh.default" in rows(browser, ".finding .code-text")[1]
    picture = "document.querySelector('.finding svg')"
    assert browser.run(f"{picture}.querySelectorAll('rect.compiled').length") > 3
    said = browser.run(f"[...{picture}.querySelectorAll('title')].map((title) => title.textContent)")
    assert all(" off by about 10" in text for text in said)
    labels = browser.run(f"[...{picture}.querySelectorAll('text')].map((text) => text.textContent)")
    assert "size of the value" in labels and "10⁻³" in labels
    box = browser.run(f"(() => {{ const r = {picture}.getBoundingClientRect(); return [r.width, r.height]; }})()")
    assert box[0] > 200 and box[1] > 60
    assert browser.run("!!document.querySelector('.errors .allowed')")
    assert [rows(browser, ".card b")[at] for at in (0, 1)] == ["1", "1"]  # the program itself is there, too
    for width in (1400, 700):
        browser.resize(width, 900)
        for dark in (False, True):
            browser.prefer_dark(dark)
            browser.settle()
            assert browser.run("document.documentElement.scrollWidth") <= width
    browser.prefer_dark(False)
    assert browser.errors == [] and {url.partition(":")[0] for url in browser.requests} <= {"file", "data"}


def test_a_page_of_a_program_that_compiles_nothing(tmp_path: Path, browser: Browser) -> None:
    (tmp_path / "plain.py").write_text("x = 1\n")
    done = command(tmp_path, "doctor", "--report", "page.html", "plain.py")
    assert done.returncode == 0 and "does what eager does" in done.stdout, done.stdout + done.stderr
    browser.open((tmp_path / "page.html").as_uri())
    assert rows(browser, ".finding h2") == ["The compiled program does what eager does"]
    assert browser.errors == []


def test_bad_arguments(tmp_path: Path) -> None:
    none = command(tmp_path, "doctor", "--report", "page.html")
    assert none.returncode == 2 and "usage: " in none.stderr
    (tmp_path / "plain.py").write_text("x = 1\n")
    unwritable = command(tmp_path, "doctor", "--report", "no/such/page.html", "plain.py")
    assert unwritable.returncode == 0 and "no page can be written" in unwritable.stderr, unwritable.stderr


def test_explain_has_the_planned_peak() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu() @ w

    found: Any = magneto.explain(f)(torch.randn(64, 64), torch.randn(64, 64))
    assert found.planned_peaks == [2 * 64 * 64 * 4]  # one in the middle, and the result
    assert "Program 1: 32,768 bytes" in str(found) and "planned memory 1 (bytes)" in found.tables()
    x = torch.randn(64, 64, requires_grad=True)
    assert len(magneto.explain(f)(x, torch.randn(64, 64)).planned_peaks) == 2  # forward and backward
