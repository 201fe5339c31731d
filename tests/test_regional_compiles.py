"""Equal blocks that are compiled one by one: one capture serves them all, and each has a limit of its own."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import magneto


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.scale = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x)))) * self.scale


class Convolution(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x)).relu()


class Breaking(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x) * self.scale
        print(end="")
        return self.down(self.up(y)) + x


class Counting(Block):
    """Writes to itself, and draws."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen += x.detach().sum(0)
        return F.dropout(self.up(x), 0.5, self.training)


WAYS: dict[str, Callable[..., list[Any]]] = {
    "of modules": lambda blocks, **how: [magneto.compile(block, **how) for block in blocks],
    "of forward": lambda blocks, **how: [magneto.compile(block.forward, **how) for block in blocks],
    "in place": lambda blocks, **how: [
        setattr(block, "_compiled_call_impl", magneto.compile(block._call_impl, **how)) or block for block in blocks
    ],
}


def made(kind: type[nn.Module], count: int = 6) -> list[nn.Module]:
    torch.manual_seed(1)
    return [kind().eval() for _ in range(count)]


def check(blocks: list[nn.Module], compiled: list[Any], x: torch.Tensor, rounds: int = 3) -> None:
    """One behind the other, and each alone; twins that run in eager tell what is right."""
    twins = copy.deepcopy([block for block in blocks])
    for twin in twins:
        twin._compiled_call_impl = None
    for _ in range(rounds):
        for block, twin in zip(compiled, twins, strict=True):
            torch.manual_seed(5)
            got = block(x)
            torch.manual_seed(5)
            torch.testing.assert_close(got, twin(x))
            assert got.requires_grad == torch.is_grad_enabled()
    for block, twin in zip(blocks, twins, strict=True):
        torch.testing.assert_close(dict(block.named_buffers()), dict(twin.named_buffers()))
        assert getattr(block, "calls", 0) == getattr(twin, "calls", 0)


@pytest.mark.parametrize("backend", ["magneto", "aot_eager", "eager"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_equal_blocks_cost_one_capture(way: str, grad: bool, backend: str) -> None:
    blocks = made(Block)
    with torch.set_grad_enabled(grad):
        check(blocks, WAYS[way](blocks, backend=backend, fullgraph=True), torch.randn(4, 8))
    stats = magneto.stats()
    assert (stats["frames"], stats["graphs"], stats["shared_captures"]) == (1, 1, 5)
    assert stats["joint_graphs"] == (grad and backend != "eager") and not stats["recompiles"]


def test_each_block_has_its_own_gradients() -> None:
    blocks = made(Block, 3)
    twins = copy.deepcopy(blocks)
    compiled = WAYS["of modules"](blocks)
    x = torch.randn(4, 8)
    for chain in (compiled, twins):
        y = x
        for block in chain:
            y = block(y)
        y.square().sum().backward()
    assert magneto.stats()["graphs"] == 2  # the first one's input requires no gradients
    for block, twin in zip(blocks, twins, strict=True):
        for mine, theirs in zip(block.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad)


def test_weights_of_convolutions_are_kept_for_each_block() -> None:
    blocks = made(Convolution)
    x = torch.randn(2, 8, 8, 8)
    with torch.no_grad():
        compiled = WAYS["of modules"](blocks)
        check(blocks, compiled, x)
        assert magneto.stats()["graphs"] == 1
        blocks[2].conv.weight.mul_(2)
        blocks[3].conv.weight.data = torch.randn(8, 8, 3, 3)
        check(blocks, compiled, x)
    assert magneto.stats()["graphs"] == 1


def test_segments_behind_breaks_are_shared() -> None:
    blocks = made(Breaking)
    with torch.no_grad():
        check(blocks, WAYS["of modules"](blocks), torch.randn(4, 8))
    stats = magneto.stats()
    assert stats["breaks"] == 1 and stats["shared_captures"] == 5 * stats["frames"]


def test_effects_are_each_blocks_own() -> None:
    blocks = [block.train() for block in made(Counting)]
    with torch.no_grad():
        check(blocks, WAYS["of modules"](blocks), torch.randn(4, 8))
    assert magneto.stats()["frames"] < 6 and len({id(block.seen) for block in blocks}) == 6


def change_scale(block: nn.Module) -> None:
    block.scale = 3


def change_dtype(block: nn.Module) -> None:
    block.norm.eps = 1e-3
    block.up.bias = None


def change_hook(block: nn.Module) -> None:
    block.up.register_forward_hook(lambda module, args, result: result * 3)


def change_forward(block: nn.Module) -> None:
    block.forward = lambda x: x * 7


def change_class(block: nn.Module) -> None:
    block.up = nn.Sequential(nn.Linear(8, 16), nn.Tanh())


def tie_weights(block: nn.Module) -> None:
    block.norm.bias = block.norm.weight


@pytest.mark.parametrize("change", [change_scale, change_dtype, change_hook, change_forward, change_class, tie_weights])
@pytest.mark.parametrize("first", [True, False])
def test_blocks_that_differ(change: Callable[[nn.Module], None], first: bool) -> None:
    """The odd one out has its own capture, whichever is captured first, and also if it becomes odd later."""
    blocks = made(Block, 4)
    change(blocks[0 if first else 2])
    compiled = WAYS["of modules"](blocks)
    with torch.no_grad():
        check(blocks, compiled, torch.randn(4, 8))
        assert (magneto.stats()["graphs"], magneto.stats()["shared_captures"]) == (2, 2)
        change(blocks[3])
        check(blocks, compiled, torch.randn(4, 8))
        check(blocks, compiled, torch.randn(5, 8))


def test_what_differs_besides_guards() -> None:
    """Options, settings and marks: captures under others are not taken."""
    x, alive = torch.randn(4, 8), []

    def captures(make: Callable[[nn.Module], Any]) -> int:
        before = magneto.stats()["frames"]
        block = make(Block().eval())
        alive.append(block)
        with torch.no_grad():
            torch.testing.assert_close(block(x), getattr(block, "_orig_mod", block)(x))
        return magneto.stats()["frames"] - before

    assert captures(magneto.compile) == 1 and captures(magneto.compile) == 0
    assert captures(lambda block: magneto.compile(block, dynamic=True)) == 1
    assert captures(lambda block: magneto.compile(block, fullgraph=True)) == 1
    assert captures(lambda block: magneto.compile(block, options={"deterministic": True})) == 1
    assert captures(lambda block: magneto.compile(block, options={"deterministic": True})) == 0
    with magneto.config.patch(automatic_dynamic_shapes=False):
        assert captures(magneto.compile) == 1
    assert captures(magneto.compile) == 0
    magneto.allow_in_graph(lambda x: x)
    assert captures(magneto.compile) == 1
    magneto.reset()
    assert captures(magneto.compile) == 1


def test_what_is_promised_constant_is_so_for_its_own_block() -> None:
    class Constant(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.value = [value]

        @magneto.assume_constant_result
        def read(self) -> float:
            return self.value[0]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.read()

    x = torch.ones(3)
    for value in (1.0, 2.0, 3.0):
        assert torch.equal(magneto.compile(Constant(value))(x), x * value)


class Many(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kind = "a"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * len(self.kind)


@pytest.mark.parametrize("way", WAYS)
def test_each_object_has_its_own_limit(way: str) -> None:
    """Captures of one don't use up another's, nor do those it has taken over use up the one they come from."""
    blocks = [Many() for _ in range(4)]
    x = torch.ones(3)
    with magneto.config.patch(cache_size_limit=3):
        compiled = WAYS[way](blocks, fullgraph=True, dynamic=False)
        for block, run in zip(blocks, compiled, strict=True):
            for kind in ("a", "bb", "ccc"):
                block.kind = kind
                assert torch.equal(run(x), x * len(kind))
        assert magneto.stats()["frames"] == 3 and magneto.stats()["shared_captures"] == 9
        for block, run in zip(blocks, compiled, strict=True):
            block.kind = "dddd"
            with pytest.raises(magneto.exc.FailOnRecompileLimitHit, match="cache_size_limit"):
                run(x)
        fresh = Many()
        (run,) = WAYS[way]([fresh], fullgraph=True, dynamic=False)
        fresh.kind = "dddd"
        assert torch.equal(run(x), x * 4)


def test_accumulated_limit_is_the_objects_own() -> None:
    blocks = [Many() for _ in range(6)]
    x = torch.ones(3)
    with magneto.config.patch(accumulated_cache_size_limit=2):
        compiled = [magneto.compile(block, dynamic=False, fullgraph=True) for block in blocks]
        for index, (block, run) in enumerate(zip(blocks, compiled, strict=True)):
            block.kind = "x" * index
            assert torch.equal(run(x), x * index)


def test_more_kinds_of_blocks_than_are_tried() -> None:
    blocks = [Many() for _ in range(60)]
    x = torch.ones(3)
    for index, block in enumerate(blocks):
        block.kind = "x" * (index % 30)
    compiled = WAYS["of modules"](blocks)
    for _ in range(2):
        for index, run in enumerate(compiled):
            assert torch.equal(run(x), x * (index % 30))


def test_blocks_come_and_go() -> None:
    """A copy outlives what it was copied from, and nothing is kept alive."""
    x = torch.randn(4, 8)
    with torch.no_grad():
        blocks = made(Block, 3)
        compiled = WAYS["in place"](blocks)
        check(blocks, compiled, x)
        gone = [weakref.ref(block) for block in blocks[:2]]
        del blocks[0], compiled[0], blocks[0], compiled[0]
        gc.collect()
        assert [ref() for ref in gone] == [None, None]
        check(blocks, compiled, x)
        more = made(Block, 2)
        check(more, WAYS["in place"](more), x)
    assert magneto.stats()["frames"] == 1
    last = weakref.ref(blocks[0])
    del blocks, compiled, more
    gc.collect()
    assert last() is None
    with torch.no_grad():
        again = made(Block, 2)
        check(again, WAYS["in place"](again), x)
    assert magneto.stats()["frames"] == 2


def test_dynamic_sizes_are_found_once() -> None:
    blocks = made(Block, 4)
    compiled = WAYS["of modules"](blocks)
    with torch.no_grad():
        for rows in (4, 5, 6, 7):
            check(blocks, compiled, torch.randn(rows, 8), rounds=1)
    assert magneto.stats()["frames"] == 2


def test_explain_sees_its_own_capture() -> None:
    blocks = made(Block, 2)
    with torch.no_grad():
        WAYS["of modules"](blocks)[0](torch.randn(4, 8))
        assert magneto.explain(blocks[1], torch.randn(4, 8)).graph_count == 1
