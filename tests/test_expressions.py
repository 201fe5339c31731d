"""The program's own expressions in messages: what lies on the value stack, and what a line does with a value."""

from __future__ import annotations

import dis
from typing import Any

import pytest

from magneto import _expressions


def half(x: Any) -> Any:
    return x


def program(x: Any, y: Any, net: Any) -> Any:
    z = half(x) * 2 + half(y)
    for i in range(net.depth):
        z = z + half(net.layers[i])
    with open(x) as file:
        z = half(z) if file else half(y)
    return [half(one) for one in (x, z)]


def test_what_lies_on_the_stack() -> None:
    """In front of each call of `half`, at the bottom of the stack."""
    found = []
    for instruction in dis.get_instructions(program):
        if instruction.opname == "CALL":
            call = _expressions.at(program.__code__, instruction.offset)
            found.append((call, _expressions.on_stack(program.__code__, instruction.offset, 0)))
    assert found[1] == ("half(y)", "half(x) * 2")
    assert ("half(net.layers[i])", "range(net.depth)") in found
    assert ("half(z)", "open(x)") in found and ("half(y)", "open(x)") in found
    assert _expressions.on_stack(program.__code__, 0, 3) == ""


@pytest.mark.parametrize(
    ("name", "line", "use"),
    [
        ("self.depth", "for _ in range(self.depth):", "loop"),
        ("n", "ys = [f(x) for i in range(n)]", "loop"),
        ("mode", '    if mode == "sum":', "branch"),
        ("mode", "elif mode:", "branch"),
        ("n", "return a if n > 2 else b", "branch"),
        ("n", "while n:", "branch"),
        ("n", "return x[n:]", "index"),
        ("n", "return x * n", ""),
        ("n", "def f(x, n):", ""),
        ("n", "", ""),
        ("n", "(never a statement", ""),
        ("a value of the line", "return x", ""),
    ],
)
def test_what_a_line_does_with_a_value(name: str, line: str, use: str) -> None:
    assert _expressions.use_of(name, line) == use
