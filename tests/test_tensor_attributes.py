"""What no guard tells of a tensor is read for real, in a side exit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import magneto

BACKENDS = ("aot_eager", "magneto")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.storage_offset(),
        lambda x: x._version,
        lambda x: x._base is None,
        lambda x: x._is_view(),
        lambda x: x.output_nr,
        lambda x: x.is_leaf,
        lambda x: x.retains_grad,
    ],
    ids=range(7),
)
def test_what_no_guard_tells_of_a_tensor_is_read_for_real(read: Callable[[torch.Tensor], Any], backend: str) -> None:
    compiled = magneto.compile(lambda x: (x.detach() + 1, read(x)), backend=backend)
    kept = torch.ones(3, requires_grad=True) * 2
    kept.retain_grad()
    written = torch.ones(3)
    written.add_(1)
    leaf = torch.ones(6, requires_grad=True)
    for x in (torch.ones(3), torch.ones(6)[3:], written, leaf[:3], leaf.split(3)[1], kept, leaf[3:].detach()):
        assert compiled(x)[1] == read(x)
        assert compiled(x)[1] == read(x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_whether_a_tensor_is_a_leaf_is_asked_of_each_run(backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        y = x.detach() * (2 if x.is_leaf else 3)
        return y, x.grad_fn is None, bool(x.requires_grad and not x.is_leaf)

    compiled = magneto.compile(program, backend=backend, fullgraph=True)
    leaf = torch.ones(3, requires_grad=True)
    for x in (
        torch.ones(3),
        leaf,
        leaf * 2,
        leaf[:3],
        leaf.detach(),
        torch.nn.Parameter(torch.ones(3)),
        leaf * 2,
        leaf,
    ):
        got, want = compiled(x), program(x)
        assert torch.equal(got[0], want[0]) and got[1:] == want[1:]
    assert magneto.stats()["breaks"] == 0


BIG = torch.arange(10.0)


def offsets(x: torch.Tensor) -> Any:
    y = x + 1
    return x.storage_offset(), x[1:].storage_offset(), y[2:].storage_offset(), BIG[3:].storage_offset(), y


@pytest.mark.parametrize("dynamic", [None, True])
def test_where_a_tensor_begins_in_its_memory_is_asked_of_each_run(dynamic: bool | None) -> None:
    compiled = magneto.compile(offsets, dynamic=dynamic, fullgraph=True)
    for x in (BIG[:6], BIG[2:8], BIG[4:], torch.ones(6), BIG[2:6], torch.ones(7)[2:], BIG[2:8].detach()):
        got, want = compiled(x), offsets(x)
        assert got[:-1] == want[:-1] and torch.equal(got[-1], want[-1])
