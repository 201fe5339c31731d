"""Compiled programs against eager: dtypes, strides, aliasing, mutation, hostile values, empty tensors."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compare import assert_same
from eager_support import check, hostile

import magneto

pytestmark = pytest.mark.usefixtures("kernels")

UNARY = [
    torch.exp, torch.log, torch.sqrt, torch.rsqrt, torch.sin, torch.cos, torch.tanh, torch.sigmoid, torch.erf, torch.abs,
    torch.neg, torch.floor, torch.ceil, torch.round, torch.trunc, torch.reciprocal, torch.log1p, torch.expm1, torch.relu,
    F.silu, F.gelu, F.softplus, F.elu, F.leaky_relu, F.hardswish, F.hardsigmoid, F.hardtanh, F.relu6, F.mish,
    lambda x: F.gelu(x, approximate="tanh"), torch.isnan, torch.isinf, lambda x: x.clamp(-1, 1), lambda x: x.clamp(min=0.5),
    lambda x: x**2, lambda x: x**0.5, lambda x: x**-1, lambda x: x**3, lambda x: 2**x, lambda x: 1 - x, lambda x: x / 3,
    lambda x: x > 0, lambda x: x == 1, lambda x: torch.where(x > 0, x, -x), lambda x: x.masked_fill(x < 0, 7.0),
    lambda x: torch.sign(x), lambda x: x.nan_to_num(), lambda x: torch.fmod(x, 2), lambda x: torch.remainder(x, 2),
    lambda x: torch.floor_divide(x, 0.3), lambda x: torch.square(x), lambda x: torch.lerp(x, x * 2, 0.3),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("function", UNARY, ids=range(len(UNARY)))
def test_elementwise(function: Callable[..., Any], dtype: torch.dtype) -> None:
    x = hostile(32, dtype=dtype)
    check(function, x, calls=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("one_dnn", [True, False])
def test_gelu_of_infinity(dtype: torch.dtype, one_dnn: bool) -> None:
    """Eager's depends on which of its kernels runs: oneDNN's gives NaN."""
    extremes = [math.inf, -math.inf, 3.3e38, 1.8e38, 1.6e38, -3.3e38, 65504.0, -0.0, 0.0, math.nan]
    x = torch.tensor(extremes).to(dtype)
    previous = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(one_dnn)
    try:
        for part in (x, x[:1], x[2:3], x[::2], torch.stack([x, x]).t(), x.expand(3, 10), x[:0]):
            magneto.reset()
            check(F.gelu, part, calls=1)
            check(lambda x: F.gelu(x, approximate="tanh"), part, calls=1)
    finally:
        torch._C._set_mkldnn_enabled(previous)


def test_integers_and_bools() -> None:
    x = torch.tensor([0, 1, -1, 5, -7, 2**31 - 1, -(2**31), 3])
    mask = x > 0

    def f(x: torch.Tensor, mask: torch.Tensor) -> Any:
        return (
            x + 1,
            x * x,
            x / 2,
            x // 3,
            x % 3,
            x & 6,
            x | 1,
            x ^ 3,
            ~x,
            -x,
            x.abs(),
            mask & ~mask,
            mask | mask,
            mask + mask,
        )

    check(f, x, mask)
    check(lambda x: (x + 1.5, x * True, x.float() * 2, x.to(torch.int32) + 1, x.sum(), x.prod(), x.double().mean()), x)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32], ids=str)
def test_small_integers_wrap(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 100, 127, 5, 77, 3, 64]).to(dtype)
    check(lambda x: (x + x, x * x, x - 100, x * 2 + 1, x.sum(), x.max(), -x), x)


LAYOUTS = {
    "contiguous": lambda: torch.randn(4, 6, 8),
    "transposed": lambda: torch.randn(8, 6, 4).transpose(0, 2),
    "sliced": lambda: torch.randn(8, 12, 16)[::2, 1::2, ::2],
    "expanded": lambda: torch.randn(4, 1, 8).expand(4, 6, 8),
    "offset": lambda: torch.randn(5, 6, 8)[1:],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str) -> None:
    x = LAYOUTS[layout]()
    check(lambda x: (x + 1, x.sum(0), x.mean(-1), x.softmax(1), x.permute(1, 0, 2) * 2, x[:, 2] - x[:, 3]), x, calls=1)
    check(lambda x: F.layer_norm(x, (8,)), x, calls=1)
    check(lambda x: x.reshape(4, 48).relu(), x, calls=1)


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_reductions_of_hostile_values(dim: int) -> None:
    x = hostile(4, 6, 8)
    # What cancels depends on the order of a sum, which is nobody's promise.
    x = torch.where(x.isfinite() & (x.abs() > 1e30), torch.ones(()), x)

    def f(x: torch.Tensor) -> Any:
        return (
            x.sum(dim),
            x.amax(dim),
            x.amin(dim, keepdim=True),
            tuple(x.max(dim)),
            x.argmin(dim),
            x.softmax(dim),
            x.log_softmax(dim),
        )

    check(f, x)
    check(lambda x: (x.var(dim), x.std(dim, correction=0), x.norm(dim=dim), x.logsumexp(dim)), torch.randn(4, 6, 8))


def test_all_of_it() -> None:
    x = torch.randn(5, 7, 9)
    check(lambda x: (x.sum(), x.mean(), x.max(), x.argmax(), x.var(), (x > 0).any(), (x > 0).all(), x.prod()), x)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4)])
def test_empty(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    check(lambda x: (x + 1, x.sum(), x * x.sum(), x.exp().sum(-1), x.softmax(-1)), x)


def test_scalars() -> None:
    x, y = torch.tensor(2.0), torch.randn(3)
    check(lambda x, y: (x + 1, x * y, x.sum(), y / x, x.softmax(0), x.cumsum(0)), x, y)


def test_cumulative() -> None:
    x = torch.randn(4, 33)
    check(lambda x: (x.cumsum(-1), x.cumsum(0), x.cumprod(1) * 2, (x * 2).cumsum(1) + 1), x)


# -- what moves ----------------------------------------------------------------------------------------------------------


def test_pieces() -> None:
    x = torch.randn(4, 6)

    def f(x: torch.Tensor) -> Any:
        rotated = torch.cat((-x[:, 3:], x[:, :3]), dim=-1)
        stacked = torch.stack([x * 2, x + 1], 1)
        padded = F.pad(x * 2, (1, 2, 3, 0), value=5.0)
        return (
            rotated,
            stacked,
            padded,
            x.flip(1) * 2,
            x.roll(2, 1),
            x.repeat(2, 3),
            torch.tril(x * 2),
            torch.triu(x, 1),
        )

    check(f, x)
    check(lambda x: (torch.cat([x, x + 1, x * 2], 0).sum(0), F.pad(x, (-1, 2))), x)
    check(lambda x: x.unfold(1, 3, 1).sum(-1) + x.diagonal().sum(), x)


def test_indexing() -> None:
    table, rows = torch.randn(10, 4), torch.tensor([[0, 3], [9, 9]])
    check(lambda t, r: F.embedding(r, t) * 2, table, rows)
    check(lambda t, r: t.index_select(0, r[0]) + 1, table, rows)
    check(lambda t, r: (t * 2).index_select(0, r[0]) + 1, table, rows)
    check(lambda t, r: t[r] + t[r[0]].sum(), table, rows)
    check(lambda t, r: torch.gather(t, 0, r) + 1, table, rows)


@pytest.mark.parametrize("bad", [10, -1])
def test_indices_out_of_bounds_raise(bad: int) -> None:
    table, rows = torch.randn(10, 4), torch.tensor([0, 1])
    compiled = magneto.compile(lambda t, r: F.embedding(r, t) * 2)
    compiled(table, rows)
    with pytest.raises(IndexError):
        compiled(table, torch.tensor([0, bad]))
    assert_same(compiled(table, rows), F.embedding(rows, table) * 2)


def test_factories() -> None:
    def f(x: torch.Tensor) -> Any:
        n = x.shape[0]
        positions = torch.arange(n)
        mask = positions[:, None] >= positions[None, :]
        return (
            torch.where(mask, 0.0, -1e9),
            torch.zeros(3) + x.sum(),
            torch.full_like(x, 2),
            torch.arange(0, 1, 0.1) * 2,
        )

    check(f, torch.randn(5))


# -- writes and aliases -------------------------------------------------------------------------------------------------


def written(x: torch.Tensor) -> Any:
    x.add_(1)
    return x * 2


def written_often(x: torch.Tensor) -> Any:
    x.mul_(2)
    x[0] = 3
    x[:, 1:3] += x[:, :2].clone()
    x.t()[2].zero_()
    return x, x[1:], x.sum()


def reads_before_and_after(x: torch.Tensor) -> Any:
    before = x + 0
    transposed = x.t() @ x
    x.copy_(x.flip(0))
    return before, transposed, x - before


def views_of_results(x: torch.Tensor) -> Any:
    y = x.exp()
    y[0] += 1
    return y, y.t(), y[1], y.view(-1)[2:5]


def view_only(x: torch.Tensor) -> Any:
    return (x * 2).t()


def views_of_input(x: torch.Tensor) -> Any:
    return x.t(), x[1], x.view(-1), x


def out_argument(x: torch.Tensor) -> Any:
    out = torch.empty_like(x)
    torch.add(x, 1, out=out)
    torch.mul(out, 2, out=out)
    return out


def diagonal_write(x: torch.Tensor) -> Any:
    y = x.clone()
    y.diagonal().fill_(5)
    y.unsqueeze(0).squeeze(0).add_(1)
    first, second = y.chunk(2, 0)
    first.mul_(second)
    return y, first


WRITERS = [
    written,
    written_often,
    reads_before_and_after,
    views_of_results,
    view_only,
    views_of_input,
    out_argument,
    diagonal_write,
]


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced"])
@pytest.mark.parametrize("function", WRITERS, ids=lambda function: function.__name__)
def test_writes_and_views(function: Callable[..., Any], layout: str) -> None:
    x = {"contiguous": torch.randn(4, 4), "transposed": torch.randn(4, 4).t(), "sliced": torch.randn(8, 8)[::2, ::2]}[
        layout
    ]
    if layout != "contiguous" and function in (views_of_input, views_of_results):
        x = x.contiguous()  # view(-1) is an error in eager too
    check(function, x)


def test_inputs_that_change_places() -> None:
    """One kernel may write an input only after its last read of it."""

    def swap(x: torch.Tensor, y: torch.Tensor) -> Any:
        old = x + 0
        x.copy_(y)
        y.copy_(old)
        return x + y

    def chain(x: torch.Tensor, y: torch.Tensor) -> None:
        before = x * 2
        x.add_(y)
        y.add_(before).mul_(x)

    check(swap, torch.randn(64), torch.randn(64))
    check(chain, torch.randn(64), torch.randn(64))


def test_outputs_share_memory_as_in_eager() -> None:
    x = torch.randn(3, 4)
    compiled = magneto.compile(views_of_results)
    with torch.no_grad():
        y, transposed, row, part = compiled(x)
    assert transposed.data_ptr() == y.data_ptr() and transposed._base is y
    assert row.data_ptr() == y.data_ptr() + 16 and part.data_ptr() == y.data_ptr() + 8
    y.zero_()
    assert transposed.sum() == row.sum() == part.sum() == 0


def test_outputs_are_fresh_each_call() -> None:
    x = torch.randn(64)
    compiled = magneto.compile(lambda x: (x + 1, torch.ones(3), torch.tensor([1, 2])))
    with torch.no_grad():
        first, second = compiled(x), compiled(x)
    for one, other in zip(first, second, strict=True):
        assert one.data_ptr() != other.data_ptr()
        one.zero_()
    assert_same(compiled(x), (x + 1, torch.ones(3), torch.tensor([1, 2])))


def test_inputs_that_overlap_what_is_written() -> None:
    """Another tensor over the written memory sees the write in the middle, as in eager."""

    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(1)
        z = y * 2
        x.mul_(3)
        return z + y

    compiled = magneto.compile(f)
    with torch.no_grad():
        for overlap in (False, True, False):
            ours, theirs = torch.arange(6.0), torch.arange(6.0)
            other = (lambda t: t[:3]) if overlap else (lambda t: torch.ones(3))
            assert_same(compiled(ours[2:5], other(ours)), f(theirs[2:5], other(theirs)))
            assert_same(ours, theirs)


def test_inference_mode() -> None:
    x = torch.randn(4, 4)
    compiled = magneto.compile(lambda x: (torch.softmax(x @ x, -1) + 1, x.t()))
    with torch.inference_mode():
        for _ in range(2):
            result = compiled(x)
            # A view of a normal tensor is a normal tensor.
            assert [tensor.is_inference() for tensor in result] == [True, False]
    with torch.no_grad():
        assert not compiled(x)[0].is_inference()


def test_random_numbers_are_eagers() -> None:
    x = torch.randn(64)

    def f(x: torch.Tensor) -> Any:
        return F.dropout(x, 0.5) + torch.rand(64) + torch.rand_like(x), torch.randn(3)

    compiled = magneto.compile(f)
    with torch.no_grad():
        for _ in range(2):
            torch.manual_seed(5)
            expected = f(x)
            torch.manual_seed(5)
            assert_same(compiled(x), expected)


def test_dropout_is_one_call_of_a_compiled_graph() -> None:
    """bernoulli_ had the whole graph run operator by operator."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.dropout2d(F.dropout(x.sin(), 0.5) * 2, 0.25) + 1

    compiled = magneto.compile(f)
    for _ in range(2):
        torch.manual_seed(5)
        expected = f(x := torch.arange(240.0).view(2, 5, 4, 6))
        torch.manual_seed(5)
        assert_same(compiled(x), expected)
        assert torch.equal(torch.rand(3), (torch.manual_seed(5), f(x), torch.rand(3))[2])
    assert not magneto.stats()["uncompiled"] and magneto.stats()["kernels"]
    # In another layout eager's numbers come in another order: that graph is eager's.
    x = torch.randn(2, 8, 5, 5).to(memory_format=torch.channels_last)
    torch.manual_seed(5)
    expected = f(x)
    torch.manual_seed(5)
    assert_same(compiled(x), expected)


def test_pooling_of_channels_last_is_compiled() -> None:
    """It ends with as_strided_, for dimensions of size one."""
    x = torch.randn(2, 8, 5, 5).to(memory_format=torch.channels_last)
    check(lambda x: (F.adaptive_avg_pool2d(x * 2, 1).flatten(1) * 2, F.adaptive_avg_pool2d(x * 3, 1)[:, :, 0]), x)
    assert not magneto.stats()["uncompiled"]


def test_a_view_of_written_memory_has_its_version() -> None:
    check(lambda x: (x * 2).add_(1)[:, 0], torch.randn(3, 4))


@pytest.mark.threads
def test_threads_have_memory_of_their_own() -> None:
    """Concurrent calls of one program."""
    w = torch.randn(32, 32)

    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = torch.softmax(x @ w, -1) + x
        return x

    compiled = magneto.compile(f)
    inputs = [torch.randn(8, 32) for _ in range(4)]
    with torch.no_grad():
        expected = [f(x) for x in inputs]
        compiled(inputs[0])
    wrong: list[int] = []

    def work(i: int) -> None:
        with torch.no_grad():
            for _ in range(20):
                if not torch.allclose(compiled(inputs[i]), expected[i], atol=1e-5):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_norms() -> None:
    x, w, b = torch.randn(4, 8, 5, 5), torch.randn(8), torch.randn(8)
    mean, var = torch.randn(8), torch.rand(8)
    check(lambda x, w, b: F.group_norm(x, 2, w, b), x, w, b)
    check(lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b).relu(), x, mean, var, w, b)
    check(lambda x: F.layer_norm(x, (5, 5)), x)
    check(lambda x: F.rms_norm(x, (5,)), x)
    check(lambda x: F.normalize(x, dim=1), x)
    check(lambda x: F.instance_norm(x), x, compiled_only=False)


def test_loss() -> None:
    x, target = torch.randn(8, 10), torch.randint(0, 10, (8,))
    check(lambda x, t: F.cross_entropy(x, t), x, target)
    check(lambda x, t: F.mse_loss(x, t) + F.l1_loss(x, t) + F.smooth_l1_loss(x, t), x, torch.randn(8, 10))


def test_optimizer_step() -> None:
    p, g, m, v = (torch.randn(16) for _ in range(4))

    def adam(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> None:
        m.lerp_(g, 0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        p.addcdiv_(m, v.abs().sqrt().add_(1e-8), value=-0.01)

    check(adam, p, g, m, v)


def test_one_index_per_dimension() -> None:
    x = torch.randn(5, 6, 7)
    i, j = torch.tensor([0, -1, 3]), torch.tensor([[1], [-2]])
    check(lambda x, i, j: (x[i], x[:, i], x[i, j], x[i, :, j], x[:, i, j], (x * 2)[..., i], x[j]), x, i, j)


@pytest.mark.parametrize("shape", [(1 << 17,), (3, 1 << 16), (256, 256), (65537,), (2, 300, 500)])
def test_reductions_over_threads(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    check(lambda x: (x.sum(), x.double().sum(), x.max(), (x > 3).any(), x.double().mean(-1)), x, calls=1)


def test_lists_of_tensors() -> None:
    xs, ys = [torch.randn(3), torch.randn(2, 2)], [torch.randn(3), torch.randn(2, 2)]

    def f(xs: list[torch.Tensor], ys: list[torch.Tensor]) -> Any:
        torch._foreach_mul_(xs, 0.9)
        torch._foreach_add_(xs, ys, alpha=2)
        torch._foreach_addcmul_(xs, ys, ys, 0.5)
        return torch._foreach_sqrt(torch._foreach_abs(xs)), torch._foreach_add(ys, [1.0, 2.0])

    check(f, xs, ys)
    assert not [name for name in magneto.stats()["externs"] if "foreach" in name]


def test_targets() -> None:
    x, target = torch.randn(8, 10), torch.tensor([0, 9, -100, 3, 3, -100, 1, 2])
    check(lambda x, t: F.cross_entropy(x, t), x, target)
    check(lambda x, t: F.cross_entropy(x, t, reduction="sum", ignore_index=3), x, target.clamp(min=0))
    compiled = magneto.compile(lambda x, t: F.cross_entropy(x, t))
    compiled(x, target)
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(x, target + 5)


def test_copies_that_leave_are_tensors_of_their_own() -> None:
    """An operator may read what a copy was made of; who gets the copy gets memory of its own."""

    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = x @ w
        copy = y.clone()
        values, indices = copy.sort(-1)
        return copy, values, indices, y

    def only_read(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = x @ w
        return y.clone().sort(-1)[0], y.clone().t().sort(-1)[0], y

    def written(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = x @ w
        copy = y.clone()
        order = copy.argsort(-1)
        x.copy_(copy)
        return order, y

    torch.manual_seed(1)
    x, w = torch.randn(64, 64), torch.randn(64, 64)
    for function in (f, only_read, written):
        check(function, x, w)
    copy, _, _, y = magneto.compile(f)(x, w)
    assert copy.data_ptr() != y.data_ptr()
    expected = y.clone()
    copy.zero_()
    assert torch.equal(y, expected)
