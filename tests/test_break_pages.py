"""docs/breaks: the pages are those of the table of reasons, and their programs break as they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import break_programs
import pytest
import torch

import magneto
from magneto import _test_settings, exc

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("break_pages", ROOT / "tools" / "break_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_current(tool: ModuleType) -> None:
    written = {file.name: file.read_text() for file in (ROOT / "docs" / "breaks").glob("*.md")}
    assert written == tool.pages(), "run: python tools/break_pages.py"


def test_each_reason_has_a_program_or_a_reason(tool: ModuleType) -> None:
    assert set(break_programs.EXAMPLES) | set(break_programs.WITHOUT) == set(tool.rows())
    assert not set(break_programs.EXAMPLES) & set(break_programs.WITHOUT)


@pytest.mark.parametrize("reason", break_programs.EXAMPLES)
def test_program_breaks(reason: str) -> None:
    example = break_programs.EXAMPLES[reason]
    with _test_settings.patch(**example.settings):
        magneto.compile(example.function, backend="eager")(*example.arguments())
    reasons = [text.partition(":")[0] for text in magneto.stats()["break_reasons"]]
    assert reason in reasons, reasons


@pytest.mark.parametrize("reason", [reason for reason, example in break_programs.EXAMPLES.items() if example.fixed])
def test_fixed_program_does_not_break(reason: str) -> None:
    example = break_programs.EXAMPLES[reason]
    arguments = (example.fixed_arguments or example.arguments)()
    got = magneto.compile(example.fixed, backend="eager", fullgraph=True)(*arguments)
    assert torch.equal(got, example.fixed(*(example.fixed_arguments or example.arguments)()))


def test_errors_name_the_page() -> None:
    example = break_programs.EXAMPLES["InputOutput"]
    with pytest.raises(exc.Unsupported, match="docs/breaks/InputOutput.md"):
        magneto.compile(example.function, backend="eager", fullgraph=True)(*example.arguments())
