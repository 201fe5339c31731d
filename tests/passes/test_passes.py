"""Passes, text in, text out. A golden file has the name of a pass, a graph, `----`, and the graph after the pass.

pytest tests/passes                 compares
MAGNETO_BLESS=1 pytest tests/passes writes what came out
"""

import pathlib

import pytest
from golden_text import check_pair

from magneto import _testing

GOLDEN = pathlib.Path(__file__).parent / "golden"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_golden(path):
    """The first line is `# pass`, or `# all`."""

    def run(text):
        head, graph = text.split("\n", 1)
        name = head.removeprefix("# ")
        return _testing.passes_run(graph, "" if name == "all" else name)

    check_pair(path, run)
