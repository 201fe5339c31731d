"""Memory of results, of what a forward saves, and of large intermediates in training (src/runtime/device/memory_pool.h)."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

import magneto


def test_blocks_that_live_are_nobody_elses() -> None:
    """Results of many sizes, dropped in any order: each stays what it was made as."""
    compiled = magneto.compile(lambda x, n: x.expand(n, 1024) * 1, dynamic=True)
    choose = random.Random(0)
    held: dict[int, torch.Tensor] = {}
    for number in range(400):
        rows = choose.choice([33, 64, 65, 100, 300, 777])
        held[number] = compiled(torch.full((1, 1024), float(number)), rows)
        for dead in choose.sample(sorted(held), k=choose.randint(0, min(3, len(held)))):
            block = held.pop(dead)
            assert block.eq(dead).all()
    for number, block in held.items():
        assert block.eq(number).all()


def test_what_is_free_is_no_more_than_was_used_at_once() -> None:
    """Blocks of sizes that don't fit into each other: pages of the ones are given back for the others."""
    magneto.reset()
    compiled = magneto.compile(lambda x: x + 1, dynamic=True)
    megabyte = torch.zeros(1 << 18)

    def calls() -> None:
        for count in (1, 2, 3, 5, 7, 11, 6, 10, 4):
            compiled(megabyte.repeat(count))

    # On a thread for which no backward is to come: the arguments would be the pool's, too.
    thread = threading.Thread(target=calls)
    thread.start()
    thread.join()
    gc.collect()
    held = magneto.stats()["memory"]["outputs"]
    assert held <= 12 << 20


def test_blocks_from_many_threads() -> None:
    compiled = magneto.compile(lambda x: x * 2)
    compiled(torch.ones(100_000))
    wrong = []

    def work(value: float) -> None:
        x = torch.full((100_000,), value)
        kept = [compiled(x) for _ in range(20)]
        for _ in range(50):
            kept.pop(0)
            kept.append(compiled(x))
        wrong.extend(each for each in kept if not each.eq(2 * value).all())

    threads = [threading.Thread(target=work, args=(float(value),)) for value in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def step_of(model: nn.Module, forward: Callable[..., torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    forward(x).square().mean().backward()
    return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh(), nn.LayerNorm(64))))


def test_results_that_are_kept_are_not_taken_over() -> None:
    """What the caller holds of a forward is what it was, when the backward has run in the memory of what nobody holds."""

    def forward(model: nn.Module, x: torch.Tensor, kept: list[torch.Tensor]) -> torch.Tensor:
        for layer in model:  # type: ignore[attr-defined]
            x = layer(x)
            kept.append(x)
        return x

    model, x = network(), torch.randn(2048, 64)
    compiled = magneto.compile(forward)
    for _ in range(3):
        kept: list[torch.Tensor] = []
        wanted: list[torch.Tensor] = []
        eager = step_of(model, lambda x: forward(model, x, wanted), x)  # noqa: B023
        ours = step_of(model, lambda x: compiled(model, x, kept), x)  # noqa: B023
        torch.testing.assert_close(ours, eager)
        torch.testing.assert_close(kept, wanted)


def test_a_backward_that_is_not_the_last_leaves_what_is_saved() -> None:
    model, x = network(), torch.randn(2048, 64)
    compiled = magneto.compile(model)
    loss = compiled(x).square().mean()
    first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    second = torch.autograd.grad(loss, list(model.parameters()))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_a_profiler_does_not_change_what_later_kernels_read() -> None:
    """A product that is a result, too: under a profiler it is made elsewhere."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        product = x @ y
        return product, product.relu() + 1

    x, y = torch.randn(300, 300), torch.randn(300, 300)
    compiled = magneto.compile(program)
    compiled(x, y)
    with torch.profiler.profile():
        found = compiled(x, y)
    torch.testing.assert_close(found, program(x, y))


PEAKS = """
    import os, sys
    import torch, magneto
    from torch import nn

    def in_use():
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") - sum(magneto.stats()["memory"].values())

    def peak(call):
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        call()
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))

    torch.set_num_threads(1)
    block = lambda: (nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256), nn.LayerNorm(256))
    model, x = nn.Sequential(*(layer for _ in range(6) for layer in block())), torch.randn(4096, 256)

    def step(forward):
        model.zero_grad()
        forward(x).square().mean().backward()

    compiled = magneto.compile(model)
    for forward in (model, compiled):
        step(forward), step(forward)
        model.zero_grad()
        before = in_use()
        print(peak(lambda: step(forward)) - before)
"""


def test_a_step_takes_no_more_memory_than_eagers() -> None:
    """Of the process, beside what it had: activations, gradients, intermediates. With the memory that programs hold."""
    found = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(PEAKS)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"},
    )
    eager, ours = map(int, found.stdout.split())
    assert ours < 1.05 * eager + (4 << 20), f"{ours >> 20} MB, eager {eager >> 20}"


def test_a_loss_in_eager_finds_free_pages() -> None:
    """What a thread allocates between its forward and the backward comes from the pool, and lives as long as it is held;
    what another thread allocates does not."""
    model, x = network(), torch.randn(2048, 64)
    compiled = magneto.compile(model)
    compiled(x).square().mean().backward()
    kept: list[torch.Tensor] = []

    def make(number: int) -> None:
        kept.append(torch.full((300, 300), float(number)))

    def elsewhere(number: int) -> None:
        thread = threading.Thread(target=make, args=(number,))
        thread.start()
        thread.join()

    def takes_from_pool(call: Callable[[int], None], number: int) -> bool:
        before = magneto.stats()["memory"]["outputs"]
        call(number)
        return before - magneto.stats()["memory"]["outputs"] >= 300 * 300 * 4

    for number in range(3):
        loss = compiled(x).square().mean()
        assert takes_from_pool(make, number)
        assert not takes_from_pool(elsewhere, number)
        loss.backward()
        make(number)  # whether from the pool depends on other backwards that are to come
    del loss
    model.zero_grad()
    for place, tensor in enumerate(kept):
        assert tensor.eq(place // 3).all()
        assert tensor.resize_(500, 500).flatten()[: 300 * 300].eq(place // 3).all()
