"""Mode "eager-numerics": each row of src/ops that claims it gives eager's bits, and what kernels make of several."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import exact
import pytest
import sweep
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import magneto
from magneto import _testing

EXACT = _testing.exact_operators().split()
MODE = "eager-numerics"


class Names(TorchDispatchMode):
    """The operators that eager calls."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


def handle(name: str) -> Any:
    operator, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, operator), overload or "default")


def difference(program: exact.Program, args: list[Any]) -> str | None:
    """What of the compiled program's results is not eager's; None: all is, and "" too: eager raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = program(*copy.deepcopy(args))
    except Exception:
        return ""
    actual = magneto.compile(program, mode=MODE, fullgraph=True)(*args)
    for ours, theirs in zip(sweep.tensors_of(actual), sweep.tensors_of(expected), strict=True):
        if not exact.same_bits(ours, theirs):
            places = ((ours != theirs) | (torch.signbit(ours) != torch.signbit(theirs))) & ~(
                ours.isnan() & theirs.isnan()
            )
            return f"{ours[places][:4]} instead of {theirs[places][:4]}"
    return None


@functools.cache
def proven_elementwise(name: str) -> tuple[int, list[str]]:
    """In how many cases code was generated; what was not eager's."""
    op, generated, wrong = handle(name), 0, []
    for program, args in exact.elementwise(op):
        magneto.reset()
        found = difference(program, args)
        if found:
            wrong.append(
                f"{[tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in args]} {args[0].dtype}: {found}"
            )
        generated += found is None and magneto.stats()["kernels"] > 0
    return generated, wrong


@pytest.mark.parametrize("name", EXACT)
def test_on_vectors_and_their_tails(name: str) -> None:
    assert proven_elementwise(name)[1] == []


def database_programs() -> Iterator[tuple[str, exact.Program, list[Any], bool]]:
    """Samples of PyTorch's operator database whose operators in eager are some of those rows."""
    for name, program in {**exact.chains(), **exact.beside_numbers(), **exact.rare()}.items():
        for dtype in (torch.float32, torch.int64):
            args = [exact.data(dtype, (exact.SIZE,), seed) for seed in (1, 2, 3)]
            several = name in exact.chains() or name in exact.rare()
            yield name, program, args if several else args[:1], False
    wanted = {name.partition("::")[2].partition(".")[0].removesuffix("_backward").removeprefix("_") for name in EXACT}
    wanted |= {
        "to",
        "nn.functional." + "pad",
        "nn.functional.embedding",
        "nn.functional.dropout",
        "masked_fill",
        "expand_as",
    }
    for info in sweep.infos():
        short = info.name.removeprefix("nn.functional.").removeprefix("special_")
        if short not in wanted and info.name not in wanted:
            continue
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
            if dtype not in info.dtypes:
                continue
            gradients = dtype == torch.float32 and info.supports_autograd
            for sample in sweep.samples_of(info, dtype, 4):
                yield (
                    f"{info.name} {dtype}",
                    lambda x, args, kwargs, op=info.op: op(x, *args, **kwargs),
                    [sample.input, sample.args, sample.kwargs],
                    gradients,
                )


def train(program: exact.Program, args: list[Any]) -> list[torch.Tensor]:
    """Results and gradients of the floating tensors among the arguments."""
    given = copy.deepcopy(args)
    leaves = [x.requires_grad_() for x in sweep.tensors_of(given) if x.is_floating_point()]
    torch.manual_seed(5)
    results = [x for x in sweep.tensors_of(program(*given)) if x.requires_grad]
    torch.manual_seed(6)
    if results:
        torch.autograd.backward(results, [torch.randn_like(x) for x in results])
    return [x.detach() for x in results] + [x.grad for x in leaves if x.grad is not None]


@pytest.mark.parametrize("every_sample", [False, pytest.param(True, marks=pytest.mark.long)])
def test_each_row_is_proven_on_the_operator_database(every_sample: bool) -> None:
    """`make test` takes the samples that prove another row; `make test-all` every one."""
    proven = {name for name in EXACT if proven_elementwise(name)[0]}
    wrong = []
    for label, program, args, gradients in database_programs():
        magneto.reset()
        compiled = magneto.compile(program, mode=MODE)
        recorded = Names()

        def run(call: exact.Program) -> list[torch.Tensor]:
            torch.manual_seed(5)
            return train(call, args) if gradients else sweep.tensors_of(call(*copy.deepcopy(args)))

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = run(program)
                with recorded:  # autograd has other formulas under a dispatch mode
                    run(program)
        except Exception:
            continue
        if not every_sample and {name for name in recorded.names if name in EXACT} <= proven:
            continue
        actual = run(compiled)
        stats = magneto.stats()
        if stats["kernels"]:
            proven |= {name for name in recorded.names if name.partition(".")[0] not in stats["externs"]}
        if len(actual) != len(expected) or not all(map(exact.same_bits, actual, expected)):
            wrong.append(label)
    assert wrong == []
    unproven = " ".join(sorted(set(EXACT) - proven))
    assert unproven == ""


@pytest.mark.parametrize("dtype", exact.FLOATS, ids=str)
@pytest.mark.parametrize("name", exact.chains())
def test_chains(name: str, dtype: torch.dtype) -> None:
    magneto.reset()
    assert difference(exact.chains()[name], [exact.data(dtype, (exact.SIZE,), seed) for seed in (1, 2, 3)]) is None
    assert magneto.stats()["kernels"] > 0


@pytest.mark.parametrize("dtype", exact.FLOATS, ids=str)
@pytest.mark.parametrize("name", exact.beside_numbers())
def test_beside_numbers_and_other_dtypes(name: str, dtype: torch.dtype) -> None:
    magneto.reset()
    assert difference(exact.beside_numbers()[name], [exact.data(dtype, (exact.SIZE,), 3)]) is None


def test_the_table_in_the_docs() -> None:
    """`python tests/ops/exact.py --write` makes it."""
    assert exact.PAGE.read_text() == exact.page_with(exact.table())
    rows = [row for row in _testing.operator_rows() if ", exact" in row[4]]
    assert sorted(row[0] for row in rows) == EXACT and all(row[4].split(", ")[-1][:-1] in exact.WHEN for row in rows)
