"""Operators whose results share memory though the schema says nothing of it are named so in the rows."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import sweep
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import magneto
from magneto import _testing

SHARES_MEMORY = 1 << 5  # src/ops/operator.h


def memory_of(value: Any) -> list[int]:
    return [
        leaf.untyped_storage()._cdata
        for leaf in tree_leaves(value)
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and leaf.untyped_storage().nbytes()
    ]


class Watch(TorchDispatchMode):
    """Collects the names of those operators."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = memory_of((args, kwargs))
        result = func(*args, **(kwargs or {}))
        if all(returned.alias_info is None for returned in func._schema.returns):
            made = memory_of(result)
            if not set(made).isdisjoint(given) or len(set(made)) < len(made):
                self.found.add(func._schema.name + ("." + name if (name := func._schema.overload_name) else ""))
        return result


@pytest.mark.long
def test_the_rows_name_them() -> None:
    watch = Watch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info in sweep.infos():
            if torch.float32 not in info.supported_dtypes("cpu") or info.name.startswith("jiterator"):
                continue
            for sample in sweep.samples_of(info, torch.float32, 4):
                with watch:
                    info(sample.input, *sample.args, **sample.kwargs)
    assert {"aten::_unsafe_view", "aten::unsafe_split.Tensor"} <= watch.found
    assert [name for name in watch.found if not _testing.operator_facts(name) & SHARES_MEMORY] == []


PROGRAMS = {
    "a part is written": lambda y: (y.unsafe_chunk(3, 1)[1].sigmoid_(), y),
    "two parts are written": lambda y: [part.mul_(2) for part in y.unsafe_chunk(3, 1)[:2]],
    "with sizes": lambda y: (y.unsafe_split_with_sizes([5, 3, 16], 1)[2].add_(1), y + 1),
    "read after the whole was written": lambda y: (y.unsafe_chunk(2, 0), y.mul_(2))[0],
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_parts_of_a_split_that_claims_to_copy(name: str, backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        return PROGRAMS[name](x.cos())

    x = torch.randn(6, 24)
    want, got = program(x), magneto.compile(program, backend=backend)(x)
    for left, right in zip(tree_leaves(got), tree_leaves(want), strict=True):
        torch.testing.assert_close(left, right, check_stride=True)
        assert left.storage_offset() == right.storage_offset()
    assert [memory_of(got).index(m) for m in memory_of(got)] == [memory_of(want).index(m) for m in memory_of(want)]


@pytest.mark.parametrize("module", [torch.nn.GRU, torch.nn.GRUCell], ids=lambda module: module.__name__)
def test_their_gradients(module: type[torch.nn.Module]) -> None:
    torch.manual_seed(3)
    layer, x = module(6, 8), torch.randn(5, 6)
    compiled = magneto.compile(layer)
    gradients = []
    for function in (layer, compiled):
        layer.zero_grad()
        result = function(x)
        (result[0] if isinstance(result, tuple) else result).square().sum().backward()
        gradients.append([weight.grad for weight in layer.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-6)
