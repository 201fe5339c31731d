"""Each native shape rule against eager: dtype, sizes, strides, offset, aliasing and the class of what is raised.

OMP_NUM_THREADS=1 python -m pytest tests/fake/test_rules.py -k "add.Tensor"
"""

import itertools

import pytest
import torch
from image_cases import CASES as IMAGE_CASES
from rule_cases import CASES as RULE_CASES
from rule_cases import CLASSES, NUMBERS, geometries, make, pairs, promotions
from rule_harness import difference, geometry_of, resolve

from magneto import _testing

# Only for dynamic sizes: tests/dynamic/size_programs.py has their cases.
FOR_SYMBOLS = {
    "magneto::linspace",
    *(f"aten::{name}.input" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")),
    *(f"aten::upsample_{kind}.vec" for kind in ("nearest1d", "nearest2d", "linear1d", "bilinear2d", "bicubic2d")),
    *("aten::upsample_nearest3d.vec", "aten::upsample_trilinear3d.vec"),
    *(
        f"aten::_upsample_{kind}.vec"
        for kind in ("nearest_exact1d", "nearest_exact2d", "bilinear2d_aa", "bicubic2d_aa")
    ),
}
CASES = {**RULE_CASES, **IMAGE_CASES}
# Of graphs alone: tests/test_numpy.py.
OF_GRAPHS = {"magneto::numpy", "magneto::view_as"}
# Of several processes: tests/test_collectives.py.
OF_GROUPS = {name for name in _testing.fake_rules() if name.startswith("_c10d_functional")}
RULES = sorted(set(_testing.fake_rules()) - FOR_SYMBOLS - OF_GRAPHS - OF_GROUPS)


def op_name(op):
    """The schema's name of an operator, as rules name it."""
    name = op._schema.name
    return f"{name}.{op._schema.overload_name}" if op._schema.overload_name else name


def elementwise_cases(op):
    """Arguments for an elementwise operator, made from its schema: tensors first, numbers after them."""
    kinds = [str(argument.type) for argument in op._schema.arguments if not argument.has_default_value()]
    tensors = kinds.count("Tensor")
    fill = {"number": 2, "Scalar": 2, "float": 0.5, "int": 1, "str": "none", "Optional[str]": None}
    if tensors == 1 and "number" in kinds:
        position = kinds.index("number")
        operands = [
            (make(2, 3, dtype=d), n) for n in NUMBERS for d in CLASSES if (d, n) != (torch.float16, 1 + 2j)
        ]  # complex32, which rules decline
        operands += [(t, 2) for t in geometries()]
        for tensor, number in operands:
            arguments = [tensor if kind == "Tensor" else fill.get(kind) for kind in kinds]
            arguments[position] = number
            yield tuple(arguments), {}
    elif tensors == 1:
        for tensor in geometries() + [t for d in CLASSES for t in (make(2, 3, dtype=d), make(dtype=d))]:
            yield tuple(tensor if kind == "Tensor" else fill.get(kind) for kind in kinds), {}
    else:
        start = RULES.index(op_name(op)) % 4  # all of them for every operator take too long
        for left, right in itertools.chain(itertools.islice(pairs(), start, None, 4), promotions()):
            operands = itertools.chain([left, right], itertools.repeat(right))
            yield tuple(next(operands) if kind == "Tensor" else fill.get(kind) for kind in kinds), {}
        if tensors == 2:
            for dtype, number in itertools.product(CLASSES, NUMBERS[:3]):  # `x + 2` reaches the tensor overload
                yield (make(2, 3, dtype=dtype), number, *(fill.get(kind) for kind in kinds[2:])), {}
        aliased = make(4, 4)
        yield (aliased[0], *(aliased[1] for _ in range(tensors - 1)), *(fill.get(kind) for kind in kinds[tensors:])), {}
        yield (aliased, *(aliased.t() for _ in range(tensors - 1)), *(fill.get(kind) for kind in kinds[tensors:])), {}
        yield (
            (aliased[1:], *(aliased[:3] for _ in range(tensors - 1)), *(fill.get(kind) for kind in kinds[tensors:])),
            {},
        )
    alphas = [a for a in op._schema.arguments if a.name == "alpha"]
    if alphas and tensors == 2:
        for dtype, alpha in itertools.product(CLASSES, NUMBERS):
            yield (make(2, 3, dtype=dtype), make(3, dtype=dtype)), {"alpha": alpha}
    modes = [a for a in op._schema.arguments if a.name == "rounding_mode"]
    if modes:
        for dtype, mode in itertools.product(CLASSES, ["floor", "trunc", "round"]):
            second = make(3, dtype=dtype) if tensors == 2 else 2
            yield (make(2, 3, dtype=dtype), second), {"rounding_mode": mode}


def cases_of(name):
    return CASES[name] if name in CASES else list(elementwise_cases(resolve(name)))


@pytest.mark.parametrize("name", RULES)
def test_rule_equals_eager(name):
    op = resolve(name)
    cases = cases_of(name)
    failures, native_runs = [], 0
    for arguments, keywords in cases:
        what, native = difference(op, arguments, keywords)
        native_runs += native
        if what:
            failures.append(f"{name}({geometry_of(arguments)}, {keywords}): {what}")
    assert not failures, f"{len(failures)} of {len(cases)} cases\n" + "\n".join(failures[:12])
    assert native_runs, "no case reaches the native rule"


def test_every_rule_names_an_operator():
    assert len(RULES) == len(set(RULES))
    for name in RULES:
        assert resolve(name)._schema.name


def test_cases_have_rules():
    assert set(CASES) <= set(RULES)
