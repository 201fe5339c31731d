"""`magneto._C` has what the Python layer uses, and nothing else: what only tests call is in `magneto._testing`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import magneto
from magneto import _C, _testing

ROOT = Path(__file__).parents[1]


def used_by_the_product() -> set[str]:
    """Names of `_C` in magneto/, and those that the core itself imports."""
    names = set()
    for file in (ROOT / "magneto").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "_C":
                names.add(node.attr)
            if isinstance(node, ast.Constant) and isinstance(node.value, str):  # scripts that are written
                names.update(re.findall(r"\b_C\.(\w+)\(", node.value))
            if isinstance(node, ast.ImportFrom) and node.module == "magneto._C":
                names.update(alias.name for alias in node.names)
    for file in (ROOT / "src").rglob("*.cpp"):
        names.update(re.findall(r'"magneto\._C", "(\w+)"', file.read_text()))
    return names


def own_names(module: object) -> set[str]:
    return {name for name in vars(module) if not name.startswith("_")}


def test_the_core_offers_what_is_used() -> None:
    assert own_names(_C) - used_by_the_product() == set()


def test_stubs_name_what_there_is() -> None:
    for module in (_C, _testing):
        stub = ast.parse((ROOT / "magneto" / f"{module.__name__.rpartition('.')[2]}.pyi").read_text())
        stubbed = {node.name for node in stub.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        stubbed |= {node.target.id for node in stub.body if isinstance(node, ast.AnnAssign)}
        real = {name for name in own_names(module) if name not in ("annotations", "importlib")}
        assert stubbed - {"Options", "ExplainReport"} == real


def test_no_function_is_in_both() -> None:
    assert not own_names(_C) & (own_names(_testing) - {"annotations"})


def test_each_figure_is_described() -> None:
    table = (ROOT / "src" / "observe" / "stats.def").read_text()
    figures = re.findall(r"^(?:COUNT|TALLY|FIGURE)\((\w+),", table, re.MULTILINE)
    assert set(figures) <= set(magneto.stats())
    assert not [name for name in figures if not re.search(rf"\b{name}\b", magneto.stats.__doc__ or "")]


def test_wheels_carry_no_test_code() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert 'wheel.exclude = ["magneto/_testing.py", "magneto/_testing.pyi"]' in project
    assert 'list(FILTER sources EXCLUDE REGEX "src/testing/")' in (ROOT / "CMakeLists.txt").read_text()
    outside = [
        str(file.relative_to(ROOT))
        for file in (ROOT / "src").rglob("*.[ch]*")
        if "testing" not in file.parent.parts[-1] and '#include "testing/' in file.read_text()
    ]
    assert not outside
