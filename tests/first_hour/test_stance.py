"""magneto.set_stance and magneto.is_compiling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compare import assert_same

import magneto

X = torch.linspace(-1, 1, 6)


def program(x: torch.Tensor, scale: int = 2) -> torch.Tensor:
    return x.sin() * scale


def captures() -> int:
    return magneto.stats()["frames"]


def test_force_eager() -> None:
    compiled = magneto.compile(program)
    with magneto.set_stance("force_eager"):
        assert_same(compiled(X), program(X))
        assert captures() == 0
    compiled(X)
    assert captures() == 1
    with magneto.set_stance("force_eager"):
        seen = []
        magneto.compile(lambda x: seen.append(magneto.is_compiling()))(X)
        assert seen == [False]
    assert captures() == 1


def test_eager_on_recompile() -> None:
    compiled = magneto.compile(program)
    compiled(X)
    with magneto.set_stance("eager_on_recompile"):
        hits = magneto.stats()["cache_entries"]
        assert_same(compiled(X), program(X))
        assert_same(compiled(X[:3]), program(X[:3]))
        assert_same(compiled(X, 5), program(X, 5))
        assert magneto.stats()["cache_entries"] == hits
        assert magneto.stats()["recompiles"] == 0
    assert_same(compiled(X, 5), program(X, 5))
    assert captures() == 2


def test_fail_on_recompile() -> None:
    compiled = magneto.compile(program)
    with magneto.set_stance("fail_on_recompile"):
        with pytest.raises(magneto.exc.RecompileError, match=r"program .*test_stance.py.* not been captured"):
            compiled(X)
    compiled(X)
    with magneto.set_stance("fail_on_recompile"):
        assert_same(compiled(X), program(X))
        with pytest.raises(magneto.exc.RecompileError, match=r"fail_on_recompile.*\n(.|\n)*size mismatch at index 0"):
            compiled(X[:3])
        with pytest.raises(RuntimeError):
            compiled(X, 5)
    assert_same(compiled(X[:3]), program(X[:3]))


def test_stance_behind_a_side_exit() -> None:
    def breaking(x: torch.Tensor, scale: int) -> torch.Tensor:
        y = x.sin()
        print(end="")
        return y * scale

    compiled = magneto.compile(breaking)
    compiled(X, 2)
    with magneto.set_stance("eager_on_recompile"):
        assert_same(compiled(X, 3), breaking(X, 3))
    with magneto.set_stance("fail_on_recompile"):
        assert_same(compiled(X, 2), breaking(X, 2))
        with pytest.raises(magneto.exc.RecompileError, match="breaking"):
            compiled(X, 3)
    assert_same(compiled(X, 3), breaking(X, 3))


def test_as_a_call_it_holds_until_the_next_one() -> None:
    compiled = magneto.compile(program)
    try:
        magneto.set_stance("force_eager")
        compiled(X)
        assert captures() == 0
    finally:
        magneto.set_stance("default")
    compiled(X)
    assert captures() == 1


def test_as_a_decorator() -> None:
    compiled = magneto.compile(program)

    @magneto.set_stance("force_eager")
    def eagerly(x: torch.Tensor) -> torch.Tensor:
        """Doc."""
        return compiled(x)

    assert (eagerly.__name__, eagerly.__doc__) == ("eagerly", "Doc.")
    compiled(X)
    assert captures() == 1
    assert_same(eagerly(X[:2]), program(X[:2]))
    assert captures() == 1
    compiled(X[:2])
    assert captures() == 2


def test_nested_and_left_by_an_exception() -> None:
    compiled = magneto.compile(program)
    with pytest.raises(KeyError):
        with magneto.set_stance("force_eager"):
            with magneto.set_stance("default"):
                compiled(X)
            assert captures() == 1
            compiled(X[:1])
            assert captures() == 1
            raise KeyError
    compiled(X[:1])
    assert captures() == 2


def test_one_object_for_several_blocks() -> None:
    compiled = magneto.compile(program)
    stance = magneto.set_stance("force_eager")
    with stance:
        compiled(X)
    with stance:
        compiled(X)
    assert captures() == 0
    compiled(X)
    assert captures() == 1


def test_modules_follow_the_stance() -> None:
    module = magneto.compile(torch.nn.Linear(6, 2))
    with magneto.set_stance("force_eager"):
        module(X)
    assert captures() == 0


def test_set_inside_a_compiled_function() -> None:
    def inside(x: torch.Tensor) -> Any:
        seen = [magneto.is_compiling()]
        y = x.sin()
        with magneto.set_stance("force_eager"):
            y = y + 1
            seen.append(magneto.is_compiling())
        return y.cos(), seen

    compiled = magneto.compile(inside)
    for _ in range(2):
        y, seen = compiled(X)
        assert_same(y, (X.sin() + 1).cos())
        assert seen == [True, False]
    compiled = magneto.compile(program)
    before = captures()
    compiled(X)
    assert captures() == before + 1  # the stance is back


def test_unknown_stance_names_the_known_ones() -> None:
    with pytest.raises(magneto.exc.InvalidName, match="'force_eager'") as caught:
        magneto.set_stance("force-eager")
    assert "'fail_on_recompile'" in str(caught.value)
    compiled = magneto.compile(program)
    compiled(X)
    assert captures() == 1


# -- is_compiling ---------------------------------------------------------------------------------------------------------


def test_is_compiling_chooses_a_path() -> None:
    def choosing(x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return x + 1
        return x - 1

    assert not torch.compiler.is_compiling() and not magneto.is_compiling()
    assert torch.equal(magneto.compile(choosing, fullgraph=True)(X), X + 1)
    assert torch.equal(choosing(X), X - 1)


@pytest.mark.parametrize(
    "ask",
    [magneto.is_compiling, torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling, torch._utils.is_compiling],
)
def test_all_ways_to_ask(ask: Any) -> None:
    assert not ask()
    assert torch.equal(magneto.compile(lambda x: x + ask(), fullgraph=True)(X), X + 1)


def test_is_exporting_and_scripting_are_false() -> None:
    def asking(x: torch.Tensor) -> Any:
        return x + 1, torch.compiler.is_exporting(), torch.jit.is_scripting(), torch.jit.is_tracing()

    assert_same(magneto.compile(asking, fullgraph=True)(X), asking(X))


def test_in_the_middle_of_a_program() -> None:
    """Captured code is True all along; what CPython runs for real is not compiled, and says so."""

    def middle(x: torch.Tensor) -> Any:
        before = magneto.is_compiling()
        print(end="")
        return x + 1, before, magneto.is_compiling(), sorted([1], key=lambda _: magneto.is_compiling())

    _, *seen = magneto.compile(middle)(X)
    assert seen == [True, True, [1]]
    outside: list[bool] = []
    compiled = magneto.compile(lambda x: (x, magneto.disable(lambda: outside.append(magneto.is_compiling()))()))
    compiled(X)
    assert outside == [False]
