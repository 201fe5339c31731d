"""Arguments of exported programs that lie in memory otherwise than the example's: eager's values, or a refusal where the
program itself asks how they lie."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compare import assert_same
from torch import nn
from torch.export import Dim, export, unflatten

pytestmark = pytest.mark.usefixtures("installed")

r = torch.randn
SHAPES: Any = (None, ({0: Dim.AUTO, 1: Dim.AUTO},))
ARGUMENTS: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: r(4, 3, 5).transpose(0, 1),
    "with gaps": lambda: r(3, 4, 10)[..., ::2],
    "inside out": lambda: r(3, 5, 4).transpose(1, 2),
    "a part": lambda: r(5, 4, 6)[1:4, :, 1:],
    "expanded": lambda: r(4, 5).expand(3, 4, 5),
    "as it was": lambda: r(3, 4, 5),
}


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.linear(x))


PROGRAMS: dict[str, Callable[[], Any]] = {
    "reshape": lambda: lambda x: x.reshape(-1) * 2,
    "of what is computed": lambda: lambda x: (x * 2).flatten(1).sum(1),
    "linear": Linear,
    "pieces": lambda: lambda x: torch.cat([each.reshape(-1) for each in x.unbind(1)]),
    "pointwise": lambda: lambda x: x * 2,
    "view": lambda: lambda x: x.transpose(0, 1),
    "statistics": lambda: lambda x: F.layer_norm(x, (5,)).mean((0, 1)),
}


def ways(program: Any) -> list[Any]:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return [
        program.module(),
        torch.export.load(file).module(),
        program.run_decompositions().module(),
        unflatten(program),
    ]


@pytest.mark.parametrize("shapes", SHAPES, ids=["fixed", "varies"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_are_those_of_eager(name: str, shapes: Any) -> None:
    torch.manual_seed(0)
    model = PROGRAMS[name]()
    for module in ways(export(model, (r(3, 4, 5),), dynamic_shapes=shapes)):
        for make in ARGUMENTS.values():
            x = make()
            got, want = module(x), model(x)
            torch.testing.assert_close(got, want)
            assert got.requires_grad == want.requires_grad
            if name in ("pointwise", "view"):
                assert got.stride() == want.stride()
                assert (got.data_ptr() == x.data_ptr()) == (name == "view")


def test_the_example_says_how_they_lie() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())
    example = r(2, 3, 6, 8).to(memory_format=torch.channels_last)
    module = export(model, (example,), dynamic_shapes=({0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO},)).module()
    for x in (r(2, 3, 6, 8), r(4, 3, 9, 5).to(memory_format=torch.channels_last), r(1, 3, 8, 6).transpose(2, 3)):
        torch.testing.assert_close(module(x), model(x))


def written(x: torch.Tensor) -> Any:
    x.add_(1)
    return x, x.reshape(-1) * 2


@pytest.mark.parametrize("shapes", SHAPES, ids=["fixed", "varies"])
@pytest.mark.parametrize("name", [name for name in ARGUMENTS if name != "expanded"])
def test_arguments_that_are_written(name: str, shapes: Any) -> None:
    for module in ways(export(written, (r(3, 4, 5),), dynamic_shapes=shapes)):
        given = ARGUMENTS[name]()
        want = given.clone()
        result = module(given)
        assert_same(result[1], written(want)[1])
        assert torch.equal(given, want)
        assert result[0] is given


def test_gradients_reach_what_was_given() -> None:
    model = Linear()
    module = export(model, (r(3, 4, 5),)).module()
    x = r(4, 3, 5, requires_grad=True)
    module(x.transpose(0, 1)).sum().backward()
    found, x.grad = x.grad, None
    model(x.transpose(0, 1)).sum().backward()
    torch.testing.assert_close(found, x.grad)


ASKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x + 1 if x.is_contiguous() else x - 1,
    "stride": lambda x: x + x.stride(0),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 2)) * 1,
}


@pytest.mark.parametrize("shapes", SHAPES, ids=["fixed", "varies"])
@pytest.mark.parametrize("name", ASKS)
def test_programs_that_ask_how_their_arguments_lie(name: str, shapes: Any) -> None:
    program = ASKS[name]
    module = export(program, (r(3, 4, 5),), dynamic_shapes=shapes).module()
    x = r(3, 4, 5)
    assert_same(module(x), program(x))
    for other, make in ARGUMENTS.items():
        if other != "as it was":
            with pytest.raises(RuntimeError, match="the program asks how its tensors lie in memory"):
                module(make())
