"""PyTorch's operator database with one capture for all sizes, and sizes that do not fit.

    python -m pytest tests/ops/test_other_sizes.py            a part of it
    python tests/ops/other_sizes.py [--part 0/4] [name...]    all of it: a line per failure

Of a sample, other arguments are made: each size becomes another one, everywhere the same (0, 1, primes), which the
operator mostly takes; or one dimension of one tensor alone changes, which it mostly does not. What counts: eager's
result, or the class of its error, from a function that was captured with symbols for all sizes. That each rule is
reached, rule_sizes.py says.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import sweep
import torch
from torch.utils._pytree import tree_map

import magneto

SIZES = (0, 1, 2, 3, 5, 7, 11, 13)
# Reading memory that nobody wrote, or past the end of what it was given: eager's result says nothing.
LEFT_OUT = {
    "as_strided", "as_strided_copy", "as_strided_scatter", "as_strided.partial_views", "set_",
    "native_batch_norm", "_batch_norm_with_update", "_native_batch_norm_legit", "nn.functional.embedding_bag",
    "_segment_reduce.offsets", "nn.functional.multilabel_margin_loss", "nn.functional.pad.circular", "lu_unpack",
    "nn.functional.ctc_loss",  # targets of classes that a smaller input has not got
    # Their meta kernels are not of the opinion of the CPU's: such calls are left to CPython.
    "torch._scaled_mm", "torch._scaled_mm_v2",
}  # fmt: skip


def with_shape(tensor: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """Values of the tensor, over and over: indices stay within their bounds."""
    count = 1
    for size in shape:
        count *= size
    values = tensor.detach().reshape(-1)
    if values.numel() == 0:
        return tensor.new_zeros(shape)
    return values[torch.arange(count) % values.numel()].reshape(shape)


def resized(arguments: Any, new_size: Callable[[int, int, int], int]) -> Any:
    """The arguments with tensors of other shapes: `new_size` of the tensor's number, the dimension, the size."""
    number = itertools.count()

    def change(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return value
        tensor = next(number)
        shape = [new_size(tensor, dim, size) for dim, size in enumerate(value.shape)]
        return value.detach().clone() if shape == list(value.shape) else with_shape(value, shape)

    return tree_map(change, arguments)


def variants(arguments: Any, numbers: random.Random) -> Iterator[Any]:
    """The arguments in other sizes: three that fit, as sizes that are equal stay so, and three that need not."""
    tensors = sweep.tensors_of(arguments)
    sizes = sorted({size for tensor in tensors for size in tensor.shape if size > 1})
    places = [(i, dim) for i, tensor in enumerate(tensors) for dim in range(tensor.dim())]
    for _ in range(3):
        new = {size: numbers.choice(SIZES) for size in sizes}
        yield resized(arguments, lambda _tensor, _dim, size, new=new: new.get(size, size))
    for _ in range(3 if places else 0):
        place, size = numbers.choice(places), numbers.choice(SIZES)
        yield resized(
            arguments, lambda tensor, dim, old, place=place, size=size: size if (tensor, dim) == place else old
        )


def outcome(function: Callable[..., Any], arguments: Any) -> Any:
    """The result and what has become of the arguments; or the class of the error."""
    given = resized(arguments, lambda _tensor, _dim, size: size)
    torch.manual_seed(11)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [function(*given), given]
    except Exception as error:
        return type(error)


def shapes_of(arguments: Any) -> str:
    return ", ".join(str(list(tensor.shape)) for tensor in sweep.tensors_of(arguments))


def check(info: Any, dtype: torch.dtype, most: int, seed: int = 0) -> Iterator[str]:
    """A line for each call that is not eager's."""
    try:
        samples = list(sweep.samples_of(info, dtype, most))
    except Exception:
        return
    numbers = random.Random(f"{info.name} {info.variant_test_name} {seed}")

    def call(first: Any, args: Any, kwargs: Any) -> Any:
        result = info.op(first, *args, **kwargs)
        return tuple(result) if isinstance(result, tuple) else result

    for number, sample in enumerate(samples):
        arguments = (sample.input, sample.args, sample.kwargs)
        if any(tensor.layout != torch.strided for tensor in sweep.tensors_of(list(arguments))):
            continue
        magneto.reset()
        compiled = magneto.compile(call, backend="aot_eager", dynamic=True)
        first = resized(arguments, lambda _tensor, _dim, size: size)
        for given in itertools.chain([first], variants(list(arguments), numbers)):
            expected = outcome(call, given)
            with magneto.config.patch(cache_size_limit=100):
                actual = outcome(compiled, given)
            label = f"{full_name(info)} sample {number} {shapes_of(list(given))}"
            if isinstance(actual, type) or isinstance(expected, type):
                if actual is not expected:
                    yield f"{label}: {said(actual)}, eager {said(expected)}"
            elif problem := sweep.difference(actual, expected):
                yield f"{label}: {problem}"


def said(result: Any) -> str:
    return f"raises {result.__name__}" if isinstance(result, type) else "gives a result"


def full_name(info: Any) -> str:
    return f"{info.name}.{info.variant_test_name}".rstrip(".")


def infos(names: set[str] | None = None) -> list[Any]:
    return [info for info in sweep.infos(names) if not {info.name, full_name(info)} & (LEFT_OUT | sweep.UNINITIALISED)]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--part", default="0/1", help="this part of the list: 2/4 is the third quarter")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    torch.set_num_threads(1)
    magneto.config.strict = True
    failures = 0
    for info in infos(set(options.names))[part::parts]:
        dtype = torch.float32 if torch.float32 in info.dtypes else torch.int64
        print(f"# {info.name}", flush=True)
        for line in check(info, dtype, options.samples, options.seed):
            failures += 1
            print(line, flush=True)
    print(f"{failures} failures")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
