"""`copy.deepcopy` of tensors, and of what holds some, inside compiled functions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same
from torch import nn

import magneto

PLAIN, TURNED = torch.arange(3.0), torch.arange(12.0).view(4, 3).t()
LEAF = torch.arange(1.0, 4.0).requires_grad_()
NORM = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.0))
WIDE, PART = torch.arange(16.0).view(4, 4), torch.arange(16.0).view(4, 4)[:, :2]
TAGGED = torch.ones(3)
TAGGED.tag = "kept"  # type: ignore[attr-defined]
WITH_GRAD = torch.ones(3, requires_grad=True)
WITH_GRAD.grad = torch.full((3,), 2.0)


def facts(tensor: torch.Tensor) -> Any:
    return tensor, tensor.stride(), tensor.dtype, tensor.requires_grad, type(tensor)


def one(x: torch.Tensor) -> Any:
    copied = copy.deepcopy(PLAIN)
    copied.add_(1)
    return *facts(copied), PLAIN, copied is PLAIN


def strides_kept(x: torch.Tensor) -> Any:
    return facts(copy.deepcopy(TURNED))


def fresh(x: torch.Tensor) -> Any:
    y = x + 1
    z = copy.deepcopy(y)
    z.mul_(2)
    return y, z


def leaf_with_gradient(x: torch.Tensor) -> Any:
    copied = copy.deepcopy(LEAF)
    (copied * x.sum()).sum().backward()
    return copied.grad, copied.requires_grad, LEAF.grad


def one_in_two_places(x: torch.Tensor) -> Any:
    copied = copy.deepcopy({"a": PLAIN, "rest": [x, (PLAIN, 3)]})
    copied["a"].add_(1)
    return copied, copied["a"] is copied["rest"][1][0]


def module_with_buffers(x: torch.Tensor) -> Any:
    mine = copy.deepcopy(NORM)
    y = mine(x)
    kinds = [type(p) is nn.Parameter for p in mine.parameters()]
    return y, mine[1].running_mean, mine[1].num_batches_tracked, kinds, NORM[1].running_mean


def averaged(x: torch.Tensor) -> Any:
    mine = copy.deepcopy(NORM).eval()
    with torch.no_grad():
        for own, other in zip(mine.state_dict().values(), NORM.state_dict().values(), strict=True):
            if own.is_floating_point():
                own.mul_(0.5).add_(other * 0.5)
    return mine(x)


def a_module_is_given_back(x: torch.Tensor) -> Any:
    mine = copy.deepcopy(NORM)
    return mine(x), dict(mine.named_buffers()), [name for name, _ in mine.named_parameters()]


def states_on_the_way(x: torch.Tensor) -> Any:
    kept = []
    for _ in range(3):
        kept.append(copy.deepcopy(NORM.state_dict()))
        x = NORM(x)
    return kept


def shallow(x: torch.Tensor) -> Any:
    """In the same memory."""
    mine, part = copy.copy(x), copy.copy(x[:1])
    y = x + 1
    other = copy.copy(y)
    other.mul_(2)
    part.add_(1)
    return mine, part, part._base is None, mine is x, mine.stride(), y, other, x


def shallow_parameter(x: torch.Tensor) -> Any:
    weight = NORM[0].weight
    copied = copy.copy(weight)
    kept = type(copied) is nn.Parameter, copied.requires_grad, copied is weight, copied.is_leaf
    return kept, (x @ copied).detach(), copied.detach()


def shallow_with_history(x: torch.Tensor) -> Any:
    copied, leaf = copy.copy(LEAF * 2), copy.copy(LEAF)
    return copied.detach(), copied.requires_grad, copied.grad_fn, leaf.requires_grad, leaf.is_leaf


def shallow_containers(x: torch.Tensor) -> Any:
    copied = copy.copy({"a": x, "b": [x]})
    copied["c"] = copy.copy(copied["b"])
    copied["c"].append(copy.copy(x * 2))
    return copied, copied["b"][0] is x


def shallow_module(x: torch.Tensor) -> Any:
    mine = copy.copy(NORM[0])
    mine.tag = 3
    return mine(x), mine.weight is NORM[0].weight, hasattr(NORM[0], "tag"), mine.tag


ONE_GRAPH = (
    shallow,
    shallow_parameter,
    shallow_with_history,
    shallow_containers,
    shallow_module,
    states_on_the_way,
    one,
    strides_kept,
    fresh,
    leaf_with_gradient,
    one_in_two_places,
    module_with_buffers,
    averaged,
    a_module_is_given_back,
)


def of_one_memory_with_one_memo(x: torch.Tensor) -> Any:
    memo: dict[int, Any] = {}
    a, b = copy.deepcopy(WIDE, memo), copy.deepcopy(WIDE.view(16), memo)
    a.add_(1)
    return a, b


def of_one_memory(x: torch.Tensor) -> Any:
    a, b = copy.deepcopy([WIDE, WIDE.view(16)])
    a.add_(1)
    return a, b


def fresh_of_one_memory(x: torch.Tensor) -> Any:
    y = x + 1
    a, b, c = copy.deepcopy((y, y.detach(), y.view(-1)))
    a.mul_(2)
    return a, b, c


def its_data(x: torch.Tensor) -> Any:
    a, b = copy.deepcopy([x, x.data])
    a.mul_(2)
    return a, b


def part_of_memory(x: torch.Tensor) -> Any:
    copied = copy.deepcopy(PART)
    return copied, copied.stride(), copied.untyped_storage().nbytes()


def with_attributes(x: torch.Tensor) -> Any:
    copied = copy.deepcopy(TAGGED)
    return copied, copied.tag  # type: ignore[attr-defined]


def with_a_gradient(x: torch.Tensor) -> Any:
    copied = copy.deepcopy(WITH_GRAD)
    return copied, copied.grad, copied.grad is WITH_GRAD.grad


def no_leaf(x: torch.Tensor) -> Any:
    try:
        return copy.deepcopy(LEAF * 2)
    except RuntimeError as error:
        return str(error), x + 1


def attribute_set_inside(x: torch.Tensor) -> Any:
    y = x + 1
    y.tag = 3  # type: ignore[attr-defined]
    return copy.deepcopy(y).tag  # type: ignore[attr-defined]


def shallow_with_attributes(x: torch.Tensor) -> Any:
    copied = copy.copy(TAGGED)
    return copied, copied.tag  # type: ignore[attr-defined]


def by_its_own_method(x: torch.Tensor) -> Any:
    make, args = PLAIN.__reduce_ex__(2)[:2]  # type: ignore[no-untyped-call]
    return make(*args), len(args), x + 1


SIDE_EXITS = (
    shallow_with_attributes,
    by_its_own_method,
    of_one_memory_with_one_memo,
    of_one_memory,
    fresh_of_one_memory,
    its_data,
    part_of_memory,
    with_attributes,
    with_a_gradient,
    no_leaf,
    attribute_set_inside,
)


def run(function: Callable[[torch.Tensor], Any]) -> Any:
    state = {name: value.clone() for name, value in NORM.state_dict().items()}
    seen = []
    for rows in (2, 2, 5, 3):
        result = function(torch.arange(4.0 * rows).view(rows, 4).cos())
        seen.append(torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, result))
    NORM.load_state_dict(state)
    return seen


@pytest.mark.parametrize("program", ONE_GRAPH, ids=lambda program: program.__name__)
def test_copies_are_part_of_the_graph(program: Callable[[torch.Tensor], Any]) -> None:
    assert_same(run(magneto.compile(program, fullgraph=True)), run(program))
    assert not magneto.stats()["break_reasons"] and not magneto.stats()["fallbacks"]


@pytest.mark.parametrize("program", SIDE_EXITS, ids=lambda program: program.__name__)
def test_what_else_is_copied_is_an_exit(program: Callable[[torch.Tensor], Any]) -> None:
    assert_same(run(magneto.compile(program)), run(program))
    assert magneto.stats()["break_reasons"]


def pair(a: torch.Tensor, b: torch.Tensor) -> Any:
    a, b = copy.deepcopy([a, b])
    a.add_(1)
    return a, b, b.stride(), getattr(b, "tag", None), b.requires_grad, b.untyped_storage().nbytes()


def test_what_is_assumed_of_memory_is_asked_of_each_run() -> None:
    whole = torch.arange(6.0)
    tagged = torch.arange(6.0)
    tagged.tag = "later"  # type: ignore[attr-defined]
    given = (
        lambda: (torch.arange(6.0), torch.arange(6.0)),
        lambda: (whole, whole),
        lambda: (whole, whole.view(6)),
        lambda: (whole.detach(), whole),
        lambda: (whole, torch.arange(8.0)[:6]),
        lambda: (whole, torch.arange(8.0)[2:]),
        lambda: (whole, tagged),
        lambda: (torch.arange(6.0), torch.arange(6.0)),
        lambda: (whole, torch.ones(6).requires_grad_()),
    )
    compiled = magneto.compile(pair)
    for make in (*given, *given):
        assert_same(compiled(*make()), pair(*make()))
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        compiled(torch.ones(6), torch.ones(6, requires_grad=True) * 2)


def test_tensors_that_are_made_anew_for_each_call_are_one_capture() -> None:
    compiled = magneto.compile(lambda state: copy.deepcopy(state)["x"][0].add_(1), fullgraph=True)
    for call in range(4):
        assert_same(compiled({"x": [torch.full((3,), call)]}), torch.full((3,), call + 1))
    assert magneto.stats()["recompiles"] == 0


def test_memory_of_what_a_view_is_made_of_is_asked_too() -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        a, b = copy.deepcopy([a.detach(), b.detach()])
        a.add_(1)
        return a, b, a.untyped_storage().nbytes()

    compiled, whole = magneto.compile(program), torch.arange(12.0)
    given = (torch.ones(4), torch.ones(4)), (whole[:4], whole[4:8]), (whole, whole.view(12)), (whole[:4], torch.ones(4))
    for first, second in given:
        assert_same(compiled(first, second), program(first, second))


def test_many_buffers_are_told_apart() -> None:
    module = nn.Sequential(*(nn.BatchNorm1d(4) for _ in range(20)))
    compiled = magneto.compile(lambda x: copy.deepcopy(module)(x))
    x = torch.randn(3, 4)
    assert_same(compiled(x), copy.deepcopy(module)(x))
    module[19].running_mean = module[3].running_mean
    assert_same(compiled(x), copy.deepcopy(module)(x))
    module[19].running_mean = module[3].running_mean.view(4)  # type: ignore[operator, union-attr]
    assert_same(compiled(x), copy.deepcopy(module)(x))
    assert magneto.stats()["break_reasons"]
