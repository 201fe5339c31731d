"""The text form of kernels and of integer expressions."""

import pathlib

import pytest

from magneto import _testing

GOLDEN = pathlib.Path(__file__).parent / "golden"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.loops")), ids=lambda path: path.stem)
def test_golden_files_are_fixed_points(path):
    """A well-formed file is what the printer writes, and sound."""
    text = path.read_text()
    assert _testing.loops_roundtrip(text) == text
    assert _testing.loops_verify(text) == []


def kernel(code, head="b0 in f32[8]\n b1 out f32[8]\n parallel i0 < 8", block="row"):
    return f'kernel "k" {{\n{head}\n{block} {{\n{code}\n}}\n}}\n'


LOAD = "%0:f32 = load b0[i0]\n"


@pytest.mark.parametrize(
    ("text", "violation"),
    [
        (kernel("%1:f32 = neg %0\n" + LOAD), "before it is defined"),
        (kernel(LOAD + LOAD), "defined twice"),
        (kernel("%0:f32 = load b0[i1]"), "no variable here"),
        (kernel("%0:f32 = load b0[s0]"), "no symbol"),
        (kernel("%0:bf16 = load b0[i0]"), "values are never bf16"),
        (kernel(LOAD + "store b0[i0], %0"), "writes an input"),
        (kernel(LOAD + "%1:f64 = neg %0"), "an operand is f32, not f64"),
        (kernel(LOAD + "%1:f32 = and %0, %0"), "not defined for f32"),
        (kernel(LOAD + "%1:f32 = reduce.sum %0"), "in no stage"),
        (kernel(LOAD + "%1:f32 = reduce.sum %0\n%2:f32 = neg %1", block="stage i1 < 4"), "inside its stage"),
        (kernel(LOAD + "%1:f32 = scan.sum %0", block="stage i1 < 4, i2 < 2"), "over one variable"),
        (kernel(LOAD + "}\nrow {\n%1:f32 = neg %0", block="stage i1 < 4"), "of another stage"),
        (kernel(LOAD + "%1:f32 = load b0[%0]"), "no integer"),
        (kernel(LOAD + "%1:f32 = welford.m2 %0"), "no welford"),
        (kernel(LOAD, head="b0 in f32[8]\nparallel i0 < %0"), "depends on %0"),
        (kernel(LOAD, head="b0 in f32[8]\nb1 scratch f32[100000]\nparallel i0 < 8"), "scratch"),
    ],
)
def test_the_verifier_sees(text, violation):
    assert any(violation in line for line in _testing.loops_verify(text)), _testing.loops_verify(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        'kernel "k"',
        'kernel "k" {',
        'kernel "k" {\nb1 in f32[4]\n}',
        'kernel "k" {\nb0 in f99[4]\n}',
        kernel("%0:f32 = nonsense"),
        kernel("%0 = load b0[i0]"),
        kernel("%0:f32 = load b0[i0"),
        kernel("%0:f32 = load b7[i0]"),
        kernel("%99999999:f32 = load b0[i0]"),
        kernel("%0:f32 = load b0[" + "(" * 10000 + "]"),
        kernel("store b1[i0]"),
    ],
)
def test_broken_text_is_refused(text):
    with pytest.raises(ValueError, match=r"line \d+"):
        _testing.loops_roundtrip(text)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("2*(i0 + 3) - 6", "2*i0"),
        ("(s0 + 1)*(s0 - 1)", "s0*s0 - 1"),
        ("i1 + i0", "i0 + i1"),
        ("(8*i0 + 4)//4", "2*i0 + 1"),
        ("(8*i0 + 6)%4", "2"),
        ("i0//4//3", "i0//12"),
        ("-7//2", "-4"),
        ("-7%4", "1"),
        ("max(i0, i0 + 1)", "i0 + 1"),
        ("min(3, 7)", "3"),
        ("i0%(2*s0) - (i0//4)*3", "-3*(i0//4) + i0%(2*s0)"),
        ("%3*4 + %1", "%1 + 4*%3"),
    ],
)
def test_expressions_have_a_normal_form(text, normal):
    assert _testing.expr_roundtrip(text) == normal
    assert _testing.expr_roundtrip(normal) == normal


@pytest.mark.parametrize(
    ("text", "simple"),
    [
        ("(8*i0 + i1)//8", "i0"),
        ("(8*i0 + i1)%8", "i1"),
        ("(8*i0 + i1)//16", "i0//2"),
        ("(8*i0 + i1)%16", "i1 + 8*(i0%2)"),
        ("min(i1, 100)", "i1"),
        ("max(i1, 7)", "7"),
        ("i0%4 + i1//8", "i0%4"),
        ("i0%8 + 8*(i0//8)", "i0"),
        ("5*(i0%8) + 40*((i0//8)%3)", "5*(i0%24)"),
        ("i1 + 3136*(i0//3136) + i0%56 + 56*((i0//56)%56)", "i0 + i1"),
        ("s1*(i0%s0) + s0*s1*(i0//s0) + 1", "s1*i0 + 1"),
        ("i0%8 + 16*(i0//8)", "16*(i0//8) + i0%8"),
    ],
)
def test_ranges_decide_divisions(text, simple):
    assert _testing.expr_simplify(text, {"i0": (0, 99), "i1": (0, 7), "s0": (1, 9)}) == simple
