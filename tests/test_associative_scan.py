"""torch's associative_scan inside captures: one step after the other, or, of many, in pairs."""

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
@pytest.mark.parametrize("length", [1, 2, 7, 33, 257, 1000])
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


def test_any_length_in_one_graph():
    def function(a, b):
        return associative_scan(decayed, (a, b), 0, combine_mode="generic")

    compiled = magneto.compile(function, dynamic=True, fullgraph=True)
    for length in (20, 7, 400):
        args = torch.rand(length, 3), torch.randn(length, 3)
        torch.testing.assert_close(compiled(*args), function(*args))
    assert (magneto.stats()["graphs"], magneto.stats()["recompiles"]) == (1, 0)


@pytest.mark.parametrize("length", [40, 500])
def test_trees_and_gradients(length):
    def products(left, right):
        return {"m": left["m"] @ right["m"], "s": [left["s"][0] + right["s"][0]]}

    def function(m, s):
        found = associative_scan(products, {"m": m, "s": [s]}, 0, reverse=True, combine_mode="generic")
        return found["m"], found["s"][0]

    def plain(m, s):
        state = {"m": m[-1], "s": [s[-1]]}
        steps = [state]
        for i in reversed(range(length - 1)):
            state = products(state, {"m": m[i], "s": [s[i]]})
            steps.insert(0, state)
        return torch.stack([step["m"] for step in steps]), torch.stack([step["s"][0] for step in steps])

    compiled = magneto.compile(function, fullgraph=True)
    values = torch.linalg.qr(torch.randn(length, 3, 3, dtype=torch.float64))[0], torch.randn(length, 3, 3).double()
    grads = []
    for call in (compiled, plain):
        args = [value.clone().requires_grad_() for value in values]
        m, s = call(*args)
        grads.append((m, *torch.autograd.grad(m.sum(), args[:1])))
    torch.testing.assert_close(*grads)


def test_its_errors_are_its_own():
    compiled = magneto.compile(lambda x: associative_scan(torch.add, x, 0))
    with pytest.raises(ValueError, match="pointwise"):
        compiled(torch.randn(4, 3))
