"""Index expressions over symbolic extents, against brute force: the same number for all sizes and all iterations."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import magneto._testing as core

SYMBOLS = 2
LOWS = (2, 1)
EXTENTS = ("s0", "s1", "4", "s0 + 1", "s0*s1")


def session(*lines: str) -> list[str]:
    head = [f"symbol {low} {low + 3}" for low in LOWS] + [f"variable {extent}" for extent in EXTENTS]
    answers: list[str] = core.index_session([*head, *lines])
    return answers[len(head) :]


def value(text: str, names: dict[str, int]) -> int:
    scope: dict[str, Any] = {"min": min, "max": max, **names}
    return int(eval(text, {"__builtins__": {}}, scope))


def iterations() -> list[dict[str, int]]:
    """Some sizes, and for each some iterations of all loops: the first, the last, and those between."""
    result = []
    for sizes in itertools.product((LOWS[0], 3, 5), (LOWS[1], 2, 7)):
        names = {f"s{i}": size for i, size in enumerate(sizes)}
        extents = [value(extent, names) for extent in EXTENTS]
        for choice in range(8):
            picked = {f"i{k}": (extent - 1) * ((choice >> k % 3) & 1) for k, extent in enumerate(extents)}
            middle = {f"i{k}": (extent * (choice + k + 1) * 7 // 13) % extent for k, extent in enumerate(extents)}
            result += [{**names, **picked}, {**names, **middle}]
    return result


ALL = iterations()
FACTORS = ["s0", "s1", "4", "64", "8", "s0*s1", "s0 + 1"]
VARIABLES = [f"i{k}" for k in range(len(EXTENTS))]


@st.composite
def expressions(draw: Any) -> str:
    terms = draw(
        st.lists(st.tuples(st.sampled_from(VARIABLES), st.sampled_from([*FACTORS, "1"])), min_size=1, max_size=4)
    )
    total = " + ".join(f"({factor})*{variable}" for variable, factor in terms)
    total += draw(st.sampled_from(["", " + 1", " + s1", " - 1"]))
    for _ in range(draw(st.integers(0, 2))):
        divisor = draw(st.sampled_from(FACTORS))
        total = f"({total}){draw(st.sampled_from(['//', '%']))}({divisor})"
        total += draw(st.sampled_from(["", " + i0", " + 4*i1"]))
    return total


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(text=expressions())
def test_simplifying_changes_no_number(text: str) -> None:
    (simple,) = session(f"simplify {text}")
    for names in ALL:
        assert value(simple, names) == value(text, names), (simple, names)


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(text=expressions())
def test_what_is_natural_is_never_negative(text: str) -> None:
    if session(f"natural {text}") == ["true"]:
        assert all(value(text, names) >= 0 for names in ALL)


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(text=expressions(), number=st.integers(1, 9))
def test_sizes_at_entry(text: str, number: int) -> None:
    """A program of numbers gives what evaluating gives."""
    only_symbols = text
    for k in range(len(EXTENTS)):
        only_symbols = only_symbols.replace(f"i{k}", f"(s{k % SYMBOLS} + {number})")
    (result,) = session(f"compute {only_symbols}")
    assert int(result) == value(only_symbols, {f"s{i}": low + 3 for i, low in enumerate(LOWS)})


def test_indices_of_reshaped_tensors() -> None:
    assert session(
        "simplify (s1*i0 + i1)//s1",
        "simplify (s1*i0 + i1)%s1",
        "simplify (64*(s1*i0 + i1) + i2)//64",
        "simplify ((64*(s1*i0 + i1) + 8*i2)//64)%s1",
        "simplify (s1*i0 + i1)//(4*s1)",
        "simplify ((s0 + 1)*i1 + i3)//(s0 + 1)",
        "simplify ((s0 + 1)*i1 + i3)%(s0 + 1)",
        "simplify i4//s1",
        "natural s0*s1 - s1 - i1",
        "natural s0 - 1 - i0",
        "natural s0 - 2 - i0",
        "quotient 768*s0 + 768 s0 + 1",
        "quotient 768*s0*s1 64*s1",
        "quotient s0 s1",
    ) == [
        "i0",
        "i1",
        "i1 + s1*i0",
        "i1",
        "i0//4",
        "i1",
        "i3",
        "i4//s1",
        "true",
        "true",
        "unknown",
        "768",
        "12*s0",
        "unknown",
    ]
