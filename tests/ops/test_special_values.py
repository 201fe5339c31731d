"""-0, NaN, infinities, denormals, the largest numbers; and errors against float64 that are at most eager's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import magneto

Operator = Callable[..., torch.Tensor]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]

UNARY: dict[str, Operator] = {
    name: getattr(torch, name)
    for name in (
        "neg abs relu floor ceil trunc round sign sgn exp exp2 expm1 log log2 log10 log1p sigmoid tanh erf erfc sin cos "
        "tan asin acos atan sinh cosh asinh acosh atanh sqrt rsqrt reciprocal square frac isnan isinf isfinite signbit "
        "logical_not deg2rad rad2deg nan_to_num positive sinc lgamma digamma logit"
    ).split()
}
UNARY |= {
    name: getattr(F, name)
    for name in "relu6 elu selu celu gelu silu mish softplus softsign hardsigmoid hardswish hardtanh".split()
}
UNARY |= {
    "leaky_relu": F.leaky_relu,
    "logsigmoid": F.logsigmoid,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "threshold": lambda x: F.threshold(x, 0.0, -0.0),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp_zero": lambda x: x.clamp(0.0, 0.0),
    "clamp_min_zero": lambda x: x.clamp(min=0.0),
    "clamp_max_zero": lambda x: x.clamp(max=0),
    "clamp_min_minus_zero": lambda x: x.clamp(min=-0.0),
    "clamp_inf": lambda x: x.clamp(-float("inf"), float("inf")),
    "pow_2": lambda x: x**2,
    "pow_3": lambda x: x**3,
    "pow_half": lambda x: x**0.5,
    "pow_minus": lambda x: x**-1,
    "pow_1.5": lambda x: x**1.5,
    "pow_0": lambda x: x**0,
    "rpow": lambda x: 2.0**x,
    "add_zero": lambda x: x + 0,
    "add_minus_zero": lambda x: x + -0.0,
    "mul_zero": lambda x: x * 0,
    "mul_one": lambda x: x * 1,
    "sub_self": lambda x: x - x,
    "div_zero": lambda x: x / 0.0,
    "rdiv": lambda x: 1 / x,
    "rsub": lambda x: 0 - x,
    "floor_divide": lambda x: x // 0.3,
    "remainder": lambda x: x % 0.5,
    "remainder_minus": lambda x: x % -3.0,
    "fmod": lambda x: torch.fmod(x, 2.0),
    "div_trunc": lambda x: torch.div(x, 3, rounding_mode="trunc"),
    "where": lambda x: torch.where(x > 0, x, -x),
    "masked_fill": lambda x: x.masked_fill(x != x, -0.0),
    "to_half": lambda x: x.to(torch.float16),
    "to_bfloat16": lambda x: x.to(torch.bfloat16),
    "to_float": lambda x: x.to(torch.float32),
    "to_double": lambda x: x.to(torch.float64),
    "to_bool": lambda x: x.to(torch.bool),
}

BINARY: dict[str, Operator] = {
    name: getattr(torch, name)
    for name in (
        "add sub mul div maximum minimum fmax fmin atan2 pow fmod remainder floor_divide copysign hypot eq ne lt le gt ge "
        "logical_and logical_or logical_xor nextafter xlogy logaddexp heaviside"
    ).split()
}
BINARY |= {
    "clamp_tensor": lambda a, b: a.clamp(min=b),
    "where": lambda a, b: torch.where(a > b, a, b),
    "lerp": lambda a, b: torch.lerp(a, b, 0.25),
    "lerp_far": lambda a, b: torch.lerp(a, b, 0.75),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=0.5),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b, value=0.5),
}
#: Of two zeros, PyTorch's vector code gives another one than its code for what is left over; where a mean of zeros is
#: taken off, the sign is that of a rounding.
EITHER_ZERO = {"maximum", "minimum", "fmax", "fmin", "clamp_tensor", "amax", "amin", "layer_norm", "group_norm"}
EITHER_ZERO |= {"remainder", "fmod", "floor_divide", "addcmul", "lerp", "lerp_far"}
#: Where quotients or squares overflow, eager has NaN, also in float64, which is the reference otherwise.
OVERFLOWS_IN_EAGER = {"remainder", "fmod", "layer_norm", "group_norm"}

REDUCTIONS: dict[str, Operator] = {
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "prod": lambda x: x.prod(-1),
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(-1),
    "var": lambda x: x.var(-1),
    "std": lambda x: x.std(-1),
    "var_0": lambda x: x.var(-1, correction=0),
    "var_mean": lambda x: torch.stack(torch.var_mean(x, -1)),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "norm_1": lambda x: torch.linalg.vector_norm(x, 1, dim=-1),
    "norm_inf": lambda x: torch.linalg.vector_norm(x, float("inf"), dim=-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "cumprod": lambda x: x.cumprod(-1),
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "group_norm": lambda x: F.group_norm(x[None], 1),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1),
    "any": lambda x: x.any(-1),
    "all": lambda x: x.all(-1),
    "cummax": lambda x: x.cummax(-1)[0],
    "lp_pool": lambda x: F.lp_pool1d(x[None], 2, 2),
    "lp_pool_3": lambda x: F.lp_pool1d(x[None].abs(), 3, 2),
    "avg_pool": lambda x: F.avg_pool1d(x[None], 2),
    "max_pool": lambda x: F.max_pool1d(x[None], 2),
    "mse_loss": lambda x: F.mse_loss(x, x * 0.5),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, x * 0.5),
}


def special(dtype: torch.dtype) -> torch.Tensor:
    facts = torch.finfo(dtype)
    values = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 3.0, 6.0, 7.5, -7.5, 1e-4, -1e-4, 88.0, -88.0, 104.0, 1e4]
    values += [facts.tiny, -facts.tiny, facts.smallest_normal / 4, facts.eps, facts.max, facts.min]
    values += [float("inf"), -float("inf"), float("nan")]
    values += [facts.max**0.5, -(facts.max**0.5), facts.max / 3]
    return torch.tensor(values, dtype=torch.float64).to(dtype)


def error(value: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """How far it is off, in units of the last place."""
    exact = exact.double()
    facts = torch.finfo(value.dtype)
    unit = torch.clamp(exact.abs(), min=facts.smallest_normal) * facts.eps
    return ((value.double() - exact).abs() / unit).nan_to_num(0.0, 0.0)


def assert_as_good(name: str, got: torch.Tensor, want: torch.Tensor, exact: torch.Tensor, units: float) -> None:
    """Eager's special values, and an error that is at most eager's or some units in the last place.

    Where eager has a special value that float64 has not (its vector code for `fmod`, squares that overflow), the exact
    result is as good."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if not want.dtype.is_floating_point:
        assert torch.equal(got, want), name
        return
    off, eager = error(got, exact), error(want, exact)
    close = got.isfinite() & exact.isfinite() & (off <= units)
    worst = eager[want.isfinite()].max() if want.isfinite().any() else torch.tensor(0.0)
    special = got.isnan() & want.isnan() | want.isinf() & (got == want)
    both = got.isfinite() & want.isfinite() & (off <= worst.double() + units)
    bad = ~(close | special | both)
    if name in OVERFLOWS_IN_EAGER and want.dtype == torch.float64:
        bad &= ~(want.isnan() & got.isfinite())
    assert not bad.any(), (name, got[bad][:4], want[bad][:4], exact[bad][:4])
    zeros = (want == 0) & (got == 0)
    if name not in EITHER_ZERO:
        assert torch.equal(got.signbit() & zeros, want.signbit() & zeros), (name, got, want)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: str(dtype)[6:])
def test_unary(dtype: torch.dtype) -> None:
    failures = []
    for name, operator in UNARY.items():
        x = special(dtype)
        want, exact = operator(x), operator(x.double())
        got = magneto.compile(operator, dynamic=False)(x)
        try:
            assert_as_good(name, got, want, exact, units=4)
        except AssertionError as failure:
            failures.append(str(failure)[:600])
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: str(dtype)[6:])
def test_binary(dtype: torch.dtype) -> None:
    failures = []
    for name, operator in BINARY.items():
        x = special(dtype)
        a, b = x.repeat_interleave(len(x)), x.repeat(len(x))
        want, exact = operator(a, b), operator(a.double(), b.double())
        got = magneto.compile(operator, dynamic=False)(a, b)
        try:
            assert_as_good(name, got, want, exact, units=4)
        except AssertionError as failure:
            failures.append(str(failure)[:600])
    assert not failures, "\n".join(failures)


def rows(dtype: torch.dtype) -> torch.Tensor:
    """Rows of 40 numbers that make reductions err: equal, large, tiny, of both signs, with special values."""
    torch.manual_seed(0)
    facts, count = torch.finfo(dtype), 40
    base = torch.randn(count, dtype=torch.float64)
    made = [base, base * 0 + 0.1, base * 0 - 0.0, base + 1000, base.abs() * facts.max**0.5 / 2, base * facts.tiny]
    made += [base * 0 + facts.max**0.6 / 4, base.abs() + 0.5, -base.abs(), base * 0 + 3]
    for value in (float("inf"), -float("inf"), float("nan"), -0.0):
        one = base.clone()
        one[7] = value
        made.append(one)
    both = base.clone()
    both[3], both[30] = float("inf"), -float("inf")
    return torch.stack([*made, both]).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: str(dtype)[6:])
def test_reductions(dtype: torch.dtype) -> None:
    failures = []
    x = rows(dtype)
    for name, operator in REDUCTIONS.items():
        compiled = magneto.compile(operator, dynamic=False)
        for i, row in enumerate(x):
            row = row[None]
            try:
                want = operator(row)
            except RuntimeError:
                continue
            exact, got = operator(row.double()), compiled(row)
            try:
                assert_as_good(name, got, want, exact, units=1e5 if dtype == torch.float64 else 16)
            except AssertionError as failure:
                failures.append(f"row {i} " + str(failure)[:500])
    assert not failures, "\n".join(failures)


LONG: dict[str, Operator] = {
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: (x * 1e-5 + 1).cumprod(0),
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "var": lambda x: x.var(),
    "std": lambda x: (x + 1000).std(),
    "norm": lambda x: x.norm(),
    "norm_1": lambda x: x.norm(1),
    "prod": lambda x: (x * 1e-5 + 1).prod(),
    "logsumexp": lambda x: x.logsumexp(0),
    "rows": lambda x: x.reshape(4, -1).sum(1),
    "columns": lambda x: x.reshape(-1, 4).sum(0),
    "mse_loss": lambda x: F.mse_loss(x, x * 0.5),
    "softmax": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(0),
    "layer_norm": lambda x: F.layer_norm(x, x.shape),
}


@pytest.mark.parametrize("name", LONG)
def test_long_reductions(name: str) -> None:
    """Of a million numbers: an error as small as eager's, or a few units in the last place."""
    torch.manual_seed(0)
    operator = LONG[name]
    for x in (torch.rand(1_000_000), torch.randn(1_000_000)):
        want, exact = operator(x), operator(x.double())
        got = magneto.compile(operator, dynamic=False)(x)
        scale = exact.abs().max()
        ours, theirs = (got.double() - exact).abs().max() / scale, (want.double() - exact).abs().max() / scale
        assert ours <= max(2 * theirs, 8 * 2**-24), (float(ours), float(theirs))
