"""One operator that has no kernel, or no functional form, costs its own call: what stands around it is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import magneto

Program = Callable[..., Any]


@torch.library.custom_op("called_parts::scale_", mutates_args=("x",))
def scale_(x: Tensor, by: float) -> None:
    x.mul_(by)


@torch.library.custom_op("called_parts::moved", mutates_args=("x", "y"))
def moved(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    y.zero_()
    return x.sum()


@moved.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return x.new_empty(())


def written(write: Callable[[Tensor], Any]) -> Program:
    """`write` is given memory that the program made; then it is read."""

    def program(x: Tensor) -> Tensor:
        made = x * 2
        write(made)
        return made.relu() + 1

    return program


def seen_through(write: Callable[[Tensor], Any]) -> Program:
    """Views from before the write, of the program's own memory and of an input, see it; one leaves."""

    def program(x: Tensor) -> tuple[Tensor, ...]:
        made = x * 2
        row, turned, other = made[1], made.t(), x[:, 1:]
        write(made)
        write(x)
        row.add_(1)
        return turned.relu(), other.sin() + 1, row, made[0] * x

    return program


def batch_norm(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return F.batch_norm(x * 2, mean, variance, training=True).relu() + 1


def instance_norm(x: Tensor) -> Tensor:
    return F.instance_norm(x * 2).relu()


def view_from_before(x: Tensor) -> tuple[Tensor, Tensor]:
    made = x * 2
    window = made.as_strided((2, 2), (1, 2), 1)
    made.add_(1)
    result = window * 2
    window.mul_(3)
    return result.relu(), made + 1


def views_that_leave(x: Tensor) -> tuple[Tensor, ...]:
    made = x * 2
    window = made.unfold(0, 2, 2)
    window.mul_(made.mean())
    return made, window, made + 1


def as_complex(x: Tensor) -> Tensor:
    product = torch.view_as_complex(x.reshape(-1, 2) * 2) * torch.view_as_complex(x.reshape(-1, 2) + 1)
    return torch.view_as_real(product).relu() + 1


def spectrum(x: Tensor) -> Tensor:
    return (torch.fft.rfft(x * 2).abs() + 1).log()


def renamed(x: Tensor) -> Tensor:
    made = x * 2
    made.t_()
    made.unsqueeze_(0)
    made.transpose_(0, 2)
    return made.squeeze_().relu() + 1


def out_of_product(x: Tensor) -> Tensor:
    made = x * 2
    torch.mm(x, x, out=made)
    return made.relu() + 1


def custom_in_the_middle(x: Tensor) -> tuple[Tensor, ...]:
    made = x * 2
    view = made[1:]
    scale_(made, 3.0)
    total = moved(made, x)
    return view.relu() + 1, made + total, x + 1


SQUARE = (4, 4)
# name -> (program, shapes of its arguments, called operators that it may have)
PROGRAMS: dict[str, tuple[Program, tuple[tuple[int, ...], ...], set[str]]] = {
    "batch_norm": (batch_norm, ((2, 3, 8, 8), (3,), (3,)), set()),
    "instance_norm": (instance_norm, ((2, 3, 8, 8),), set()),
    "pow_": (written(lambda x: x.pow_(2)), (SQUARE,), set()),
    "pow_of_input": (lambda x: x.pow_(2) + 1, (SQUARE,), set()),
    "float_power_": (lambda x: (x * 2).double().float_power_(2) + 1, (SQUARE,), set()),
    "renamed": (renamed, ((4, 3),), set()),
    "normal_": (written(lambda x: x.normal_()), (SQUARE,), {"normal_functional"}),
    "normal_in_turned_memory": (written(lambda x: x.t().normal_()), ((4, 3),), {"normal_", "normal_functional"}),
    "dropout_in_turned_memory": (
        lambda x: F.dropout(x.t() * 2, 0.5) + 1,
        ((4, 3),),
        {"bernoulli_", "bernoulli", "empty_like"},
    ),
    "uniform_in_a_slice": (written(lambda x: x[1:, ::2].uniform_()), (SQUARE,), {"uniform_", "uniform"}),
    "geometric_": (written(lambda x: x.geometric_(0.5)), (SQUARE,), {"geometric"}),
    "rrelu_": (
        lambda x: F.rrelu_(x * 2 - 2, training=True) + 1,
        (SQUARE,),
        {"rrelu_with_noise_functional", "rrelu_with_noise_", "empty_like"},
    ),
    "renorm_": (written(lambda x: x.renorm_(2, 0, 1.0)), (SQUARE,), {"renorm"}),
    "fill_diagonal_": (written(lambda x: x.fill_diagonal_(0.5)), (SQUARE,), {"as_strided", "fill_"}),
    "seen_fill_diagonal_": (seen_through(lambda x: x.fill_diagonal_(0.5)), (SQUARE,), {"as_strided", "fill_"}),
    "windows": (written(lambda x: x.unfold(0, 2, 2).mul_(3)), (SQUARE,), {"mul_", "unfold"}),
    "seen_windows": (seen_through(lambda x: x.unfold(0, 2, 2).mul_(3)), (SQUARE,), {"mul_", "unfold"}),
    "as_strided": (written(lambda x: x.as_strided((2, 2), (1, 2), 1).mul_(3)), (SQUARE,), {"as_strided", "mul_"}),
    "view_from_before": (view_from_before, (SQUARE,), {"as_strided", "mul_", "add_"}),
    "views_that_leave": (views_that_leave, (SQUARE,), {"unfold", "mul_", "mean"}),
    "as_complex": (as_complex, (SQUARE,), {"mul", "view_as_complex", "view_as_real"}),
    "spectrum": (spectrum, (SQUARE,), {"_fft_r2c", "abs"}),
    "out_of_product": (out_of_product, (SQUARE,), {"mm"}),
    "custom_in_the_middle": (custom_in_the_middle, (SQUARE,), {"scale_", "moved", "add", "slice"}),
}


def run(program: Program, given: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    torch.manual_seed(1)
    result = program(*given)
    return [*(result if isinstance(result, tuple) else (result,)), *given], torch.get_rng_state()


@pytest.mark.parametrize("layout", ["row_major", "turned", "slice"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_only_what_must_be_is_called(name: str, layout: str) -> None:
    program, shapes, called = PROGRAMS[name]

    def arguments() -> list[Tensor]:
        torch.manual_seed(0)
        made = []
        for shape in shapes:
            x = torch.rand(*shape) + 0.5
            if layout == "turned":
                x = x.transpose(0, -1).contiguous().transpose(0, -1)
            elif layout == "slice":
                x = torch.stack([x, x], -1)[..., 0]
            made.append(x)
        return made

    compiled = magneto.compile(program, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            expected, state = run(program, arguments())
            actual, own_state = run(compiled, arguments())
            for left, right in zip(actual, expected, strict=True):
                assert (left.dtype, left.shape, left.stride()) == (right.dtype, right.shape, right.stride())
                torch.testing.assert_close(left, right)
                assert left._version == right._version
                assert left._is_view() == right._is_view()
            assert torch.equal(state, own_state)
            pairs = [(i, j) for i in range(len(expected)) for j in range(i)]
            for i, j in pairs:
                shared = [
                    values[i].untyped_storage().data_ptr() == values[j].untyped_storage().data_ptr()
                    for values in (actual, expected)
                ]
                assert shared[0] == shared[1], (i, j)
    stats = magneto.stats()
    assert stats["uncompiled"] == {} and stats["kernels"] > 0, stats
    assert {name.split("::")[1] for name in stats["externs"]} <= called, stats["externs"]
