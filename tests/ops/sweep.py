"""PyTorch's operator database, compiled against eager.

    python -m pytest tests/ops                             a part of it: some ops, one dtype, few samples
    python tests/ops/sweep.py [--dtype float32] [name...]  all of it, a line per failure, and how each op ran
    python tests/ops/sweep.py --dynamic [name...]          with symbols for all sizes, one function for all samples
    python tests/ops/sweep.py --exact [name...]            in the mode "eager-numerics", bit for bit

What counts: the same result within the dtype's tolerance, the same dtype, shape and strides, the same error or none.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import sys
import types
import unittest
import warnings
from collections.abc import Iterator
from typing import Any

import exact
import torch

import magneto

try:
    import expecttest  # noqa: F401
except ImportError:
    # PyTorch's test helpers derive a class from its TestCase; nothing here uses that class.
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]

from torch.testing._internal.common_methods_invocations import op_db

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "bool": torch.bool,
    "complex64": torch.complex64,
}
TOLERANCE = {
    torch.float32: (1e-4, 1e-5),
    torch.bfloat16: (2e-2, 1e-2),
    torch.float16: (2e-3, 1e-3),
    torch.float64: (1e-7, 1e-7),
}
# Their elements are whatever the memory held: all but the values is compared.
UNINITIALISED = {
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_", "resize_as_",
}  # fmt: skip


def infos(names: set[str] | None = None) -> list[Any]:
    return [info for info in op_db if not names or info.name in names]


def tensors_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in tensors_of(item)] if isinstance(value, (list, tuple)) else []


def difference(actual: Any, expected: Any, values: bool = True, bits: bool = False) -> str | None:
    """What differs, None if nothing does."""
    ours, theirs = tensors_of(actual), tensors_of(expected)
    if len(ours) != len(theirs):
        return f"{len(ours)} tensors instead of {len(theirs)}"
    for left, right in zip(ours, theirs, strict=True):
        if (left.dtype, left.shape, left.layout) != (right.dtype, right.shape, right.layout):
            return f"{left.dtype}{list(left.shape)} instead of {right.dtype}{list(right.shape)}"
        if right.layout != torch.strided or right.is_quantized:
            continue
        if right.numel() > 1:
            pairs = zip(right.shape, left.stride(), right.stride(), strict=True)
            if any(size > 1 and one != other for size, one, other in pairs):
                return f"strides {left.stride()} instead of {right.stride()}"
        if not values:
            continue
        if bits:
            if not exact.same_bits(left, right):
                return "other bits"
            continue
        rtol, atol = TOLERANCE.get(right.dtype, (1e-4, 1e-5) if right.is_complex() else (0, 0))
        try:
            torch.testing.assert_close(left, right, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            return " ".join(str(error).split())[:160]
    return None


def samples_of(info: Any, dtype: torch.dtype, most: int) -> Iterator[Any]:
    torch.manual_seed(7)
    yield from itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=False), most)


def is_nearer(actual: Any, expected: Any, exact: Any) -> bool:
    """Where they differ, ours is no farther from what the operator gives in float64. (A quotient that eager rounds to
    bfloat16 before it is truncated is off by one.)"""
    ours, theirs, wide = tensors_of(actual), tensors_of(expected), tensors_of(exact)
    if not len(ours) == len(theirs) == len(wide):
        return False
    for one, other, reference in zip(ours, theirs, wide, strict=True):
        rtol, atol = TOLERANCE.get(other.dtype, (0, 0))
        left, right = one.double(), other.double()
        same = torch.isclose(left, right, rtol=rtol, atol=atol, equal_nan=True)
        near = (left - reference).abs() <= (right - reference).abs().nan_to_num(float("inf"))
        exactly = torch.isclose(left, reference.double(), rtol=rtol, atol=atol, equal_nan=True)
        if not (same | near | exactly).all():
            return False
    return True


def in_float64(info: Any, sample: Any) -> Any:
    """None: it can't be had."""

    def wide(value: Any) -> Any:
        return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    try:
        given = copy.deepcopy(sample).transform(wide)
        torch.manual_seed(11)
        return info.op(given.input, *given.args, **given.kwargs)
    except Exception:
        return None


# How the ops seen so far ran: op -> ways.
ways: dict[str, set[str]] = {}


def note_way(name: str) -> None:
    stats = magneto.stats()
    seen = ways.setdefault(name, set())
    if stats["breaks"] or not stats["graphs"]:
        seen.add("not captured")
    elif stats["uncompiled"]:
        seen.add("operator by operator: " + ", ".join(stats["uncompiled"]))
    else:
        seen.update(["generated"] * bool(stats["kernels"]) + ["extern " + op for op in stats["externs"]])


def check(info: Any, dtype: torch.dtype, most: int, dynamic: bool = False, bits: bool = False) -> Iterator[str]:
    """A line for each sample that is not eager's. `dynamic`: a capture for one sample serves the others, as far as its
    guards let it; operators run one by one. `bits`: in the mode that gives eager's."""
    try:
        samples = [sample for sample in samples_of(info, dtype, most) if copy.deepcopy(sample)]
    except Exception:
        return

    def call(first: Any, args: Any, kwargs: Any) -> Any:
        result = info.op(first, *args, **kwargs)
        return tuple(result) if isinstance(result, tuple) else result

    magneto.reset()
    shared = magneto.compile(call, backend="aot_eager", dynamic=True)
    for number, sample in enumerate(samples):
        theirs, ours = copy.deepcopy(sample), copy.deepcopy(sample)
        torch.manual_seed(11)
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected, failure = info.op(theirs.input, *theirs.args, **theirs.kwargs), None
        except Exception as error:
            expected, failure = None, type(error)
        if not dynamic:
            magneto.reset()
        compiled = shared if dynamic else magneto.compile(call, mode="eager-numerics" if bits else None)
        label = f"{info.name}{'.' + info.variant_test_name if info.variant_test_name else ''} {dtype} sample {number}"
        for attempt in range(2):
            given = copy.deepcopy(ours)
            torch.manual_seed(11)
            try:
                # Samples of other kinds are captures of their own.
                with torch.no_grad(), warnings.catch_warnings(), magneto.config.patch(cache_size_limit=100):
                    warnings.simplefilter("ignore")
                    actual = compiled(given.input, given.args, given.kwargs)
            except Exception as error:
                if failure is None:
                    yield f"{label}: raised {type(error).__name__}: {' '.join(str(error).split())[:200]}"
                break
            note_way(info.name)
            if failure is not None:
                yield f"{label}: raised nothing, eager {failure.__name__}"
                break
            values = info.name not in UNINITIALISED
            problem = difference(actual, expected, values, bits) or difference(
                [given.input, given.args, given.kwargs], [theirs.input, theirs.args, theirs.kwargs], values, bits
            )
            if problem and not bits and dtype in (torch.bfloat16, torch.float16):
                if is_nearer(actual, expected, in_float64(info, sample)):
                    problem = None
            if problem:
                yield f"{label}, call {attempt + 1}: {problem}"
                break


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--dtype", choices=DTYPES, action="append")
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--samples", type=int, default=6)
    parser.add_argument("--part", default="0/1", help="this part of the list: 2/4 is the third quarter")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    torch.set_num_threads(1)
    failures = 0
    magneto.config.strict = True
    for info in infos(set(options.names))[part::parts]:
        for name in options.dtype or DTYPES:
            dtype = DTYPES[name]
            if dtype not in info.dtypes:
                continue
            print(f"# {info.name} {name}", flush=True)
            for line in check(info, dtype, options.samples, options.dynamic, options.exact):
                failures += 1
                print(line, flush=True)
    for op, seen in ways.items():
        print(f"{op}: {', '.join(sorted(seen)) or 'nothing to compute'}")
    print(f"{failures} failures")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
