"""cat and stack of what is computed: each piece is written where it stands, by the kernel that computes it."""

import pytest
import torch
from eager_support import check, hostile

import magneto


@pytest.mark.parametrize("count", [2, 5, 60])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_stack(count, dim):
    check(lambda x, y: torch.stack([x * i + y for i in range(count)], dim), hostile(6, 7), hostile(6, 7))


@pytest.mark.parametrize("dim", [0, 1])
def test_cat_of_many(dim):
    def function(x, y):
        return torch.cat([y, *(torch.tanh(x) * i for i in range(6)), x[:, :3].t().contiguous().t() if dim else x], dim)

    check(function, hostile(5, 7), hostile(5, 7))


def test_pieces_are_read_elsewhere():
    def function(x):
        steps = [x]
        for _ in range(60):
            steps.append(steps[-1] * 0.5 + 1)
        both = torch.stack(steps, 1)
        return both, steps[-1], both.sum(1), steps[7] + both[:, 3]

    check(function, torch.randn(33, 3))


def test_pieces_of_other_dtypes_and_sizes():
    check(
        lambda x, y: torch.cat([x.abs(), y + 1, y[:1] * 2, x[:0], x.int() * 3, x + x]),
        torch.randn(4, 3),
        torch.arange(12).view(4, 3),
    )
    check(lambda x: torch.stack([x + i for i in range(5)], -1), torch.randn(8, 8).bfloat16())


def test_no_copy_is_called():
    magneto.reset()
    check(lambda x: torch.stack([x + i for i in range(9)]), torch.randn(4))
    assert not magneto.stats()["externs"]


def test_written_into_an_input():
    def function(x, out):
        out.copy_(torch.stack([x + i for i in range(5)]) + out.flip(0))
        return out.sum()

    check(function, torch.randn(4), torch.randn(5, 4))
