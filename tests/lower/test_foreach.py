"""Operators on lists of tensors, `torch._foreach_*`, as optimizers use them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from compare import assert_same

import magneto

pytestmark = pytest.mark.usefixtures("kernels")

Tensors = list[torch.Tensor]
# Stay calls of PyTorch's kernel: numbers that are in a tensor, operators without a form for one tensor.
CALLED = {"aten::_foreach_addcdiv.Tensor", "aten::_foreach_addcmul.Tensor", "aten::_foreach_powsum.Scalar"}
ALL = sorted(
    name
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("aten::_foreach_") and not name.endswith("out")
)


def some() -> Tensors:
    return [torch.rand(shape).mul(0.4).add(0.5) for shape in ((3, 4), (5,), (), (2, 1))]


def argument(kind: str, name: str) -> Any:
    if kind == "List[Tensor]":
        return some()
    if kind == "Tensor":
        return torch.tensor([1.5, 0.5, 0.25, 2.0]) if name == "scalars" else torch.tensor(1.5)
    if kind == "number":
        return 1.25
    return [1.5, 0.5, 2.0, 1.0] if kind == "List[number]" else None


@pytest.mark.parametrize("name", ALL)
def test_every_operator(name: str) -> None:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
    needed = [each for each in operator._schema.arguments if not each.has_default_value()]
    args = [argument(str(each.type), each.name) for each in needed]
    if packet.startswith("_foreach_mm"):
        args = [[torch.rand(3, 4), torch.rand(2, 2)], [torch.rand(4, 5), torch.rand(2, 1)]]

    def function(*args: Any) -> Any:
        result = operator(*args)
        return args[0] if result is None else result

    ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
    magneto.reset()
    with torch.no_grad():
        assert_same(magneto.compile(function)(*ours), function(*theirs))
    assert_same(ours, theirs)
    functional = ".".join(filter(None, (f"aten::{packet.removesuffix('_')}", overload)))
    assert (f"aten::{packet.removesuffix('_')}" in magneto.stats()["externs"]) == (functional in CALLED)


def adam(parameters: Tensors, gradients: Tensors, means: Tensors, squares: Tensors, step: int) -> None:
    torch._foreach_lerp_(means, gradients, 0.1)
    torch._foreach_mul_(squares, 0.999)
    torch._foreach_addcmul_(squares, gradients, gradients, 0.001)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_div_(roots, (1 - 0.999**step) ** 0.5)
    torch._foreach_add_(roots, 1e-8)
    torch._foreach_addcdiv_(parameters, means, roots, -1e-3 / (1 - 0.9**step))


def momentum(parameters: Tensors, gradients: Tensors, buffers: Tensors) -> None:
    norms = torch._foreach_norm(gradients)
    clip = (1 / (torch.stack(norms).norm() + 1e-6)).clamp(max=1.0)
    gradients = torch._foreach_mul(gradients, clip)
    torch._foreach_add_(gradients, parameters, alpha=0.01)
    torch._foreach_mul_(buffers, 0.9)
    torch._foreach_add_(buffers, gradients)
    torch._foreach_add_(parameters, buffers, alpha=-0.1)


@pytest.mark.parametrize("shapes", [[(3, 4)] * 20, [(7,), (), (3, 5), (0, 2), (64, 3)] * 4])
def test_optimizer_steps(shapes: list[tuple[int, ...]]) -> None:
    for step, lists, more in ((adam, 4, (3,)), (momentum, 3, ())):
        args = [[torch.rand(shape) for shape in shapes] for _ in range(lists)]
        ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
        magneto.reset()
        compiled = magneto.compile(step)
        with torch.no_grad():
            for _ in range(3):
                compiled(*ours, *more)
                step(*theirs, *more)
                assert_same(ours, theirs)
        assert [x._version for group in ours for x in group] == [x._version for group in theirs for x in group]
        assert not magneto.stats()["externs"]


def test_a_parameter_is_a_kernel() -> None:
    """Lists longer than fusion looks back."""
    magneto.reset()
    with torch.no_grad():
        magneto.compile(adam)(*([torch.rand(8 + i) for i in range(30)] for _ in range(4)), 3)
    assert magneto.stats()["kernels"] == 30


def test_a_list_that_reads_an_earlier_one_elsewhere() -> None:
    def crossed(xs: Tensors) -> Any:
        doubled = torch._foreach_mul(xs, 2.0)
        return torch._foreach_add(doubled, doubled[::-1]), torch._foreach_sub(xs, [doubled[0]] * len(xs))

    xs = [torch.rand(4) for _ in range(3)]
    magneto.reset()
    with torch.no_grad():
        assert_same(magneto.compile(crossed)(xs), crossed(xs))
