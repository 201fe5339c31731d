"""The documentation: its programs run and print what the pages say; all variables of the environment stand there."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import fresh
import pytest
import torch

ROOT = Path(__file__).parents[1]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


tool = load("run_docs")
PAGES = [
    str(page.relative_to(ROOT))
    for page in tool.pages()
    if any(block.language in ("python", "console") and not block.not_run for block in tool.blocks(page.read_text()))
]
# Others number lines otherwise, and have warnings of their own: their blocks have to run.
WRITTEN_WITH = ((3, 11), "2.13")
# What may stand in place of a run: what changes the machine or takes minutes, or is run by a test of its own.
REASONS = re.compile(
    r"builds the package|installs a package|changes this machine|takes minutes"
    r"|tests/\w+\.py does"
)


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """What `tools/run_docs.py` finds, by page."""
    done = fresh.python(
        ROOT / "tools" / "run_docs.py", "--json", "--jobs", "2", *(ROOT / page for page in PAGES), timeout=600
    )
    assert done.returncode == 0, done.stderr
    return {result["page"]: result for result in json.loads(done.stdout.splitlines()[-1])}


@pytest.mark.parametrize("page", PAGES)
def test_blocks_print_what_the_page_says(page: str, results: dict[str, Any]) -> None:
    result = results[page]
    assert not result["problems"], "\n".join(result["problems"])
    if (sys.version_info[:2], torch.__version__[:4]) == WRITTEN_WITH:
        assert not result["differences"], "\n".join(result["differences"])


def test_blocks_say_what_they_are() -> None:
    for page in tool.pages():
        assert not list(tool.indented_blocks(page.read_text())), page
        for block in tool.blocks(page.read_text()):
            assert block.language, f"{page}:{block.first}: a block without a language"
            assert not block.not_run or REASONS.fullmatch(block.not_run), f"{page}:{block.first}"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_from_outside_the_site_lead_somewhere(page: str) -> None:
    """Those of the site are checked when it is built."""
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text()):
        assert (ROOT / target).exists(), target


def test_every_variable_is_documented() -> None:
    known = "".join((ROOT / "docs" / page).read_text() for page in ("settings.md", "reference/variables.md"))
    pattern = re.compile(r'"((?:MAGNETO|TORCHDYNAMO|TORCHINDUCTOR|ONEDNN|DNNL|XDG)_[A-Z_]*[A-Z])"')
    for folder in ("src", "magneto"):
        for file in (ROOT / folder).rglob("*.*"):
            if file.suffix in (".py", ".cpp", ".h", ".def"):
                for name in pattern.findall(file.read_text()):
                    assert f"`{name}`" in known, f"{name} of {file}"


def test_the_walks_through_the_files_lead_somewhere() -> None:
    rows = re.findall(
        r"^\|[^|]*\| `(src/[^`]*)` \| `([^`]*)` \|$", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE
    )
    assert len(rows) > 30
    missing = [
        (file, name) for file, name in rows if not re.search(rf"\b{re.escape(name)}\b", (ROOT / file).read_text())
    ]
    assert not missing


# -- the tool itself -------------------------------------------------------------------------------------------------


def run(text: str, tmp_path: Path) -> Any:
    """What the tool says of a page."""
    page = tmp_path / "a-page.md"
    page.write_text(text)
    folder = tmp_path / "folder"
    folder.mkdir()
    code = "import sys, json, dataclasses; sys.path.insert(0, sys.argv[1]); import run_docs as r; from pathlib import Path;"
    code += "print(json.dumps(dataclasses.asdict(r.Page(Path(sys.argv[2]), Path(sys.argv[3])).run())))"
    done = fresh.python("-c", code, ROOT / "tools", page, folder, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_what_the_tool_finds(tmp_path: Path) -> None:
    result = run(
        "```python\nx = 1\nprint('one', 2.5)\n```\n\n```output\none ...5\n```\n"
        "```python\nprint(x + 1)\n```\n```output\n3\n```\n"
        "```python\nprint('unsaid')\n```\n"
        "```python\nraise ValueError('no')\n```\n```output\nValueError: n...\n```\n"
        "```python\n1 / 0\n```\n"
        '```python title="file.py"\nprint("of a file")\n```\n'
        "```console\n$ python file.py\nof a file\n$ echo other\nanother\n```\n"
        "<!-- not run: takes minutes -->\n```console\n$ false\n```\n",
        tmp_path,
    )
    assert (result["run"], result["not_run"]) == (6, 1)
    unsaid, raised = result["problems"]
    assert "no ```output block follows" in unsaid and "ZeroDivisionError" in raised
    assert result["changes"] == [[12, 13, ["2"]], [33, 34, ["other"]]]


def test_indented_blocks_are_found() -> None:
    text = "text\n\n    code\n\n- item\n\n    of the item\n\n```text\n\n    fenced\n```\n"
    assert list(tool.indented_blocks(text)) == [3]
