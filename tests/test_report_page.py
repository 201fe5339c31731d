"""The report's page at three widths, in light and dark, of few and of many compiles; what each of its views has to say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from report_logs import LogFile, large_graph
from test_report import assembly, magneto, rows, write

from magneto._report import log, model

SOURCE = """import torch


class Block(torch.nn.Module):
    depth = 2

    def forward(self, x):
{filler}        for index in range(self.depth):
            x = torch.nn.functional.layer_norm(self.first(x).relu() + x * 0.5, (x.shape[-1],), eps=1e-6)
        print("mean of the block's results, to see whether it is normalised:", x.mean(), x.std())
        return x + 1
"""
FILLER = 80  # lines, so that what is behind them has to be scrolled to
LOOP, BREAK = 8 + FILLER, 10 + FILLER
TEXT = """Graph break in user code at net.py:{line}
Reason: InputOutput: call of builtins.print
  Explanation: the program prints
  Hint: magneto.config.reorderable_logging_functions.add(print) puts it off to the end of the graph
"""
NOISE = ["DEFAULT_DEVICE: a", "GLOBAL_STATE: b", "TYPE_MATCH: c"]


def made_up(folder: Path, count: int, runs: int = 10) -> Path:
    """A report of so many compiles: breaks, recompiles, a limit, a failure."""
    source = folder / "net.py"
    source.write_text(SOURCE.format(filler="        x = x + 1\n" * FILLER))
    file = LogFile(folder / f"log{count}")
    main = (str(folder / "train.py"), 10, "<module>")
    stack = [[str(source), BREAK, "forward"]]
    broken = {
        "reason": "InputOutput",
        "message": "call of builtins.print",
        "text": TEXT.format(line=BREAK),
        "stack": stack,
    }
    change = {"entry": "0/0", "failures": ["L['self'].depth == 3: actual 4"], "condition": ""}
    change |= {"places": [f"{source}:{LOOP} in forward"]}
    for number in range(count):
        data: dict[str, Any] = large_graph(40 + number % 7, str(source))
        for call in data["graph"]["torch"]:
            call[2] = LOOP + call[2] % 4
        long = "torch.nn.functional.layer_norm(%3, (256,), weight=None, bias=None, eps=1e-06)"
        data["graph"]["torch"][3][0] = f"%4: f32[64, 256] = {long}"
        texts = data["guards"]["texts"]
        flat = [part for line in NOISE for part in (texts.index(line) if line in texts else _add(texts, line), 0, -1)]
        data["guards"]["nodes"][0][3] = flat
        data["runs"] = {"steps": [[runs, 4000.0 + at, 5000.0 * runs] for at in range(len(data["runs"]["steps"]))]}
        if number % 10 == 0:
            data["break"] = broken
        elif number % 3 == 0:
            data["recompile"] = [change]
        fails = {17: ("cache_size_limit", "last reason: 0/7"), 23: ("backend error", "not this one")}
        file.compile(
            (number // 4, number % 4),
            **{"file": str(source), "line": 7, "name": "forward", "stack": [main]},
            begin=1000 + number * 0.05,
            data=data,
            fail=fails.get(number),
        )
    file.write()
    return write(folder, model.build(log.read_folder(folder / f"log{count}"), assembly), f"report{count}.html")


def _add(texts: list[str], text: str) -> int:
    texts.append(text)
    return len(texts) - 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def pages(folder: Path) -> dict[int, Path]:
    return {count: made_up(folder, count) for count in (1, 30, 300)}


@pytest.fixture(autouse=True)
def as_at_first(browser: Browser) -> Iterator[None]:
    browser.resize(1400, 900)
    browser.errors.clear()
    yield
    browser.run("try { localStorage.clear() } catch {}")
    assert browser.errors == []


def open_compile(browser: Browser, page: Path, address: str = "0,0/0,code") -> None:
    browser.open(f"{page.as_uri()}?{address}#{address}")  # another query: the page is loaded anew
    browser.settle()


CUT = """[...document.querySelectorAll('.column:not([hidden]) .row')].filter((row) => {
  const text = row.querySelector('.text') || row;
  return text.scrollWidth > text.clientWidth + 1 || row.scrollHeight > row.clientHeight + 2;
}).map((row) => row.textContent)"""


@pytest.mark.parametrize(
    ("count", "width"),
    [
        pytest.param(count, width, marks=() if width == picked else (pytest.mark.long,))
        for count, picked in ((1, 1400), (30, 1000), (300, 700))
        for width in (1400, 1000, 700)
    ],
)
def test_widths_and_colours(browser: Browser, pages: dict[int, Path], count: int, width: int, tmp_path: Path) -> None:
    browser.resize(width, 900)
    pictures: dict[bool, int] = {}
    for dark in (False, True):
        browser.prefer_dark(dark)
        open_compile(browser, pages[count], "0,overview")
        assert browser.run("document.documentElement.scrollWidth") <= width
        open_compile(browser, pages[count])
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run(CUT) == []
        shown = rows(browser, ".column:not([hidden]) h3")
        assert shown == ["Source", "Torch graph"]
        for key in "2345678":
            browser.key(key)
            assert browser.run("document.documentElement.scrollWidth") <= width, key
        browser.screenshot(tmp_path / f"{dark}.png")
        pictures[dark] = (tmp_path / f"{dark}.png").stat().st_size
    browser.prefer_dark(False)
    assert min(pictures.values()) > 10_000


def test_no_line_under_100_characters_is_cut(browser: Browser, pages: dict[int, Path]) -> None:
    """At 1400 pixels, with all levels on demand as well."""
    open_compile(browser, pages[1])
    assert browser.run("app.links.rows.source.some((row) => row.text.length > 90)")
    for level in ("aten", "loops", "assembly"):
        browser.run(f"app.views.code.toggle({level!r})")
        browser.settle()
        assert browser.run(CUT) == []


def test_a_broken_compile_opens_at_the_line(browser: Browser, pages: dict[int, Path]) -> None:
    open_compile(browser, pages[30])
    browser.settle()
    head = browser.run("document.querySelector('.subject').innerText")
    assert f"The graph ends at net.py:{BREAK} in forward: print(" in head
    assert "the program prints" in head and "What helps: magneto.config.reorderable_logging_functions" in head
    box = browser.run(
        "(() => { const r = document.querySelector('.broken-line').getBoundingClientRect(); return [r.top, r.bottom]; })()"
    )
    assert 0 < box[0] < box[1] < 900


def test_what_keeps_changing_has_file_and_line(browser: Browser, pages: dict[int, Path]) -> None:
    open_compile(browser, pages[30], "0,overview")
    text = browser.run("document.querySelector('.overview').innerText")
    assert f"the value of self.depth ×9 at net.py:{LOOP}: for index in range(self.depth):" in text
    assert "the loop is unrolled" in text


def test_a_limit_is_no_failure(browser: Browser, pages: dict[int, Path]) -> None:
    open_compile(browser, pages[30], "0,overview")
    text = browser.run("document.querySelector('.overview').innerText")
    assert "Limits that are reached" in text and "config.cache_size_limit" in text
    assert "backend error: not this one" in text.partition("Limits that are reached")[0]
    assert "cache_size_limit" not in text.partition("Limits that are reached")[0]
    open_compile(browser, pages[30], "0,4/1,code")
    assert browser.run("app.compile.state") == "limited" and not browser.run("!!document.querySelector('.failure')")


def test_counts_agree(browser: Browser, pages: dict[int, Path]) -> None:
    open_compile(browser, pages[30], "0,overview")
    top = rows(browser, ".counts .count-of")
    cards = browser.run("[...document.querySelectorAll('.card')].map((card) => card.innerText.replace('\\n', ' '))")
    for count in top:
        label = count.lstrip("✓⚡↻✕⊘…")
        assert label in cards, (label, cards)
    assert any(card.endswith("torch calls") for card in cards) and any(card.endswith("guards") for card in cards)
    open_compile(browser, pages[30], "0,0/0,guards")
    facts = browser.run("document.querySelector('.facts').innerText")
    checks = browser.run("document.querySelector('.view .lead b').innerText")
    assert checks.replace("checks", "guards") in facts


def test_guards_by_cost_without_noise(browser: Browser, pages: dict[int, Path]) -> None:
    open_compile(browser, pages[1], "0,0/0,guards")
    assert "GLOBAL_STATE" not in "".join(rows(browser, ".guards .row"))
    assert f"{len(NOISE)} checks of types, attributes and modes hidden" in rows(browser, ".controls")[0]
    choose = (
        "const s = document.querySelector('.controls select'); s.value = 'cost'; s.dispatchEvent(new Event('change'))"
    )
    browser.run(f"(() => {{ {choose} }})()")
    costs = browser.run("app.views.guards.shown.map((row) => row.check.cost || 0)")
    assert costs == sorted(costs, reverse=True) and costs[0] > costs[-1]
    browser.click("document.querySelector('.controls input')")
    assert any("GLOBAL_STATE" in row for row in browser.run("app.views.guards.shown.map((row) => row.text)"))


@pytest.mark.parametrize("level", ["source", "loops", "assembly"])
def test_kernels_link_to_lines_and_code(browser: Browser, pages: dict[int, Path], level: str) -> None:
    open_compile(browser, pages[1], "0,0/0,kernels")
    texts = {"source": "net.py:", "loops": "loop IR", "assembly": "asm"}
    find = f"[...document.querySelectorAll('.table-rows .link')].find((one) => one.textContent.startsWith({texts[level]!r}))"
    browser.click(find)
    browser.settle()
    assert browser.run("app.view") == "code" and browser.run(f"app.views.code.columns[{level!r}].hidden") is False
    assert browser.run(f"document.activeElement === app.views.code.lists[{level!r}].element")
    assert rows(browser, ".column:not([hidden]) .row.lit")


def test_times_of_a_first_call_are_marked(browser: Browser, folder: Path) -> None:
    page = made_up(folder, 2, runs=1)
    open_compile(browser, page, "0,0/1,kernels")
    assert "timed in the first call alone" in rows(browser, ".view .lead")[0]
    assert any("(first call)" in row for row in rows(browser, ".table-rows .row"))


def test_unknown_views_and_compiles_say_so(browser: Browser, pages: dict[int, Path]) -> None:
    open_compile(browser, pages[1], "0,0/0,nosuch")
    assert "There is no view “nosuch”." in rows(browser, "main")[0] and "Fusion" in rows(browser, "main")[0]
    open_compile(browser, pages[1], "0,9/9")
    assert "There is no compile [9/9] in this report." in rows(browser, "main")[0]


def test_fusion_has_a_legend(browser: Browser, pages: dict[int, Path]) -> None:
    open_compile(browser, pages[1], "0,0/0,fusion")
    legend = rows(browser, ".legend li")
    assert [text.partition(":")[0] for text in legend[1:]] == ["called", "costs nothing", "chosen"]
    assert "a colour for each kernel" in legend[0]


def test_columns_are_resized_by_mouse_and_keys(browser: Browser, pages: dict[int, Path]) -> None:
    open_compile(browser, pages[1])
    width = "app.views.code.columns.source.offsetWidth"
    before = browser.run(width)
    browser.run("app.views.code.handles.source.focus()")
    browser.key("ArrowRight")
    assert browser.run(width) == before + 40 and browser.run(CUT) == []
    browser.key("Home")
    assert browser.run(width) == before
    box = browser.run(
        "(() => { const r = app.views.code.handles.source.getBoundingClientRect(); return [r.x + 3, r.y + 100]; })()"
    )
    for kind, x in (("mousePressed", box[0]), ("mouseMoved", box[0] - 100), ("mouseReleased", box[0] - 100)):
        browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=box[1], button="left", clickCount=1, buttons=1)
    browser.settle()
    assert abs(browser.run(width) - (before - 100)) < 4 and browser.run(CUT) == []


def test_narrow_pages_are_used_by_keys_alone(browser: Browser, pages: dict[int, Path]) -> None:
    browser.resize(700, 900)
    open_compile(browser, pages[30], "0,overview")
    visible = "getComputedStyle(document.querySelector('.side')).display !== 'none'"
    assert not browser.run(visible)
    browser.key("t")
    assert browser.run(visible) and browser.run("document.activeElement.ariaLabel") == "frames"
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "Enter"):
        browser.key(key)
    assert browser.run("app.compile.id") == "0/0" and not browser.run(visible)
    browser.key("5")
    assert browser.run("app.view") == "guards" and browser.run("document.activeElement !== document.body")


TRAINING = """
import torch, magneto

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 1))
run = magneto.compile(model)
for _ in range(3):
    run(torch.randn(4, 8)).sum().backward()
"""


def test_training_has_both_graphs_and_what_is_saved(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    done = magneto(tmp_path, "report", "-o", "train.html", "--live", "train.py")
    assert done.returncode == 0, done.stderr
    open_compile(browser, tmp_path / "train.html", "0,0/0,memory")
    assert rows(browser, ".phases option") == ["forward", "backward"]
    saved = rows(browser, ".saved summary")
    assert (
        len(saved) == 1 and "For the backward: " in saved[0] and "saved" in saved[0] and "eager would save" in saved[0]
    )
    assert rows(browser, ".saved li")
    forward = browser.run("app.links.rows.aten.map((row) => row.text)")
    browser.run("app.setPhase(1)")
    browser.key("1")
    backward = browser.run("app.links.rows.aten.map((row) => row.text)")
    assert forward != backward and any(
        "native_layer_norm_backward" in line or "gelu_backward" in line for line in backward
    )
    browser.key("4")
    assert any("GB/s" in row for row in rows(browser, ".table-rows .row"))
