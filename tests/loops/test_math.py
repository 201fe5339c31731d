"""The accuracy of vector functions against float64 over dense samples, and their values at the edges."""

from __future__ import annotations

import math

import pytest
import torch
from kernel_support import TARGETS, apply, run, units_in_last_place

INF, NAN = math.inf, math.nan


def dense(low: float, high: float, count: int = 60_000) -> torch.Tensor:
    return torch.linspace(low, high, count, dtype=torch.float64)


def spread(low: int = -126, high: int = 127, count: int = 60_000) -> torch.Tensor:
    """Both signs, all magnitudes."""
    generator = torch.Generator().manual_seed(1)
    size = torch.exp2(torch.empty(count, dtype=torch.float64).uniform_(low, high, generator=generator))
    return torch.cat([size, -size])


HOSTILE = torch.tensor(
    [0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 0.5, -0.5, 2.0, 1e-45, -1e-45, 1e-40, -1e-40, 1.1754944e-38, 3.4028235e38]
    + [
        -3.4028235e38,
        88.7,
        88.8,
        -87.4,
        -103.9,
        -104.1,
        1e-20,
        16777216.0,
        1e10,
        3.14159274,
        1.57079637,
        -17.5,
        0.99999994,
    ],
    dtype=torch.float64,
)

# op -> (exact function, greatest error in units of the last place, samples)
FUNCTIONS = {
    "exp": (torch.exp, 1.1, [dense(-104, 89), spread(-40, 7)]),
    "exp2": (torch.exp2, 1.5, [dense(-150, 128), spread(-40, 7)]),
    "expm1": (torch.expm1, 1.6, [dense(-20, 89), dense(-1, 1), spread(-100, 7)]),
    "log": (torch.log, 1, [dense(0.5, 2), spread(-149, 127).abs()]),
    "log2": (torch.log2, 1.5, [dense(0.5, 2), spread(-149, 127).abs()]),
    "log10": (torch.log10, 1.5, [dense(0.5, 2), spread(-149, 127).abs()]),
    "log1p": (torch.log1p, 1.5, [dense(-0.9999, 2), spread(-100, 127).abs(), -spread(-100, 0).abs()]),
    "sigmoid": (torch.sigmoid, 2, [dense(-100, 100), spread(-40, 7)]),
    "tanh": (torch.tanh, 2, [dense(-10, 10), dense(-0.7, 0.7), spread(-100, 7)]),
    "erf": (torch.erf, 1.5, [dense(-5, 5), dense(-1, 1), spread(-100, 4)]),
    "sin": (torch.sin, 1.6, [dense(-10, 10), dense(-1000, 1000), spread(-100, 29)]),
    "cos": (torch.cos, 1.6, [dense(-10, 10), dense(-1000, 1000), spread(-100, 29)]),
    "tan": (torch.tan, 1.5, [dense(-10, 10)]),
    "asin": (torch.asin, 2, [dense(-1, 1), spread(-100, 0)]),
    "acos": (torch.acos, 2, [dense(-1, 1), spread(-100, 0)]),
    "atan": (torch.atan, 2, [dense(-10, 10), spread(-100, 100)]),
    "sqrt": (torch.sqrt, 0.51, [spread(-149, 127).abs()]),
    "rsqrt": (torch.rsqrt, 1.5, [spread(-126, 127).abs()]),
    "reciprocal": (torch.reciprocal, 0.51, [spread(-126, 126)]),
    "erfc": (torch.erfc, 3, [dense(-5, 9)]),
    "sinh": (torch.sinh, 2, [dense(-80, 80)]),
    "cosh": (torch.cosh, 2, [dense(-80, 80)]),
    "asinh": (torch.asinh, 2, [dense(-80, 80)]),
    "acosh": (torch.acosh, 2, [dense(1, 80)]),
    "atanh": (torch.atanh, 2, [dense(-0.999, 0.999)]),
    "lgamma": (torch.lgamma, 4, [dense(3, 80)]),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_f32_functions_are_accurate(op, target):
    exact, limit, samples = FUNCTIONS[op]
    for sample in samples:
        x = sample.float()
        error = units_in_last_place(apply(op, "f32", x, target=target), exact(x.double()))
        worst = error.argmax()
        assert error[worst] <= limit, f"{op}({x[worst].item()!r}) is off by {error[worst].item()} units"


@pytest.mark.parametrize("op", [name for name in FUNCTIONS if name not in ("lgamma", "tan")])
def test_f32_functions_at_hostile_values(op):
    """NaN, infinities, both zeros and denormals; a zero result has the right sign."""
    exact, limit, _ = FUNCTIONS[op]
    x = HOSTILE.float()
    actual, wanted = apply(op, "f32", x), exact(x.double())
    error = units_in_last_place(actual, wanted)
    for i in range(len(x)):
        assert error[i] <= max(limit, 1), f"{op}({x[i].item()!r}) is {actual[i].item()!r}, not {wanted[i].item()!r}"
        if wanted[i].float() == 0:
            assert math.copysign(1, actual[i]) == math.copysign(1, wanted[i]), f"sign of {op}({x[i].item()!r})"


@pytest.mark.parametrize("op", ["sin", "cos"])
def test_huge_arguments_are_reduced_exactly(op):
    x = spread(30, 127, 2000).float()
    error = units_in_last_place(apply(op, "f32", x), FUNCTIONS[op][0](x.double()))
    assert error.max() <= 1.5


WIDE = ["exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sigmoid", "tanh", "erf", "sin", "cos", "atan"]


@pytest.mark.parametrize("op", WIDE)
def test_f64_functions_are_accurate(op):
    """Against long double, by way of numpy."""
    numpy = pytest.importorskip("numpy")
    exact = {
        "sigmoid": lambda x: 1 / (1 + numpy.exp(-x)),
        "erf": lambda x: torch.erf(torch.from_numpy(x.astype("f8"))).numpy().astype("g"),
        "atan": numpy.arctan,
    }.get(op) or getattr(numpy, op)
    for sample in FUNCTIONS[op][2]:
        wanted = exact(sample.numpy().astype("g"))
        actual = apply(op, "f64", sample)
        unit = numpy.spacing(numpy.abs(wanted).astype("f8")).astype("g")
        error = numpy.abs(actual.numpy().astype("g") - wanted) / unit
        worst = int(error.argmax())
        assert error[worst] <= 2.5, f"{op}({sample[worst].item()!r}) is off by {error[worst]} units"


def test_pow():
    generator = torch.Generator().manual_seed(2)
    x = torch.exp2(torch.empty(50_000, dtype=torch.float64).uniform_(-20, 20, generator=generator)).float()
    y = torch.empty(50_000).uniform_(-6, 6, generator=generator)
    assert units_in_last_place(apply("pow", "f32", x, y), x.double().pow(y.double())).max() <= 0.6
    corners = torch.tensor([0.0, -0.0, 1, -1, 2, -2, 3, -3, 0.5, -0.5, INF, -INF, NAN, 1e-40, 3e38, 2.5, -2.5])
    x, y = (t.reshape(-1).contiguous() for t in torch.meshgrid(corners, corners, indexing="ij"))
    actual, wanted = apply("pow", "f32", x, y), x.double().pow(y.double())
    error = units_in_last_place(actual, wanted)
    for i in range(len(x)):
        assert error[i] <= 1, f"pow({x[i].item()}, {y[i].item()}) is {actual[i].item()}, not {wanted[i].item()}"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_narrow_floats_round_to_nearest_even(dtype, target):
    torch_dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[dtype]
    x = torch.cat([spread(-149, 127, 20_000).float(), torch.arange(0, 70000).float() / 1024, HOSTILE.float()])
    text = f"""kernel "narrow" {{
      b0 in f32[{len(x)}]
      b1 out {dtype}[{len(x)}]
      b2 out f32[{len(x)}]
      parallel i0 < {len(x)}
      row {{
        %0:f32 = load b0[i0]
        store b1[i0], %0
        %1:f32 = round.{dtype} %0
        store b2[i0], %1
      }}
    }}"""
    narrow, rounded = torch.empty(len(x), dtype=torch_dtype), torch.empty(len(x))
    run(text, [x, narrow, rounded], target=target)
    wanted = x.to(torch_dtype)
    assert torch.equal(narrow.view(torch.int16)[~x.isnan()], wanted.view(torch.int16)[~x.isnan()])
    assert narrow[x.isnan()].isnan().all()
    torch.testing.assert_close(rounded, wanted.float(), rtol=0, atol=0, equal_nan=True)
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch_dtype)
    torch.testing.assert_close(apply("abs", dtype, every, target=target), every.abs(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("target", TARGETS)
def test_erf_with_its_exponential_at_hand(target):
    x = torch.cat([dense(-5, 5), spread(-100, 4), HOSTILE]).to(torch.float32)
    out = torch.zeros_like(x)
    text = f"""kernel "erf" {{
      b0 in f32[{len(x)}]
      b1 out f32[{len(x)}]
      parallel i0 < {len(x)}
      row {{
        %0:f32 = load b0[i0]
        %1:f32 = mul %0, %0
        %2:f32 = neg %1
        %3:f32 = exp %2
        %4:f32 = erf.from %0, %3
        store b1[i0], %4
      }}
    }}"""
    run(text, [x, out], target=target)
    assert units_in_last_place(out, torch.erf(x.double())).max() <= 1.5
