"""What README and docs say in numbers is what the tests know, what pages show in tables, and the same on each page."""

from __future__ import annotations

import math
import re
from pathlib import Path

import models
import pytest
import test_architectures
import test_zoo
import torch

from magneto import _load, _testing

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def text(page: str) -> str:
    """A page on one line, so that a sentence may be broken anywhere."""
    return " ".join((ROOT / page).read_text().split())


def found(page: str, pattern: str) -> tuple[str, ...]:
    match = re.search(pattern, text(page))
    assert match, f"{page} does not say {pattern!r}"
    return match.groups()


@pytest.mark.parametrize("page", ["README.md", "docs/coverage.md"])
def test_architectures_in_one_graph(page: str) -> None:
    whole = len(models.MODELS) - len(test_architectures.BREAKS)
    pattern = r"(\d+) of (\d+) transformers" if page == "README.md" else r"(\d+) architectures\) \| (\d+) in one graph"
    numbers = tuple(map(int, found(page, pattern)))
    assert numbers == ((whole, len(models.MODELS)) if page == "README.md" else (len(models.MODELS), whole))


def test_side_exits_of_architectures() -> None:
    (exits,) = found("docs/coverage.md", r"with their side exits \((\d+) together")
    assert int(exits) == sum(test_architectures.BREAKS.values())


def test_modules_of_other_styles() -> None:
    count, whole, exits = map(
        int, found("docs/coverage.md", r"tests/zoo, (\d+)\).*?; (\d+) of them in one graph, (\d+) side")
    )
    breaks = [entry.breaks for entry in test_zoo.ZOO.values()]
    assert (count, whole, exits) == (len(breaks), breaks.count(0), sum(breaks))


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the number is of PyTorch 2.13")
def test_operators_that_ask_python_are_few() -> None:
    (limit,) = found("docs/fake.md", r"fewer than (\d+) operators, which")
    assert len(_testing.fake_python_meta_kernels()) < int(limit)


# -- performance -------------------------------------------------------------------------------------------------------


def table(kind: str) -> list[dict[str, str]]:
    """The rows of a table of docs/performance.md, by header."""
    marked = re.search(
        rf"<!-- {kind} -->\n(.*?)<!-- end of {kind} -->", (DOCS / "performance.md").read_text(), re.DOTALL
    )
    assert marked
    head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in marked[1].splitlines()]
    # Headers of the peer's compile times repeat: each is named after the column before it.
    names = [f"{head[i - 1]}: {name}" if head.count(name) > 1 else name for i, name in enumerate(head)]
    return [dict(zip(names, row, strict=True)) for row in rows]


def numbers(cell: str) -> list[float]:
    return [float(part.strip(" x").replace(",", "")) for part in cell.split("/")]


def same(shown: str, ratios: list[float]) -> bool:
    return [f"{ratio:.2f}" for ratio in numbers(shown)] == [f"{ratio:.2f}" for ratio in ratios]


def geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def times(row: dict[str, str], framework: str) -> tuple[list[float], list[float]]:
    """Eager's and the framework's, by number of threads; eager's of the framework's own process, if they were kept."""
    beside = f"eager us beside {framework}, 1 / 2 threads"
    return numbers(row[beside if beside in row else "eager us, 1 / 2 threads"]), numbers(row[f"{framework} us"])


def ratios(kind: str) -> dict[str, list[float]]:
    """Made of the times that the table shows; also asserts that its own ratios are those."""
    found: dict[str, list[float]] = {}
    for row in table(kind):
        eager, ours = times(row, "Magneto")
        gains = [one / other for one, other in zip(eager, ours, strict=True)]
        assert same(row["over eager"], gains), row
        found.setdefault("over eager", []).extend(gains)
        for column in row:
            peer = column.removeprefix("over ")
            if not column.startswith("over torch.compile"):
                continue
            peers = [one / other for one, other in zip(*times(row, peer), strict=True)]
            over = [one / other for one, other in zip(gains, peers, strict=True)]
            assert same(row[column], over), row
            found.setdefault(column, []).extend(over)
    return found


@pytest.mark.parametrize("kind", ["patterns", "models"])
def test_ratios_follow_from_the_columns_beside_them(kind: str) -> None:
    over = ratios(kind)
    for what, column in (("the peer", "over torch.compile"), ("eager", "over eager")):
        (mean,) = found("docs/performance.md", rf"{kind} over {what}, geomean \|[^|]*\| ([\d.]+)x")
        assert mean == f"{geomean(over[column]):.2f}"
    (least,) = found("docs/performance.md", rf"{kind} over eager, geomean \|[^|]*\| [\d.]+x, least ([\d.]+)x")
    assert least == f"{min(over['over eager']):.2f}"


def test_readme_and_performance_agree() -> None:
    eager, peer = found("README.md", r"models run ([\d.]+) times as fast as eager, ([\d.]+) times as torch.compile")
    assert found("docs/performance.md", r"models over the peer, geomean \|[^|]*\| ([\d.]+)x") == (peer,)
    assert found("docs/performance.md", r"models over eager, geomean \|[^|]*\| ([\d.]+)x") == (eager,)


def test_versions_of_python_agree() -> None:
    """README, the package's requirements and classifiers, what the core is refused on: all as src/python/abi has files.

    Of a version that is being added there may be files before it is supported."""
    files = (ROOT / "src/python/abi").glob("cpython_3*.cpp")
    minors = sorted(int(path.stem.removeprefix("cpython_3")) for path in files)
    minors = [minor for minor in minors if minor <= _load.NEWEST[1]]
    assert minors == list(range(minors[0], minors[-1] + 1))
    named = (f"3.{minors[0]}", f"3.{minors[-1]}")
    for page in ("README.md", "docs/dependencies.md"):
        assert found(page, r"CPython (3\.\d+) to (3\.\d+)") == named
    project = (ROOT / "pyproject.toml").read_text()
    assert f'requires-python = ">={named[0]},<3.{minors[-1] + 1}"' in project
    assert re.findall(r"Python :: 3\.(\d+)", project) == [str(minor) for minor in minors]
    assert (_load.OLDEST, _load.NEWEST) == ((3, minors[0]), (3, minors[-1]))


@pytest.mark.parametrize(
    ("interpreter", "is_found"),
    [
        (("cpython", (3, 10), True), "CPython 3.10"),
        (("cpython", (3, 15), True), "CPython 3.15"),
        (("cpython", (3, 13), False), "CPython 3.13 without a GIL"),
        (("pypy", (3, 11), True), "pypy 3.11"),
    ],
)
def test_other_interpreters_are_refused(interpreter: tuple[str, tuple[int, int], bool], is_found: str) -> None:
    with pytest.raises(ImportError, match=rf"supports CPython 3\.\d+ to 3\.\d+, with a GIL. This is {is_found}\.$"):
        _load.refuse_python(*interpreter)


def test_versions_of_pytorch_agree() -> None:
    """README, the package's requirements, what setup.sh accepts."""
    first, last = found("README.md", r"CPython 3.\d+ to 3.\d+, PyTorch (2\.\d+) to (2\.\d+)")
    assert found("docs/dependencies.md", r"PyTorch (2\.\d+) to (2\.\d+)") == (first, last)
    beyond = int(last.removeprefix("2.")) + 1
    project = (ROOT / "pyproject.toml").read_text()
    assert project.count(f"torch>={first},<2.{beyond}") == 2 == project.count("torch>=")
    accepted = found("tools/setup.sh", r"\(2, (\d+)\) <= tuple\(.*?\) < \(2, (\d+)\)")
    assert accepted == (first.removeprefix("2."), str(beyond))
