"""Backwards inside DistributedDataParallel are cut at its buckets: what may happen between two parts, and what is not
cut. The exchange on two processes: tests/test_distributed.py."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import magneto
from magneto._install import compiled_autograd

if not distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)


@pytest.fixture(autouse=True)
def _process() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    magneto.reset()
    yield
    distributed.destroy_process_group()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


def nets(make: Callable[[], nn.Module] = Net, backend: str = "magneto") -> tuple[Any, Any]:
    """The same model in eager and compiled, each weight more than a bucket."""
    torch.manual_seed(0)
    eager = DistributedDataParallel(make(), bucket_cap_mb=0.0009)
    torch.manual_seed(0)
    return eager, magneto.compile(DistributedDataParallel(make(), bucket_cap_mb=0.0009), backend=backend)


def parameters(net: Any) -> list[nn.Parameter]:
    return list(net.parameters())


def all_gradients(result: torch.Tensor, net: Any) -> list[torch.Tensor]:
    result.sum().backward()
    return [p.grad for p in parameters(net)]


def kept(result: torch.Tensor, net: Any) -> list[torch.Tensor]:
    result.sum().backward(retain_graph=True)
    result.sum().backward()
    return [p.grad for p in parameters(net)]


def some(result: torch.Tensor, net: Any) -> list[torch.Tensor]:
    first, last = parameters(net)[0], parameters(net)[-1]
    return [
        torch.autograd.grad(result.sum(), of, retain_graph=True)[0] for of in (first, last, first, last, first, last)
    ]


def of_gradients(result: torch.Tensor, net: Any) -> list[torch.Tensor]:
    gradients = torch.autograd.grad(result.square().sum(), parameters(net), create_graph=True)
    return list(torch.autograd.grad(sum(g.square().sum() for g in gradients), parameters(net)))


def twice(result: torch.Tensor, net: Any) -> list[torch.Tensor]:
    result.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        result.sum().backward()
    return [p.grad for p in parameters(net)]


@pytest.mark.parametrize("backend", ["magneto", "aot_eager"])
@pytest.mark.parametrize("backward", [all_gradients, kept, some, of_gradients, twice])
def test_parts_give_what_the_whole_gives(backward: Callable[[Any, Any], list[torch.Tensor]], backend: str) -> None:
    found = []
    for net in nets(backend=backend):
        with net.no_sync():  # some of the calls that DDP itself has no use for
            for rows in (3, 5, 7):
                result = net(torch.linspace(-1, 1, 16 * rows).view(rows, 16))
                found.append([g.clone() for g in backward(result, net)])
    for expected, got in zip(found[:3], found[3:], strict=True):
        torch.testing.assert_close(got, expected)
    assert magneto.stats()["bucket_parts"] == 6  # of the sizes that came first, and of all others


def test_hooks_write_what_has_its_gradient() -> None:
    """Each weight changes while the backward runs; no part reads it behind that."""

    def clear(parameter: torch.Tensor) -> None:
        (parameter.data if parameter.dim() == 1 else parameter.detach()).zero_()

    found = []
    for net in nets():
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(clear)
        net(torch.linspace(-1, 1, 48).view(3, 16)).sum().backward()
        found.append([p.grad for p in net.parameters()])
        assert all(not parameter.any() for parameter in net.parameters())
    torch.testing.assert_close(found[1], found[0])


def test_a_hook_writes_what_is_still_to_be_read() -> None:
    """Eager's error, and the next backward is as if nothing had been."""
    found = []
    for net in nets():
        read, last = parameters(net)[2], parameters(net)[-1]  # the first layer's weight is not read

        def write(_: torch.Tensor, weight: torch.Tensor = read) -> None:
            weight.detach().mul_(1)

        hook = last.register_post_accumulate_grad_hook(write)
        with net.no_sync():
            with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
                net(torch.ones(3, 16)).sum().backward()
            hook.remove()
            net.zero_grad()
            net(torch.ones(3, 16)).sum().backward()
        found.append([p.grad for p in net.parameters()])
    torch.testing.assert_close(found[1], found[0])


def test_a_hook_raises_between_two_parts() -> None:
    _, net = nets()
    alive = []

    def fail(gradient: torch.Tensor) -> None:
        raise ValueError("no")

    hook = parameters(net)[-1].register_hook(fail)
    for _ in range(3):
        with net.no_sync(), pytest.raises(ValueError, match="no"):
            net(torch.ones(3, 16)).sum().backward()
        alive.append(sum(1 for _ in net.parameters()))
    hook.remove()
    net(torch.ones(3, 16)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_gradients_are_taken_not_copied() -> None:
    """A gradient belongs to its leaf alone when the backward is over."""
    _, net = nets()
    given: list[int] = []
    for parameter in net.parameters():
        parameter.register_hook(lambda gradient: given.append(gradient.data_ptr()))
    with net.no_sync():
        net(torch.ones(3, 16)).sum().backward()
    assert sorted(given) == sorted(p.grad.data_ptr() for p in net.parameters())


class Shared(Net):
    """One weight, read last by the first operators: nothing is complete before the end."""

    def __init__(self) -> None:
        super().__init__()
        for layer in self.layers:
            layer.weight, layer.bias = self.layers[0].weight, self.layers[0].bias  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (Net, 3),
        (Shared, 0),
        (lambda: nn.Sequential(nn.Embedding(9, 32), nn.Linear(32, 32), nn.BatchNorm1d(32)), 2),
    ],
    ids=["three layers", "one weight", "embedding"],
)
def test_how_many_parts(make: Callable[[], nn.Module], parts: int) -> None:
    found = []
    for net in nets(make):
        like = torch.arange(9) if "Embedding" in str(net) else torch.linspace(-1, 1, 48).view(3, 16)
        net(like).sin().sum().backward()  # (the squares of what is normalised have no gradient but rounding)
        found.append([p.grad for p in net.parameters()])
    torch.testing.assert_close(found[1], found[0])
    assert magneto.stats()["bucket_parts"] == parts


@pytest.mark.skipif(
    "bucket_cap_mb_list" not in inspect.signature(DistributedDataParallel.__init__).parameters,
    reason="this PyTorch's buckets have one size but the first",
)
@pytest.mark.parametrize(("sizes", "parts"), [([0.003], 6), ([0.003, 0.007], 4), ([0.011, 0.003], 4)])
def test_buckets_of_given_sizes(sizes: list[float], parts: int) -> None:
    """Six weights of 4 KiB."""
    net = nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(6)))
    parallel = DistributedDataParallel(net, bucket_cap_mb_list=sizes)
    magneto.compile(parallel)(torch.ones(3, 32)).sum().backward()
    assert magneto.stats()["bucket_parts"] == parts


def test_two_models_of_one_function() -> None:
    """Each fills buckets of its own."""
    found = []
    for compile in (lambda f: f, magneto.compile):
        torch.manual_seed(0)
        first, second = (DistributedDataParallel(Net(), bucket_cap_mb=0.0009) for _ in range(2))
        step = compile(lambda x, first=first, second=second: second(first(x)).square())
        step(torch.linspace(-1, 1, 48).view(3, 16)).mean().backward()
        found.append([p.grad for net in (first, second) for p in net.parameters()])
    torch.testing.assert_close(found[1], found[0])
    assert magneto.stats()["bucket_parts"] == 6


def test_compiled_autograd_calls_parts_in_their_places() -> None:
    """What is behind the compiled function is a program of its own."""
    found = []
    try:
        for compiles, net in zip((False, True), nets(), strict=True):
            compiled_autograd.set_everywhere(compiles)
            order: list[int] = []
            for i, parameter in enumerate(net.parameters()):
                parameter.register_hook(lambda gradient, i=i: order.append(i // 2))
            net(torch.linspace(-1, 1, 48).view(3, 16)).square().sum().backward()
            found.append([p.grad for p in net.parameters()])
            assert order == [2, 2, 1, 1, 0, 0]
    finally:
        compiled_autograd.give_back()
    torch.testing.assert_close(found[1], found[0])
    assert magneto.stats()["whole_backwards"] == 1 and not magneto.stats()["eager_backwards"]


def test_nothing_is_cut_elsewhere() -> None:
    net = magneto.compile(Net())
    net(torch.ones(3, 16)).sum().backward()
    stats = magneto.stats()
    assert stats["joint_graphs"] == 1 and stats["bucket_parts"] == 0


def test_the_log_says_what_is_in_each_part(caplog: pytest.LogCaptureFixture) -> None:
    torch._logging.set_logs(aot_joint_graph=True)  # type: ignore[attr-defined]
    try:
        _, net = nets()
        net(torch.ones(3, 16)).sum().backward()
    finally:
        torch._logging.set_logs()  # type: ignore[attr-defined]
    lines = [line for line in caplog.text.splitlines() if "DistributedDataParallel exchanges" in line]
    assert [line.partition(":")[0].rpartition("part")[2] for line in lines] == [" 1 of 3", " 2 of 3", " 3 of 3"]
