"""Lowering, text in, text out: a graph above `----`, the program's buffers, kernels and calls below.

MAGNETO_BLESS=1 writes what came out.
"""

import pathlib

import pytest
from golden_text import check_pair

from magneto import _testing

GOLDEN = pathlib.Path(__file__).parent / "golden"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_golden(path):
    check_pair(path, _testing.lower_program)
