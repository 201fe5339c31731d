"""Argument binding against CPython's own: the function is called and tells what it got."""

import gc
import sys
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magneto import _testing

EMPTY = ...


def names_of(code):
    return list(code.co_varnames) + [n for n in code.co_cellvars if n not in code.co_varnames] + list(code.co_freevars)


def bound(function, args, kwargs):
    """What `_testing.bind_test` binds, by name; None if it does not fit."""
    slots = _testing.bind_test(function, *args, **kwargs)
    if slots is None:
        return None
    return {name: value for name, value in zip(names_of(function.__code__), slots) if value is not EMPTY}


def check(function, args, kwargs):
    """`function` returns locals()."""
    try:
        expected = function(*args, **kwargs)
    except TypeError:
        expected = None
    got = bound(function, args, kwargs)
    assert got == expected
    if got is not None:
        for name, value in expected.items():
            if type(value) not in (tuple, dict):  # *args and **kwargs are made anew
                assert got[name] is value
            elif type(value) is dict:
                assert list(got[name]) == list(value)


def make(parameters):
    """A function with these parameters that returns its arguments by name."""
    scope = {}
    exec(f"def f({parameters}):\n    return locals()\n", scope)
    return scope["f"]


class Default:
    """A default value that can be told from all others."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"<{self.name}>"


NAMES = ["a", "b", "c", "d", "e"]


@st.composite
def signatures(draw):
    names = draw(st.permutations(NAMES))[: draw(st.integers(0, 5))]
    kinds = sorted(draw(st.lists(st.integers(0, 2), min_size=len(names), max_size=len(names))))
    groups = [[n for n, k in zip(names, kinds) if k == kind] for kind in range(3)]
    positional = groups[0] + groups[1]
    first_default = draw(st.integers(0, len(positional)))
    with_default = set(positional[first_default:]) | {n for n in groups[2] if draw(st.booleans())}

    def show(group):
        return [f"{n}=default_{n}" if n in with_default else n for n in group]

    parts = show(groups[0]) + (["/"] if groups[0] else []) + show(groups[1])
    if draw(st.booleans()):
        parts.append("*args")
    elif groups[2]:
        parts.append("*")
    parts += show(groups[2])
    if draw(st.booleans()):
        parts.append("**kwargs")
    scope = {f"default_{n}": Default(n) for n in NAMES}
    exec(f"def f({', '.join(parts)}):\n    return locals()\n", scope)
    return scope["f"]


@settings(max_examples=750, deadline=None, derandomize=True)
@given(
    signatures(),
    st.lists(st.integers(), max_size=6).map(tuple),
    st.dictionaries(st.sampled_from([*NAMES, "x", "y", "args", "kwargs"]), st.integers(), max_size=5),
)
def test_random_signatures_and_calls(function, args, kwargs):
    check(function, args, kwargs)


@pytest.mark.parametrize(
    "parameters", ["", "a", "a, b", "a, b=1", "a, /, b", "*args", "**kwargs", "a, *args, b, **kwargs"]
)
@pytest.mark.parametrize(
    "args, kwargs",
    [
        ((), {}),
        ((1,), {}),
        ((1, 2), {}),
        ((1, 2, 3), {}),
        ((1,), {"a": 2}),
        ((1,), {"b": 2}),
        ((), {"a": 1, "b": 2, "c": 3}),
    ],
)
def test_simple(parameters, args, kwargs):
    check(make(parameters), args, kwargs)


def test_keywords_that_are_equal_but_not_interned():
    name = "".join(["long_", "name"])
    function = make("long_name, other")
    assert bound(function, (), {name + "": 1, "other": 2}) == {"long_name": 1, "other": 2}
    keyword = "_".join(["long", "name"])
    check(function, (), {keyword: 1, "other": 2})


def test_keywords_that_are_no_plain_strings():
    class Name(str):
        def __eq__(self, other):
            raise AssertionError("Python code ran")

        __hash__ = str.__hash__

    function = make("a, **kwargs")
    assert _testing.bind_test(function, 1, **{Name("b"): 2}) is None


def test_changed_defaults():
    function = make("a, b=1, *, c=2")
    function.__defaults__ = (10, 20)
    function.__kwdefaults__ = {"c": 30, "unused": 1}
    check(function, (), {})
    function.__defaults__ = (1, 2, 3)  # more than there are parameters
    for args in ((), (5,), (5, 6)):
        check(function, args, {})
    function.__defaults__ = None
    check(function, (1,), {})
    function.__kwdefaults__ = None
    check(function, (1, 2), {})


def test_slots_before_the_prologue():
    """Cells hold raw arguments, other cells and free variables nothing."""
    free = 1

    def function(a, b=2, *args):
        local = cell = 0
        return lambda: (a, cell, free), local

    assert bound(function, (1,), {}) == {"a": 1, "b": 2, "args": ()}


def test_the_real_call_gives_the_message():
    function = make("a, *, b")
    assert _testing.bind_test(function) is None
    assert _testing.bind_test(function, 1, 2, b=3) is None
    assert _testing.bind_test(function, 1, b=2, c=3) is None
    assert sys.exc_info() == (None, None, None)


def test_references():
    value, default = object(), object()
    function = make("a, b, c=None, *args, d, e=None, **kwargs")
    function.__defaults__ = (default,)
    function.__kwdefaults__ = {"e": default}
    counts = sys.getrefcount(value), sys.getrefcount(default)
    for _ in range(100):
        assert len(_testing.bind_test(function, value, value, value, value, value, d=value, x=value, y=value)) == 7
        assert len(_testing.bind_test(function, value, value, d=value)) == 7
        assert _testing.bind_test(function, value, value, x=value) is None
        assert _testing.bind_test(function, value, a=value, d=value, x=value) is None
        assert _testing.bind_test(function, value, d=value) is None
    gc.collect()
    assert (sys.getrefcount(value), sys.getrefcount(default)) == counts


def test_bound_slots_make_a_frame():
    """bind_arguments gives what a frame needs: the function can be entered with it."""

    def function(a, b=2, *args, c=3, **kwargs):
        return a, b, args, c, kwargs

    slots = _testing.bind_test(function, 1, 5, 6, c=7, d=8)
    entry = next(i for i, row in enumerate(_testing.decode(function.__code__)[0]) if row[0] == "RESUME")
    assert isinstance(function, types.FunctionType)
    result = _testing.resume_test(function.__code__, lambda: function(0), entry, slots)
    assert result == function(1, 5, 6, c=7, d=8)
