"""Each invariant of the graph, broken once."""

import pytest

from magneto import _testing


def graph(*lines):
    return "graph {\n" + "\n".join(lines) + "\n}"


X = '%0: f32[2] = input "x"'

VIOLATIONS = {
    "use before definition": (
        graph(X, "%1: f32[2] = aten.relu.default(%2)", "%2: f32[2] = aten.relu.default(%0)", "return (%2)"),
        "uses %2 before its definition",
    ),
    "undefined value": (graph(X, "return (%1)"), "output %1 is not defined"),
    "value without a producer": (
        graph(X, "%2: f32[2] = aten.relu.default(%0)", "return (%2)"),
        "%1 is made by no operator",
    ),
    "result that exists": (
        graph(X, "%1: f32[2] = aten.relu.default(%0)", "%1 = aten.tanh.default(%0)", "return (%1)"),
        "exists already and is none of its operands",
    ),
    "too many results": (graph(X, "%1: f32[2], %2: f32[2] = aten.relu.default(%0)", "return (%1)"), "gives 2 tensors"),
    "too few results": (graph(X, "%1: f32[] = aten.max.dim(%0, 0, False)", "return (%1)"), "gives 1 tensors"),
    "outputs twice": (graph(X, "return (%0, %0)"), "listed twice"),
    "inputs twice": (graph(X, X, "return (%0)"), "listed twice"),
    "strides": (graph('%0: f32[2]{1, 1} = input "x"', "return (%0)"), "1 sizes but 2 strides"),
    "constant without a tensor": (graph("%0: f32[99] = constant ...", "return (%0)"), "has no tensor"),
    "constant of another type": (graph("%0: f32[2]+3 = constant [1.0, 2.0]", "return (%0)"), "not what its type says"),
    "unsound region": (
        graph(
            *("region @r {", X, "return (%1)", "}"),
            *(X, '%1: b8[] = input "p"', "%2: f32[2] = magneto.cond.default(%1, @r, @r, [%0])", "return (%2)"),
        ),
        "in region @r: output %1 is not defined",
    ),
    "children out of order": (
        graph(X, "f() {", "%1: f32[2] = aten.relu.default(%0)", "}", "g() {}", "return (%1)"),
        None,
    ),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_violation(name):
    text, expected = VIOLATIONS[name]
    found = _testing.graph_verify(text)
    if expected is None:
        assert found == []
    else:
        assert any(expected in line for line in found), found


def test_unsound_graphs_are_not_run():
    with pytest.raises(ValueError, match="unsound graph"):
        _testing.aten_run(VIOLATIONS["undefined value"][0], [])
