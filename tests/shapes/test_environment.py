"""What is known of sizes: questions, assumptions and the guards that they leave, against brute force."""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Callable

import pytest

from magneto import _testing

SESSIONS = {
    "a size is decided by its range": [
        ("symbol 7 in 2..", "s0"),
        ("decide s0 == 1", "false"),
        ("decide s0 >= 2", "true"),
        ("decide s0 == 7", "unknown"),
        ("guards", ""),
    ],
    "what depends is answered as in this run, and guarded once": [
        ("symbol 7 in 2..", "s0"),
        ("evaluate s0 <= 512", "true"),
        ("evaluate s0 > 512", "false"),
        ("decide s0 < 600", "true"),
        ("guards", "s0 <= 512"),
    ],
    "equal sizes are one": [
        ("symbol 4 in 2..", "s0"),
        ("symbol 8 in 2..64", "s1"),
        ("evaluate s1 == 2*s0", "true"),
        ("simplify s1 + 1", "2*s0 + 1"),
        ("range s0", "2..32"),
        ("decide s1 >= 4", "true"),
        ("guards", "Eq(s1, 2*s0)"),
    ],
    "a multiple divides": [
        ("symbol 16 in 2..", "s0"),
        ("evaluate s0 % 8 == 0", "true"),
        ("decide s0 % 4 == 0", "true"),
        ("decide 8*(s0//8) == s0", "true"),
        ("decide s0 == 12", "false"),
        ("range s0", "8.."),
        ("simplify s0//8", "s0//8"),
        ("guards", "Eq(s0%8, 0)"),
    ],
    "what divides without a rest cancels": [
        ("symbol 6 in 2..", "s0"),
        ("symbol 8 in 2..", "s1"),
        ("simplify 4*((s0*s1)//4)", "4*((s0*s1)//4)"),
        ("evaluate (s0*s1) % 4 == 0", "true"),
        ("simplify 4*((s0*s1)//4)", "s0*s1"),
        ("decide 4*((s0*s1)//4) == s0*s1", "true"),
        ("simplify s0*((s0*s1)//s0)", "s0*s1"),
        ("guards", "Eq((s0*s1)%4, 0)"),
    ],
    "a common factor is no part of the question": [
        ("symbol 3 in 2..", "s0"),
        ("symbol 4 in 2..", "s1"),
        ("symbol 4 in 2..", "s2"),
        ("evaluate s0*s1 == s0*s2", "true"),
        ("decide s1 == s2", "true"),
    ],
    "facts of several sizes": [
        ("symbol 3 in 2..", "s0"),
        ("symbol 9 in 2..", "s1"),
        ("evaluate s0 < s1", "true"),
        ("decide s0 < s1 + 5", "true"),
        ("decide s0 == s1", "false"),
        ("decide s0 != s1", "true"),
        ("decide s0 > s1", "false"),
        ("decide s0 + 1 < s1", "unknown"),
        ("guards", "s0 + 1 <= s1"),
    ],
    "a specialised size is a number": [
        ("symbol 5 in 2..", "s0"),
        ("specialise s0 + 1", "6"),
        ("simplify s0*s0", "25"),
        ("evaluate s0 <= 9", "true"),
        ("guards", "Eq(s0, 5)"),
    ],
    "an unbacked size has no value": [
        ("symbol ? in 0..", "u0"),
        ("symbol 4 in 2..", "s0"),
        ("evaluate u0 == 0", "unknown"),
        ("specialise u0", "unknown"),
        ("assume u0 <= 4", "true"),
        ("decide u0 > s0 + 10", "false"),
        ("evaluate u0 == s0", "unknown"),
        ("assume u0 >= 5", "false"),
        ("evaluate s0 == 4", "true"),
        ("guards", "Eq(s0, 4)"),
    ],
    "unbacked sizes that are equal are one": [
        ("symbol ? in 0..", "u0"),
        ("symbol ? in 0..", "u1"),
        ("assume u1 == u0 + 2", "true"),
        ("simplify u1", "u0 + 2"),
        ("decide u1 >= 2", "true"),
        ("assume u0 % 4 == 0", "true"),
        ("decide u1 % 2 == 0", "true"),
        ("simplify 4*(u0//4)", "4*(u0//4)"),
        ("guards", ""),
    ],
    "not equal at the end of a range": [
        ("symbol 5 in 0..", "s0"),
        ("evaluate s0 != 0", "true"),
        ("decide s0 >= 1", "true"),
        ("evaluate s0 != 7", "true"),
        ("decide s0 == 7", "false"),
    ],
    "a guard that a later one implies is left out": [
        ("symbol 5 in 2..", "s0"),
        ("evaluate s0 <= 100", "true"),
        ("evaluate s0 <= 10", "true"),
        ("evaluate s0 != 50", "true"),
        ("guards", "s0 <= 10"),
    ],
}


@pytest.mark.parametrize("name", SESSIONS)
def test_session(name: str) -> None:
    lines = [line for line, _ in SESSIONS[name]]
    assert list(zip(lines, _testing.shapes_session(lines), strict=True)) == SESSIONS[name]


def test_a_size_beyond_64_bits_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="64 bits"):
        _testing.shapes_session([f"symbol {2**40} in 2..", "evaluate s0*s0*s0 <= 100"])


@pytest.mark.parametrize("line", ["decide s0", "decide s0 == 1 1", "ask s0 == 1", "symbol x", "symbol 3 in 2"])
def test_a_malformed_line_is_an_error(line: str) -> None:
    with pytest.raises(ValueError):
        _testing.shapes_session(["symbol 3 in 2..", line])


# -- against brute force ---------------------------------------------------------------------------------------------

LOW, HIGH = 1, 6
SIGNS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
}


def random_expression(rng: random.Random, depth: int) -> str:
    if depth == 0 or rng.random() < 0.25:
        return rng.choice(["s0", "s1", "s2", str(rng.randint(0, 9))])
    left, right = (random_expression(rng, depth - 1) for _ in range(2))
    kind = rng.choice(["+", "-", "*", "*n", "//", "%", "min", "max"])
    if kind == "*n":
        return f"{rng.randint(-4, 4)}*({left})"
    if kind in ("//", "%"):
        return f"({left}){kind}{rng.randint(1, 5)}"
    if kind in ("min", "max"):
        return f"{kind}({left}, {right})"
    return f"({left}) {kind} ({right})"


def random_relation(rng: random.Random, depth: int = 2) -> str:
    return f"{random_expression(rng, depth)} {rng.choice(list(SIGNS))} {random_expression(rng, depth - 1)}"


def truths(relation: str) -> list[bool]:
    """For each value of the symbols."""
    code = compile(relation, "relation", "eval")
    grid = itertools.product(range(LOW, HIGH + 1), repeat=3)
    names = {"min": min, "max": max, "Eq": operator.eq, "Ne": operator.ne}
    return [eval(code, {**names, "s0": a, "s1": b, "s2": c}) for a, b, c in grid]


@pytest.mark.parametrize("seed", range(300))
def test_answers_hold_for_all_sizes_that_fit(seed: int) -> None:
    rng = random.Random(seed)
    values = [rng.randint(LOW, HIGH) for _ in range(3)]
    lines = [f"symbol {value} in {LOW}..{HIGH}" for value in values]
    relations = [random_relation(rng) for _ in range(12)]
    verbs = [rng.choice(["evaluate", "decide", "decide"]) for _ in relations]
    lines += [f"{verb} {relation}" for verb, relation in zip(verbs, relations, strict=True)]
    *answers, guards = _testing.shapes_session([*lines, "guards"])[3:]
    here = ((values[0] - LOW) * HIGH + values[1] - LOW) * HIGH + values[2] - LOW
    fits = [True] * HIGH**3
    for verb, relation, answer in zip(verbs, relations, answers, strict=True):
        truth = truths(relation)
        seen = {truth[i] for i in range(len(fits)) if fits[i]}
        if verb == "evaluate":
            assert answer == str(truth[here]).lower(), relation
            if len(seen) == 2:
                fits = [fit and truth[i] == truth[here] for i, fit in enumerate(fits)]
        elif answer != "unknown":
            assert seen == {answer == "true"}, f"{relation} is {answer}, with {lines}"
    # The guards say what was assumed, no more and no less.
    said = [True] * HIGH**3
    for guard in guards.split("; ") if guards else ():
        said = [both and now for both, now in zip(said, truths(guard), strict=True)]
    assert said == fits


def test_simple_questions_are_always_decided() -> None:
    """Bounds, equalities and divisibility of single sizes: no answer may be missing."""
    rng = random.Random(0)
    for _ in range(200):
        value, bound, divisor = rng.randint(2, 50), rng.randint(2, 50), rng.randint(2, 8)
        lines = [f"symbol {value} in 2..", f"evaluate s0 <= {bound}", f"evaluate s0 % {divisor} == 0"]
        lines += [f"decide s0 <= {bound}", f"decide s0 % {divisor} == 0", f"decide s0 + 3 > {bound + 3}"]
        answers = _testing.shapes_session(lines)
        assert answers[3:] == [answers[1], answers[2], "false" if answers[1] == "true" else "true"]
