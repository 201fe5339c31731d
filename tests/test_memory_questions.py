"""Questions about where tensors lie: in the graph, under guards, with eager's answers; what no guard tells is a side exit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import magneto


def storages(x: Any, y: Any) -> Any:
    z = x.view(-1)
    same = x.untyped_storage().data_ptr() == z.untyped_storage().data_ptr()
    other = x.untyped_storage().data_ptr() == (x + 1).untyped_storage().data_ptr()
    return z * 2 + (5 if same else 0), other, x.untyped_storage().data_ptr() != y.untyped_storage().data_ptr()


def addresses(x: Any, y: Any) -> Any:
    z = x[1:]
    w = x + 1
    return x.data_ptr() == y.data_ptr(), x.data_ptr() == z.data_ptr(), w.data_ptr() == w.view(-1).data_ptr(), z + 1


def alignment(x: Any, y: Any) -> Any:
    w = y.clone()
    return y + x.data_ptr() % 16, w.data_ptr() % 32 == 0, w[1:].data_ptr() % 16, x.untyped_storage().data_ptr() % 64


def bytes_held(x: Any, y: Any) -> Any:
    z = x[1:]
    return z * z.untyped_storage().nbytes(), (x + 1).untyped_storage().size() // 2, z.storage_offset()


def views(x: Any, y: Any) -> Any:
    z = x.view(-1)
    w = x + 1
    return x._is_view(), z._is_view(), w._is_view(), w[0]._is_view(), x._base is None, w._base is None, y * 2


def aliases(x: Any, y: Any) -> Any:
    return (
        torch._C._is_alias_of(x, y), torch._C._is_alias_of(x, x.view(-1)), x.is_set_to(y), x.is_set_to(x[:]),
        x.is_set_to(x.t()), torch._C._is_alias_of(x, x + 1), y + 1,
    )  # fmt: skip


def of_the_second(x: Any, y: Any) -> Any:
    z = y[1:]
    return (
        x + 1,
        z.untyped_storage().nbytes() + 1,
        z.data_ptr() % 32,
        z.untyped_storage().data_ptr() % 64,
        z.storage_offset(),
    )


PROGRAMS = [storages, addresses, alignment, bytes_held, views, aliases, of_the_second]


def apart() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(12.0).view(3, 4).clone(), torch.ones(3, 4)


def together() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.arange(12.0).view(3, 4).clone()
    return x, x.view(3, 4)


def same() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.arange(12.0).view(3, 4).clone()
    return x, x


def parts() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.arange(36.0)
    return x[1:13].view(3, 4), x[24:].view(3, 4)


def larger() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(12.0).view(3, 4).clone(), torch.ones(64)[2:14].view(3, 4)


ARGUMENTS: list[Callable[[], tuple[torch.Tensor, torch.Tensor]]] = [apart, together, larger, parts, same]


def plain(result: Any) -> Any:
    return [each.tolist() if isinstance(each, torch.Tensor) else (type(each), each) for each in result]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_is_captured(program: Any, backend: str) -> None:
    compiled = magneto.compile(program, backend=backend, fullgraph=True, dynamic=False)
    for make in [*ARGUMENTS, *ARGUMENTS]:
        arguments = make()
        assert plain(compiled(*arguments)) == plain(program(*arguments)), make.__name__
    assert magneto.stats()["recompiles"] <= len(ARGUMENTS)


def base_of_a_view(x: Any, y: Any) -> Any:
    z = x.view(-1)
    return z._base is x, z._base is None, z + 1


def handed_on(x: Any, y: Any) -> Any:
    w = x + 1
    return (w.data_ptr(), w)


def kept(x: Any, y: Any) -> Any:
    seen = {x.data_ptr()}
    return y.data_ptr() in seen, x * 2


@pytest.mark.parametrize("backend", ["eager", "magneto"])
def test_exits(backend: str) -> None:
    for program in (base_of_a_view, kept):
        compiled = magneto.compile(program, backend=backend)
        for make in [*ARGUMENTS, *ARGUMENTS]:
            arguments = make()
            assert plain(compiled(*arguments)) == plain(program(*arguments)), (program.__name__, make.__name__)
    compiled = magneto.compile(handed_on, backend=backend)
    for make in ARGUMENTS:
        address, tensor = compiled(*make())
        assert address == tensor.data_ptr()


@pytest.mark.parametrize("backend", ["eager", "magneto"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_with_dynamic_sizes(program: Any, backend: str) -> None:
    compiled = magneto.compile(program, backend=backend, dynamic=True)
    for rows in (3, 4, 6, 3):
        arguments = torch.arange(4.0 * rows).view(rows, 4).clone(), torch.ones(rows, 4)
        assert plain(compiled(*arguments)) == plain(program(*arguments))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_of_nothing(program: Any) -> None:
    compiled = magneto.compile(program)
    arguments = torch.ones(0, 4), torch.ones(0, 4)
    try:
        want = plain(program(*arguments))
    except Exception as error:
        with pytest.raises(type(error)):
            compiled(*arguments)
        return
    assert plain(compiled(*arguments)) == want
