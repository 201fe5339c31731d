"""Tensors of which several elements are one place in memory, written: as eager, write by write or by the same error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import magneto

BASE = torch.arange(24.0)
LAYOUTS = {
    "expanded": BASE[:3, None].expand(3, 4),
    "windows of two": BASE.as_strided((3, 2), (1, 1)),
    "windows of four": BASE.as_strided((3, 4), (2, 1)),
    "unfolded": BASE[:9].unfold(0, 4, 2),
    "equal strides": BASE.as_strided((2, 3), (2, 2)),
    # Apart, to compare with.
    "gaps": BASE.as_strided((3, 2), (4, 2)),
    "transposed": BASE.view(4, 6).t(),
    "narrow": BASE.view(4, 6)[:, :3],
}
WRITES: dict[str, Callable[[Tensor], object]] = {
    "add": lambda x: x.add_(1),
    "itself": lambda x: x.mul_(x),
    "fill": lambda x: x.fill_(2),
    "zero": lambda x: x.zero_(),
    "copy": lambda x: x.copy_(torch.arange(float(x.numel())).view(x.shape)),
    "row": lambda x: x[0].add_(1),
    "columns": lambda x: x[..., :1].mul_(3),
    "twice": lambda x: x.neg_().add_(1),
    "index_put": lambda x: x.index_put_((torch.tensor([0, 1]),), torch.tensor(5.0)),
    "cumsum": lambda x: x.cumsum_(0),
    "masked_fill": lambda x: x.masked_fill_(x > 3, 0.0),
    "sum": lambda x: x.__iadd__(x.sum()),
    "index_fill": lambda x: x.index_fill_(0, torch.tensor([1]), 9.0),
    "scatter": lambda x: x.scatter_(0, torch.zeros(1, 2, dtype=torch.long), 7.0),
}


def outcome(function: Callable[[Tensor], Tensor], like: Tensor) -> tuple[object, Tensor]:
    storage = like.untyped_storage().clone()
    x = torch.empty(0).set_(storage, like.storage_offset(), like.shape, like.stride())  # type: ignore[call-overload]
    try:
        return function(x).tolist(), x
    except RuntimeError as error:
        return str(error), x


@pytest.mark.parametrize("dynamic", [None, True], ids=["sizes of the capture", "all sizes"])
@pytest.mark.parametrize("backend", ["magneto", "aot_eager"])
@pytest.mark.parametrize("name", WRITES)
def test_writes(name: str, backend: str, dynamic: bool | None) -> None:
    def program(x: Tensor) -> Tensor:
        WRITES[name](x)
        return x * 2

    compiled = magneto.compile(program, backend=backend, dynamic=dynamic)
    for layout, like in LAYOUTS.items():
        (expected, theirs), (actual, ours) = outcome(program, like), outcome(compiled, like)
        assert actual == expected, layout
        assert torch.equal(ours, theirs), layout
