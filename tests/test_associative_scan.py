"""torch's associative_scan inside captures: one step after the other, in the caller's graph."""

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan

import magneto


def decayed(left, right):
    return left[0] * right[0], right[0] * left[1] + right[1]


def check(function, *args, breaks=0):
    magneto.reset()
    with torch.no_grad():
        expected = function(*args)
        compiled = magneto.compile(function)
        for _ in range(2):
            actual = compiled(*args)
            for left, right in zip(actual, expected, strict=True):
                assert left.stride() == right.stride()
                torch.testing.assert_close(left, right)
    assert magneto.stats()["breaks"] == breaks


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [2, 7, 33])
def test_recurrence(dim, reverse, length):
    shape = [3, 4, 5]
    shape[dim] = length
    check(
        lambda a, b: associative_scan(decayed, (a, b), dim, reverse=reverse, combine_mode="generic"),
        torch.rand(shape),
        torch.randn(shape),
    )


def test_a_tensor_alone():
    check(lambda x: (associative_scan(torch.add, x, 0, combine_mode="generic"),), torch.randn(9, 3))


def test_one_step_runs_as_written():
    check(lambda x: (associative_scan(torch.add, x, 0, combine_mode="generic"),), torch.randn(1, 3), breaks=1)


def test_its_errors_are_its_own():
    compiled = magneto.compile(lambda x: associative_scan(torch.add, x, 0))
    with pytest.raises(ValueError, match="pointwise"):
        compiled(torch.randn(4, 3))
