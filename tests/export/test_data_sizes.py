"""Data-dependent sizes and numbers, in exported programs: eager's results for other data, saved and loaded too."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same
from torch.export import Dim, export

pytestmark = pytest.mark.usefixtures("installed")


def rows_are_zeros(n: torch.Tensor, y: torch.Tensor) -> Any:
    count = n.item()
    torch._check(count >= 0)
    torch._check(count <= 10)
    return y.new_zeros(count).sum() + y, torch.ones(count, 3)


def masked(n: torch.Tensor, y: torch.Tensor) -> Any:
    z = y[y > 0]
    z.mul_(2)
    return z + n, z.shape[0], z.numel() * 2 + 1, z.shape[0] / 2


def places(n: torch.Tensor, y: torch.Tensor) -> Any:
    z = torch.nonzero(y).squeeze(1)
    return torch.cat([z, torch.arange(z.shape[0])]), torch.where(y > 1)


def checked(n: torch.Tensor, y: torch.Tensor) -> Any:
    found = y.nonzero()
    torch._check(found.shape[0] > 0)
    return y.sin() if found.shape[0] > 0 else y.cos()


def indexed(n: torch.Tensor, y: torch.Tensor) -> Any:
    i = n.item()
    torch._check(i >= 0)
    torch._check(i < y.shape[0])
    return y[i], y[:i] * 2


def halved(n: torch.Tensor, y: torch.Tensor) -> Any:
    i = n.item()
    torch._check(i // 2 >= 1)
    return y + 2 if i // 2 >= 1 else y * 5


def split(n: torch.Tensor, y: torch.Tensor) -> Any:
    first, second = torch.stack([n, y.shape[0] - n]).tolist()
    torch._check(first >= 0)
    torch._check(second >= 0)
    torch._check(first + second == y.shape[0])
    p, q = torch.split(y, [first, second])
    return p.sum() - q.sum()


def numbers(n: torch.Tensor, y: torch.Tensor) -> Any:
    i, f = n.item(), y.sum().item()
    return y * (f * 2.5 + 1), n * (f / 2), {"i": i, "next": i + 1, "constant": 3, "f": f - 1}


def operands(n: torch.Tensor, y: torch.Tensor) -> Any:
    f = y.mean().item()
    return (
        y.clamp(min=f),
        y > f,
        f <= y,
        n == f,
        y != n.item(),
        y[y > f],
        torch.full((3,), f),
        torch.where(y > 1, f, y),
        y.masked_fill(y > 1, f),
        n + f,
    )


def written(n: torch.Tensor, y: torch.Tensor) -> Any:
    y.add_(n.item())
    return y, n.item()


def several(n: torch.Tensor, y: torch.Tensor) -> Any:
    values, inverse = torch.unique(y, return_inverse=True)
    return values + 1, inverse, values.new_zeros(values.shape[0], 2).sum(1), n.reshape(1).bincount()


def branch(n: torch.Tensor, y: torch.Tensor) -> Any:
    return torch.cond(y.sum() > 0, lambda z: z * 2, lambda z: z - z.shape[0], (y[y > -5],))


def branch_on_a_number(n: torch.Tensor, y: torch.Tensor) -> Any:
    return torch.cond(n.item() > 2, lambda z: z.sin(), lambda z: z.cos(), (y,))


PROGRAMS = [
    *(rows_are_zeros, masked, places, checked, indexed, halved, split, numbers, operands, written, several),
    *(branch, branch_on_a_number),
]


def arguments(n: int, size: int, sign: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(n)
    return torch.tensor(n), (torch.rand(size) + 0.7) * sign


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("varies", [False, True])
def test_other_data(program: Callable[..., Any], varies: bool) -> None:
    shapes = {"n": None, "y": {0: Dim("n", min=3, max=64)}} if varies else None
    exported = export(program, arguments(2, 5), dynamic_shapes=shapes)
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    loaded = torch.export.load(file)
    assert str(loaded) == str(exported)
    for given in (arguments(2, 5), arguments(3, 8 if varies else 5)):
        wanted = copy.deepcopy(given)
        want = program(*wanted)
        for module in (exported.module(), loaded.module()):
            own = copy.deepcopy(given)
            assert_same(module(*own), want)
            assert_same(own, wanted)


@pytest.mark.parametrize(
    ("program", "given"),
    [
        (rows_are_zeros, arguments(11, 5)),
        (rows_are_zeros, arguments(-1, 5)),
        (checked, (torch.tensor(1), torch.zeros(5))),
        (indexed, arguments(5, 5)),
        (halved, arguments(1, 5)),
        (split, arguments(7, 5)),
    ],
)
def test_what_the_program_checks_is_checked(program: Callable[..., Any], given: Any) -> None:
    module = export(program, arguments(2, 5)).module()
    with pytest.raises(RuntimeError, match=r"Runtime assertion failed for expression .*u\d"):
        module(*given)


def test_the_ranges_are_what_was_checked() -> None:
    exported = export(rows_are_zeros, arguments(2, 5))
    assert {name: repr(each) for name, each in exported.range_constraints.items()} == {"u0": "VR[0, 10]"}
    code = exported.graph_module.code
    assert "item = torch.ops.aten.item.default(n)" in code
    assert "'Runtime assertion failed for expression u0 <= 10 on node" in code.replace('"', "'")
    assert repr(export(masked, arguments(2, 5)).range_constraints["u0"]) == "VR[0, int_oo]"


def test_numbers_among_results_have_their_place_in_the_signature() -> None:
    signature = export(numbers, arguments(2, 5)).graph_signature
    kinds = [type(spec.arg).__name__ for spec in signature.output_specs]
    assert kinds == ["TensorArgument"] * 2 + ["SymIntArgument"] * 2 + ["ConstantArgument", "SymFloatArgument"]


def test_gradients_pass_through() -> None:
    def picks(n: torch.Tensor, y: torch.Tensor) -> Any:
        return (y[y > 1] * n.item()).sin()

    module = export(picks, arguments(2, 5)).module()
    ours, theirs = (arguments(3, 5)[1].requires_grad_() for _ in range(2))
    module(torch.tensor(3), ours).sum().backward()
    picks(torch.tensor(3), theirs).sum().backward()
    assert_same(ours.grad, theirs.grad)
