"""Jagged tensors (torch.nested, layout=torch.jagged), given and made inside: one graph, whatever the lengths are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compare import assert_same

import magneto

BACKENDS = ("magneto", "aot_eager", "eager")
LENGTHS = ((2, 5, 3), (4, 1, 6), (3, 7, 2), (2, 5, 3))

torch.manual_seed(0)
LINEAR = torch.nn.Linear(8, 6).requires_grad_(False)
NORM = torch.nn.LayerNorm(8).requires_grad_(False)
TABLE = torch.nn.Embedding(20, 8).requires_grad_(False)


def jagged(call: int, *, width: int = 8) -> torch.Tensor:
    made = torch.Generator().manual_seed(call)
    items = [torch.randn(length, width, generator=made) for length in LENGTHS[call]]
    return torch.nested.nested_tensor(items, layout=torch.jagged)


def tokens(call: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(call)
    items = [torch.randint(0, 20, (length,), generator=made) for length in LENGTHS[call]]
    return torch.nested.nested_tensor(items, layout=torch.jagged)


def parts_of_jagged(call: int) -> tuple[torch.Tensor, torch.Tensor]:
    given = jagged(call)
    return given.values().clone(), given.offsets().clone()


def dense(call: int, *size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(call))


def parts(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_nested:
        seen = value.values(), value.offsets(), value.lengths(), value._ragged_idx, value.dim(), value.size(0)
        return "jagged", seen, value._metadata_cache, value.untyped_storage().size() >= 0
    return [parts(item) for item in value] if isinstance(value, (list, tuple)) else value


Program = tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]
PROGRAMS: dict[str, Program] = {
    "pointwise": (lambda x: (x.sin() + 1) * F.gelu(x), lambda call: (jagged(call),)),
    "beside a dense tensor": (lambda x, bias: x + bias, lambda call: (jagged(call), dense(call, 8))),
    "linear": (lambda x: LINEAR(x).relu(), lambda call: (jagged(call),)),
    "layer norm": (lambda x: NORM(x) + x, lambda call: (jagged(call),)),
    "sum of the last dimension": (lambda x: x.sum(dim=-1), lambda call: (jagged(call),)),
    "sum of all": (lambda x: x.sum(), lambda call: (jagged(call),)),
    "softmax": (lambda x: x.softmax(-1), lambda call: (jagged(call),)),
    "values": (lambda x: x.values() * 2, lambda call: (jagged(call),)),
    "offsets": (lambda x: x.offsets().diff(), lambda call: (jagged(call),)),
    "matmul": (lambda x, weight: x @ weight, lambda call: (jagged(call), dense(call, 8, 5))),
    "embedding": (lambda ids: TABLE(ids).relu(), lambda call: (tokens(call),)),
    "sum of the ragged dimension": (lambda x: x.sum(dim=1), lambda call: (jagged(call),)),
    "mean of the ragged dimension": (lambda ids: TABLE(ids).mean(1), lambda call: (tokens(call),)),
    "softmax of the ragged dimension": (lambda x: x.softmax(1), lambda call: (jagged(call),)),
    "padded": (lambda x: x.to_padded_tensor(0.5), lambda call: (jagged(call),)),
    "cat": (lambda x: torch.cat([x, x * 2], dim=-1), lambda call: (jagged(call),)),
    "heads": (
        lambda x: x.unflatten(-1, [2, 4]).transpose(1, 2).sin().transpose(1, 2).flatten(-2),
        lambda call: (jagged(call),),
    ),
    "zeros": (lambda x: torch.zeros_like(x) + x, lambda call: (jagged(call),)),
    "choice": (lambda x: torch.where(x > 0, x, x * 0.1), lambda call: (jagged(call),)),
    "another dtype": (lambda x: (x.to(torch.float64) * 2).to(torch.float32) + x.half(), lambda call: (jagged(call),)),
    "in place": (lambda x: (x * 1).mul_(2).add_(1), lambda call: (jagged(call),)),
    "batched product": (lambda x, weight: x @ weight, lambda call: (jagged(call), dense(call, 3, 8, 5))),
    "made of values": (lambda v, o: torch.nested.nested_tensor_from_jagged(v, o).exp(), parts_of_jagged),
    "made of its own": (
        lambda x: torch.nested.nested_tensor_from_jagged(x.values() * 2, x.offsets()) + x,
        lambda call: (jagged(call),),
    ),
    "questions": (lambda x: (x.dim(), x.size(0), x.shape[-1], x.is_nested), lambda call: (jagged(call),)),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_is_one_graph(name: str, backend: str) -> None:
    program, make = PROGRAMS[name]
    compiled = magneto.compile(program, backend=backend, fullgraph=True)
    for call in range(len(LENGTHS)):
        assert_same(parts(compiled(*make(call))), parts(program(*make(call))))
    assert magneto.stats()["recompiles"] <= 1
    assert not magneto.stats()["fallbacks"]


def test_made_of_a_list() -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        made = torch.nested.as_nested_tensor([a, b], layout=torch.jagged)
        return made.cos(), made.sum(1)

    compiled = magneto.compile(program, fullgraph=True)
    for length in (2, 3, 5, 7):
        given = dense(0, length, 4), dense(1, 6, 4)
        assert_same(parts(compiled(*given)), parts(program(*given)))


def test_which_offsets_are_the_same_is_guarded() -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        return a + b if a.shape[1] == b.shape[1] else (a.values().sum(), b.values().sum())

    compiled = magneto.compile(program, fullgraph=True)
    for call in (0, 1, 2):
        a = jagged(call)
        for b in (a * 2, a, jagged(call)):
            assert_same(parts(compiled(a, b)), parts(program(a, b)))


def test_result_goes_on_with_its_argument() -> None:
    compiled = magneto.compile(lambda x: x.sin(), fullgraph=True)
    for call in (0, 1):
        x = jagged(call)
        y = compiled(x)
        assert y.shape == x.shape and y.offsets() is x.offsets()
        assert_same(parts(x + y), parts(x + x.sin()))


def test_attention() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        heads = [(x * scale).unflatten(-1, [2, 4]).transpose(1, 2) for scale in (1.0, 0.5, 2.0)]
        return F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(-2)

    compiled = magneto.compile(program)
    for call in range(len(LENGTHS)):
        assert_same(parts(compiled(jagged(call))), parts(program(jagged(call))))
    assert not magneto.stats()["break_reasons"]


def test_items() -> None:
    def program(x: torch.Tensor) -> Any:
        return [item.sum(0) for item in x.unbind()], x[1] * 2

    compiled = magneto.compile(program)
    for call in range(len(LENGTHS)):
        assert_same(compiled(jagged(call)), program(jagged(call)))
    assert not magneto.stats()["break_reasons"]


def test_size_of_a_storage_is_handed_on() -> None:
    def program(x: torch.Tensor) -> Any:
        y = x * 2
        return y, y.untyped_storage().nbytes(), x.untyped_storage().size()

    compiled = magneto.compile(program, fullgraph=True)
    for x in (dense(0, 3, 4), dense(0, 5, 4), dense(0, 5, 4)[1:], dense(0, 7, 4)):
        assert_same(compiled(x), program(x))


def test_storage_that_is_looked_at_is_a_side_exit() -> None:
    def program(x: torch.Tensor) -> Any:
        y = x * 2
        return y + 1 if y.untyped_storage().nbytes() > 60 else y

    compiled = magneto.compile(program)
    for x in (dense(0, 3, 4), dense(0, 5, 4)):
        assert_same(compiled(x), program(x))
    assert magneto.stats()["break_reasons"]


def test_gradients_of_torch_calls_run_under_cpython() -> None:
    def run(function: Callable[..., Any]) -> Any:
        x = jagged(0).detach().requires_grad_()
        function(x).values().square().sum().backward()
        return parts(x.grad)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    assert_same(run(magneto.compile(program, backend="eager")), run(program))
    assert magneto.stats()["break_reasons"]


def narrowed(x: torch.Tensor, starts: torch.Tensor, lengths: torch.Tensor) -> Any:
    part = torch.nested.narrow(x, 1, starts, lengths, layout=torch.jagged)
    return part * 2, part.values() + 1


def test_narrow() -> None:
    compiled = magneto.compile(narrowed)
    for call in range(4):
        given = dense(call, 3, 9, 4), torch.tensor([0, 2, call]), torch.tensor([4, 5 - call, 3])
        expected = parts(narrowed(*given))
        assert_same(parts(compiled(*given)), expected)
    assert not magneto.stats()["break_reasons"] and magneto.stats()["recompiles"] <= 1


def test_narrow_to_all_there_is_and_to_too_much() -> None:
    compiled = magneto.compile(narrowed)
    x = dense(0, 2, 9, 4)
    for starts, lengths in (([0, 0], [9, 9]), ([1, 0], [2, 3]), ([0, 0], [9, 4])):
        given = x, torch.tensor(starts), torch.tensor(lengths)
        assert_same(parts(compiled(*given)), parts(narrowed(*given)))
    for function in (compiled, narrowed):
        with pytest.raises(RuntimeError, match="broadcast"):
            function(x, torch.tensor([0, 1, 2]), torch.tensor([1, 1, 1]))
